"""Cases over processes and machines: in order, kept by content, again where a worker died."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import pytest
from rich.console import Console

from ooctrain.cli import main
from ooctrain.distributed.mpi import find_mpiexec
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.experiments import spread as spread_module
from ooctrain.experiments.paper_000 import architectures, fragmentation, table1
from ooctrain.experiments.paper_001 import hybrid
from ooctrain.experiments.paper_002 import offload_ratios
from ooctrain.experiments.reproducing import Wanted
from ooctrain.experiments.spread import ENDING, finished, spread
from ooctrain.units import GIB

WORK = '''
import os, signal
from pathlib import Path

def square(case):
    """Notes that it was asked."""
    number, folder = case
    Path(folder, f"asked-{number}-{len(list(Path(folder).glob(f'asked-{number}-*')))}").touch()
    return number * number

def square_or_die_once(case):
    """Its first process is killed at 3, as by the system when memory is short."""
    number, folder = case
    if number == 3 and not Path(folder, "died").exists():
        Path(folder, "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(case)

def always_die(case):
    """A case for which no memory is enough."""
    if case[0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(case)
'''


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module that other processes can import, too."""
    (tmp_path / "work_of_test_spread.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "work_of_test_spread", raising=False)
    return importlib.import_module("work_of_test_spread")


def asked(folder: Path) -> int:
    return len(list(folder.glob("asked-*")))


class Pool:
    """Workers that die of some cases: all of them at once, as the system sees to. Here a case is
    computed when it is handed out, until that happens.
    """

    def __init__(self, count, limit):
        self.left, self.count, self.dead = limit, count, False

    def submit(self, work, case):
        if self.dead:
            raise BrokenExecutor("there are no workers")
        found = Future()
        self.dead |= case == "always" or (case == "beside others" and self.count > 1)
        self.left -= 1
        if self.dead or self.left < 0:  # those handed out last may not have begun
            found.set_exception(BrokenExecutor("a process has died"))
            self.dead = True
        else:
            found.set_result(work(case))
        return found

    def shutdown(self, wait, cancel_futures):
        assert (wait, cancel_futures) == (False, True)


@pytest.mark.parametrize("seed", range(12))
def test_only_what_kills_a_worker_that_has_nothing_else_to_do_is_missing_in_the_end(
    monkeypatch, seed
):
    rng = random.Random(seed)
    cases = [rng.choice(("fine", "fine", "always", "beside others")) for _ in range(9)]
    opened = []

    @contextmanager
    def open_executor(count):
        opened.append(count)
        yield Pool(count, rng.randint(1, 5))

    monkeypatch.setattr(spread_module, "open_executor", open_executor)
    found, fatal = [], cases.count("always")
    done = [(n, case.upper()) for n, case in enumerate(cases) if case != "always"]
    with pytest.raises(OoctrainError) if fatal else nullcontext() as caught:
        found.extend(finished(str.upper, cases, 4))
    assert sorted(found) == done
    if fatal:
        assert (caught.value.code, caught.value.where) == (
            "OOC-166",
            ", ".join(fatal * ["'always'"]),
        )
        assert caught.value.numbers.startswith(f"{len(done)} of {len(cases)}")
    assert opened[0] == 4
    assert set(opened) <= {1, 4}


@pytest.mark.slow
def test_the_case_of_a_dead_worker_is_computed_again(work, tmp_path):
    cases = [(number, str(tmp_path)) for number in range(6)]
    assert list(spread(work.square_or_die_once, cases, 2)) == [0, 1, 4, 9, 16, 25]
    assert (tmp_path / "died").exists()


@pytest.mark.slow
def test_a_case_that_kills_each_worker_is_named_after_all_others_are_done(work, tmp_path):
    cases = [(number, str(tmp_path)) for number in range(4)]
    found = []
    with pytest.raises(OoctrainError, match="kills its process") as refused:
        found.extend(finished(work.always_die, cases, 2))
    assert (refused.value.code, refused.value.where) == ("OOC-166", repr(cases[1]))
    assert sorted(found) == [(0, 0), (2, 4), (3, 9)]
    assert {path.name.split("-")[1] for path in tmp_path.glob("asked-*")} == {"0", "2", "3"}


@dataclass(frozen=True)
class Point:
    x: float
    y: int | None


@dataclass(frozen=True)
class Line:
    name: str
    ends: tuple[Point, Point]
    bends: list[Point]


def lines_of(case: tuple[str, int]) -> list[Line]:
    name, count = case
    CALLS.append(case)
    bends = [Point(place / 3, None if place % 2 else place) for place in range(count)]
    return [Line(name, (Point(0.1, 1), Point(1e300, None)), bends)]


CALLS: list[tuple[str, int]] = []


def test_rows_are_kept_and_come_back_as_they_were(tmp_path):
    cases = [("a", 0), ("b", 3)]
    CALLS.clear()
    first = list(spread(lines_of, cases, 1, tmp_path))
    again = list(spread(lines_of, [*cases, ("b", 4)], 1, tmp_path))
    assert [*cases, ("b", 4)] == CALLS
    assert first == again[:2] == [lines_of(case) for case in cases]


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path):
    cases = [("a", count) for count in range(5)]
    CALLS.clear()
    rows = spread(lines_of, cases, 1, tmp_path)
    next(rows), next(rows)
    rows.close()
    list(spread(lines_of, cases, 1, tmp_path))
    assert cases == CALLS


