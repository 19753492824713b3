"""Decisions become lists: small cases whose lists and times can be worked out by hand."""

from __future__ import annotations

import pytest

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.planning.decisions import (
    BEFORE_THE_STEP,
    Decisions,
    Gap,
    lives,
    possible_gaps,
    runs_once,
)
from ooctrain.sched.planning.lower import lower, lower_timed, tabulate
from ooctrain.sched.schedule import BYTES, Granule, Run, SwapIn, SwapOut
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import FakeOp

SHARED = Machine("shared", 1, 1, link_bytes_per_us=1)
DUPLEX = Machine("duplex", 1, 1, link_bytes_per_us=1, link="duplex")
LARGE = 10**6


class Steps:
    """Writes traces: `step("f", "x", "y")` reads x and writes y, each of 10 bytes, in 10 us."""

    def __init__(self):
        self.builder, self.ids = TraceBuilder(), {}

    def variable(self, name: str, kind: str = "activation", size: int = 10) -> int:
        if name not in self.ids:
            self.ids[name] = self.builder.variable(name, (size,), "uint8", kind)
        return self.ids[name]

    def step(self, name: str, ins: str, outs: str, duration_us: int = 10, **options) -> None:
        reuse = {self.variable(o): self.variable(i) for o, i in options.pop("reuse", {}).items()}
        self.builder.call(
            name, FakeOp(name), tuple(map(self.variable, ins.split())),
            tuple(map(self.variable, outs.split())), duration_ns=1000 * duration_us, reuse=reuse,
            **options,
        )  # fmt: skip

    def build(self) -> Trace:
        return self.builder.build()


def there_and_back() -> tuple[Trace, dict[str, int]]:
    """x -> a -> b -> c -> d, and a is read again at the end."""
    steps = Steps()
    steps.variable("x", "input")
    for name, ins, outs in (("f", "x", "a"), ("g", "a", "b"), ("h", "b", "c"), ("k", "c a", "d")):
        steps.step(name, ins, outs)
    return steps.build(), steps.ids


def copies(schedule, kind):
    return [(i.var, i.lo, i.hi) for i in schedule if isinstance(i, kind)]


def test_without_gaps_only_the_input_moves():
    trace, ids = there_and_back()
    schedule = lower(Decisions(runs_once(trace)), trace, LARGE, SHARED)
    verify(schedule, trace, LARGE)
    assert copies(schedule, SwapIn) == [(ids["x"], 0, 10)]
    assert copies(schedule, SwapOut) == []
    assert simulate(schedule, trace, SHARED).makespan_us == 10 + 40


def test_a_gap_goes_out_and_comes_back():
    trace, ids = there_and_back()
    gap = Gap(ids["a"], 0, 10, after=1, before=3)
    lowered = lower_timed(Decisions(runs_once(trace), (gap,)), trace, 30, SHARED)
    verify(lowered.schedule, trace, 30)
    assert copies(lowered.schedule, SwapOut) == [(ids["a"], 0, 10)]
    assert copies(lowered.schedule, SwapIn) == [(ids["x"], 0, 10), (ids["a"], 0, 10)]
    # Out during g, in during h: nobody waits but for the input.
    assert lowered.makespan_ns == 50_000
    starts = dict(zip(lowered.schedule, lowered.start_ns, strict=True))
    assert starts[SwapOut(ids["a"], 0, 10)] == 20_000
    assert starts[SwapIn(ids["a"], 0, 10)] == 30_000


def test_parts_of_a_variable_move_alone():
    trace, ids = there_and_back()
    gap = Gap(ids["a"], 4, 8, after=1, before=3)
    schedule = lower(Decisions(runs_once(trace), (gap,)), trace, LARGE, SHARED)
    verify(schedule, trace, LARGE)
    assert copies(schedule, SwapOut) == [(ids["a"], 4, 8)]


def test_the_least_budget_is_the_static_profile():
    trace, ids = there_and_back()
    runs = runs_once(trace)
    # g and h hold a, b, c; without its middle 6 bytes a leaves 4 during h.
    for gaps, least in (((), 30), ((Gap(ids["a"], 2, 8, 1, 3),), 30), ((), 30)):
        with pytest.raises(Infeasible) as caught:
            lower(Decisions(runs, gaps), trace, 5, SHARED)
        assert caught.value.minimum_bytes == least
        verify(lower(Decisions(runs, gaps), trace, least, SHARED), trace, least)
    assert caught.value.witness_call in ("h", "k")


