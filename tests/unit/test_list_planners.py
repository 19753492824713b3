"""keep-all, naive, window, auto on small steps whose lists can be worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.strategies import traces
from support.work import lines_run

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planners import window
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planners.window import SlidingWindow, heads_of
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.list_writer import VariableSequence
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Fence, Free, Granule, Run, SwapIn, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import FakeOp

MACHINE = Machine("m", 1, 1, link_bytes_per_us=1, link="duplex")
LARGE = 10**6


def step(
    *calls: str, sizes: dict[str, int] | None = None, kinds: dict[str, str] | None = None
) -> Trace:
    """A trace of calls "f: x y -> z"; what nobody writes is an input; 10 bytes and 10 us each."""
    builder, ids = TraceBuilder(), {}

    def variable(name: str, kind: str) -> int:
        if name not in ids:
            size = (sizes or {}).get(name, 10)
            ids[name] = builder.variable(name, (size,), "uint8", (kinds or {}).get(name, kind))
        return ids[name]

    for text in calls:
        name, _, rest = text.partition(":")
        ins, outs = (side.split() for side in rest.split("->"))
        workspace = sum(int(word) for word in outs if word.isdigit())
        builder.call(
            name, FakeOp(name), [variable(v, "input") for v in ins],
            [variable(v, "activation") for v in outs if not v.isdigit()],
            workspace_bytes=workspace, duration_ns=10_000,
        )  # fmt: skip
    return builder.build()


def listed(plan, kind) -> list[str]:
    """Names of the variables that a kind of instruction moves, in order."""
    return [plan.trace.variables[i.var].name for i in plan.schedule if isinstance(i, kind)]


FORTH_AND_BACK = step("f: x -> a", "g: a -> b", "h: b -> c", "k: c b -> d", "l: d a -> e")


def test_keep_all_moves_nothing_but_inputs():
    plan = KeepAll().plan(Question(FORTH_AND_BACK, LARGE, MACHINE))
    assert listed(plan, SwapIn) == ["x"]
    assert listed(plan, SwapOut) == []
    assert plan.makespan_us == 10 + 50


def test_keep_all_fetches_labels_early_where_there_is_room():
    trace = step("f: x -> a 10", "g: a -> b", "loss: b labels -> c")
    assert KeepAll().plan(Question(trace, 40, MACHINE)).makespan_us == 10 + 30
    late = KeepAll().plan(Question(trace, 30, MACHINE))
    assert late.makespan_us == 10 + 20 + 10 + 10
    with pytest.raises(Infeasible) as refused:
        KeepAll().plan(Question(trace, 29, MACHINE))
    assert (refused.value.minimum_bytes, refused.value.witness_call) == (30, "f")


def test_naive_stops_for_every_group():
    plan = Naive().plan(Question(FORTH_AND_BACK, 30, MACHINE))
    verify(plan, FORTH_AND_BACK, 30, MACHINE)
    assert listed(plan, SwapOut) == ["a", "b", "c", "d"]
    assert listed(plan, SwapIn) == ["x", "a", "b", "c", "b", "d", "a"]
    # Nothing overlaps: 5 calls and 11 copies of 10 us.
    assert plan.makespan_us == 50 + 110
    fences = sum(isinstance(i, Fence) for i in plan.schedule)
    assert fences == 3 * len(FORTH_AND_BACK.calls)


@pytest.mark.parametrize("planner", [Naive(), SlidingWindow()])
def test_the_minimum_is_the_largest_need_of_one_call_in_granules(planner):
    trace = step("f: x -> a 7", "g: a x -> b", "h: b -> c")
    for granule, least in ((Granule(), 30), (Granule(4), 36), (Granule(64, ranges=False), 192)):
        with pytest.raises(Infeasible) as refused:
            planner.plan(Question(trace, 5, MACHINE, granule=granule))
        assert (refused.value.minimum_bytes, refused.value.witness_call) == (
            least,
            "g" if least != 192 else "f",
        )
        verify(
            planner.plan(Question(trace, least, MACHINE, granule=granule)), trace, least, MACHINE
        )


def updated_early() -> Trace:
    """The parameter's new value, in a place of its own, is there while the largest call runs."""
    builder = TraceBuilder()
    old, new = (builder.variable(name, (10,), "uint8", "param") for name in ("w", "w.new"))
    large = builder.variable("large", (30,), "uint8", "activation")
    builder.call("update", FakeOp("update"), (old,), (new,))
    builder.call("large", FakeOp("large"), (), (large,))
    builder.carries[new] = old
    return builder.build()


@given(traces(), st.booleans())
@example(updated_early(), True)
def test_a_call_needs_what_it_touches_and_what_is_pinned_at_that_time(trace, pin_persistent):
    sequence = VariableSequence(trace, BYTES, pin_persistent)
    there = sequence.pinned.intersection(trace.initial)
    needs = [sum(sequence.size_bytes[v] for v in there)]
    for call in trace.calls:
        there |= sequence.pinned.intersection(call.outs)
        held = there.union(sequence.touched[call.id])
        needs.append(sum(sequence.size_bytes[v] for v in held) + call.workspace_bytes)
        there = {v for v in there if sequence.last_use[v] > call.id}
    assert sequence.largest_need()[0] == max(needs)


