"""What the papers chose, number by number, on steps whose lists can be worked out by hand.

A legal plan does not give away defaults, boundaries and orders: with another one the plan still
passes all laws of planners, only it is not the paper's. `zoo/paper_bugs.py` plants each of them.
"""

from __future__ import annotations

import pytest
from unit import test_list_planners as LISTS
from unit import test_swap_planners as SWAPS

import ooctrain as oc
from ooctrain.experiments.paper_001 import hybrid
from ooctrain.sched.planners.hmms import Hmms, ends_of_offload
from ooctrain.sched.planners.lms import LevelGraph
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.planners.window import SlidingWindow
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.sched.planning.offloadable import offloadable_storages
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import segments
from ooctrain.sched.schedule import Run, SwapIn, SwapOut
from ooctrain.step.builder import TraceBuilder
from ooctrain.testing.random_traces import FakeOp

MACHINE = LISTS.MACHINE


class DearOp(FakeOp):
    """An operation whose outputs are checkpoints."""


def named(trace, variables):
    return [trace.variables[v].name for v in variables]


# ---------------------------------------------------------------- window


def test_the_variable_sequence_is_the_variables_of_each_call_in_turn():
    """Each of them once for a call: an operation that reads a value twice needs it once."""
    trace = LISTS.step("f: x -> a", "g: a a -> b", "h: b x -> c")
    assert "".join(named(trace, trace.variable_sequence())) == "xaabbxc"


def test_the_window_ends_with_the_variable_that_fills_one_and_a_half_budgets():
    """At f the window holds x, a, b, c, d, y: 60 bytes, of a budget of 40; z is the eighth."""
    trace = LISTS.step("f: x -> a", "g: a -> b", "h: b -> c", "k: c -> d", "l: d y -> e",
                       "m: e z -> q")  # fmt: skip
    plan = SlidingWindow().plan(Question(trace, 40, MACHINE))
    assert SWAPS.listed(plan, Run, SwapIn) == [
        "in x", "in y", "run f", "run g", "in z", "run h", "run k", "run l", "run m",
    ]  # fmt: skip


def test_the_prefetch_that_entered_the_window_last_gives_way_first():
    """g needs 80 bytes of 90: y may come before it, z may not."""
    trace = LISTS.step("f: x -> a", "g: a -> b 60", "h: b y -> c", "k: c z -> d")
    plan = SlidingWindow(size=3).plan(Question(trace, 90, MACHINE))
    words = SWAPS.listed(plan, Run, SwapIn)
    assert words.index("in y") < words.index("run g") < words.index("in z")


# ---------------------------------------------------------------- lms


def test_whoever_is_at_a_level_has_an_ancestor_at_each_level_below():
    """So a swap-in `ahead` levels before its reader always has a trigger, if there is that level.

    The authors' code looks up to ten levels further back; it never needs to.
    """
    trace = SWAPS.traced("resnet18", (2, 3, 32, 32))
    graph = LevelGraph(trace)
    for reader, level in enumerate(graph.level):
        for ahead in (1, 2, 7, level - 1, level):
            trigger = graph.trigger(reader, ahead)
            if 0 < ahead < level:
                assert graph.level[trigger] == level - ahead
            else:
                assert trigger == reader - 1


# ---------------------------------------------------------------- dynprog, hmms


def test_memory_is_cut_into_500_slots():
    """Paper 002, section 6.1; chains of at most 11 stages are counted in bytes."""
    chain = oc.chain([800] * 14, [0] * 14, [2] * 13, [3] * 13, [0] * 13, [0] * 13)
    view = chain_view(chain, SWAPS.SHARED)
    assert len(view) > 11
    plan = get_planner("dynprog").plan(Question(chain, 6000, SWAPS.SHARED))
    assert plan.notes["slot_bytes"] == (6000 - view.pinned_bytes) / 500


READ_TWICE = SWAPS.step("f1: x -> a", "f2: a -> b", "f3: b a -> c", "f4: c x -> d",
                        "b4: d x a -> gd", "b3: gd a -> gc")  # fmt: skip


def test_a_value_leaves_with_its_last_forward_reader():
    found = {READ_TWICE.variables[s.var].name: s for s in offloadable_storages(READ_TWICE)}
    assert (found["a"].leaves_with, found["a"].needed_by) == (2, 4)
    plan = Hmms(ratio=1.0).plan(Question(READ_TWICE, SWAPS.LARGE, MACHINE))
    words = SWAPS.listed(plan, Run, SwapOut)
    assert words[words.index("out a") + 1] == "run f3"


