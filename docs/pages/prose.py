"""Docstrings as Markdown: paragraphs stay, `Args:` and the like become lists.

The library's docstrings are plain text in Google's form. On the site each section is a heading in
bold with a list below, and indented examples are blocks of code. Read next: `planners.py`, which
shows docstrings.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

SECTIONS = ("Args", "Returns", "Raises", "Attributes", "Cost", "Yields")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):(.*)$")
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (.*)$")


def docstring_of(thing: object) -> str:
    """The whole docstring, its lines flush left."""
    return inspect.cleandoc(getattr(thing, "__doc__", "") or "")


def first_sentence(thing: object) -> str:
    """What a table has room for."""
    paragraph = " ".join(docstring_of(thing).partition("\n\n")[0].split())
    return re.split(r"(?<=[.?!:]) (?=[A-Z`])", paragraph)[0]


def as_markdown(text: str) -> str:
    """A docstring as Markdown."""
    parts = []
    for title, body in _sections(text):
        if title:
            parts.append(f"**{title}**\n\n{_entries(body)}")
        else:
            parts += [_paragraph(block) for block in re.split(r"\n\s*\n", body) if block.strip()]
    return "\n\n".join(parts)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    title, lines = "", list[str]()
    for line in text.splitlines():
        if found := _SECTION.match(line):
            yield title, "\n".join(lines)
            title, lines = found[1], [found[2].strip()] if found[2].strip() else []
        elif title and line and not line.startswith(" "):
            yield title, "\n".join(lines)
            title, lines = "", [line]
        else:
            lines.append(line)
    yield title, "\n".join(lines)


def _entries(body: str) -> str:
    """`name: text` as a list; what has no name stays text."""
    found: list[str] = []
    for line in textwrap.dedent(body).splitlines():
        if not line.strip():
            continue
        if entry := _ENTRY.match(line):
            found.append(f"- `{entry[1]}`: {escaped(entry[2])}")
        elif found:
            found[-1] += f" {escaped(line.strip())}"
        else:
            found.append(escaped(line.strip()))
    return "\n".join(found)


def _paragraph(block: str) -> str:
    if block.startswith("    "):
        return f"```text\n{textwrap.dedent(block).strip()}\n```"
    return escaped(block)


def escaped(text: str) -> str:
    """Text whose stars, angle brackets and dollars mean themselves; spans of code stay."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>$\[\]|#{}~^])", r"\\\1", part)
        for part in parts
    )


def with_links_to_pages(text: str, folder: Path) -> str:
    """What a script in a folder says; a link to a file of `docs/` leads to its page, by title.

    Of a link to another file the words stay. What names no file is no link: `run[2](x)`.
    """

    def linked(found: re.Match[str]) -> str:
        words, file, place = found[1], (folder / found[2]).resolve(), found[3] or ""
        if not file.exists():
            return found[0]
        if file.suffix == ".md" and DOCS in file.parents:
            return f"[](/{file.relative_to(DOCS).as_posix()}{place})"
        return words

    return _LINK.sub(linked, text)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def write(path: Path, text: str) -> None:
    """Writes a page, unless it says the same already: Sphinx reads again only what has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


@cache
def library_digest(*own: Path) -> str:
    """Of the library's sources and of some more: what is recorded holds as long as it is the same.

    Args:
        own: the file that records, and what it reads.
    """
    found = hashlib.sha256()
    for path in [*sorted(ROOT.glob("ooctrain/**/*.py")), *own]:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def tree(pages: list[str], caption: str = "") -> str:
    """A table of contents."""
    head = f":caption: {caption}\n" if caption else ""
    return f"```{{toctree}}\n{head}:maxdepth: 1\n\n" + "\n".join(pages) + "\n```\n"
