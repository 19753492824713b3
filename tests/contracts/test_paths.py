"""Every file and folder that a docstring, a comment or a page names is there.

A name is looked up beside the file that names it, below `ooctrain/`, below its large rooms `sched/`
and `layers/kernels/`, and from the root of the repository. A moved file leaves no old name.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from support.each_file import each_file

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ooctrain"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "tutorials").rglob("*.md")),
    *sorted((ROOT / "tutorials").rglob("*.py")),
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "benchmarks").rglob("*.py")),
    ROOT / "benchmarks" / "README.md",
]
NAMED = re.compile(
    r"(?<![\w./<-])((?:\.\./)*(?:[\w-]+/)*\w+\.py|docs/[\w-]+\.md|(?:\.\./)*(?:[a-z_0-9]+/)+(?=`))"
)
#: Stand for a reader's own file, or for one that a command or another project has.
OF_OTHERS = re.compile(
    r"(^|/)(my\w*|mine|file|FILE|own|stub|script|x|answer|greedy_planner|conftest|_memory_viz|lms|"
    r"nbgrader_config)\.py$"
)


def _at_marks(text: str) -> Iterator[tuple[str, str, str]]:
    """Each line, parted where a comment may begin."""
    return (line.partition("#") for line in text.splitlines())


def said_in(path: Path) -> Iterator[tuple[str, int]]:
    """(text, line) of the docstrings and comments of a source, or of the lines of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from ((line, number) for number, line in enumerate(text.splitlines(), 1))
        return
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            yield node.value.value, node.lineno
    if not any(NAMED.search(after) for _, mark, after in _at_marks(text) if mark):
        return  # no comment names anything; to read tokens takes long
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, token.start[0]


def is_there(name: str, path: Path) -> bool:
    kernels = PACKAGE / "layers" / "kernels"
    rooms = (PACKAGE, PACKAGE / "sched", kernels, kernels / "cuda")
    places = (path.parent, *rooms, ROOT, ROOT / "tests", ROOT / "tutorials", ROOT / "benchmarks")
    return any((place / name).exists() for place in places)


@each_file([*SOURCES, *PAGES])
def test_what_is_named_is_there(path):
    missing = [
        (line, name)
        for text, line in said_in(path)
        for name in NAMED.findall(text)
        if not OF_OTHERS.search(name) and not is_there(name, path)
    ]
    assert not missing
