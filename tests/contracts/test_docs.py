"""What the documents promise exists: commands, options, functions, files, make targets; and what
they show in Python runs.

Pages are read by the grammar of Markdown, so a code span may go over the end of a line. Read next:
`test_commands.py`, which executes what is collected here.
"""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from markdown_it import MarkdownIt

import ooctrain as oc
from benchmarks.__main__ import LONG, NAMES
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.cli import COMMANDS, command_line
from ooctrain.errors import OutOfDeviceMemory
from ooctrain.explain import find_code

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md")),
]  # fmt: skip
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
MARKDOWN = MarkdownIt("commonmark").enable("table")
#: A name that a page gives as the mistake it explains.
MISTAKES = {"windwo"}
#: The folders whose pages a reader may open; what one builds is elsewhere.
FOLDERS = (".github", "benchmarks", "docs", "ooctrain", "tests", "tutorials")


@cache
def every_page() -> list[Path]:
    """Whatever a reader reads: each Markdown file but the history, and each lesson."""
    pages = [*ROOT.glob("*.md"), *(p for name in FOLDERS for p in (ROOT / name).rglob("*.md"))]
    left = {"CHANGELOG.md", "_build", "_generated"}  # history; what Sphinx makes
    here = [page for page in pages if not left & {*page.parts}]
    return sorted(here) + sorted((ROOT / "tutorials").rglob("*.py"))


def name_of(page: Path) -> str:
    """Its path from the root, the same on every system."""
    return page.relative_to(ROOT).as_posix()


