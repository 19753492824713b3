"""What the documents promise exists: commands, options, functions, files, make targets; and what
they show in Python runs.
"""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.cli import COMMANDS, command_line
from ooctrain.errors import OutOfDeviceMemory

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md")),
]  # fmt: skip
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))


def commands_in(text: str) -> list[list[str]]:
    """Every `ooctrain ...` and `make ...` in code blocks and code spans."""
    code = re.findall(r"```.*?\n(.*?)```", text, re.S) + re.findall(r"`([^`\n]+)`", text)
    lines = [line.strip().removeprefix("$ ") for block in code for line in block.splitlines()]
    calls = [line for line in lines if re.match(r"(ooctrain|make) [a-z]", line)]
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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_a_document_exists(path):
    for words in commands_in(path.read_text(encoding="utf-8")):
        check_command(words)


def python_in(path: Path) -> str:
    """The one block of Python in a document."""
    (block,) = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
    return block


def test_the_python_in_the_readme_runs_and_trains_with_the_bits_of_execute():
    names: dict[str, Any] = {}
    exec(compile(python_in(ROOT / "README.md"), "README.md", "exec"), names)
    names["trainer"].close()
    assert names["loss"] == names["run"].loss
    assert names["run"].timeline.peak_bytes == names["plan"].peak_bytes


def test_the_allocator_in_the_documents_is_one(tmp_path):
    (tmp_path / "mine.py").write_text(python_in(ROOT / "docs" / "allocators.md"))
    mine = choose_allocator(f"{tmp_path / 'mine.py'}:make:limit=64KiB", 1 << 20, binding=False)
    allocator = mine.make(DryMemory(1 << 20))
    allocator.allocate(64 << 10)
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(1)


def test_the_contract_notices_a_command_that_does_not_exist():
    text = "```\n$ ooctrain plan lenet --bogus 3\n$ make nothing\n```\nand `ooctrain nothing x`"
    assert len(commands_in(text)) == 3
    for words in commands_in(text):
        with pytest.raises(AssertionError):
            check_command(words)


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
