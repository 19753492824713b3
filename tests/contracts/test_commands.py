"""Every command that a document shows is executed, cut down where it takes long.

Commands are run in the order in which a page shows them, in one folder, so that what one writes the
next one reads. A command that is only mentioned (`ooctrain plan`, `ooctrain report FILE`) has
nothing to be executed with; `test_docs.py` checks its name and its options. What is not executed
here has its reason in `ELSEWHERE`.
"""

from __future__ import annotations

import io
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest
from contracts.test_docs import DOCUMENTS, ROOT, commands_in, python_in

from ooctrain.cli import command_line, main
from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx
from ooctrain.testing.driver.stub.build import why_no_stub

PAGES = [*DOCUMENTS, *sorted((ROOT / "tutorials").rglob("README.md"))]
#: What a document's commands are not run for, each with who runs it.
ELSEWHERE = {
    r"ooctrain grade .*": "tests/contracts/test_assignments.py",
    r"ooctrain reproduce .*": "tests/unit/test_reproduce.py, and tests/unit/test_*_runs.py",
    r"ooctrain calibrate.*": "tests/unit/test_calibrate.py: it measures for half a minute",
    r".* --download.*": "tests/unit/test_download.py: without a network",
    r".* --device cuda( .*)?": "needs a GPU: tests/unit/test_cuda_training.py over its stub",
    r"ooctrain train .*--ranks .*": "tests/unit/test_mpi.py starts ranks",
    r"ooctrain train .*stochastic.*": "tests/unit/test_split_command.py",
}
#: What a page shows to fail, with the code that it prints.
FAILS = {"ooctrain replay log.jsonl --allocator best-fit --budget 330MiB": "OOC-130"}
#: Words that stand for a reader's own.
PLACEHOLDER = re.compile(r"[A-Z]{2,}|\.\.\.")
#: {command: what is put in place of an option's value, or added, so that it takes seconds}
CUT_DOWN = {
    "train": {"--steps": "2", "--batch": "16", "--epochs": "1"},
    "compare": {"--jobs": "1", "--time-limit": "2", "--evaluations": "500"},
}
#: Of several values of an option the first one stands for all.
LISTS = ("--planner", "--budget", "--batch", "--image-size")


def is_whole(words: list[str]) -> bool:
    """Whether a command could be typed as it stands."""
    if any(PLACEHOLDER.fullmatch(word) for word in words) or words[0] != "ooctrain":
        return False
    command = command_line.get_command(click.Context(command_line), words[1])
    needed = [p for p in command.params if isinstance(p, click.Argument)]
    try:
        context = command.make_context(words[1], list(words[2:]))
    except (click.UsageError, ConfigError):
        return False
    given = [name for name in words[2:] if not name.startswith("-")]
    return bool(context) and (bool(given) or not needed)


def elsewhere(words: list[str]) -> str:
    text = shlex.join(words)
    return next((who for what, who in ELSEWHERE.items() if re.fullmatch(what, text)), "")


def cut_down(words: list[str]) -> list[str]:
    """The same command with less to do."""
    changed = dict(CUT_DOWN.get(words[1], {}))
    result, following = [], iter(words)
    for word in following:
        result.append(word)
        if word in changed:
            next(following)
            result.append(changed.pop(word))
        elif words[1] == "compare" and word in LISTS:
            result.append(next(following).split(",")[0])
    known = {option for p in command_of(words).params for option in p.opts}
    return result + [part for pair in changed.items() if pair[0] in known for part in pair]


def command_of(words: list[str]) -> click.Command:
    command = command_line.get_command(click.Context(command_line), words[1])
    assert command is not None, words
    return command


def shown_in(page: Path) -> list[list[str]]:
    """The whole commands of a page, each once."""
    found = {shlex.join(words): words for words in commands_in(page.read_text(encoding="utf-8"))}
    return [words for words in found.values() if is_whole(words)]


@cache
def first_shown() -> dict[str, list[list[str]]]:
    """{page: commands that no page before it shows}; `test_howto.py` runs the pages of `howto`."""
    found: dict[str, list[list[str]]] = {}
    seen: set[str] = set()
    for page in PAGES:
        new = [w for w in shown_in(page) if shlex.join(w) not in seen and not elsewhere(w)]
        seen |= {shlex.join(w) for w in new}
        found[str(page.relative_to(ROOT))] = [] if "howto" in page.parts else new
    return found


@pytest.mark.slow
def test_the_readme_s_commands_are_among_them():
    shown = {shlex.join(words) for words in first_shown()["README.md"]}
    assert "ooctrain explain R203" in shown
    assert any(text.startswith("ooctrain train resnet18") for text in shown)
    assert any(text.startswith("ooctrain plan resnet50 --batch 256") for text in shown)
    assert sum(map(len, first_shown().values())) > 40


@pytest.mark.slow
@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_every_command_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())  # who steps through a run is not asked
    failed = []
    for words in first_shown()[page]:
        status = main(cut_down(words)[1:])
        said = capsys.readouterr()
        wanted = FAILS.get(shlex.join(words))
        fits = status == 0 if wanted is None else status != 0 and wanted in said.out + said.err
        if not fits:
            failed.append(f"{shlex.join(words)}: status {status}\n{said.err or said.out[-500:]}")
    assert not failed, "\n".join(failed)


GPU_PAGE = ROOT / "docs" / "gpu.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GPU_PAGE.read_text(encoding="utf-8"), re.S)
#: Pages whose one block of Python other tests run.
RUN_BY = {
    "README.md": "test_docs.py", "allocators.md": "test_docs.py", "puzzles.md": "test_puzzles.py",
    "schedule.md": "test_list_text.py", "planners.md": "test_reorder.py",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_python_of_the_gpu_page_runs(number):
    why = why_no_ptx() if "ptx" in BLOCKS[number] else ""
    if why or why_no_stub():
        pytest.skip(why or why_no_stub())
    names: dict[str, object] = {}
    exec(compile(BLOCKS[number], "gpu.md", "exec"), names)
    stub = names.get("stub")
    assert stub is None or not stub.why, "the stub refused nothing"


def test_each_page_with_python_has_a_test_that_runs_it():
    pages = {p.name for p in DOCUMENTS if "```python" in p.read_text(encoding="utf-8")}
    howto = {p.name for p in (ROOT / "docs" / "howto").glob("*.md")}
    assert pages - howto == {*RUN_BY, GPU_PAGE.name}
    for name in RUN_BY:
        (path,) = [p for p in DOCUMENTS if p.name == name]
        assert python_in(path), "one block, which its test runs"
