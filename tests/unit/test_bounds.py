"""Lower bounds: known values, what each assumes, and what recomputation takes away from them."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from ooctrain.sched.bounds.closed import compute_us, lower_bound, per_call_link_us, proposition_3_us
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import LowerBound
from ooctrain.step.chain import chain
from ooctrain.step.machine import Machine

UNIT = Machine("unit", 1, 1, link_bytes_per_us=1)
#: 3 stages of 10 bytes, 1 us each; M_peak = 40.
PLAIN = chain([10] * 4, [0] * 4, [1] * 3, [1] * 3, [0] * 3, [0] * 3)


def test_with_room_for_all_only_the_calls_count():
    for recompute in (True, False):
        assert lower_bound(PLAIN, 40, UNIT, recompute) == LowerBound(6.0, "compute")


def test_proposition_3_is_twice_what_does_not_fit_over_the_bandwidth():
    assert proposition_3_us(PLAIN, 30, UNIT) == 2 * 10
    assert proposition_3_us(PLAIN, 20, Machine("fast", 1, 1, link_bytes_per_us=4)) == 2 * 20 / 4
    assert proposition_3_us(PLAIN, 40, UNIT) == compute_us(PLAIN, UNIT) == 6


def test_the_bound_per_call_is_at_least_proposition_3():
    """Calls before and after the peak may hide the copies; the call at the peak hides nothing."""
    rng = random.Random(1)
    for _ in range(50):
        stages = rng.randint(1, 5)

        def draw(count, most, rng=rng):
            return [rng.randint(0, most) for _ in range(count)]

        trace = chain(
            draw(stages + 1, 9), draw(stages + 1, 4), draw(stages, 6), draw(stages, 8),
            draw(stages, 3), draw(stages, 3),
        )  # fmt: skip
        for budget_bytes in (5, 10, 20, 40):
            per_call = per_call_link_us(trace, budget_bytes, UNIT, recompute=False)
            assert per_call >= proposition_3_us(trace, budget_bytes, UNIT) - 1e-9


def test_the_call_at_the_peak_is_added():
    """F2, the loss and B2 all hold 40 bytes; 10 must be away while B2 runs for 50 us."""
    trace = chain([10] * 4, [0] * 4, [1] * 3, [1, 1, 50], [0] * 3, [0] * 3)
    bound = lower_bound(trace, 30, UNIT, recompute=False)
    # B2 reads x2 and x3, so x0 and x1 are what may leave: 10 of their bytes before, 10 after.
    assert bound == LowerBound(10 + 50 + 10, "per-call link")


def test_what_can_be_computed_again_bounds_nothing():
    assert lower_bound(PLAIN, 20, UNIT, recompute=False).makespan_us > 6
    # Only x0, which nobody computes, must come back: 10 bytes after the last call that lacks room.
    with_recomputation = lower_bound(PLAIN, 20, UNIT, recompute=True)
    assert with_recomputation.makespan_us < lower_bound(PLAIN, 20, UNIT, False).makespan_us


def test_directions_have_their_own_rates():
    machine = Machine("uneven", 1, 1, 1, link_out_bytes_per_us=2, link_in_bytes_per_us=5)
    trace = chain([0, 10, 0, 10], [0] * 4, [1] * 3, [1] * 3, [0, 0, 5], [0] * 3)
    # While F2 runs, x1 and x3 and 5 bytes of its own want 25 bytes.
    assert proposition_3_us(trace, 15, machine) == pytest.approx(10 / 2 + 10 / 5)


@pytest.mark.parametrize(("out", "back"), [(0.2, 0.5), (0.5, 0.2)])
def test_what_was_there_before_the_step_goes_out_or_is_not_brought_in_yet(out, back):
    """Of x0, which nobody computes, 10 bytes are away at the peak: by whichever way is faster."""
    machine = Machine("uneven", 1, 1, 1, link_out_bytes_per_us=out, link_in_bytes_per_us=back)
    assert proposition_3_us(PLAIN, 30, machine) == 10 / max(out, back) + 10 / back


def test_latency_is_counted_once_a_side():
    machine = Machine("late", 1, 1, link_bytes_per_us=1, latency_us=3)
    assert proposition_3_us(PLAIN, 30, machine) == 2 * (10 + 3)
    assert proposition_3_us(PLAIN, 40, machine) == 6


@pytest.mark.parametrize("link", ["shared", "duplex"])
def test_no_planner_beats_the_bound_without_recomputation(link):
    rng = random.Random(7)
    tight = 0
    for _ in range(40):
        stages = rng.randint(2, 6)
        trace = chain(
            [rng.randint(1, 9) for _ in range(stages + 1)], [1] * (stages + 1),
            [rng.randint(0, 6) for _ in range(stages)], [rng.randint(0, 8) for _ in range(stages)],
            [0] * stages, [0] * stages,
        )  # fmt: skip
        machine = Machine("m", 1, 1, link_bytes_per_us=rng.choice([1, 2]), link=link)
        for budget_bytes in (30, 36, 42):
            bound = lower_bound(trace, budget_bytes, machine, recompute=False)
            plan = get_planner("auto").plan(Question(trace, budget_bytes, machine))
            assert plan.makespan_us >= bound.makespan_us - 1e-6
            tight += plan.makespan_us == bound.makespan_us
    assert tight > 10


def test_the_solver_of_programs_prints_nothing_of_its_own():
    """HiGHS 1.16 prints its banner on standard output once in a process, before any JSON."""
    program = """
from ooctrain.sched.bounds.linear_program import LinearProgram
program = LinearProgram()
program.at_most([(program.column(cost=1.0), -1.0)], -1.5)
assert abs(program.solve().primal - 1.5) < 1e-9
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout + done.stderr == b""
