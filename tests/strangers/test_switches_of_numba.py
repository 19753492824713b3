"""Numba's own switches, as people set them who debug, and limits that LLVM cannot live with.

With NUMBA_DISABLE_JIT plans are made as Python, training is refused in one error, and `doctor` says
so. `ulimit -v` below what LLVM takes is one error too, where LLVM itself would end the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = ("plan", "lenet", "--batch", "8", "--budget", "50%")
TRAIN = ("train", "lenet", "--data", "digits", "--batch", "32", "--steps", "1")


def run(
    *words: str, limit_kib: int = 0, cache: Path | None = None, **environment: str
) -> tuple[int, str]:
    """The status of a command, and all that it printed."""
    command = [sys.executable, "-m", "ooctrain", *words]
    if limit_kib:
        command = ["bash", "-c", f'ulimit -v {limit_kib}; exec "$@"', "-", *command]
    environment |= {} if cache is None else {"OOCTRAIN_CACHE": str(cache)}
    found = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in found.stdout
    return found.returncode, found.stdout


@pytest.mark.slow
def test_without_a_compiler() -> None:
    status, said = run("doctor", NUMBA_DISABLE_JIT="1")
    assert status == 1
    assert "all well" not in said
    assert "NUMBA_DISABLE_JIT" in said
    status, said = run(*TRAIN, NUMBA_DISABLE_JIT="1")
    assert status == 2
    assert said.count("[OOC-108]") == 1
    searched = "--planner", "combined", "--evaluations", "300"
    status, said = run(*PLAN, *searched, NUMBA_DISABLE_JIT="1")
    assert status == 0
    assert "combined" in said


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
def test_doctor_warns_of_each_thing_that_is_short_and_of_nothing_else() -> None:
    """A small address space, one core, no folder for kernels, files in memory: none of them ends
    it, and none is reported of a machine that has enough."""
    shorter = f"import os; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])"
    one_core = f"{shorter}; from ooctrain.cli import main; raise SystemExit(main(['doctor']))"
    command = f'ulimit -v 700000; exec {sys.executable} -c "{one_core}"'
    found = subprocess.run(
        ["bash", "-c", command], stdout=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "TMPDIR": "/dev/shm", "OOCTRAIN_CACHE": "/proc/nothing"},
    )  # fmt: skip
    warned = {line[5:21].strip() for line in found.stdout.splitlines() if line.startswith("warn")}
    assert found.returncode == 0
    assert {"compiler", "kernel cache", "cores", "memory", "spilling"} <= warned
    assert not {"Python", "numpy", "numba", "virtual memory", "CUDA driver"} & warned
    assert f"{len(warned)} of " in found.stdout
    assert "by ulimit -v" in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--allocator", "best-fit"), ("--planner", "checkmate")])
def test_plans_without_a_compiler(more: tuple[str, ...]) -> None:
    assert run(*PLAN, *more, NUMBA_DISABLE_JIT="1")[0] in (0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("limit_kib", [400_000, 550_000, 700_000])
def test_an_address_space_that_llvm_cannot_live_in(limit_kib: int, tmp_path: Path) -> None:
    status, said = run(*TRAIN, limit_kib=limit_kib, cache=tmp_path)
    assert status in (1, 2)
    assert "by ulimit -v" in said or "ulimit -v leaves" in said
    assert "ulimit -v" in run("doctor", limit_kib=limit_kib)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        {"NUMBA_NUM_THREADS": "1"}, {"NUMBA_THREADING_LAYER": "nonsense"},
        {"NUMBA_CACHE_DIR": "/proc/nothing"}, {"OOCTRAIN_CACHE": "/proc/nothing"},
    ],
    ids=str,
)  # fmt: skip
def test_what_changes_nothing(setting: dict[str, str]) -> None:
    assert run(*TRAIN, **setting)[0] == 0
