"""Sphinx: the pages of this folder as HTML, and the library's docstrings by file."""

project = "ooctrain"
author = "the ooctrain developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_static_path = ["_static"]
html_css_files = ["print.css"]
# Links from these pages to sources and tutorials are read on the repository's own pages.
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure", "toc.not_included"]
