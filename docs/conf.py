"""How Sphinx builds these pages. `tables.py` writes their tables before; Sphinx only shows them."""

import logging

from sketchfed import __version__

logging.getLogger("alembic").setLevel(logging.WARNING)  # Flower's database tells of every plug-in when it is imported

project = "sketchfed"
author = copyright = "The sketchfed authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"sketchfed {release}"

default_role = "literal"  # docstrings put names between single backticks
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
suppress_warnings = ["myst.strikethrough"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(collections\.abc|flwr|fractions|numpy|pathlib|rich|sqlite3|torch)\..*"),  # other projects' names
    ("py:class", r"sketchfed\.parts\.P"),  # the kind of part that a registry holds
]

myst_heading_anchors = 3
