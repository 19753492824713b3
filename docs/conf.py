"""Sphinx: the pages of this folder, and those that are generated, as HTML.

`pages/site_pages.py` writes what is generated (the gallery, a page for each planner and allocator,
codes, options, names) into `_generated/` before Sphinx looks for pages.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "pages"))
import site_pages

project = "ooctrain"
author = "the ooctrain developers"
project_copyright = "the ooctrain developers"
extensions = ["myst_nb"]
html_theme = "furo"
html_static_path = ["../tutorials/pictures", "_static"]
html_title = "ooctrain"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
smartquotes = False  # `--data` has two hyphens
nb_execution_mode = "off"  # the gallery shows recorded output
exclude_patterns = ["_build", "pages"]
html_css_files = ["site.css", "print.css"]


def setup(app):
    """Hands Sphinx the pages that are generated."""
    app.connect("builder-inited", site_pages.write_all)
    app.connect("source-read", site_pages.mend_links)
