"""Sources and pages say things plainly: some turns of phrase that make a reader stop are not used.

Each pattern stands for a way in which a sentence hides what it is about: a relative clause without
a noun, "none" where a thing and its fault should be named, an amount that is not named.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: {what is not written: (what is written in its place, a sentence that it must find)}
RIDDLES = {
    r"\b[Ww]hom?ever\b": ("the caller, the reader", "whoever asks for it"),
    r"\bso many\b": ("this many, or the name of the number", "a deadline so many seconds before"),
    r"\bto be had\b": ("available", "virtual addressing is not to be had"),
    r"\bin the midst\b": ("during", "it ended in the midst of a step"),
    r"\bin the place of\b": ("instead of", "a name in the place of a file"),
    r"\b(?:is|are) none\b(?! of)": ("is not a ...", "device 'x' is none"),
    r"\bmeans nothing\b": ("is not a known ...", "split: 'x' means nothing"),
    r"\bthat there (?:is|are) not\b": ("unknown", "a mode that there is not"),
    r"\bway of the (?:data|batch)\b": ("data flow, copy", "the way of the data, file by file"),
}
#: Between two words: a space, or a new line of text, of a comment or of a quoted string.
BETWEEN = r"(?:\s+(?:#:?\s+)?|\"\s+f?\")"
#: "there is none" is plain English.
THERE = re.compile(r"[Tt]here\s+(?:#:?\s+)?$")
#: Compiled kernels are kept by the text of their files, so words there wait for the next change.
WAITING = "ooctrain/layers/kernels/"


def texts() -> dict[Path, str]:
    """Sources that are installed, tutorials, pages."""
    sources = [p for p in (ROOT / "ooctrain").rglob("*.py") if WAITING not in p.as_posix()]
    lessons = [p for kind in ("*.py", "*.md") for p in (ROOT / "tutorials").rglob(kind)]
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "ooctrain").rglob("*.md"),
        *ROOT.glob("[CRS]*.md"),
    ]
    pages = [page for page in pages if "_generated" not in page.parts]
    return {path: path.read_text(encoding="utf-8") for path in (*sources, *lessons, *pages)}


def riddles_in(text: str) -> list[str]:
    """What of a text should be said plainly, with what stands around it."""
    return [
        f"...{text[max(0, found.start() - 40) : found.end() + 20]}... -> {plainly}"
        for pattern, (plainly, _) in RIDDLES.items()
        for found in re.finditer(pattern.replace(" ", BETWEEN), text)
        if not THERE.search(text[: found.start()][-12:])
    ]


def test_each_pattern_finds_what_it_is_for():
    for pattern, (_, sentence) in RIDDLES.items():
        assert re.search(pattern, sentence), pattern
        assert riddles_in(f'"""It says:\n    {sentence}."""')
    assert not riddles_in("There is none. Of these, there are none of use. Many say so; many do.")


def test_sources_and_pages_say_things_plainly():
    read = texts()
    assert len(read) > 650
    found = [
        f"{path.relative_to(ROOT).as_posix()}: {riddle}"
        for path, text in read.items()
        if path.name != "CHANGELOG.md"
        for riddle in riddles_in(text)
    ]
    assert not found, "\n".join(found)
