"""Puts the pages of the documentation into a wheel, as `ooctrain/docs`.

Hatch calls the hook when it builds (`pyproject.toml`). A wheel gets the pages as they are written,
and their pictures: about 1 MB, 0.4 MB of the wheel. `ooctrain docs` reads them there. What Sphinx
makes of them stays outside. Read next: `ooctrain/course/pages.py`.
"""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KINDS = ("*.md", "howto/*.md", "pictures/*")


class PagesInWheel(BuildHookInterface):
    """Names each page, as Hatch takes files and whole folders, and no patterns."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict) -> None:
        if version == "editable":
            return
        docs = Path(self.root) / "docs"
        for kind in KINDS:
            for page in sorted(docs.glob(kind)):
                name = page.relative_to(docs).as_posix()
                build_data["force_include"][str(page)] = f"ooctrain/docs/{name}"
