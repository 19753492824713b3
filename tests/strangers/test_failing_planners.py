"""What a planner or rewrite raises that is no error of the library ends it alone, with a note.

A bug is planted in each part that `auto`, `banded` and `combined` ask, in turn. There still is a
plan, with a remark that names the part; only where nothing else has a plan does the run end, with
a typed error whose cause is what was raised. Of a planner or rewrite that is asked for by name the
author sees the exception; where `compare` asks several, the row of one says so. Interrupts, time
limits of one's own and short memory pass through everything.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain import nn
from ooctrain.cli import main
from ooctrain.errors import PartFailed
from ooctrain.execution import planners as known
from ooctrain.rewrite.tile import banded, offers
from ooctrain.sched.planners import combined
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.question import Question

OWN = """
class Mine:
    name = "mine"
    def plan(self, question):
        return {}["nothing"]

def rewritten(trace):
    return 1 / 0
"""


def small() -> oc.Trace:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
    return oc.trace(net, (2, 3, 32, 32), threads=1)


def breaking(error: BaseException) -> Callable[..., Any]:
    def fails(*_arguments: Any, **_options: Any) -> Any:
        raise error

    return fails


def remarks(plan: oc.Plan) -> str:
    return " ".join(plan.notes.get("remarks", ()))


ERRORS = [AssertionError(), KeyError("x"), RecursionError("deep")]
PARTS = [
    (SlidingWindow, ERRORS[0]), (Belady, ERRORS[1]), (Dtr, ERRORS[2]), (Naive, ERRORS[0]),
    (combined.Combined, ERRORS[1]),
]  # fmt: skip


@pytest.mark.parametrize(("part", "error"), quick(PARTS, 3, names=2))
def test_auto_goes_on_without_a_planner(
    part: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = small()
    budget = (oc.trace_minimum_bytes(trace) + oc.trace_peak_bytes(trace)) // 2
    monkeypatch.setattr(part, "plan", breaking(error))
    plan = oc.plan(trace, budget, "auto", evaluations=20)
    assert repr(part.name) in remarks(plan)
    oc.verify(plan, trace, budget)


def test_the_search_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small()
    monkeypatch.setattr(combined, "found_by_search", breaking(AssertionError()))
    plan = oc.plan(trace, oc.trace_minimum_bytes(trace), "combined", evaluations=20)
    assert "'combined'" in remarks(plan)


@pytest.mark.parametrize("name", ["offers_for", "mixed_tilings", "few_tilings"])
def test_bands_that_cannot_be_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small()
    low, high = oc.trace_minimum_bytes(trace), oc.trace_peak_bytes(trace)
    monkeypatch.setattr(banded, name, breaking(AssertionError("rows")))
    plan = oc.plan(trace, (low + high) // 2, "banded", evaluations=20)
    oc.verify(plan, trace, (low + high) // 2)
    assert "choosing tilings failed: AssertionError: rows" in remarks(plan)


@pytest.mark.parametrize("planner", quick(["banded", "sft", "auto"], 0, 1))
def test_bands_that_cannot_be_written(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small()
    offers.forget_tilings()
    monkeypatch.setattr(offers, "tile_by_name", breaking(AssertionError("rows")))
    plan = oc.plan(trace, oc.trace_peak_bytes(trace), planner, evaluations=20)
    oc.verify(plan, trace, oc.trace_peak_bytes(trace))
    with pytest.raises((oc.Infeasible, PartFailed)) as caught:
        oc.plan(trace, oc.trace_minimum_bytes(trace) // 4, planner, evaluations=20)
    assert caught.value.__cause__ is not None or planner != "banded"


@pytest.mark.slow
def test_tilings_that_cannot_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small()
    monkeypatch.setattr(known, "can_be_banded", breaking(ZeroDivisionError()))
    plan = oc.plan(trace, oc.trace_minimum_bytes(trace), "auto", host_budget=0, evaluations=20)
    assert "ZeroDivisionError" in remarks(plan)


@pytest.mark.slow
def test_the_narrow_form(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small()
    monkeypatch.setattr("ooctrain.execution.compose.narrower", breaking(AssertionError()))
    assert oc.plan(trace, "60%", "auto", evaluations=20).schedule.instructions


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_interrupts_and_short_memory_pass(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Belady, "plan", breaking(error))
    with pytest.raises(type(error)):
        oc.plan(small(), "60%", "auto", evaluations=20)


class TimeIsUpError(Exception):
    """Of a time limit of one's own."""


