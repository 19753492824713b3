"""Commands that start processes: none of these outlives a command, however it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.quick import quick

from ooctrain.distributed.mpi import find_mpiexec
from ooctrain.errors import ConfigError

ROOT = Path(__file__).parents[2]
#: How long a command may take to get to work, and its processes to be gone, on a busy machine.
BEGIN_S, GONE_S = 60, 20
#: It notes that it is called, and computes for ever.
NEVER_ENDS = """
import os
from contextlib import suppress
from pathlib import Path

class Mine:
    name = "mine"

    def plan(self, question):
        with suppress(OSError):  # a cage has no such folder
            Path(__file__).with_name(f"computing-{os.getpid()}").touch()
        while True:
            pass
"""
pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks into /proc"),
    pytest.mark.usefixtures("default_signals"),
]


def family(process: int) -> set[int]:
    """A process and its descendants, but for those that have ended and wait to be collected."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(name)] = int(parent)
    found = {process} & set(parents)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(processes: set[int]) -> set[int]:
    """Those that still run."""
    return {process for process in processes if family(process)}


def comes(happened) -> bool:
    """Whether it happens in time."""
    ends = time.monotonic() + BEGIN_S
    while not happened() and time.monotonic() < ends:
        time.sleep(0.1)
    return bool(happened())


@contextmanager
def started(words: list[str], folder: Path) -> Iterator[subprocess.Popen]:
    """A command at work in a folder; whatever is left of it is ended."""
    running = subprocess.Popen(
        [sys.executable, "-m", "ooctrain", *words], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    everybody = set[int]()
    try:
        yield running
        everybody |= family(running.pid)
    finally:
        for process in everybody | family(running.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        running.kill()


def ended(running: subprocess.Popen, name: str) -> tuple[set[int], str, str]:
    """Ends a command by a signal: (processes that are left, what was printed, what was said)."""
    everybody = family(running.pid)
    assert len(everybody) > 2, "nobody works for the command"
    running.send_signal(getattr(signal, name))
    until = time.monotonic() + GONE_S
    while (left := alive(everybody)) and time.monotonic() < until:
        time.sleep(0.1)
        running.poll()
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    printed, said = running.communicate(timeout=GONE_S)
    return left, printed, said


@pytest.mark.parametrize("name", quick(["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"], 0))
def test_no_worker_outlives_a_comparison(name, tmp_path):
    """They went on computing, for nobody."""
    (tmp_path / "own.py").write_text(NEVER_ENDS)
    words = ["compare", "lenet", "--batch", "8,16", "--budget", "100%", "--machine", "v100-pcie"]
    words += ["--planner", "own.py:Mine", "--bound", "simple", "--jobs", "2", "--json", "n.json"]
    with started(words, tmp_path) as running:
        assert comes(lambda: len(list(tmp_path.glob("computing-*"))) == 2)
        left, printed, said = ended(running, name)
    assert not left
    if name == "SIGKILL":
        assert running.returncode == -signal.SIGKILL
        return
    message = "interrupted" if name == "SIGINT" else f"ended by {name}"
    assert (running.returncode, printed) == (1, "")
    said = [
        line for line in said.splitlines() if line and " working" not in line
    ]  # on a slow machine
    assert said == [f"ooctrain: {message}"], "one line, and no traceback"
    assert json.loads((tmp_path / "n.json").read_text())["error"] == message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_neither_tests_nor_a_submission_outlive_a_grade(name, tmp_path):
    (tmp_path / "own.py").write_text(NEVER_ENDS)
    with started(["grade", "lru_planner", "own.py:Mine"], tmp_path) as running:
        # The grader, the tests, and a cage: its first process and the submission's.
        assert comes(lambda: len(family(running.pid)) >= 4)
        left, _, _ = ended(running, name)
    assert not left


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_ranks_stop_after_the_same_step_and_save_where_their_command_is_ended(name, tmp_path):
    try:
        find_mpiexec()
    except ConfigError as error:
        pytest.skip(str(error))
    words = ["train", "lenet", "--batch", "16", "--epochs", "1000", "--threads", "1"]
    words += ["--ranks", "2", "--checkpoint", "run.safetensors", "--checkpoint-steps", "2"]
    with started(words, tmp_path) as running:
        assert comes(lambda: (tmp_path / "run.safetensors").is_file())
        left, _, said = ended(running, name)
    assert not left
    assert running.returncode == 1
    assert said.count("OOC-320") == 1, "the reason, with the command that goes on"
    assert said.count("stopping after this step") == 1