def test_an_input_has_a_host_copy_and_costs_no_transfer():
    """Of 15 bytes the link would move ten while f1 runs; but nothing has to move."""
    storages = offloadable_storages(READ_TWICE)
    assert {READ_TWICE.variables[s.var].name: s.copied for s in storages} == {
        "x": False,
        "a": True,
    }
    early = SWAPS.step("f1: x -> a", "f2: a -> b", "b3: b x -> g", sizes={"x": 15})
    freed = ends_of_offload(early, list(offloadable_storages(early))[:1], MACHINE)
    assert named(early, freed[0]) == ["x"]


def test_ratios_are_tried_in_steps_of_a_twentieth():
    """On a slow link the fewest bytes are best, and two of twenty equal values make the room."""
    forward = [f"f{i}: v{i - 1} -> v{i}" for i in range(1, 22)]
    backward = [f"b{i}: v{i} g{i + 1} -> g{i}" for i in range(20, 0, -1)]
    trace = SWAPS.step(*forward, "b21: v21 -> g21", *backward)
    machine = oc.Machine("slow", 1, 1, link_bytes_per_us=0.25, link="duplex")
    in_core = Hmms(ratio=0.0).plan(Question(trace, SWAPS.LARGE, machine)).peak_bytes
    plan = Hmms().plan(Question(trace, in_core - 10, machine))
    assert plan.notes["ratio"] == 0.1


# ---------------------------------------------------------------- tflms-hybrid


def two_segments():
    """Checkpoints c1, c2; e1 and its statistics s1 belong to c1, the larger e2 and q to c2."""
    builder = TraceBuilder()
    sizes = {"e2": 40, "s1": 4}
    ids = {}

    def ids_of(*names, kind="activation"):
        for name in names:
            kind_of = "stat" if name == "s1" else kind
            if name not in ids:
                ids[name] = builder.variable(name, (sizes.get(name, 10),), "uint8", kind_of)
        return [ids[name] for name in names]

    for name, op, ins, outs in (
        ("dear1", DearOp("d"), ["x"], ["c1"]), ("norm", FakeOp("n"), ["c1"], ["s1"]),
        ("cheap1", FakeOp("e"), ["c1", "s1"], ["e1"]), ("dear2", DearOp("d"), ["e1"], ["c2"]),
        ("cheap2", FakeOp("e"), ["c2"], ["e2"]), ("end", FakeOp("q"), ["e2"], ["q"]),
    ):  # fmt: skip
        builder.call(name, op, ids_of(*ins, kind="input"), ids_of(*outs), duration_ns=10_000)
    for name, ins, outs in (
        ("back2", ["q", "e2", "c2"], ["g2"]), ("back1", ["g2", "e1", "c1", "s1"], ["g1"]),
    ):  # fmt: skip
        builder.call(name, FakeOp(name), ids_of(*ins), ids_of(*outs), duration_ns=10_000,
                     phase="backward")  # fmt: skip
    return builder.build()


def test_what_is_cheapest_per_byte_is_computed_again_first():
    """10 bytes of e1 take a call, 50 bytes of e2 and q take two."""
    assert TflmsHybrid(recomp_checkpoint_ops_by_types="DearOp").by_recompute_time(
        two_segments(), MACHINE
    ) == [2, 1]


def test_batch_statistics_stay_where_the_values_of_their_segment_go():
    trace = two_segments()
    ids = trace.variable_by_name
    found = segments(trace, [ids["c1"].id, ids["c2"].id])
    assert [named(trace, found[ids[c].id]) for c in ("c1", "c2")] == [["e1"], ["e2", "q"]]


def test_what_recomputation_costs_is_a_share_of_the_speed_without_it(monkeypatch):
    """10 steps a second, then 8: a fifth is lost, not a quarter, at the paper's first size."""
    speeds = {hybrid.VANILLA: 10.0, hybrid.RECOMPUTE: 8.0}
    asked = []

    def speed(found, model, method, memory, size):
        asked.append(size)
        return speeds[method]

    monkeypatch.setattr(hybrid, "speed", speed)
    lost = hybrid.recompute_overhead([], hybrid.RESNET50, hybrid.FITTED)
    assert lost == pytest.approx(0.2)
    assert set(asked) == {3000}