def test_a_second_gap_is_clean():
    """The value does not change, so its host copy serves twice: out once, in twice."""
    steps = Steps()
    steps.variable("x", "input")
    for name, ins, outs in (("f", "x", "a"), ("g", "x", "b"), ("h", "a b", "c"),
                            ("i", "b", "d"), ("k", "a d", "e")):  # fmt: skip
        steps.step(name, ins, outs)
    trace, a = steps.build(), steps.ids["a"]
    gaps = (Gap(a, 0, 10, 0, 2), Gap(a, 0, 10, 2, 4))
    schedule = lower(Decisions(runs_once(trace), gaps), trace, 30, DUPLEX)
    verify(schedule, trace, 30)
    assert copies(schedule, SwapOut) == [(a, 0, 10)]
    assert copies(schedule, SwapIn).count((a, 0, 10)) == 2


def test_a_swap_out_that_has_not_begun_is_cancelled():
    """The link is busy with b until c is due back; where the budget allows, c just stays."""
    steps = Steps()
    steps.variable("x", "input", size=1)
    steps.variable("b", size=100)
    for name, ins, outs in (("f", "x", "b"), ("g", "x", "c"), ("h", "x", "d"), ("k", "c d", "e"),
                            ("l", "b e", "m")):  # fmt: skip
        steps.step(name, ins, outs)
    trace, ids = steps.build(), steps.ids
    gaps = (Gap(ids["b"], 0, 100, 0, 4), Gap(ids["c"], 0, 10, 1, 3))
    roomy = lower(Decisions(runs_once(trace), gaps), trace, 200, SHARED)
    verify(roomy, trace, 200)
    assert copies(roomy, SwapOut) == [(ids["b"], 0, 100)]


@pytest.mark.parametrize(("machine", "first"), [(SHARED, "in z"), (DUPLEX, "out a")])
def test_on_a_shared_link_a_call_that_waits_for_data_goes_first(machine, first):
    steps = Steps()
    steps.variable("x", "input")
    steps.variable("z", "input")
    steps.step("f", "x", "a", workspace_bytes=80)  # no room for z beside f
    for name, ins, outs in (("g", "z", "b"), ("h", "b", "c"), ("k", "a c", "d")):
        steps.step(name, ins, outs)
    trace, a = steps.build(), steps.ids["a"]
    decisions = Decisions(runs_once(trace), (Gap(a, 0, 10, 0, 3),))
    schedule = lower(decisions, trace, 100, machine)
    verify(schedule, trace, 100)
    moves = [schedule.describe(i, trace) for i, item in enumerate(schedule)
             if isinstance(item, SwapIn | SwapOut)]  # fmt: skip
    assert moves[1].startswith(first)


def update_step(in_place: bool = True) -> tuple[Trace, dict[str, int]]:
    """x, w -> a -> b; w is updated from b and a."""
    steps = Steps()
    steps.variable("x", "input")
    steps.variable("w", "param")
    steps.step("f", "x w", "a")
    steps.step("g", "a", "b")
    steps.variable("w'", "param")
    steps.step("u", "w b", "w'", pure=False, reuse={"w'": "w"} if in_place else {})
    steps.builder.carries[steps.ids["w'"]] = steps.ids["w"]
    return steps.build(), steps.ids


@pytest.mark.parametrize("in_place", [True, False])
def test_a_parameter_that_starts_on_the_host_goes_back_there(in_place):
    trace, ids = update_step(in_place)
    gaps = (Gap(ids["w"], 2, 8, BEFORE_THE_STEP, 0),)
    schedule = lower(Decisions(runs_once(trace), gaps), trace, LARGE, SHARED)
    verify(schedule, trace, LARGE)
    assert (ids["w"], 2, 8) in schedule.start_host
    assert schedule.start_device == ((ids["w"], 0, 2), (ids["w"], 8, 10))
    assert copies(schedule, SwapOut) == [(ids["w'"], 2, 8)]


def test_a_parameter_may_leave_between_its_uses():
    trace, ids = update_step()
    decisions = Decisions(runs_once(trace), (Gap(ids["w"], 0, 10, 0, 2),))
    schedule = lower(decisions, trace, 30, DUPLEX)
    verify(schedule, trace, 30)
    assert schedule.start_device == ((ids["w"], 0, 10),)
    assert copies(schedule, SwapOut) == [(ids["w"], 0, 10)]
    assert (ids["w"], 0, 10) in copies(schedule, SwapIn)