def prose_of(page: Path) -> str:
    """A page as Markdown; of a lesson, its cells of prose."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".py":
        return text
    cells = re.findall(r"^# %% \[markdown\]\n((?:#.*\n)+)", text, re.M)
    return "\n".join(re.sub(r"^# ?", "", cell, flags=re.M) for cell in cells)


@cache
def code_in(text: str) -> list[tuple[str, str]]:
    """(language, code) of every block, and ("span", code) of every code span; a directive like
    {glossary} holds Markdown again.
    """
    return list(_code_in(text))


def _code_in(text: str) -> Iterator[tuple[str, str]]:
    for token in MARKDOWN.parse(text):
        language = token.info.strip()
        if token.type == "fence" and language.startswith("{"):
            yield from code_in(token.content)
        elif token.type in ("fence", "code_block"):
            yield language, token.content
        for part in token.children or ():
            if part.type == "code_inline":
                yield "span", part.content


def lines_in(text: str) -> list[str]:
    """The lines of all code, without a prompt."""
    return [
        line.strip().removeprefix("$ ") for _, code in code_in(text) for line in code.split("\n")
    ]


def commands_in(text: str) -> list[list[str]]:
    """Every `ooctrain ...` and `make ...` in code blocks and code spans."""
    calls = [line for line in lines_in(text) if re.match(r"(ooctrain|make) [a-z]", line)]
    return [shlex.split(re.split(r" [|>] ", call)[0], comments=True) for call in calls]


def check_command(words: list[str]) -> None:
    if words[0] == "make":
        assert all(word in TARGETS or "=" in word for word in words[1:]), words
        return
    name = words[1]
    assert name in COMMANDS, words
    context = click.Context(command_line)
    command = command_line.get_command(context, name)
    if isinstance(command, click.Group) and len(words) > 2:
        assert words[2] in command.commands, words
        command = command.commands[words[2]]
    known = {option for parameter in command.params for option in parameter.opts}
    unknown = [w for w in words[2:] if w.startswith("--") and w.split("=")[0] not in known]
    assert not unknown, f"{' '.join(words)}: no option {unknown}"
    for option, there in (("--planner", oc.planners), ("--allocator", oc.allocators)):
        if option in words:
            given = words[words.index(option) + 1].split(",")
            names = {name.split(":")[0] for name in given if ".py" not in name}
            strange = {name for name in names if not name.isupper()} - {"auto", *MISTAKES, *there()}
            assert not strange, f"{' '.join(words)}: no {option} {strange}"


def check_outside_command(line: str) -> None:
    """A line that starts Python, pytest or pip: its benchmark, option or extra is there."""
    words = shlex.split(line.split(" | ")[0], comments=True)
    if words[:3] == ["python", "-m", "benchmarks"] and words[3:4]:
        assert words[3] in (*NAMES, *LONG) or words[3].startswith("--"), line
    elif words[:2] == ["python", "-m"] and words[2].startswith("benchmarks."):
        file = words[2].replace(".", "/")
        assert (ROOT / f"{file}.py").is_file() or (ROOT / file / "__main__.py").is_file(), line
    elif words[:3] == ["pytest", "--pyargs", "ooctrain.laws"]:
        source = (ROOT / "ooctrain" / "laws" / "plugin.py").read_text(encoding="utf-8")
        assert all(f'"{word}"' in source for word in words[3:] if word.startswith("--")), line
    elif words[:2] == ["pip", "install"]:
        asked = re.findall(r"\[([\w,]+)\]", line)
        assert set(",".join(asked).split(",")) <= {"", *EXTRAS}, line


@pytest.mark.parametrize("page", every_page(), ids=name_of)
def test_what_is_not_a_command_of_ours_names_what_there_is(page):
    for line in lines_in(prose_of(page)):
        if re.match(r"(python3?|pytest|pip) \S", line) and "'" not in line:
            check_outside_command(line)


@pytest.mark.parametrize(
    "page", [p for p in every_page() if "tutorials" in p.relative_to(ROOT).parts], ids=name_of
)
def test_the_commands_of_a_handout_are_typed_in_its_folder(page):
    """Who has the wheel alone has a copy of the lessons, in a folder with a name of his own."""
    for line in lines_in(prose_of(page)):
        if re.match(r"\S*(ooctrain|python|pytest) \S", line):
            command, *words = shlex.split(line, comments=True)
            assert "/" not in command, line
            files = [word.partition(":")[0] for word in words]
            named = {name for name in files if "/" in name or name.endswith(".py")}
            gone = {name for name in named if not (page.parent / name).exists()}
            assert gone <= {"my.py", "mine.py"}, line


def test_examples_in_docstrings_are_true():
    found = [p for p in (ROOT / "ooctrain").rglob("*.py") if ">>> " in p.read_text("utf-8")]
    assert found
    for path in found:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert doctest.testmod(importlib.import_module(name)).failed == 0, path


@pytest.mark.parametrize("page", every_page(), ids=name_of)
def test_every_command_in_a_document_exists(page):
    for words in commands_in(prose_of(page)):
        check_command(words)


def python_in(page: Path, about: str = "") -> str:
    """The one block of Python in a document, or the one that contains these words."""
    blocks = [code for language, code in code_in(prose_of(page)) if language == "python"]
    (block,) = [block for block in blocks if about in block]
    return block


#: (what stands in README's Python, what takes its place in a quicker run)
QUICKER = (("), 64)", "), 8)"), ('budget="25%")', 'budget="25%", planner="belady")'))


@pytest.mark.parametrize("changes", [QUICKER, pytest.param((), marks=pytest.mark.slow)])
def test_the_python_in_the_readme_runs_and_trains_with_the_bits_of_execute(changes):
    names: dict[str, Any] = {}
    code = python_in(ROOT / "README.md", "oc.verify(")
    for piece, other in changes:
        assert code.count(piece) == 1
        code = code.replace(piece, other)
    exec(compile(code, "README.md", "exec"), names)
    names["trainer"].close()
    exec(python_in(ROOT / "docs" / "start.md", "class Largest"), names)
    assert names["loss"] == names["run"].loss
    assert names["run"].timeline.peak_bytes == names["plan"].peak_bytes


def test_the_readme_is_short_and_shows_what_its_commands_print():
    """One screen and a half; the list is the command's, the Python and the figures are a page's."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert max(map(len, readme.splitlines())) <= 120
    assert len(readme.splitlines()) <= 120
    shown = [code for language, code in code_in(readme) if language != "span"]
    printed = find_code("list")[1].text.splitlines()[10:]
    assert shown[0] == "".join(f"{line[4:].rstrip()}\n" for line in printed)
    start = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    (demo,) = [code for _, code in code_in(readme) if code.startswith("in-core peak")]
    assert all(line in start for line in demo.splitlines())
    assert python_in(ROOT / "docs" / "start.md", "oc.execute(") == python_in(ROOT / "README.md")
    rows = re.findall(r"^\| .*\*\*.*\]\(([^)]+)\) \|$", readme, re.M)
    assert len(rows) == 5
    for row in re.findall(r"^\| .*\*\*.*$", readme, re.M):
        (page,) = re.findall(r"\]\(([^)]+)\)", row)
        text = (ROOT / page).read_text(encoding="utf-8")
        for number in re.findall(r"\*\*([^*]+)\*\*", row):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", text), (page, number)


