"""Tutorials and puzzles as a gallery: pictures that lead to pages with their recorded output.

The pages are the executed notebooks that `make notebooks` leaves in `build/notebooks`; nothing is
executed while the site is built. Where a notebook is missing its page shows the script without
output. Each page offers its script, and a notebook without output, and what answers a prediction
is folded away. Read next: `notebooks.py`.
"""

from __future__ import annotations

import os
import re
from html import escape
from pathlib import Path

import nbformat
from prose import tree, with_links_to_pages

from ooctrain.course import notebooks
from ooctrain.course.lessons import Lesson, lessons

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "tutorials"
STATIC = "../../_static"  # where Sphinx puts the tutorials' pictures (conf.py)
RECORDED = ROOT / "build" / "notebooks"
EMPTY = ROOT / "build" / "empty"  # notebooks without output, to be downloaded
_GOAL = re.compile(r"\*\*Goal:\*\* (.+?)(?=\n# \*\*|\n#\n)", re.DOTALL)
STYLE = """
<style>
.lessons { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 16px; }
.lessons a { border: 1px solid var(--color-background-border, #ccc); border-radius: 6px;
  padding: 10px; text-decoration: none; color: inherit; display: block; }
.lessons img { width: 100%; height: 130px; object-fit: cover; object-position: top left;
  background: #fff; }
.lessons b { display: block; margin: 6px 0 2px; } .lessons span { font-size: 85%; opacity: .85; }
</style>
"""


def write_pages(folder: Path) -> list[str]:
    """Writes a page for each tutorial and puzzle, and the gallery."""
    cards: dict[str, list[str]] = {"tutorial": [], "puzzle": []}
    pages = []
    for lesson in lessons():
        if lesson.kind in cards:
            page = lesson.path.removesuffix(".py")
            _write_page(lesson, folder / f"{page}.ipynb")
            cards[lesson.kind].append(_card(lesson, page))
            pages.append(page)
    text = (
        "# Gallery\n\nFor students: scripts that run, with the output of a run. Read them here, or "
        "bring them to your own machine: `ooctrain tutorials copy FOLDER`, with `--notebooks` as "
        f"notebooks, too.{_wheel(folder)}\n"
        f"{STYLE}\n## Tutorials\n\n{_grid(cards['tutorial'])}\n## Puzzles\n\n"
        "Here nothing is solved: the output says what is missing.\n\n"
        f"{_grid(cards['puzzle'])}\n{tree(pages)}"
    )
    (folder / "index.md").write_text(text, encoding="utf-8")
    return pages


def _wheel(folder: Path) -> str:
    """A link to the wheel that `make notebooks` made, if it did."""
    wheels = [os.path.relpath(path, folder) for path in sorted(RECORDED.glob("ooctrain-*.whl"))]
    linked = [f" The library itself: {{download}}`its wheel <{path}>`." for path in wheels[-1:]]
    return "".join(linked)


def _write_page(lesson: Lesson, path: Path) -> None:
    recorded = RECORDED / Path(lesson.path).with_suffix(".ipynb")
    if recorded.is_file():
        book = nbformat.read(recorded, 4)
    else:
        book = nbformat.from_dict(notebooks.notebook_of(TUTORIALS / lesson.path))
    book.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python", "pygments_lexer": "python"},
    }
    book.cells = [cell for cell in book.cells if "first" not in cell.metadata.get("tags", ())]
    for cell in book.cells:
        if cell.cell_type == "markdown":  # a link from a script leads to a file, not to a page
            folder = (TUTORIALS / lesson.path).parent
            cell.source = with_links_to_pages(cell.source, folder)
        elif "answer" in cell.metadata.get("tags", ()):
            cell.metadata["tags"].append("hide-output")
    book.cells[0].source = _with_downloads(book.cells[0].source, lesson, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)


def _with_downloads(head: str, lesson: Lesson, page: Path) -> str:
    """A head with links, below its title, to the script and to the notebook without output."""
    script = TUTORIALS / lesson.path
    book = EMPTY / Path(lesson.path).with_suffix(".ipynb")
    book.parent.mkdir(parents=True, exist_ok=True)
    book.write_text(notebooks.notebook_text(script), encoding="utf-8")
    links = " or ".join(
        f"{{download}}`{what} <{Path(os.path.relpath(file, page.parent)).as_posix()}>`"
        for what, file in (("script", script), ("notebook", book))
    )
    title, _, rest = head.partition("\n")
    how = "`ooctrain tutorials copy FOLDER --notebooks` brings all of them"
    return f"{title}\n\nRun it yourself: {links}; {how}.\n{rest}"


def _card(lesson: Lesson, page: str) -> str:
    text = (TUTORIALS / lesson.path).read_text(encoding="utf-8")
    goal = _GOAL.search(text)
    told = " ".join(goal[1].replace("\n#", " ").split()) if goal else ""
    told = told[:1].upper() + told[1:]
    if lesson.minutes:
        told += f" {lesson.minutes} minutes."
    number = Path(page).name.partition("_")[0]
    pictures = sorted((TUTORIALS / "pictures").glob(f"{number}_*.svg"))
    shown = ""
    if pictures and lesson.kind == "tutorial":
        shown = f'<img src="{STATIC}/{pictures[0].name}" alt="" loading="lazy">'
    plain = escape(re.sub(r"[*`]", "", told))
    return f'<a href="{page}.html">{shown}<b>{escape(lesson.title)}</b><span>{plain}</span></a>'


def _grid(cards: list[str]) -> str:
    return '<div class="lessons">\n' + "\n".join(cards) + "\n</div>\n"
