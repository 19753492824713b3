"""check_planner bites: each planted bug passes the plain test and breaks a law.

The plain test is a straight line of calls with plenty of memory, which each buggy planner masters.
"""

from __future__ import annotations

import pytest
from support.quick import all_but, quick
from zoo import executor_bugs as EXECUTOR
from zoo.planner_bugs import BUGS

from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.testing.check_planner import LAWS, PlannerFailure, check_planner
from ooctrain.testing.random_traces import FakeOp

MACHINE = Machine("plain", 1, 1, 1)
LARGE = 10**6

DELAYS = "delays change nothing"


def straight_line():
    builder = TraceBuilder()
    before = builder.variable("x", (16,), "uint8", "input")
    for number in range(6):
        after = builder.variable(f"y{number}", (8 + number,), "uint8")
        builder.call(f"f{number}", FakeOp(f"f{number}"), (before,), (after,), duration_ns=1000)
        before = after
    return builder.build()


@pytest.mark.parametrize(
    "bug",
    all_but(
        BUGS,
        "drops a value whose copy was cancelled", "both values in one host slot",
        "frees as soon as it is copied", "prefetch blocks a call",
        *(bug for number, bug in enumerate(BUGS) if number % 4),
    ),
)  # fmt: skip
def test_bug(bug, monkeypatch):
    plant, planner = BUGS[bug]
    planner = get_planner(planner) if isinstance(planner, str) else planner
    plant(monkeypatch)
    trace = straight_line()
    verify(planner.plan(Question(trace, LARGE, MACHINE)).schedule, trace, LARGE)
    with pytest.raises(PlannerFailure) as caught:
        check_planner(planner)
    assert len(caught.value.trace.calls) <= 8


@pytest.mark.parametrize(
    ("bug", "planner"),
    quick(
        [
            ("a copy out starts before its value is written", "naive"),
            ("an event is recorded before its work is done", "belady"),
        ],
        0,
        names=2,
    ),
)
def test_only_delays_tell(bug, planner, monkeypatch):
    """No planner can write a list whose result depends on time, so that the bug is the executor's:
    a wait too few, which goes well as long as nothing takes longer than usual.
    """
    EXECUTOR.plant(monkeypatch, bug)
    others = [law for law in LAWS if law != DELAYS]
    check_planner(planner, examples=4, laws=others)
    with pytest.raises(PlannerFailure) as caught:
        check_planner(planner, laws=(DELAYS,))
    assert caught.value.law == DELAYS
