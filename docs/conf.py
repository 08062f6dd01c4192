"""How Sphinx builds the pages: `make docs`."""

from __future__ import annotations

import re

from zerotprune import __version__

project = "zerotprune"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "zerotprune"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # what stands in single backticks in a docstring is code
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
# Types of other libraries, and our own that have no entry of their own: nothing to link to.
_OURS = r"zerotprune\.([A-Z]|(method|methods|tokens|tracing)\.)"
nitpick_ignore_regex = [("py:class", rf"(?!{_OURS}).*")]

_OPTION = re.compile(r"^(\w+(?:, \w+)*):\s+(?=\S)")


def _list_options(app, what, name, obj, options, lines):
    """Docstrings explain options in lines `name: what it does`; for Sphinx that is a list."""
    listing = False
    for number, line in enumerate(lines):
        found = _OPTION.match(line)
        if found and (listing or number == 0 or not lines[number - 1]):
            names = ", ".join(f"``{each}``" for each in found[1].split(", "))
            lines[number], listing = f"* {names}: {line[found.end() :]}", True
        elif listing and line.startswith(" "):
            lines[number] = f"  {line.strip()}"
        else:
            listing = False


def setup(app):
    app.connect("autodoc-process-docstring", _list_options)
