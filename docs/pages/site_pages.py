"""All pages that are generated when the site is built, and links that lead nowhere on a site.

A page in `docs/` may link to a file of the repository: a tutorial, a puzzle, a source. On the site
a tutorial is a page of the gallery, and any other file becomes a page that shows its text. A link
whose words are a file's name gets the title of the page instead. Read next: `gallery.py`,
`planners.py`, `reference.py`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import allocators
import gallery
import planners
import reference
from prose import write
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
GENERATED = DOCS / "_generated"
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_FILE_NAME = re.compile(r"(docs/)?[\w-]+\.md")


def write_all(app: Sphinx) -> None:
    """Writes every generated page, before Sphinx looks for pages."""
    gallery.write_pages(GENERATED / "gallery")
    planners.write_pages(GENERATED / "planners")
    allocators.write_pages(GENERATED / "allocators")
    reference.write_codes(GENERATED)
    reference.write_options(GENERATED / "commands")
    reference.write_names(GENERATED / "names")
    for page in sorted([*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")]):
        for found in _LINK.finditer(page.read_text(encoding="utf-8")):
            file = (page.parent / found[2]).resolve()
            if _is_source(file):
                write(GENERATED / "source" / _page_of(file), _source_page(file))


def mend_links(app: Sphinx, page: str, text: list[str]) -> None:
    """Links of a page, as it is read: to files of the repository, and by names of files."""
    folder = (DOCS / page).parent
    if GENERATED in (DOCS / page).parents or page.endswith(".ipynb"):
        return

    def mended(found: re.Match[str]) -> str:
        words, target, place = found[1], found[2], found[3] or ""
        file = (folder / target).resolve()
        if _FILE_NAME.fullmatch(words) and file.suffix == ".md" and DOCS in file.parents:
            words = ""
        if lesson := _gallery_page(file):
            target, place = posixpath.relpath(lesson, folder.as_posix()), ""
        elif _is_source(file):
            shown = GENERATED / "source" / _page_of(file)
            target, place = posixpath.relpath(shown.as_posix(), folder.as_posix()), ""
        return f"[{words}]({target}{place})"

    text[0] = _LINK.sub(mended, text[0])


def _is_source(file: Path) -> bool:
    """A text of the repository that is not a page of the site."""
    outside = ROOT in file.parents and DOCS not in file.parents
    return outside and file.is_file() and not _gallery_page(file)


def _gallery_page(file: Path) -> str:
    """The page of a tutorial or puzzle, or the gallery itself for their READMEs; "" otherwise."""
    tutorials = ROOT / "tutorials"
    if file in (tutorials / "README.md", tutorials / "puzzles" / "README.md", tutorials):
        return (GENERATED / "gallery" / "index.md").as_posix()
    shown = (
        GENERATED / "gallery" / file.relative_to(tutorials) if tutorials in file.parents else None
    )
    if shown is None or not shown.with_suffix(".ipynb").is_file():
        return ""
    return shown.with_suffix(".ipynb").as_posix()


def _page_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix().replace(".", "_") + ".md"


def _source_page(file: Path) -> str:
    name = file.relative_to(ROOT).as_posix()
    language = {".py": "python", ".toml": "toml", ".md": "markdown"}.get(file.suffix, "text")
    text = file.read_text(encoding="utf-8")
    fence = "`" * 6
    return f"---\norphan: true\n---\n\n# {name}\n\n{fence}{language}\n{text}\n{fence}\n"