def test_results_come_in_order_whichever_is_first(work, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ooctrain.experiments.spread.finished", lambda *_: iter(((2, "c"), (0, "a"), (1, "b")))
    )
    assert list(spread(work.square, [0, 1, 2])) == ["a", "b", "c"]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_copies_that_mpiexec_started_are_refused(monkeypatch, name, installed):
    monkeypatch.setenv(name, "3")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    with pytest.raises(ConfigError, match="compute everything") as refused:
        list(spread(lines_of, [("a", 1)], 1))
    shown = str(refused.value)
    assert ('pip install "ooctrain[mpi]"' in shown) == (not installed)
    assert "mpiexec -n 3 python -m mpi4py.futures -m ooctrain" in shown


def run_with_ranks(count: int, arguments: list[str], folder: Path, killed: bool = False) -> str:
    """What a command prints under `mpiexec`, or a skip with the reason."""
    try:
        mpiexec = find_mpiexec()
    except ConfigError as error:
        pytest.skip(str(error))
    words = [mpiexec, "-n", str(count), sys.executable, "-m", "mpi4py.futures", "-m", "ooctrain"]
    ended = subprocess.run(
        [*words, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert (ended.returncode != 0) == killed, ended.stderr
    return ended.stdout


COMPARED = "compare lenet --batch 8,16 --budget 25%,50% --machine v100-pcie --bound simple"
COMPARED += " --planner belady,window"


@pytest.mark.slow
def test_ranks_of_mpiexec_find_what_processes_find(tmp_path, capsys):
    """The table byte for byte: what is measured, the time to plan, aside, unless it was kept."""
    there, here = tmp_path / "there.json", tmp_path / "here.json"
    kept = ["--keep", str(tmp_path / "kept")]
    shown = run_with_ranks(3, [*COMPARED.split(), *kept, "--json", str(there)], tmp_path)
    assert main([*COMPARED.split(), "--fresh", "--jobs", "2", "--json", str(here)]) == 0
    alone = capsys.readouterr().out

    def untimed(table: str) -> list[str]:
        return [line.rsplit(maxsplit=2)[0] for line in table.splitlines()]

    assert untimed(shown) == untimed(alone)
    assert len(untimed(shown)) > 8
    rows, others = (json.loads(path.read_text())["rows"] for path in (there, here))
    assert [{**row, "plan_s": 0} for row in rows] == [{**row, "plan_s": 0} for row in others]
    assert main([*COMPARED.split(), *kept]) == 0
    assert capsys.readouterr().out == shown


DIES_ONCE = """
import os, signal
from pathlib import Path
from ooctrain.sched.planners.keep_all import KeepAll

class Mine(KeepAll):
    name = "mine"

    def plan(self, question):
        mark = Path(__file__).with_name("died")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().plan(question)
"""


@pytest.mark.slow
def test_the_cell_of_a_killed_rank_is_computed_by_the_same_command_given_again(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(DIES_ONCE)
    words = ["compare", "lenet", "--batch", "8", "--budget", "100%", "--machine", "v100-pcie"]
    words += ["--planner", f"keep-all,{own}:Mine", "--bound", "simple", "--keep", "kept"]
    run_with_ranks(2, words, tmp_path, killed=True)
    assert len(list((tmp_path / "kept").glob("row-*"))) == 1
    assert "own.py:Mine" in run_with_ranks(2, words, tmp_path)
    assert len(list((tmp_path / "kept").glob("row-*"))) == 2


def plain(hint: object) -> bool:
    """Whether JSON and `revived` bring a value of this type back as it was."""
    if is_dataclass(hint):
        return all(map(plain, get_type_hints(hint).values()))
    if get_origin(hint) in (list, tuple, Union, UnionType):
        return all(map(plain, get_args(hint)))
    return hint in (int, float, str, bool, type(None), ...)


@pytest.mark.parametrize(
    "work",
    [
        architectures.largest, architectures.cells, fragmentation.budget_case,
        fragmentation.batch_case, table1.batch_cells, hybrid.cells, hybrid.replays,
        table1.offload_bounds, offload_ratios.chain_cells, offload_ratios.slot_cells,
    ],
)  # fmt: skip
def test_rows_of_every_experiment_can_be_kept(work):
    hint = get_type_hints(work)["return"]
    assert get_origin(hint) is list
    assert is_dataclass(get_args(hint)[0])
    assert plain(hint)


@pytest.mark.slow
def test_a_real_row_comes_back_as_it_was(tmp_path):
    cases = [("resnet18", 16, 1 << 30)]
    (first,) = spread(table1.batch_cells, cases, 1, tmp_path)
    (again,) = spread(table1.batch_cells, cases, 1, tmp_path)
    assert first == again == table1.batch_cells(cases[0])
    assert [path.name[:5] for path in tmp_path.iterdir()] == ["rows-"]


class Travelled(Exception):
    """The cases have been packed."""


EXPERIMENTS = {
    "architectures": architectures.architectures,
    "fragmentation": fragmentation.fragmentation,
    "hybrid": hybrid.hybrid,
    "offload-ratios": offload_ratios.offload_ratios,
    "table1": table1.table1,
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cases_of_every_experiment_can_travel_to_other_processes(monkeypatch, name):
    def packed(work, cases, processes):
        assert [pickle.loads(pickle.dumps((work, case))) for case in cases] == [
            (work, case) for case in cases
        ]
        raise Travelled

    monkeypatch.setattr("ooctrain.experiments.spread.finished", packed)
    monkeypatch.setattr(hybrid, "fitted_link", lambda network: 1e3)
    with pytest.raises(Travelled):
        EXPERIMENTS[name](Wanted(True, GIB, None, ""), Console(quiet=True))


@pytest.mark.slow
def test_a_pool_that_is_done_has_ended_with_its_thread():
    """A thread left alone races the interpreter's end, which prints a bad file descriptor."""
    before = set(threading.enumerate())
    assert sorted(finished(abs, [-1, -2, -3], 2)) == [(0, 1), (1, 2), (2, 3)]
    assert set(threading.enumerate()) == before


ASKED_TO_END = """
import os, signal, sys, time
from ooctrain.experiments.spread import open_executor

number = int(sys.argv[1])

def ask():
    with open_executor(1):
        os.kill(os.getpid(), number)
        time.sleep(0.01)

try:
    ask()
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(number) is signal.SIG_DFL)
signal.signal(number, lambda *_: print("handled"))
ask()
"""


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", ENDING)
def test_who_is_asked_to_end_while_workers_compute_is_interrupted(number):
    """Where the program handles the signal itself, that is left to it."""
    command = [sys.executable, "-c", ASKED_TO_END, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted True\nhandled\n", "")