class Limit:
    """Handlers of signals, in each form that a callable has."""

    def method(self, *_: object) -> None:
        raise TimeIsUpError

    def __call__(self, *_: object) -> None:
        raise TimeIsUpError


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no such signal")
@pytest.mark.parametrize(
    "handler", [Limit().method, Limit(), partial(Limit.method, None), lambda *_: Limit()()]
)
def test_what_a_signals_handler_raises_passes_and_says_nothing_of_the_planner(
    handler: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*_arguments: Any, **_options: Any) -> None:
        signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(Belady, "plan", meanwhile)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeIsUpError):
            oc.plan(small(), "60%", "auto", evaluations=20)
    finally:
        signal.signal(signal.SIGALRM, before)


class Mine:
    """A user's planner with a bug."""

    name = "mine"

    def plan(self, question: Question) -> oc.Plan:
        raise KeyError(question.budget_bytes)


def test_a_planner_of_ones_own_shows_its_exception() -> None:
    with pytest.raises(PartFailed) as caught:
        oc.plan(small(), "50%", Mine())
    assert caught.value.code == "OOC-126"
    assert isinstance(caught.value.__cause__, KeyError)
    assert Path(__file__).name in caught.value.where


def test_the_command_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lenet = ["plan", "lenet", "--batch", "8", "--budget", "50%"]
    assert main([*lenet, "--planner", "own.py:Mine"]) == 1
    said = capsys.readouterr().err
    assert "OOC-115" in said
    assert "own.py, line 5" in said
    assert main([*lenet, "--rewrite", "own.py:rewritten"]) == 1
    assert "own.py, line 8" in capsys.readouterr().err
    with pytest.raises(KeyError):
        main(["--traceback", *lenet, "--planner", "own.py:Mine"])


# --- of several that are compared

#: {class: its plan(...)}: what each does with a network of 16 images, and of 8 what `Fine` does.
SEVERAL = """
from dataclasses import replace
from ooctrain.errors import ConfigError
from ooctrain.execution.planners import get_planner
from ooctrain.planning import infeasible

class Fine:
    name = "fine"
    def plan(self, question):
        found = get_planner("belady").plan(question)
        return self.of_many(found) if question.trace.variables[0].shape[0] > 8 else found
    def of_many(self, found):
        return found

class Raises(Fine):
    name = "raises"
    def of_many(self, found):
        return {}["nothing"]

class Typed(Fine):
    name = "typed"
    def of_many(self, found):
        raise ConfigError("no network of mine", code="OOC-106")

class Illegal(Fine):
    name = "illegal"
    def of_many(self, found):
        half = found.schedule.instructions[: len(found.schedule.instructions) // 2]
        return replace(found, schedule=replace(found.schedule, instructions=half))

class NoPlan(Fine):
    name = "no plan"
    def of_many(self, found):
        return None
"""
#: {class: the code that its row names}
FAILING = {"Raises": "OOC-115", "Typed": "OOC-106", "Illegal": "R", "NoPlan": "OOC-"}


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `compare lenet`; gives (status, rows)."""
    (tmp_path / "own.py").write_text(SEVERAL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, list[dict[str, Any]]]:
        said = (
            "--budget", "50%", "--machine", "v100-pcie", "--bound", "simple", "--keep", "kept",
            "--json", "n.json", "--csv", "n.csv", "--markdown", "n.md", "--figure", "n.svg",
        )  # fmt: skip
        status = main(["compare", "lenet", *said, "--jobs", "1", *words])
        return status, json.loads(Path("n.json").read_text())["rows"]

    return call


def test_where_one_planner_fails_the_others_are_compared(
    compared: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = ",".join(f"own.py:{name}" for name in FAILING)
    for _ in range(2):  # and again, where the others are kept
        status, rows = compared("--batch", "8,16", "--planner", f"naive,{mine},lru")
        assert status == 0
        assert len(rows) == 2 * (2 + len(FAILING))
        for row in rows:
            name = row["planner"].partition(":")[2]
            fails = row["batch"] == 16 and name in FAILING
            assert bool(row["error"]) == fails
            assert row["feasible"] is not fails
            assert (row["minimum_bytes"] is None) == fails
            assert (row["makespan_us"] is None) == fails
            if fails:
                assert row["error"].startswith(f"[{FAILING[name]}")
        (raised,) = [r["error"] for r in rows if r["planner"] == "own.py:Raises" and r["error"]]
        assert "own.py, line 18" in raised
        captured = capsys.readouterr()
        assert captured.out.count("fails on lenet, batch 16") == len(FAILING)


def test_where_all_fail_the_status_says_so(compared: Callable[..., Any]) -> None:
    status, rows = compared("--batch", "16", "--planner", "own.py:Typed")
    assert status == 1
    assert "no network of mine" in rows[0]["error"]


def test_what_is_no_step_has_a_row_and_the_others_are_compared(
    compared: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("any.py").write_text(
        "from ooctrain import nn\n"
        "def net(): return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 3))\n"
    )
    words = "any.py:net", "--image-size", "8,32", "--batch", "4", "--planner", "lru"
    status, rows = compared(*words)
    assert status == 0
    small = [row for row in rows if row["error"]]
    assert [(row["model"], row["image_size"]) for row in small] == [("lenet", 8)]
    assert small[0]["error"].startswith("[OOC-110]")
    assert [row["feasible"] for row in rows] == [False, True, True, True]
    assert Path("n.svg").read_text().count("<svg") >= 1
    assert "images of 8" in capsys.readouterr().out
    Path("n.csv").unlink()
    small_ones = ["--image-size", "8", "--budget", "50%", "--planner", "lru", "--jobs", "1"]
    assert main(["compare", "lenet", *small_ones, "--csv", "n.csv"]) == 2
    assert not Path("n.csv").exists(), "where there is no step at all"


#: Allocators that fail when they are made, and when they are asked.
ALLOCATORS = """
from ooctrain.alloc.best_fit import BestFit

