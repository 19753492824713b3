"""The pages of the documentation, as files: in a wheel, in a checkout, in a copy.

A wheel carries them as they are written, with their pictures. In a copy they lie in `docs/` inside
the folder of the lessons, so links between the two are mended on the way; a link to a file that
only a checkout has becomes its words. Read next: `lessons.py`, which copies both;
`../cli/docs_command.py`, the command.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from ooctrain.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
#: Where pages are: in an installed package, in a checkout.
PLACES = (_PACKAGE / "docs", _PACKAGE.parent / "docs")
KINDS = ("*.md", "howto/*.md", "pictures/*")
#: A link of Markdown: words, target, place within the target.
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")

#: How alike a name is that can be a slip of the keyboard; how long a word is that says something.
_NEAR, _LETTERS = 0.75, 4


def pages_folder() -> Path:
    """Where this installation has the pages.

    Raises:
        ConfigError: nowhere.
    """
    for place in PLACES:
        if (place / "index.md").is_file():
            return place
    raise ConfigError(
        "this installation has no documentation", code="OOC-108", fix="install the wheel again"
    )


def page_files() -> list[str]:
    """All files of the documentation, pictures too, below its folder."""
    folder = pages_folder()
    found = [path for kind in KINDS for path in sorted(folder.glob(kind)) if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in found]


def pages() -> dict[str, str]:
    """{name of a page, without its suffix: title}, in the order of the first page's contents."""
    folder = pages_folder()
    names = [name.removesuffix(".md") for name in page_files() if name.endswith(".md")]
    texts = {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in names}
    order = {name: place for place, name in enumerate(("index", *_contents(texts["index"])))}

    def place(name: str) -> tuple[int, bool]:
        folder = posixpath.dirname(name)  # its pages stand with its first one
        return order.get(f"{folder}/index" if folder else name, len(order)), name != "howto/index"

    names.sort(key=place)
    return {name: title_of(texts[name]) for name in names}


def _contents(text: str) -> list[str]:
    """The pages that a page's tables of contents name."""
    trees = re.findall(r"^```{toctree}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for tree in trees for line in tree.split() if not line.startswith(":")]


def title_of(text: str) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def page(name: str) -> str:
    """The text of a page.

    Args:
        name: "memory", "howto/planner"; also "memory.md" and "docs/memory.md", as texts have it.

    Raises:
        ConfigError: there is none of this name.
    """
    known, wanted = pages(), name.removeprefix("docs/").removesuffix(".md")
    if wanted not in known:
        near = " or ".join(near_pages(wanted, known))
        raise ConfigError(
            f"no page is called {name!r}", code="OOC-108",
            fix=(f"did you mean {near}? " if near else "") + "`ooctrain docs` lists them all",
        )  # fmt: skip
    return (pages_folder() / f"{wanted}.md").read_text(encoding="utf-8")


def near_pages(wanted: str, known: Mapping[str, str]) -> list[str]:
    """At most three pages that a word can mean: by their name, a slip apart, else by their title.

    Args:
        wanted: as typed: "planer", "installation".
        known: {name: title}.
    """
    word = wanted.lower().rsplit("/")[-1]
    folders = [name for name in known if name == f"{word}/index"]
    last = {name: name.rsplit("/")[-1] for name in known}
    close = difflib.get_close_matches(word, sorted(set(last.values())), n=3, cutoff=_NEAR)
    by_name = [name for part in close for name in known if last[name] == part]
    by_title = [name for name, title in known.items() if _speaks_of(title, word)]
    return list(dict.fromkeys([*folders, *by_name, *by_title]))[:3]


def _speaks_of(title: str, word: str) -> bool:
    """Whether a word of the title is this one or begins it: "installation" means "Install"."""
    words = [each for each in re.findall(r"\w+", title.lower()) if len(each) >= _LETTERS]
    return len(word) >= _LETTERS and any(
        word.startswith(each) or each.startswith(word) for each in words
    )


def mended(text: str, name: str, copied: Collection[str]) -> str:
    """A text whose links lead where files lie in a copy.

    Args:
        name: of the file in the checkout: "tutorials/00_tour.py", "docs/memory.md".
        copied: names in the checkout of all that is copied. `tutorials/` is the copy's own folder,
            `docs/` lies inside it.
    """
    folder, here = posixpath.dirname(name), posixpath.dirname(_in_copy(name))

    def link(found: re.Match[str]) -> str:
        words, target, place = found[1], found[2], found[3] or ""
        meant = posixpath.normpath(posixpath.join(folder, target))
        if meant in copied or any(each.startswith(f"{meant}/") for each in copied):
            return f"[{words}]({posixpath.relpath(_in_copy(meant), here or '.')}{place})"
        return words

    return "".join(
        _LINK.sub(link, line) if name.endswith(".md") or line.startswith("#") else line
        for line in text.splitlines(keepends=True)
    )


def without_dead_links(text: str, folder: Path) -> str:
    """A text that lies alone in a folder: a link to what is not there becomes its words."""

    def link(found: re.Match[str]) -> str:
        there = "//" in found[2] or (folder / found[2]).exists()
        return found[0] if there else found[1]

    return _LINK.sub(link, text)


def _in_copy(name: str) -> str:
    return name.removeprefix("tutorials/") if name != "tutorials" else "."