def test_window_moves_nothing_where_all_is_in_the_window():
    plan = SlidingWindow(size=5).plan(Question(FORTH_AND_BACK, 60, MACHINE))
    assert listed(plan, SwapOut) == []


def test_window_swaps_out_what_is_beyond_it_and_waits_only_when_it_must():
    """The window of 30 bytes at f holds x, a, b: a is not seen again, and leaves after g."""
    plan = SlidingWindow(size=1).plan(Question(FORTH_AND_BACK, 30, MACHINE))
    verify(plan, FORTH_AND_BACK, 30, MACHINE)
    assert listed(plan, SwapOut) == ["a"]
    position = [plan.schedule.describe(i, plan.trace) for i in range(len(plan.schedule))]
    out, free = (position.index(f"{kind} a") for kind in ("out", "free"))
    assert position.index("run g") < out < position.index("run h")
    # h fits beside a, so a is waited for before k only.
    assert position.index("run h") < free < position.index("run k")


def test_a_swap_out_is_cancelled_when_its_variable_comes_again():
    """With 40 bytes nothing waits for a: it comes into the window again, still on the device."""
    plan = SlidingWindow(size=0.8).plan(Question(FORTH_AND_BACK, 40, MACHINE))
    verify(plan, FORTH_AND_BACK, 40, MACHINE)
    assert listed(plan, SwapOut) == []


def test_where_each_occurrence_counts_the_window_is_halved_until_it_is_a_millionth(monkeypatch):
    """Then there is none: a call finds what it needs, and nothing comes in for later ones."""
    sizes = []

    def none_fits(sequence, budget_bytes, size, **counts):
        sizes.append(size)
        return None if size else heads_of(sequence, budget_bytes, size, **counts)

    monkeypatch.setattr(window, "heads_of", none_fits)
    planner = SlidingWindow(size=1, count="occurrence", persistent="host")
    plan = planner.plan(Question(FORTH_AND_BACK, 30, MACHINE))
    verify(plan, FORTH_AND_BACK, 30, MACHINE)
    assert sizes == [*(2.0**-halved for halved in range(21)), 0]


def test_the_oldest_swap_out_is_waited_for_first():
    trace = step(
        "f: x -> a", "g: x -> b", "h: x -> c", "k: y -> big", "l: big -> z", "m: a b c -> e",
        sizes={"big": 20},
    )  # fmt: skip
    plan = SlidingWindow(size=0.1).plan(Question(trace, 40, MACHINE))
    verify(plan, trace, 40, MACHINE)
    # k needs the bytes of two of them; c is still there when m comes, and its copy is taken back.
    assert listed(plan, SwapOut) == ["a", "b"]
    assert [name for name in listed(plan, Free) if name in ("a", "b", "c")][:2] == ["a", "b"]
    assert "c" not in listed(plan, SwapIn)


def test_a_second_eviction_is_clean():
    trace = step(
        "f: x -> a", "g: y -> b 10", "h: a b -> c", "k: y -> d 10", "l: c d -> e", "m: a e -> q"
    )
    plan = SlidingWindow(size=0.1).plan(Question(trace, 30, MACHINE))
    verify(plan, trace, 30, MACHINE)
    assert listed(plan, SwapOut).count("a") == 1
    assert listed(plan, SwapIn).count("a") == 2


def test_prefetches_for_later_calls_give_way_to_a_large_call():
    """Without the restart g (its workspace is not in the window) would not fit beside y and z."""
    trace = step("f: x -> a", "g: a -> b 60", "h: b y -> c", "k: c z -> d")
    plan = SlidingWindow(size=3).plan(Question(trace, 80, MACHINE))
    verify(plan, trace, 80, MACHINE)
    instructions = list(plan.schedule)
    names = listed(plan, SwapIn)
    assert names == ["x", "y", "z"]
    run_g = instructions.index(Run(1))
    assert all(
        instructions.index(item) > run_g
        for item in instructions
        if isinstance(item, SwapIn) and plan.trace.variables[item.var].name != "x"
    )


def test_the_paper_counts_a_variable_each_time_it_occurs():
    """x occurs three times: 30 bytes of the printed window are full before y is seen."""
    trace = step("f: x -> a", "g: x -> b", "h: x -> c", "k: a b c y -> d")
    seen_early = {}
    for count in ("unique", "occurrence"):
        plan = SlidingWindow(size=1, count=count).plan(Question(trace, 70, MACHINE))
        verify(plan, trace, 70, MACHINE)
        instructions = [type(i).__name__ for i in plan.schedule]
        second_in = [i for i, kind in enumerate(instructions) if kind == "SwapIn"][1]
        seen_early[count] = instructions[:second_in].count("Run")
    assert seen_early["unique"] < seen_early["occurrence"]


