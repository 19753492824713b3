"""Small parts of planning, each held to its definition: ranges, gaps, deadlines, refusals.

Planners meet these parts in what they happen to plan; here each is asked for all that it may be
asked for, and answers as a few lines of plain Python do.
"""

from __future__ import annotations

import gc
import math
import random
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from support import known
from support.known_steps import DUPLEX, MACHINE

from ooctrain.errors import ConfigError, Infeasible, PartFailed
from ooctrain.execution.planners import get_planner
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planning import effort as efforts
from ooctrain.sched.planning.decisions import Gap
from ooctrain.sched.planning.effort import Deadline, Effort
from ooctrain.sched.planning.fastest import busiest_stream_us, fastest, fastest_of, least_us
from ooctrain.sched.planning.host_gaps import HostGaps, HostMargin
from ooctrain.sched.planning.planner import (
    RARELY,
    as_plan,
    ask,
    check_evaluations,
    check_host,
    checked_refusal,
    collecting_rarely,
    infeasible,
    least_of,
    least_refusal,
    remarked,
    smallest_budget,
    turning_point,
)
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Plan, Run
from ooctrain.sched.simulate import simulate
from ooctrain.sched.spans import FirstGaps, Spans, held_during, lowest_gap
from ooctrain.testing.random_traces import random_machine, random_trace

# Ranges


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_sets_of_bytes(seed):
    rng, spans, truth = random.Random(seed), Spans(), dict[int, int]()
    for _ in range(60):
        lo = rng.randrange(12)
        hi = lo + rng.randrange(-1, 6)
        if rng.random() < 0.6:
            value = rng.randrange(3)
            spans.put(lo, hi, value)
            truth |= dict.fromkeys(range(lo, hi), value)
        else:
            spans.drop(lo, hi)
            truth = {at: value for at, value in truth.items() if not lo <= at < hi}
        a, b = sorted((rng.randrange(18), rng.randrange(18)))
        over = spans.over(a, b)
        assert [at for x, y, _ in over for at in range(x, y)] == sorted(
            at for at in truth if a <= at < b
        )
        assert all(truth[at] == value for x, y, value in over for at in range(x, y))
        assert over == sorted(over)
        gaps = spans.gaps(a, b)
        assert [at for x, y in gaps for at in range(x, y)] == [
            at for at in range(a, b) if at not in truth
        ]
        assert all(x < y for x, y in gaps)
        ranges = spans.ranges()
        assert [at for x, y in ranges for at in range(x, y)] == sorted(truth)
        ends = [edge for pair in ranges for edge in pair]
        assert ends == sorted(set(ends))
        # Neighbours with one value are one entry.
        pairs = pairwise(spans.items)
        assert all(one[1] < two[0] or one[2] != two[2] for one, two in pairs)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_taken_lies_as_low_as_it_can(seed):
    rng, gaps, taken = random.Random(seed), FirstGaps(), dict[int, int]()
    for _ in range(60):
        if taken and rng.random() < 0.45:
            start = rng.choice(sorted(taken))
            end = taken.pop(start)
            gaps.give(start, end)
        else:
            size = rng.randrange(6)
            busy = {at for a, b in taken.items() for at in range(a, b)}
            wanted = next(o for o in range(200) if not busy & set(range(o, o + size)))
            assert gaps.take(size) == (wanted if size else 0)
            if size:
                taken[wanted] = wanted + size
        busy = {at for a, b in taken.items() for at in range(a, b)}
        free = [at for at in range(400) if at not in busy]
        assert len(gaps) == 1 + sum(b - a > 1 for a, b in pairwise(free))
    gaps.give(3, 3)
    blocks = sorted(taken.items())
    for size in range(1, 8):
        for align in (1, 4):
            found = lowest_gap(blocks, size, align)
            assert found % align == 0
            assert not busy & set(range(found, found + size))
            if align == 1:
                assert found == next(o for o in range(400) if not busy & set(range(o, o + size)))


def test_stretches_are_counted_where_they_are():
    stretches = [(0, 2, 5), (1, 1, 7), (3, 3, 2), (2, 3, 1)]
    wanted = [sum(n for a, b, n in stretches if a <= call <= b) for call in range(4)]
    assert held_during(stretches, 4) == wanted


# The host


@pytest.mark.parametrize("seed", range(8))
def test_parts_of_gaps_fit_as_they_did(seed):
    rng, rows = random.Random(seed), []
    gaps = HostGaps(30, 10, frozenset({2}))
    asked = sorted(
        (Gap(rng.randrange(4), 0, 20, after := rng.randrange(8), after + rng.randint(1, 3))
         for _ in range(10)), key=lambda gap: gap.after,
    )  # fmt: skip
    for gap in asked:
        gaps.open(gap)
        taken = 0
        for _ in range(3):
            part = rng.randint(1, 9)
            fits = gaps.fitting(gap, taken, part)
            assert 0 <= fits <= part
            gaps.take(gap, taken, fits)
            taken += fits
            rows.append((gap.var, part, fits))
    known.check_rows("settings", f"gaps {seed}", [[known.digest(rows)]])


