"""Paper 002's chains as traces: sizes, times, what each stage needs; the example of the errata."""

from __future__ import annotations

import itertools
import random

import pytest

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.decisions import Decisions, Gap, possible_gaps, runs_once
from ooctrain.sched.planning.lower import lower_timed
from ooctrain.sched.planning.question import Question
from ooctrain.step.chain import chain
from ooctrain.step.machine import Machine, call_durations_ns

#: Paper 002's lemma 3 fails here: ordered 27, unordered 26 (docs/errata.md).
EXAMPLE = {
    "x": [4, 6, 4, 6], "y": [3, 0, 0, 0], "u_forward": [3, 1, 1], "u_backward": [5, 6, 7],
    "extra_forward": [1, 1, 2], "extra_backward": [1, 0, 0],
}  # fmt: skip
MEMORY_BYTES = 16
UNIT = Machine("unit", 1, 1, link_bytes_per_us=1)


def test_stages_read_and_write_what_the_paper_says():
    trace = chain(**EXAMPLE)
    names = [
        (c.name, *([trace.variables[v].name for v in side] for side in (c.ins, c.outs)))
        for c in trace.calls
    ]
    assert names == [
        ("F0", ["x0"], ["x1"]), ("F1", ["x1"], ["x2"]), ("F2", ["x2"], ["x3"]),
        ("loss", ["x3"], ["y3"]),
        ("B2", ["x2", "x3", "y3"], ["y2"]), ("B1", ["x1", "x2", "y2"], ["y1"]),
        ("B0", ["x0", "x1", "y1"], ["y0"]),
    ]  # fmt: skip
    assert call_durations_ns(trace, UNIT) == [3000, 1000, 1000, 0, 7000, 6000, 5000]
    assert [c.workspace_bytes for c in trace.calls] == [1, 1, 2, 0, 0, 0, 1]


def test_in_core_it_takes_the_sum_of_times_and_the_papers_peak():
    rng = random.Random(3)
    for _ in range(30):
        given = random_chain(rng)
        trace = chain(**given)
        plan = get_planner("keep-all").plan(Question(trace, 10**6, UNIT))
        assert plan.makespan_us == sum(given["u_forward"]) + sum(given["u_backward"])
        assert plan.peak_bytes == trace_peak_bytes(trace) == paper_peak(given)


def test_offloading_the_first_two_takes_27_in_order():
    """Byte by byte the list is the paper's interruptible transfers; the ordered optimum is 27."""
    trace = chain(**EXAMPLE)
    runs = runs_once(trace)
    gaps = [gap for gap in possible_gaps(trace, runs) if gap.before > gap.after + 1]
    best: dict[tuple[str, ...], float] = {}
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(gaps, count) for count in range(len(gaps) + 1)
    ):
        bytewise = [Gap(g.var, lo, lo + 1, g.after, g.before) for g in chosen for lo in range(g.hi)]
        try:
            lowered = lower_timed(Decisions(runs, tuple(bytewise)), trace, MEMORY_BYTES, UNIT)
        except Infeasible:
            continue
        best[tuple(trace.variables[g.var].name for g in chosen)] = lowered.makespan_ns / 1000
    assert best["x0", "x1"] == 27
    assert min(best.values()) == 27


def test_partial_offloading_reaches_theorem_2():
    """Eager, exactly M_peak - M bytes: x_0 and two bytes of x_1; 25 us, and less cannot be sent."""
    trace = chain(**EXAMPLE)
    runs = runs_once(trace)
    by_name = {trace.variables[gap.var].name: gap for gap in possible_gaps(trace, runs)
               if gap.before > gap.after + 1}  # fmt: skip
    sent = [("x0", lo) for lo in range(4)] + [("x1", lo) for lo in range(2)]
    assert len(sent) == paper_peak(EXAMPLE) - MEMORY_BYTES

    def lowered(pieces):
        gaps = tuple(
            Gap(by_name[n].var, lo, lo + 1, by_name[n].after, by_name[n].before) for n, lo in pieces
        )
        return lower_timed(Decisions(runs, gaps), trace, MEMORY_BYTES, UNIT)

    assert lowered(sent).makespan_ns == 25_000
    with pytest.raises(Infeasible):
        lowered(sent[:-1])


@pytest.mark.parametrize(
    "broken",
    [
        {"x": [4, 6, 4]},
        {"y": [3]},
        {"u_backward": [1]},
        {"extra_forward": []},
        {"x": [4, 6, -4, 6]},
    ],
)
def test_lists_that_do_not_fit_together_are_refused(broken):
    with pytest.raises(ConfigError):
        chain(**{**EXAMPLE, **broken})


def random_chain(rng: random.Random) -> dict:
    stages = rng.randint(1, 5)
    return {
        "x": [rng.randint(0, 9) for _ in range(stages + 1)],
        "y": [rng.randint(0, 4) for _ in range(stages + 1)],
        "u_forward": [rng.randint(0, 6) for _ in range(stages)],
        "u_backward": [rng.randint(0, 8) for _ in range(stages)],
        "extra_forward": [rng.randint(0, 3) for _ in range(stages)],
        "extra_backward": [rng.randint(0, 3) for _ in range(stages)],
    }


def paper_peak(given: dict) -> int:
    """M_peak of paper 002, section 3.2."""
    x, y = given["x"], given["y"]
    forward = [e + sum(x[: i + 2]) for i, e in enumerate(given["extra_forward"])]
    backward = [
        e + y[i] + y[i + 1] + sum(x[: i + 2]) for i, e in enumerate(given["extra_backward"])
    ]
    return max(forward + backward)
