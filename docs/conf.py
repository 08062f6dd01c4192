"""How Sphinx builds the pages: `make docs`."""

from __future__ import annotations

import re

from zerotprune import __version__

project = "zerotprune"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "zerotprune"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# A comment above a block tells the tests about it; readers need not see it.
suppress_warnings = ["myst.header"]

default_role = "code"  # what stands in single backticks in a docstring is code
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
# Types of other libraries, and our own that have no entry of their own: nothing to link to.
nitpick_ignore_regex = [(r"py:(class|data|obj)", r".*")]

_OPTION = re.compile(r"^(\w+(?:, \w+)*):\s+(?=\S)")


def _options_as_fields(app, what, name, obj, options, lines):
    """Docstrings list options as `name: what it does`; for Sphinx that is `:name: …`."""
    for number, line in enumerate(lines):
        found = _OPTION.match(line)
        begins = number == 0 or not lines[number - 1].strip()
        if found and (begins or lines[number - 1].startswith((":", " "))):
            lines[number] = f":{found[1]}: {line[found.end() :]}"


def setup(app):
    app.connect("autodoc-process-docstring", _options_as_fields)