def test_what_is_left_of_the_host_is_the_least_of_all_slots():
    margin = HostMargin(10, 4)
    margin.take(1, 2, 4)
    margin.take(2, 4, 3)
    assert margin.left_bytes == [10, 6, 3, 7, 7]
    assert [margin.least(0, 0), margin.least(0, 1), margin.least(0, 4)] == [10, 6, 3]
    assert margin.least(3, 2) > 10**9


# Time and effort


def test_a_deadline_is_over_when_it_is():
    now = time.monotonic()
    assert Deadline().left_s() is None
    assert not Deadline().passed()
    assert Deadline.after(None) == Deadline()
    assert 99 < (Deadline.after(100).left_s() or 0) <= 100
    assert Deadline(now - 1).left_s() == 0
    assert Deadline(now - 1).passed()
    assert not Deadline(now + 100).passed()
    assert Deadline(50.0).earlier(3) == Deadline(47.0)
    assert Deadline().earlier(3) == Deadline().keeping(0.5) == Deadline()
    assert Deadline(5.0).or_earlier(Deadline(4.0)) == Deadline(4.0)
    assert (
        Deadline(5.0).or_earlier(Deadline())
        == Deadline().or_earlier(Deadline(5.0))
        == Deadline(5.0)
    )
    assert Deadline().or_earlier(Deadline()) == Deadline()
    kept = Deadline(now + 100).keeping(0.25).left_s() or 0
    assert 74 < kept <= 75.01
    part = Effort(10, Deadline(now + 100)).share(0.3)
    assert part.evaluations == 3
    assert 29 < (part.deadline.left_s() or 0) <= 30.01
    assert Effort().share(0.3) == Effort() == efforts.UNHURRIED
    assert Effort.within(None, 5) == Effort(5)
    assert Effort.within(0.0).deadline.passed()


@pytest.mark.parametrize(("number", "fine"), [
    (None, True), (0, True), (1, True), (2.5, True), (-1, False), (-0.1, False), (math.inf, False),
    (math.nan, False), (True, False), ("1", False),
])  # fmt: skip
def test_evaluations_are_a_number(number, fine):
    if fine:
        check_evaluations("x", number)
        return
    with pytest.raises(ConfigError) as caught:
        check_evaluations("x", number)
    assert caught.value.code == "OOC-105"


def test_the_collector_waits_meanwhile_and_is_as_it_was():
    first = gc.get_threshold()
    try:
        rarely = RARELY
        for threshold, within in (
            (700, rarely), (0, 0), (rarely, rarely), (rarely - 1, rarely), (10**6, 10**6),
        ):  # fmt: skip
            gc.set_threshold(threshold, *first[1:])
            with collecting_rarely():
                assert gc.get_threshold() == (within, *first[1:])
            assert gc.get_threshold() == (threshold, *first[1:])
    finally:
        gc.set_threshold(*first)


# Plans


def plans(seed: int) -> list[tuple[Plan, Question]]:
    rng = random.Random(f"parts/{seed}")
    step = random_trace(rng, calls=9, max_bytes=90, duration_ns=5000)
    most = trace_peak_bytes(step)
    found = []
    for machine in (MACHINE, DUPLEX, random_machine(rng)):
        for name in ("belady", "naive", "lru"):
            asked = Question(step, most, machine)
            found.append((get_planner(name).plan(asked), asked))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_lower_bounds_of_lists_are_bounds_and_what_they_were(seed):
    rows = []
    for plan, asked in plans(seed):
        took_us = simulate(plan.schedule, plan.trace, asked.machine).makespan_us
        least = least_us(plan.schedule, plan.trace, asked.machine)
        busiest = busiest_stream_us(plan.schedule, plan.trace, asked.machine)
        assert busiest <= least + 1e-9
        assert least <= took_us + 1e-9
        rows.append((least, busiest))
    known.check_rows("settings", f"least times {seed}", rows)