def test_recomputation_is_a_second_run():
    trace, ids = there_and_back()
    f, g, h, k = runs_once(trace)
    runs = (f, g, h, Run(f.call, (ids["a"],)), k)
    with pytest.raises(Infeasible) as once:
        lower(Decisions((f, g, h, k)), trace, 1, SHARED)
    # a is dropped after g, x comes in a second time, as it has a host copy from the start.
    gaps = (Gap(ids["x"], 0, 10, 0, 3),)
    lowered = lower_timed(Decisions(runs, gaps), trace, 30, SHARED)
    verify(lowered.schedule, trace, 30)
    assert once.value.minimum_bytes == 30
    assert copies(lowered.schedule, SwapOut) == []
    assert copies(lowered.schedule, SwapIn) == [(ids["x"], 0, 10)] * 2
    assert lowered.makespan_ns == 60_000


def test_what_the_next_step_needs_is_freed_after_no_run():
    trace, ids = update_step()
    table = tabulate(Decisions(runs_once(trace)), trace, SHARED, BYTES)
    freed = {variable for rows in table.dead.values() for variable, _, _ in rows}
    assert freed == set(ids.values()) - {ids["w"], ids["w'"]}


def test_outputs_that_are_not_kept_are_scratch():
    steps = Steps()
    steps.variable("x", "input")
    steps.step("f", "x", "a s")
    steps.step("g", "a", "b", reuse={"b": "a"})
    steps.step("h", "x", "c")
    trace, ids = steps.build(), steps.ids
    runs = (Run(0, (ids["a"],)), Run(1, ()), Run(2))
    schedule = lower(Decisions(runs), trace, 30, SHARED)
    verify(schedule, trace, 30)
    assert simulate(schedule, trace, SHARED).peak_bytes == 30


def test_w_comes_in_before_its_update_takes_the_host_slot():
    steps = Steps()
    steps.variable("w", "param")
    steps.variable("w'", "param")
    steps.step("u", "w", "w'", pure=False)
    steps.step("f", "w", "a")
    steps.step("g", "a", "b")
    steps.builder.carries[steps.ids["w'"]] = steps.ids["w"]
    trace, ids = steps.build(), steps.ids
    gaps = (Gap(ids["w"], 0, 10, BEFORE_THE_STEP, 0), Gap(ids["w"], 0, 10, 0, 1))
    schedule = lower(Decisions(runs_once(trace), gaps), trace, LARGE, DUPLEX)
    verify(schedule, trace, LARGE)
    order = [i.var for i in schedule if isinstance(i, SwapIn | SwapOut)]
    assert order == [ids["w"], ids["w"], ids["w'"]]


def test_lives_and_gaps_are_what_a_planner_chooses_from():
    trace, ids = there_and_back()
    runs = runs_once(trace)
    assert [life.uses for life in lives(trace, runs) if life.var == ids["a"]] == [(0, 1, 3)]
    assert [(g.after, g.before) for g in possible_gaps(trace, runs) if g.var == ids["a"]] == [
        (0, 1),
        (1, 3),
    ]


@pytest.mark.parametrize(
    ("gap", "granule"),
    [
        ((0, 10, 0, 3), BYTES),  # not consecutive
        ((0, 11, 1, 3), BYTES),  # outside
        ((5, 5, 1, 3), BYTES),  # empty
        ((2, 8, 1, 3), Granule(4)),  # not aligned
        ((0, 4, 1, 3), Granule(4, ranges=False)),  # a part
        ((0, 10, 3, 4), BYTES),  # at the end, and not persistent
    ],
)
def test_gaps_that_make_no_sense_are_refused(gap, granule):
    trace, ids = there_and_back()
    with pytest.raises(ConfigError, match="OOC-109"):
        lower(Decisions(runs_once(trace), (Gap(ids["a"], *gap),)), trace, LARGE, SHARED, granule)


def test_overlapping_gaps_are_refused():
    trace, ids = there_and_back()
    gaps = (Gap(ids["a"], 0, 6, 1, 3), Gap(ids["a"], 4, 10, 1, 3))
    with pytest.raises(ConfigError, match="overlaps"):
        lower(Decisions(runs_once(trace), gaps), trace, LARGE, SHARED)


def test_reading_what_was_dropped_is_refused():
    trace, _ = there_and_back()
    f, g, h, k = runs_once(trace)
    with pytest.raises(ConfigError, match="not alive"):
        lower(Decisions((Run(f.call, ()), g, h, k)), trace, LARGE, SHARED)
