"""Every command that a document shows is executed, cut down where it takes long.

Commands are run in the order in which a page shows them, in one folder, so that what one writes the
next one reads. A command that is only mentioned (`ooctrain plan`, `ooctrain report FILE`) has
nothing to be executed with; `test_docs.py` checks its name and its options. A lesson's prose is a
page too. What is not executed here has its reason in `ELSEWHERE`.
"""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import click
import numpy as np
import pytest
from contracts import test_howto
from contracts.test_docs import (
    DOCUMENTS,
    ROOT,
    code_in,
    commands_in,
    every_page,
    name_of,
    prose_of,
    python_in,
)
from doubles.stub_driver import why_no_stub
from support.handouts import LRU_STUB, SOLUTION

import ooctrain as oc
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.cli import command_line, main
from ooctrain.errors import ConfigError
from ooctrain.explain import find_code
from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx

#: A page for each code, whose example is there to fail.
OF_CODES = [page for page in every_page() if page.parent == ROOT / "ooctrain" / "explain"]
#: In the order in which one reads them; what no page before shows is executed.
PAGES = [page for page in dict.fromkeys([*DOCUMENTS, *every_page()]) if page not in OF_CODES]
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
#: Examples that raise their code only where something else is given, with what it is.
NEEDS = {
    "OOC-125": "a model that keeps its batches: tests/properties/test_memory_promise.py",
    "OOC-132": "an allocator with a mistake: tests/unit/test_alloc_wrappers.py",
    "OOC-180": "a course wheel: tests/unit/test_course_tools.py",
    "OOC-313": "a checkpoint of another model: tests/properties/test_checkpoint_files.py",
}
#: Codes whose example is a line of Python.
IN_PYTHON = (
    "OOC-100", "OOC-104", "OOC-110", "OOC-112", "OOC-113", "OOC-126", "OOC-131", "OOC-170",
    "OOC-171", "OOC-172", "OOC-220", "OOC-400",
)  # fmt: skip
FAILING = """
class Mine:
    name = "mine"

    def plan(self, question):
        return 1 / 0
"""
#: What a page shows to fail, with the code that it prints.
FAILS = {"ooctrain replay log.jsonl --allocator best-fit --budget 330MiB": "OOC-130"}
#: Words that stand for a reader's own.
PLACEHOLDER = re.compile(r"[A-Z]+|\.\.\.")
#: {command: what is put in place of an option's value, or added, so that it takes seconds}
CUT_DOWN = {
    "train": {"--steps": "2", "--batch": "16", "--epochs": "1"},
    "compare": {"--jobs": "1", "--time-limit": "2", "--evaluations": "500"},
}
#: Options that name a file which the command writes.
WRITTEN = ("--json", "--save", "--html", "--allocation-log")
#: Of several values of an option the first one stands for all.
LISTS = ("--planner", "--budget", "--batch", "--image-size")


def is_whole(words: list[str]) -> bool:
    """Whether nothing in a command is left to be filled in. A wrong command is whole too, and fails
    when it is executed.
    """
    if any(PLACEHOLDER.fullmatch(word) for word in words) or words[0] != "ooctrain":
        return False
    command, rest = command_of(words)
    needed = [p for p in command.params if isinstance(p, click.Argument)]
    try:
        command.make_context(words[1], list(rest))
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return False
    except click.BadOptionUsage as error:
        return "requires an argument" not in error.message
    except (click.UsageError, ConfigError):
        return True
    given = [name for name in rest if not name.startswith("-")]
    return bool(given) or not needed


def filled(words: list[str]) -> list[str]:
    """The same command with a name for each file that it writes."""
    before = ["", *words]
    return [
        f"shown{option}" if option in WRITTEN and PLACEHOLDER.fullmatch(word) else word
        for option, word in zip(before, words, strict=False)
    ]


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
    known = {option for p in command_of(words)[0].params for option in p.opts}
    return result + [part for pair in changed.items() if pair[0] in known for part in pair]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """(the command that is meant, what it is given); of `course strip` it is `strip`."""
    command, rest = command_line.get_command(click.Context(command_line), words[1]), words[2:]
    if isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    assert command is not None, words
    return command, rest


