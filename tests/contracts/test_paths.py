"""Every file and folder that a docstring, a comment or a page names is there.

A name is looked up beside the file that names it, below `ooctrain/`, below its large rooms `sched/`
and `layers/kernels/`, and from the root of the repository. A moved file leaves no old name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.each_file import each_file, nodes, parse

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


def said_in(path: Path) -> Iterator[tuple[str, int]]:
    """(text, line) of the docstrings and comments of a source, or of the lines of a page."""
    lines = path.read_text(encoding="utf-8").split("\n")
    if path.suffix != ".py":
        yield from ((line, number) for number, line in enumerate(lines, 1))
        return
    tree = parse(path)
    for node in nodes(tree, ast.Expr):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value, node.lineno
    for number, line in enumerate(lines, 1):
        if "#" in line and NAMED.search(line[line.index("#") :]):
            yield comment_in(line, number, tree), number


def comment_in(line: str, number: int, tree: ast.Module) -> str:
    """What follows the first # of a line that stands in no text of the program."""
    spans = [
        ((text.lineno, text.col_offset), (text.end_lineno, text.end_col_offset))
        for text in nodes(tree, ast.Constant, ast.JoinedStr)
        if text.lineno <= number <= text.end_lineno
    ]
    for found in re.finditer("#", line):
        place = number, len(line[: found.start()].encode())
        if not any(begin <= place < end for begin, end in spans):
            return line[found.start() :]
    return ""


@cache
def is_there(name: str, folder: Path) -> bool:
    kernels = PACKAGE / "layers" / "kernels"
    rooms = (PACKAGE, PACKAGE / "sched", kernels, kernels / "cuda")
    places = (folder, *rooms, ROOT, ROOT / "tests", ROOT / "tutorials", ROOT / "benchmarks")
    return any((place / name).exists() for place in places)


def test_a_comment_is_told_from_a_text_of_the_program():
    source = "a = '# no'  # yes\nb = f'é # {a} # no'\nc = '''\n# no\n'''  # yes # both\n"
    tree, lines = ast.parse(source), source.splitlines()
    found = [comment_in(line, number, tree) for number, line in enumerate(lines, 1)]
    assert found == ["# yes", "", "", "", "# yes # both"]


@each_file([*SOURCES, *PAGES])
def test_what_is_named_is_there(path):
    missing = [
        (line, name)
        for text, line in said_in(path)
        for name in NAMED.findall(text)
        if not OF_OTHERS.search(name) and not is_there(name, path.parent)
    ]
    assert not missing