def test_the_allocator_in_the_documents_is_one(tmp_path):
    (tmp_path / "mine.py").write_text(python_in(ROOT / "docs" / "allocators.md"))
    mine = choose_allocator(f"{tmp_path / 'mine.py'}:make:limit=64KiB", 1 << 20, binding=False)
    allocator = mine.make(DryMemory(1 << 20))
    allocator.allocate(64 << 10)
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(1)


def test_the_contract_notices_a_command_that_does_not_exist():
    text = (
        "```\n$ ooctrain plan lenet --bogus 3\n$ make nothing\n```\nand `ooctrain nothing x`; over "
        "the end of a line `ooctrain\nnothing y`\n\n1. in a list\n\n       ooctrain nothing z\n\n"
        "```{glossary}\n`ooctrain nothing u`\n```\n\n"
        "`ooctrain plan lenet --planner belady,nobody`\n"
    )
    assert len(commands_in(text)) == 7
    for words in commands_in(text):
        with pytest.raises(AssertionError):
            check_command(words)


@pytest.mark.parametrize(
    "line",
    ["python -m benchmarks nothing", "python -m benchmarks.nothing",
     "pytest --pyargs ooctrain.laws --nothing x",
     'pip install "ooctrain[nothing]"', "pip install -e .[dev,nothing]"],
)  # fmt: skip
def test_the_contract_notices_a_name_that_does_not_exist(line):
    with pytest.raises(AssertionError):
        check_outside_command(line)


def test_the_makefile_has_its_targets_and_help_names_them():
    assert {"demo", "test", "test-all", "bench", "lint", "docs"} <= TARGETS
    named = set(re.findall(r'@echo "make ([a-z-]+)', MAKEFILE))
    assert named == TARGETS - {"help"}


def test_make_demo_is_a_command_that_exists():
    recipe = re.search(r"^demo:.*\n\t(.*)$", MAKEFILE, re.M).group(1)
    check_command(shlex.split(recipe.replace("$(BIN)/", "")))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_links_to_exists(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("name", ["papers.md", "errata.md"])
def test_every_function_and_test_that_the_papers_page_names_exists(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    for span in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"(tests|tutorials|benchmarks|docs|ooctrain)/[\w/.]+(::\w+)?", span):
            check_path(span)
        elif re.fullmatch(r"(oc|ooctrain)(\.\w+)+", span):
            check_name(span)


def check_path(span: str) -> None:
    file, _, name = span.partition("::")
    assert (ROOT / file).exists(), span
    if name:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(def|class) {name}\b", source, re.M), f"{span} does not exist"


def check_name(span: str) -> None:
    parts = span.split(".")
    parts[0] = "ooctrain"
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            assert hasattr(found, part), f"{span} does not exist"
            found = getattr(found, part)
        return
    raise AssertionError(f"{span} does not exist")