def shown_in(page: Path) -> list[list[str]]:
    """The whole commands of a page, each once."""
    shown = map(filled, commands_in(prose_of(page)))
    found = {shlex.join(words): words for words in shown}
    return [words for words in found.values() if is_whole(words)]


@cache
def first_shown() -> dict[str, list[list[str]]]:
    """{page: commands that no page before it shows}; `test_howto.py` runs the pages of `howto`."""
    found: dict[str, list[list[str]]] = {}
    seen: set[str] = set()
    for page in PAGES:
        new = [w for w in shown_in(page) if shlex.join(w) not in seen and not elsewhere(w)]
        seen |= {shlex.join(w) for w in new}
        found[name_of(page)] = [] if "howto" in page.parts else new
    return found


WITH_COMMANDS = [
    name_of(page) for page in PAGES if "ooctrain " in prose_of(page) and "howto" not in page.parts
]


@pytest.mark.slow
def test_the_readme_s_commands_are_among_them():
    pages = first_shown()
    shown = {shlex.join(words) for words in pages["README.md"] + pages["docs/start.md"]}
    assert {"ooctrain explain list", "ooctrain explain R203"} <= shown
    assert any(text.startswith("ooctrain train resnet18") for text in shown)
    assert any(text.startswith("ooctrain plan resnet50 --batch 256") for text in shown)
    assert sum(map(len, first_shown().values())) > 40


