"""Measurements behind every number in the README and the pages.

Each module says what it measures and is run from the repository's root, such as
`python -m benchmarks.tables.off_the_shelf`.
"""