def test_the_fastest_is_made_and_no_slower_one():
    (one, _), *_ = plans(0)
    made = []

    def way(us: float, host: int, bound: float, number: int):
        def make():
            made.append(number)
            return replace(one, makespan_us=us, host_peak_bytes=host, notes={"n": number})

        return bound, make

    def best(*ways, limit=None, known_ones=()):
        made.clear()
        return fastest_of("x", known_ones, ways, limit).notes["n"], list(made)

    assert best(way(5, 1, 1, 0), way(4, 1, 2, 1), way(3, 1, 4, 2)) == (1, [0, 1])
    assert best(way(5, 1, 1, 0), way(5, 1, 1, 1)) == (0, [0, 1])
    assert best(way(5, 9, 1, 0), way(7, 1, 6, 1), limit=5) == (1, [0, 1])
    assert best(way(5, 5, 1, 0), way(7, 1, 5, 1), limit=5) == (0, [0])
    assert best(way(5, 1, 5, 0), way(5, 1, 3, 1)) == (0, [1, 0])
    kept = replace(one, makespan_us=4.0, host_peak_bytes=1, notes={"n": "kept"})
    assert best(way(3, 1, 4, 0), known_ones=[kept]) == ("kept", [])
    assert best(way(3, 1, 3.5, 0), known_ones=[kept]) == (0, [0])
    assert best(way(6, 1, 5, 0), limit=1, known_ones=[replace(kept, host_peak_bytes=0)]) == (
        "kept", [],
    )  # fmt: skip
    with pytest.raises(Infeasible) as caught:
        best(way(3, 9, 1, 0), way(3, 8, 1, 1), limit=7)
    assert (caught.value.needs, caught.value.minimum_bytes) == ("host", None)
    two = [replace(one, makespan_us=us, host_peak_bytes=host) for us, host in ((3, 8), (4, 7))]
    assert fastest("x", two, 7) is two[1]
    assert fastest("x", two, 8) is two[0]
    check_host("x", two[0], 8)
    check_host("x", two[0], None)
    with pytest.raises(Infeasible):
        check_host("x", two[0], 7)


def test_what_is_no_plan_is_refused():
    (plan, asked), *_ = plans(1)

    class Mine:
        name = "mine"

        def __init__(self, answer):
            self.answer = answer

        def plan(self, question):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    assert as_plan(plan, Mine(plan)) is plan
    assert ask(Mine(plan), asked).schedule == plan.schedule
    listed = replace(plan.schedule, instructions=(*plan.schedule.instructions, "run f"))
    odd = {"trace": None, "schedule": [], "notes": []}, {"schedule": listed}
    wrong = [None, 3, *(replace(plan, **{k: v}) for each in odd for k, v in each.items())]
    for answer in wrong:
        with pytest.raises(ConfigError) as caught:
            as_plan(answer, Mine(answer))
        assert caught.value.code == "OOC-108"
    taken = (0, "device"), (5, "host"), (None, "host")
    not_taken = (None, "device"), (-1, "device"), (1.0, "device"), (True, "device")
    for least, needs in (*taken, *not_taken):
        refusal = Infeasible("no", minimum_bytes=least, needs=needs)
        if (least, needs) in taken:
            assert checked_refusal(refusal, Mine(plan)) is refusal
        else:
            with pytest.raises(ConfigError):
                checked_refusal(refusal, Mine(plan))


def test_refusals_of_several_are_one():
    named = [infeasible("x", 10, least, "f") for least in (30, 20, 40)]
    short = Infeasible("no", minimum_bytes=None, needs="host", numbers="n")
    assert least_of(named) is named[1]
    assert least_of([*named, short]) is short
    failed = PartFailed("planner 'y' failed")
    found = least_refusal("z", named, 10, [failed])
    assert (found.minimum_bytes, found.witness_call, found.__cause__) == (20, "f", failed)
    found = least_refusal("z", [*named, short], 10)
    assert (found.minimum_bytes, found.needs, found.__cause__) == (None, "host", None)
    assert least_refusal("z", [], 10, [failed]) is failed
    (plan, _), *_ = plans(0)
    assert remarked(plan, []) is plan
    both = remarked(remarked(plan, [failed]), [failed, PartFailed("other")])
    assert len(both.notes["remarks"]) == 2


@pytest.mark.parametrize("least", [3, 4, 9, 10])
def test_the_least_budget_is_found_by_halves(least):
    asked: list[int] = []

    def feasible(budget: int) -> bool:
        asked.append(budget)
        return budget >= least

    assert smallest_budget(feasible, 3, 10) == least
    assert len(asked) <= 3
    assert smallest_budget(feasible, 3, 10, lambda: True) == 10
    assert smallest_budget(feasible, 10, 10) == 10


def test_the_turning_point_is_the_first_call_that_is_not_forward():
    step = random_trace(random.Random(3), calls=8)
    turn = turning_point(step)
    assert all(call.phase == "forward" for call in step.calls[:turn])
    assert step.calls[turn].phase != "forward"
    forward = replace(step, calls=tuple(replace(c, phase="forward") for c in step.calls))
    assert turning_point(forward) == len(step.calls)
    assert BYTES.size_bytes == 1
    assert Run(0) == Run(0, None)
