"""A search ends by work, not by the clock: a command gives the same plan on every machine."""

from __future__ import annotations

import time

import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.sched.planners import auto
from ooctrain.sched.planners.by_search import FEW, MORE, MOVES
from ooctrain.sched.planners.combined import THOROUGH
from ooctrain.sched.search.search import ROUNDS, Search
from ooctrain.step.machine import Machine

SLOW_LINK = Machine("slow link", 1, 1, 0.2, link="duplex", latency_us=0.0, call_overhead_us=0.0)

SEARCHING = ["auto", "combined", "prefix", "window-cyclic", "lms-grid", "checkmate"]
WHOLE = oc.Granule(1, ranges=False)


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """`auto` searches, however near to the bound it is."""
    monkeypatch.setattr(auto, "NEAR", 1.0)


class Clock:
    """A clock that has moved on by `tick_s` whenever it is looked at."""

    def __init__(self, tick_s):
        self.now_s, self.tick_s = 0.0, tick_s

    def monotonic(self):
        self.now_s += self.tick_s
        return self.now_s


def deep_chain(stages=24):
    """Stages that are cheap to compute again, and a link that is slow."""
    times = [3 + stage * 7 % 11 for stage in range(stages)]
    return oc.chain([8] * (stages + 1), [8] * (stages + 1), times, times, [0] * stages,
                    [4] * stages)  # fmt: skip


def planned(monkeypatch, tick_s, planner="auto", **asked):
    asked = {"evaluations": 400, **asked}
    chain = deep_chain(4 if planner == "checkmate" else 24)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", Clock(tick_s).monotonic)
        return oc.plan(chain, "20%", planner, SLOW_LINK, WHOLE, **asked)


@pytest.mark.parametrize("planner", quick(SEARCHING, 0))
def test_a_slow_clock_does_not_change_the_plan(monkeypatch, planner):
    quick, slow = (planned(monkeypatch, tick_s, planner) for tick_s in (0.0, 5.0))
    assert quick.schedule == slow.schedule
    assert quick.makespan_us == slow.makespan_us
    assert "cut_short" not in {**quick.notes, **slow.notes}


@pytest.mark.parametrize("planner", quick(["auto", "combined"], 1))
def test_a_number_of_evaluations_is_what_ends_a_search(monkeypatch, planner):
    """So many moves for each round, and some more of the first; one's own number counts first."""
    asked = []
    improve = Search.improve

    def noted(self, start, moves, part, **options):
        asked.append((part, moves))
        return improve(self, start, 1, part, **options)

    monkeypatch.setattr(Search, "improve", noted)
    for spec, evaluations, expected in (
        (planner, 300, 300), (f"{planner}:evaluations=40", 300, 40), (planner, None, THOROUGH),
    ):  # fmt: skip
        asked.clear()
        oc.plan(deep_chain(), "20%", spec, SLOW_LINK, WHOLE, evaluations=evaluations)
        moves = MOVES * expected + min(MORE * expected, FEW)
        assert list(dict.fromkeys(part for part, _ in asked)) == list(ROUNDS)
        for part in ROUNDS:
            given = sum(number for which, number in asked if which is part)
            assert given == pytest.approx(part.share * moves, abs=2)


def test_a_plan_says_how_many_lists_were_tried():
    plans = {
        evaluations: oc.plan(
            deep_chain(), "20%", "combined", SLOW_LINK, WHOLE, evaluations=evaluations
        )
        for evaluations in (0, 50)
    }
    tried = {evaluations: plan.notes.get("evaluations", 0) for evaluations, plan in plans.items()}
    assert plans[50].notes["from"] == "search"
    assert 0 <= tried[0] < (MOVES + MORE) * 50 < tried[50]


@pytest.mark.parametrize("planner", quick(SEARCHING, 0, 1, 3))
@pytest.mark.parametrize("limit_s", quick([0.5, 4.0], 1))
def test_a_time_limit_is_kept_and_the_plan_says_that_it_ended_the_search(
    monkeypatch, planner, limit_s
):
    """Each look at the clock takes a second, so a search that goes on would show."""
    clock = Clock(1.0)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    plan = oc.plan(deep_chain(), "20%", planner, SLOW_LINK, WHOLE, time_limit_s=limit_s)
    assert plan.notes["cut_short"]
    assert clock.now_s < limit_s + 20  # a portfolio looks twice before each turn


@pytest.mark.slow
def test_a_limit_that_is_long_enough_changes_nothing(monkeypatch):
    free, limited = (
        planned(monkeypatch, tick_s, evaluations=400, time_limit_s=limit_s)
        for tick_s, limit_s in ((0.0, None), (1e-6, 1e6))
    )
    assert free.schedule == limited.schedule
    assert "cut_short" not in limited.notes