class Made(BestFit):
    name = "made"
    def __init__(self, memory): raise KeyError("x")

class Asked(BestFit):
    name = "asked"
    def allocate(self, nbytes, tag=""): return 1 / 0
"""


def test_where_one_allocator_fails_the_others_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(ALLOCATORS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    usual = ["lenet", "--batch", "4", "--budget", "60%", "--planner", "lru"]
    assert main(["plan", *usual, "--allocation-log", "log.jsonl"]) == 0
    words = ["replay", "log.jsonl", "--json", "n.json", "--picture", "n.svg", "--allocator"]
    assert main([*words, "best-fit,own.py:Made,own.py:Asked,va"]) == 0
    rows = json.loads(Path("n.json").read_text())["rows"]
    assert [row["error"] is None for row in rows] == [True, False, False, True]
    assert all("OOC-115" in row["error"] for row in rows[1:3])
    assert rows[3]["served"] > 0
    assert Path("n.svg").is_file()
    assert "own.py:Asked is left out" in capsys.readouterr().out
    for alone in ("own.py:Made", "own.py:Made,own.py:Asked"):
        assert main([*words, alone]) == 1
        assert "own.py, line" in capsys.readouterr().err
    assert main([*words, "va,no-such-one"]) == 2


@pytest.mark.slow
def test_they_fail_in_processes_of_their_own_too(compared: Callable[..., Any]) -> None:
    status, rows = compared("--batch", "16", "--planner", "own.py:Raises,lru", "--jobs", "2")
    assert status == 0
    assert [bool(row["error"]) for row in rows] == [True, False]


def test_compare_has_as_many_classes_as_plan(
    compared: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(
        "from ooctrain import nn\n"
        "def net(num_classes=3): return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))\n"
        "def fixed(): return nn.Sequential(nn.Flatten(), nn.Linear(3072, 3))\n"
    )
    for model in ("lenet", "net.py:net"):
        words = [model, "--batch", "8", "--image-size", "32", "--machine", "v100-pcie"]
        words += ["--budget", "100%", "--planner", "keep-all"]
        peaks = {}
        for classes in ((), ("--classes", "7"), ("--classes", "900")):
            assert main(["plan", *words, *classes, "--json", "p.json"]) == 0
            assert main(["compare", *words, *classes, "--bound", "simple", "--jobs", "1", "--fresh",
                         "--json", "c.json"]) == 0  # fmt: skip
            (row,) = json.loads(Path("c.json").read_text())["rows"]
            planned = json.loads(Path("p.json").read_text())
            assert row["classes"] == (int(classes[1]) if classes else None)
            if classes or model == "net.py:net":
                assert row["peak_bytes"] == planned["peak_bytes"]
            peaks[classes] = row["peak_bytes"]
        assert len(set(peaks.values())) == 3
    for wrong in ("0", "-1", "many", "2.5"):
        assert main(["compare", "lenet", "--classes", wrong]) == 2
    for model in ("net.py:fixed", "pix2pixhd"):
        assert main(["compare", "lenet", model, "--classes", "7"]) == 2
        assert "OOC-106" in capsys.readouterr().err