def executed(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """(status, output, errors) of a command. One that promises memory has a process of its own, as
    a reader's has: the count begins with what the process holds, and this one may have compiled.
    """
    if "--memory" not in words:
        return main(words[1:]), *capsys.readouterr()
    command = [sys.executable, "-m", "ooctrain", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, input="", check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(f"{LRU_STUB}{SOLUTION}\nMine = Solved\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO())  # who steps through a run is not asked
    failed = []
    for words in first_shown()[page]:
        status, out, err = executed(cut_down(words), capsys)
        wanted = FAILS.get(shlex.join(words))
        fits = status == 0 if wanted is None else status != 0 and wanted in out + err
        if not fits:
            failed.append(f"{shlex.join(words)}: status {status}\n{err or out[-500:]}")
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="some write to /dev, /proc and the like")
@pytest.mark.parametrize("page", OF_CODES, ids=name_of)
def test_the_example_of_a_code_raises_it(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("no log, no record\n")
    Path("docs").mkdir()
    Path("mine.py").write_text(FAILING, encoding="utf-8")
    example = textwrap.indent(find_code(page.stem)[1].example, "    ")
    for words in commands_in(example):
        if is_whole(words) and not elsewhere(words) and page.stem not in NEEDS:
            status, out, err = executed(words, capsys)
            assert status != 0
            assert f"[{page.stem}]" in out + err, f"{shlex.join(words)}:\n{err or out}"


@pytest.mark.parametrize("code", IN_PYTHON)
def test_the_example_in_python_raises_its_code(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("no plan\n")
    planner: dict[str, type] = {}
    exec(FAILING, planner)
    model = oc.models.build("lenet")
    step = oc.trace(model, (2, 3, 32, 32), threads=1)
    weight = oc.tensor(np.ones(3, np.float32), requires_grad=True)
    names = {
        "oc": oc, "np": np, "model": model, "trace": step, "step": step, "Mine": planner["Mine"],
        "resnet18": model, "resnet34": oc.nn.Linear(3, 3), "loss": (weight * weight).sum(),
        "allocator": BestFit(DryMemory(1 << 20)),
    }  # fmt: skip
    with pytest.raises(oc.OoctrainError) as raised:
        exec(find_code(code)[1].example, names)
    assert raised.value.code == code


def test_no_command_is_left_out_because_it_is_wrong_or_writes_a_file():
    for text in ("ooctrain plan lenet --batch many", "ooctrain compare lenet --json FILE"):
        assert is_whole(filled(shlex.split(text)))
    for text in (
        "ooctrain plan", "ooctrain plan lenet --budget", "ooctrain plan MODEL", "ooctrain diff A B",
        "ooctrain course strip",
    ):  # fmt: skip
        assert not is_whole(filled(shlex.split(text)))


#: Pages that show Python, with a test for each block; `test_howto.py` runs the others.
RUN_BY = {
    "README.md": "test_docs.py", "docs/start.md": "test_docs.py test_docs.py test_own_networks.py",
    "docs/allocators.md": "test_docs.py",
    "docs/puzzles.md": "test_puzzles.py", "docs/schedule.md": "test_list_text.py",
    "docs/planners.md": "test_reorder.py test_recompute_bound.py",
    "docs/gpu.md": "test_commands.py",
    "docs/distributed.md": "test_commands.py", "tutorials/20_many_ranks.py": "test_commands.py",
    "docs/split.md": "test_commands.py", "docs/teaching.md": "test_commands.py",
}  # fmt: skip
GPU_PAGE = ROOT / "docs" / "gpu.md"
BLOCKS = [code for language, code in code_in(prose_of(GPU_PAGE)) if language == "python"]


def looks_like_python(code: str) -> bool:
    """Whether a block parses and is more than a formula: it imports, defines, or calls a method."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return ">>> " in code
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return any(isinstance(n, (ast.Import, ast.ImportFrom, ast.FunctionDef)) for n in nodes) or any(
        isinstance(function, ast.Attribute) for function in calls
    )


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return [block for block in code_in(prose_of(page)) if block[0] != "span"]


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


@pytest.mark.slow
def test_the_stub_of_the_gpu_page_serves_a_command_that_knows_nothing_of_it(tmp_path):
    if why_no_stub():
        pytest.skip(why_no_stub())
    (block,) = [code for word, code in blocks_of(GPU_PAGE) if "LD_LIBRARY_PATH" in code]
    ours = 'python() { "$PYTHON" "$@"; }\nooctrain() { "$PYTHON" -m ooctrain "$@"; }\n'
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        ["bash", "-ec", ours + block.replace("/tmp/counts", str(tmp_path / "counts"))],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": paths},
    )  # fmt: skip
    assert "stub" in done.stdout.lower(), done.stdout + done.stderr
    assert (tmp_path / "counts").read_text()


@pytest.mark.slow
def test_the_python_about_ranks_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for page in (ROOT / "docs" / "distributed.md", ROOT / "tutorials" / "20_many_ranks.py"):
        exec(compile(python_in(page), page.name, "exec"), names)
        names["trainer"].close()
    assert (tmp_path / "run.safetensors").is_file()
    assert names["ranks"].count == 1


@pytest.mark.slow
def test_the_python_about_patches_prints_what_it_says(capsys):
    block = python_in(ROOT / "docs" / "split.md")
    exec(compile(block, "split.md", "exec"), {})
    assert capsys.readouterr().out.strip() == block.rpartition("# ")[2].strip()


def test_the_test_on_the_teaching_page_is_one_of_an_assignment():
    block = python_in(ROOT / "docs" / "teaching.md")
    tests = ROOT / "tutorials" / "assignments" / "window_planner" / "test_window.py"
    assert block in tests.read_text(encoding="utf-8")


def test_each_page_with_python_has_a_test_that_runs_it():
    pages = [p for p in every_page() if any(word == "python" for word, _ in blocks_of(p))]
    assert {name_of(p) for p in pages if "howto" not in p.parts} == {*RUN_BY}
    for name, files in RUN_BY.items():
        for file in files.split():
            (test,) = (ROOT / "tests").rglob(file)
            assert Path(name).name in test.read_text(encoding="utf-8")
        blocks = [code for word, code in blocks_of(ROOT / name) if word == "python"]
        assert name == name_of(GPU_PAGE) or len(blocks) == len(files.split()), "each has its test"
    for page in (ROOT / "docs" / "howto").glob("*.md"):
        run = test_howto.BLOCK.findall(page.read_text(encoding="utf-8"))
        assert [b for b in blocks_of(page) if b[0] in ("python", "console")] == run
        lines = {line.removeprefix("$ ") for kind, text in run for line in text.splitlines()}
        assert {shlex.join(w) for w in shown_in(page) if not elsewhere(w)} <= lines


def test_python_is_labelled_as_such():
    for page in PAGES:  # a page for a code is read in a terminal, where nothing is labelled
        for language, code in blocks_of(page):
            assert language == "python" or not looks_like_python(code), f"{name_of(page)}:\n{code}"
