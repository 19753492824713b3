"""What somebody's folder holds from 2026-11-28 loads today, or meets one typed error.

`tests/data/files_of_0_1` holds a checkpoint, a plan, a log, a machine, numbers, a planner and an
allocator, written by the commands and the assignments of that day, before modules moved. They are
never written again. Read next: `../../docs/json.md`.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from support.quick import all_but

from ooctrain.cli import main

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "data" / "files_of_0_1"
STEP = ["--image-size", "32", "--batch", "32", "--threads", "2", "--machine", "v100-pcie"]
COMMANDS = {
    "a checkpoint": [
        "train", "network.py:tiny", "--data", "digits", "--batch", "32", "--optimizer", "adam",
        "--budget", "50%", "--epochs", "2", "--resume", "checkpoint.npz",
    ],
    "a plan": ["simulate", "network.py:tiny", "--plan", "plan.json", *STEP],
    "a log": ["replay", "allocations.json", "--allocator", "best-fit"],
    "a machine": [
        "plan", "network.py:tiny", *STEP[:6], "--budget", "50%", "--machine", "machine.json"
    ],
    "numbers of a plan": ["report", "planned.json", "--svg", "page.svg"],
    "numbers of a run": ["report", "train.json", "--svg", "page.svg"],
    "two runs": ["diff", "planned.json", "train.json"],
    "an allocator": ["replay", "allocations.json", "--allocator", "allocator.py:Fit"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the files, for a resumed run writes its checkpoint."""
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("what", all_but(COMMANDS, "a checkpoint"))  # one is resumed below
def test_a_file_of_that_day_is_read(folder, what, capfd):
    assert main(COMMANDS[what]) == 0, capfd.readouterr().err


@pytest.mark.parametrize("command", [
    ["plan", "network.py:tiny", *STEP, "--budget", "90%"],
    ["compare", "network.py:tiny", *STEP[:4], "--machine", "v100-pcie", "--budget", "90%"],
    ["train", "network.py:tiny", "--data", "digits", "--batch", "32", "--budget", "90%"],
], ids=lambda command: command[0])  # fmt: skip
def test_a_planner_of_that_day_meets_one_error_that_shows_what_one_is_asked_now(
    folder, command, capfd
):
    """It took trace, budget and machine one by one."""
    assert main([*command, "--planner", "planner.py:Window"]) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert said.count("[OOC-") == said.count("[OOC-108]") == 1
    assert "def plan(self, question)" in said


def test_a_resumed_run_goes_on_where_that_day_stopped(folder, capfd):
    assert main([*COMMANDS["a checkpoint"], "--json", "numbers.json"]) == 0
    rows = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
    assert "epoch 2" in capfd.readouterr().out, rows.keys()


def test_a_file_whose_imports_have_moved_meets_one_error_that_says_where_to(folder, capfd):
    """Two imports of the file have moved: the first is named, then the second."""
    command = ["plan", "network.py:tiny", *STEP, "--budget", "50%"]
    text = (folder / "deep_planner.py").read_text(encoding="utf-8")
    for old, new in (("dtr.dtr_runtime", "dtr"), ("window.window_walk", "window")):
        assert main([*command, "--planner", "deep_planner.py:Mine"]) == 2
        said = capfd.readouterr().err
        assert "Traceback" not in said
        assert "OOC-106" in said
        assert f"ooctrain.sched.planners.{old}" in said
        assert f"ooctrain.sched.planners.{new} now" in said
        text = text.replace(f"planners.{old}", f"planners.{new}")
        (folder / "deep_planner.py").write_text(text, encoding="utf-8")


def test_what_has_moved_stands_where_the_table_says():
    rows = (ROOT / "ooctrain" / "moved.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "was,is"
    moved = dict(row.split(",") for row in rows[1:])
    assert len(moved) == len(rows) - 1
    for was, home in moved.items():
        assert not is_module(was), was
        assert not home or is_module(home) or is_name(home), home


def is_module(name):
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def is_name(name):
    """Whether a module defines it."""
    module, _, inner = name.rpartition(".")
    text = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    return re.search(rf"^(class |def )?{inner}\b", text, re.M) is not None