def test_the_printed_window_is_halved_where_a_call_does_not_fit():
    trace = step("f: x -> a", "g: a -> b 60", "h: b y -> c", "k: c z -> d")
    plan = SlidingWindow(size=3, count="occurrence").plan(Question(trace, 80, MACHINE))
    verify(plan, trace, 80, MACHINE)
    assert 0 < plan.notes["window"] < 3


@pytest.mark.parametrize(("place", "on_device"), [("device", ["w"]), ("host", [])])
def test_parameters_rest_where_the_window_is_told(place, on_device):
    trace = step("f: x w -> a", "g: a -> b", "h: b w -> c", kinds={"w": "param"})
    plan = SlidingWindow(size=1, persistent=place).plan(Question(trace, 60, MACHINE))
    verify(plan, trace, 60, MACHINE)
    assert [trace.variables[v].name for v, _, _ in plan.schedule.start_device] == on_device


def test_auto_computes_again_where_the_host_has_no_room():
    """Who only swaps refuses: the host holds the input and nothing else."""
    calls = ("f: x -> a", "g: a -> b", "h: b -> c", "k: c b -> d", "l: d a -> e")
    of = step(*calls, sizes={"x": 1})
    for planner in (Naive(), SlidingWindow()):
        assert listed(planner.plan(Question(of, 31, MACHINE)), SwapOut)
        with pytest.raises(Infeasible):
            planner.plan(Question(of, 31, MACHINE, host_budget_bytes=1))
    plan = get_planner("auto").plan(Question(of, 31, MACHINE, host_budget_bytes=1))
    verify(plan, of, 31, MACHINE, host_budget_bytes=1)
    assert not listed(plan, SwapOut)


def test_auto_is_in_core_where_it_fits_and_never_worse_than_those_it_asks():
    auto = get_planner("auto")
    assert auto.plan(Question(FORTH_AND_BACK, 40, MACHINE)).notes["chosen"] == "keep-all"
    best = auto.plan(Question(FORTH_AND_BACK, 30, MACHINE))
    for planner in (Naive(), SlidingWindow()):
        assert best.makespan_us <= planner.plan(Question(FORTH_AND_BACK, 30, MACHINE)).makespan_us


@pytest.mark.slow
def test_a_host_budget_that_nothing_can_meet_says_so():
    for planner in (KeepAll(), Naive(), SlidingWindow(), get_planner("auto")):
        with pytest.raises(Infeasible) as refused:
            planner.plan(
                Question(FORTH_AND_BACK, LARGE, MACHINE, host_budget_bytes=9)
            )  # x alone has 10
        assert (refused.value.minimum_bytes, refused.value.needs) == (None, "host")
        assert f"{planner.name!r} needs more host memory" in str(refused.value)


def test_a_host_budget_names_the_device_budget_that_makes_up_for_it():
    tight = SlidingWindow(size=1)
    used = tight.plan(Question(FORTH_AND_BACK, 30, MACHINE)).host_peak_bytes
    with pytest.raises(Infeasible) as refused:
        tight.plan(Question(FORTH_AND_BACK, 30, MACHINE, host_budget_bytes=used - 1))
    least = refused.value.minimum_bytes
    assert 30 < least <= 60
    plan = tight.plan(Question(FORTH_AND_BACK, least, MACHINE, host_budget_bytes=used - 1))
    assert plan.host_peak_bytes < used


def test_a_time_limit_ends_the_search_for_the_device_budget_that_makes_up_for_the_host(monkeypatch):
    """Two lists are made then, in place of one for each halving; what is named suffices."""
    tight, asked, lists = SlidingWindow(size=1), [], SlidingWindow._lists
    used = tight.plan(Question(FORTH_AND_BACK, 30, MACHINE)).host_peak_bytes

    def counted(self, question):
        asked.append(question.budget_bytes)
        return lists(self, question)

    monkeypatch.setattr(SlidingWindow, "_lists", counted)
    with pytest.raises(Infeasible) as refused:
        tight.plan(
            Question(
                FORTH_AND_BACK,
                30,
                MACHINE,
                host_budget_bytes=used - 1,
                effort=Effort.within(1e-300),
            )
        )
    assert len(asked) <= 3
    enough = refused.value.minimum_bytes
    plan = tight.plan(Question(FORTH_AND_BACK, enough, MACHINE, host_budget_bytes=used - 1))
    assert plan.host_peak_bytes < used


def test_a_resnet50_step_is_planned_without_much_work():
    """Some 2 million lines of Python, for 613 calls."""
    model = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
    trace = apply_rewrites(oc.trace(model, (1440, 3, 224, 224)), ("fuse", "share_storage"))
    machine = oc.machine("v100-16gb-nvlink")
    plans = []
    lines = lines_run(
        lambda: plans.append(SlidingWindow().plan(Question(trace, machine.device_bytes, machine)))
    )
    assert lines < 5000 * len(trace.calls)
    verify(plans[0], trace, machine.device_bytes, machine)
