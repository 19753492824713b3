"""The swap planners on small steps whose lists can be worked out by hand, and on real networks."""

from __future__ import annotations

import itertools
import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from properties import test_partition_families as FAMILIES
from support.quick import quick

import ooctrain as oc
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.bounds.closed import compute_us
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.budget import resolve_budget, trace_minimum_bytes
from ooctrain.sched.planners import lms, window
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.dynprog import (
    SlotChain,
    States,
    _idle_between,
    _steps,
    idle_us,
    in_slots,
    solve,
)
from ooctrain.sched.planners.greedy import shortest_prefix
from ooctrain.sched.planners.hmms import ends_of_offload, starts_of_prefetch
from ooctrain.sched.planners.lms import LevelGraph, Lms, Trip, peak, search
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planners.vdnn import candidates
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.sched.planning.offloadable import Offloadable, take
from ooctrain.sched.planning.planner import make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.swap import check_budget, swap_gaps
from ooctrain.sched.schedule import Fence, Free, Granule, Run, SwapIn, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.chain import chain
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.testing.random_traces import FakeOp

SWAP_PLANNERS = (
    "belady", "dynprog", "greedy", "hmms", "lms", "lms-auto", "lms-grid", "lru", "vdnn",
    "vdnn-all", "vdnn-conv", "window-cyclic",
)  # fmt: skip
MACHINE = Machine("m", 1, 1, link_bytes_per_us=1, link="duplex")
SHARED = replace(MACHINE, link="shared")
PCIE, NVLINK = oc.machine("v100-pcie"), oc.machine("v100-32gb-nvlink")
LARGE = 10**6


def step(*calls: str, sizes: dict[str, int] | None = None, duration_us: int = 10) -> Trace:
    """A trace of calls "f: x y -> z"; calls b.. are backward; 10 bytes and 10 us each."""
    builder, ids = TraceBuilder(), {}

    def variable(name: str, kind: str) -> int:
        if name not in ids:
            size = (sizes or {}).get(name, 10)
            ids[name] = builder.variable(name, (size,), "uint8", "param" if name == "w" else kind)
        return ids[name]

    for text in calls:
        name, _, rest = text.partition(":")
        ins, outs = (side.split() for side in rest.split("->"))
        builder.call(
            name, FakeOp(name), [variable(v, "input") for v in ins],
            [variable(v, "activation") for v in outs], duration_ns=duration_us * 1000,
            phase="backward" if name.startswith("b") else "forward",
        )  # fmt: skip
    return builder.build()


def listed(plan, *kinds: type) -> list[str]:
    """Instructions in words, of some kinds or all."""
    kept = [i for i, item in enumerate(plan.schedule) if isinstance(item, kinds or object)]
    return [plan.schedule.describe(i, plan.trace) for i in kept]


#: a is needed again by b1, b by b2: a must go first, and come back last.
NESTED = step("f1: x -> a", "f2: a -> b", "f3: b -> c", "b3: c -> gc", "b2: b gc -> gb",
              "b1: a gb -> ga")  # fmt: skip


@pytest.mark.parametrize("spec", SWAP_PLANNERS)
def test_at_its_minimum_a_planner_succeeds_and_a_byte_below_it_names_a_witness(spec):
    planner = get_planner(spec)
    with pytest.raises(Infeasible) as refused:
        planner.plan(Question(NESTED, 0, MACHINE))
    least = refused.value.minimum_bytes
    verify(planner.plan(Question(NESTED, least, MACHINE)), NESTED, least, MACHINE)
    with pytest.raises(Infeasible) as refused:
        planner.plan(Question(NESTED, least - 1, MACHINE))
    assert refused.value.minimum_bytes == least
    assert refused.value.witness_call in {call.name for call in NESTED.calls}


@pytest.mark.parametrize("spec", SWAP_PLANNERS)
def test_with_memory_enough_most_planners_move_nothing_but_inputs(spec):
    plan = get_planner(spec).plan(Question(NESTED, LARGE, MACHINE))
    fixed = {"vdnn-all", "lms", "window-cyclic"}  # swap whatever the budget; or in any window
    if spec not in fixed:
        assert listed(plan, SwapOut) == []
        assert listed(plan, SwapIn) == ["in x"]


# ---------------------------------------------------------------- belady


def test_belady_evicts_what_is_needed_last_and_only_the_bytes_that_lack():
    plan = Belady(pieces=1).plan(Question(NESTED, 34, MACHINE))
    verify(plan, NESTED, 34, MACHINE)
    assert listed(plan, SwapOut) == ["out a[0:6]"]


def test_belady_cuts_what_it_evicts_into_pieces_and_leaves_wholes_where_ranges_are_not():
    plan = Belady(pieces=8).plan(Question(NESTED, 32, MACHINE))  # pieces of 4 bytes
    assert listed(plan, SwapOut) == ["out a[0:4]", "out a[4:8]"]
    whole = Belady().plan(Question(NESTED, 32, MACHINE, granule=Granule(2, ranges=False)))
    assert listed(whole, SwapOut) == ["out a"]


def test_belady_makes_pieces_worth_their_latency():
    slow = replace(MACHINE, latency_us=1.0)
    assert Belady().plan(Question(NESTED, 32, slow)).notes["piece_bytes"] == 20
    with pytest.raises(ConfigError):
        Belady(pieces=0)


@pytest.mark.parametrize("budget_bytes", range(30, 41))
def test_belady_equals_theorem_2_on_chains(budget_bytes):
    """Exactly M_peak - M bytes go out, and the makespan is that of sending them one by one."""
    trace = chain([10, 10, 10, 10], [0] * 4, [10, 10, 10], [10, 10, 10], [0] * 3, [0] * 3)
    plan = Belady().plan(Question(trace, budget_bytes, SHARED))
    sent = sum(i.hi - i.lo for i in plan.schedule if isinstance(i, SwapOut))
    assert sent == 40 - budget_bytes
    assert plan.makespan_us == 60  # it all hides behind the calls


@pytest.mark.slow
def test_byte_by_byte_belady_is_the_fluid_optimum_of_random_chains():
    """Paper 002, theorem 2: GREEDY is optimal where parts may go; the truth here is an LP."""
    pytest.importorskip("highspy")
    rng = random.Random(7)
    draw = lambda count, low, top, unit=100: [unit * rng.randint(low, top) for _ in range(count)]  # noqa: E731
    for _ in range(25):
        n = rng.randint(2, 6)
        trace = chain([0, *draw(n, 1, 6)], draw(n + 1, 0, 3), draw(n, 0, 5, 1), draw(n, 1, 6, 1),
                      draw(n, 0, 2), draw(n, 0, 3))  # fmt: skip
        link = rng.choice(("shared", "duplex"))
        machine = Machine("unit", 1, 1, link_bytes_per_us=100, link=link)
        with pytest.raises(Infeasible) as refused:
            Belady().plan(Question(trace, 0, machine))
        budget_bytes = refused.value.minimum_bytes + rng.randint(0, 600)
        plan = Belady(pieces=10**6).plan(Question(trace, budget_bytes, machine))
        bound = fluid_bound(trace, budget_bytes, machine, recompute=False, resident=True)
        assert plan.makespan_us == pytest.approx(bound.makespan_us, rel=1e-3)


def test_a_value_that_is_away_twice_is_copied_out_once():
    """A skip: read again late in forward, and once more late in backward."""
    trace = step("f1: x -> s", "f2: s -> a", "f3: a -> b", "f4: b -> c", "f5: c s -> d",
                 "b5: d -> e", "b4: e -> g", "b3: g -> h", "b2: h s -> i",
                 sizes={"s": 30, "b": 30, "g": 30})  # fmt: skip
    plan = Belady(pieces=1).plan(Question(trace, 50, MACHINE))
    verify(plan, trace, 50, MACHINE)
    assert listed(plan, SwapIn, SwapOut) == [
        "in x", "out s[0:20]", "in s[0:20]", "in s[0:20]",
    ]  # fmt: skip


# ---------------------------------------------------------------- lms


def test_levels_are_longest_paths_and_distances_are_their_differences():
    trace = step("f1: x -> a", "f2: a -> b", "f3: a -> c", "f4: b c -> d")
    graph = LevelGraph(trace)
    assert graph.level == [1, 2, 2, 3]
    names = {v.name: v.id for v in trace.variables}
    trips = [trip for trip in graph.trips(Lms(2, 0, 0)) if trip.var != names["x"]]
    assert trips == []  # all edges of level distance 1, and what is read next comes straight back


def test_an_edge_is_swapped_when_its_level_distance_is_at_least_the_threshold():
    graph, names = LevelGraph(NESTED), {v.name: v.id for v in NESTED.variables}
    assert graph.level == [1, 2, 3, 4, 5, 6]
    away = lambda threshold: {t.var for t in graph.trips(Lms(threshold, 0, 0))} - {names["x"]}  # noqa: E731
    assert away(3) == {names["a"], names["b"]}  # a: 1 to 6, b: 2 to 5
    assert away(4) == away(5) == {names["a"]}
    assert away(6) == set()


def test_swapin_ahead_starts_so_many_levels_before_the_reader():
    graph, names = LevelGraph(NESTED), {v.name: v.id for v in NESTED.variables}
    for ahead, trigger in ((0, 4), (1, 4), (2, 3), (3, 2)):
        assert Trip(names["a"], 1, trigger) in list(graph.trips(Lms(5, ahead, 0)))


def test_swapin_groupby_lets_near_readers_share_a_trip():
    trace = step("f1: x -> a", "f2: x -> c", "f3: c -> d", "f4: d -> e", "f5: e a -> f",
                 "f6: f -> g", "f7: g a -> h")  # fmt: skip
    graph = LevelGraph(trace)
    names = {v.name: v.id for v in trace.variables}
    trips = lambda groupby: [t for t in graph.trips(Lms(2, 0, groupby)) if t.var == names["a"]]  # noqa: E731
    assert len(trips(1)) == 2
    assert len(trips(2)) == 1


def readers_at(*levels):
    """A value made at level 1 and read at some levels, beside a chain that has no other reader."""
    chain = ["f1: x -> a c1"]
    chain += [
        f"f{level}: c{level - 1}{' a' * (level in levels)} -> c{level}"
        for level in range(2, max(levels) + 1)
    ]
    return step(*chain)


def ways_back(graph, lms, name="a"):
    """The calls after which a value is fetched."""
    names = {v.name: v.id for v in graph.trace.variables}
    return [trip.trigger for trip in graph.trips(lms) if trip.var == names[name]]


def test_readers_in_a_row_share_one_trip_as_in_the_authors_code():
    """Readers at levels 4, 6 and 8 with 2: each is near the one before it, so one swap-in serves.

    Measured from the first of them, the third would be too far.
    """
    graph = LevelGraph(readers_at(4, 6, 8))
    assert graph.level[3] == 4
    assert len(ways_back(graph, Lms(2, 0, 2))) == 1
    assert len(ways_back(graph, Lms(2, 0, 1))) == 3
    assert len(ways_back(LevelGraph(readers_at(4, 6, 9)), Lms(2, 0, 2))) == 2


def test_the_authors_code_is_one_level_off_the_paper():
    """TFLMS swaps edges longer than the threshold, and looks for a trigger one level earlier."""
    graph = LevelGraph(readers_at(6))
    assert ways_back(graph, Lms(5, 0)) == [4]
    assert ways_back(graph, Lms(5, 0, rule="code")) == []
    assert ways_back(graph, Lms(4, 0, rule="code")) == [4]
    assert ways_back(graph, Lms(1, 2)) == [3]
    assert ways_back(graph, Lms(1, 2, rule="code")) == [2]
    with pytest.raises(ConfigError, match="no rule"):
        Lms(rule="print")


def test_lms_waits_for_swap_outs_only_where_memory_lacks():
    tight, roomy = (Lms(3, 1).plan(Question(NESTED, budget, MACHINE)) for budget in (30, 60))
    assert listed(tight, SwapOut) == listed(roomy, SwapOut)
    words = listed(tight)
    assert words.index("free a") < words.index("run b3")
    words = listed(roomy)
    assert words.index("free a") > words.index("run b3")


def test_lms_auto_finds_the_largest_numbers_that_fit():
    asked = []

    def fits(lms: Lms) -> bool:
        asked.append(lms)
        return lms.swapout_threshold <= 37 and lms.swapin_ahead <= 5 and lms.swapin_groupby <= 12

    assert search(Lms(1, 1, 0), 100, fits) == Lms(37, 5, 12)
    assert len(asked) < 25
    everything = search(Lms(1, 1, 0), 100, lambda lms: lms.swapout_threshold <= 37)
    assert everything == Lms(37, 100, 100)


def test_lms_auto_swaps_nothing_where_all_fits_and_waits_where_a_head_start_does_not():
    graph = LevelGraph(NESTED)
    in_core = peak(graph, Granule(), Lms(graph.height + 1, 1, 0))[0]
    assert listed(get_planner("lms-auto").plan(Question(NESTED, in_core, MACHINE)), SwapOut) == []
    least = peak(graph, Granule(), Lms(1, 0, 0))[0]
    assert get_planner("lms-auto").plan(Question(NESTED, least, MACHINE)).peak_bytes <= least


# ---------------------------------------------------------------- vdnn-all, vdnn-conv


def test_vdnn_all_stops_after_each_layer_and_fetches_one_layer_ahead():
    plan = get_planner("vdnn-all").plan(Question(NESTED, LARGE, MACHINE))
    assert listed(plan, Run, SwapIn, SwapOut, Free, Fence) == [
        "in x", "run f1", "free x",
        "out a", "run f2", "fence", "free a",
        "out b", "run f3", "fence", "free b",
        "in b", "run b3", "fence", "free c",
        "in a", "run b2", "fence", "free b", "free gc",
        "run b1", "free a", "free gb", "free ga",
    ]  # fmt: skip


@pytest.mark.parametrize(("planner", "leaving"), [("vdnn-all", "b"), ("hmms", "bd")])
def test_a_ratio_limits_the_bytes_that_leave(planner, leaving):
    """Of a, b, c, d every second one; vdnn-all keeps d, which the next call reads."""
    trace = step("f1: x -> a", "f2: a -> b", "f3: b -> c", "f4: c -> d", "f5: d -> e",
                 "b5: d e -> ge", "b4: c ge -> gd", "b3: b gd -> gc", "b2: a gc -> gb")  # fmt: skip
    half = get_planner(f"{planner}:ratio=0.5").plan(Question(trace, LARGE, MACHINE))
    verify(half, trace, LARGE, MACHINE)
    assert listed(half, SwapOut) == [f"out {name}" for name in leaving]
    none = get_planner(f"{planner}:ratio=0").plan(Question(trace, LARGE, MACHINE))
    assert listed(none, SwapOut) == []
    with pytest.raises(ConfigError, match="not between 0 and 1"):
        get_planner(f"{planner}:ratio=1.5")


def test_vdnn_conv_offloads_the_inputs_of_convolutions_only():
    trace = traced("lenet", (2, 1, 28, 28))
    plan = get_planner("vdnn-conv").plan(Question(trace, LARGE * 100, PCIE))
    read_by_conv = {
        v for c in trace.calls if type(c.op).__name__ == "Conv2d" for v in c.ins
    }  # fmt: skip
    moved = {i.var for i in plan.schedule if isinstance(i, SwapOut)}
    assert moved
    assert moved <= read_by_conv
    assert moved < {
        i.var for i in get_planner("vdnn-all").plan(Question(trace, LARGE * 100, PCIE)).schedule
        if isinstance(i, SwapOut)
    }  # fmt: skip


# ---------------------------------------------------------------- the chain view

EXAMPLE = {
    "x": [4, 6, 4, 6], "y": [3, 0, 0, 0], "u_forward": [3, 1, 1], "u_backward": [5, 6, 7],
    "extra_forward": [1, 1, 2], "extra_backward": [1, 0, 0],
}  # fmt: skip


def test_a_chain_seen_as_a_chain_is_itself():
    view = chain_view(chain(**EXAMPLE), SHARED)
    assert view.x == (4, 6, 4, 6)
    assert view.forward_ns == (3000, 1000, 1000)
    assert view.backward_ns == (5000, 6000, 7000)
    assert view.extra_forward == (1, 1, 2)
    # y_0 is nobody's input: it counts as extra memory of B_0.
    assert (view.y, view.extra_backward) == ((0, 0, 0, 0), (4, 0, 0))
    assert (view.pinned_bytes, view.peak()[0], view.minimum()) == (0, 22, (14, "B0"))
    again = chain_view(view.as_chain(), SHARED)
    assert (again.x, again.peak()[0], again.minimum()[0]) == (view.x, 22, 14)


def test_branches_and_what_backward_does_not_read_are_no_cuts():
    trace = step("f1: x -> a", "f2: a -> b", "f3: b -> c", "f4: b c -> d", "f5: d -> e",
                 "f6: e -> f", "b6: f -> gf", "b5: d gf -> gd", "b1: a b gd -> ga")  # fmt: skip
    view = chain_view(trace, SHARED)
    names = [[trace.calls[k].name for k in stage.forward] for stage in view.stages]
    # After f3 both b and c cross; what crosses after f5, e, no backward call reads.
    assert names == [["f1"], ["f2"], ["f3", "f4"], ["f5", "f6"]]
    outputs = [stage.output and trace.variables[stage.output].name for stage in view.stages]
    assert outputs == ["a", "b", "d", None]
    backward = [[trace.calls[k].name for k in stage.backward] for stage in view.stages]
    assert backward == [[], ["b1"], [], ["b6", "b5"]]
    needs = zip(backward, view.backward_ns, view.extra_backward, strict=True)
    assert all((time, extra) == (0, 0) for calls, time, extra in needs if not calls)


def test_decisions_on_the_chain_are_lifted_to_gaps_of_its_variables():
    view = chain_view(NESTED, SHARED)
    gaps = view.gaps([1, 2])
    names = {NESTED.variables[gap.var].name: (gap.after, gap.before) for gap in gaps}
    assert names == {"a": (1, 5), "b": (2, 4)}


@pytest.mark.parametrize("model", ["resnet18", "vgg11", "lenet"])
def test_the_view_never_promises_memory_that_the_trace_does_not_have(model):
    trace = traced(model, (4, 1, 28, 28) if model == "lenet" else (4, 3, 64, 64))
    view = chain_view(trace, PCIE)
    assert view.peak()[0] >= get_planner("keep-all").plan(Question(trace, 1 << 40, PCIE)).peak_bytes
    assert trace_minimum_bytes(trace) <= view.minimum()[0] <= view.peak()[0]
    least = view.minimum()[0]
    assert get_planner("greedy").plan(Question(trace, least, PCIE)).peak_bytes <= least


# ---------------------------------------------------------------- greedy, vdnn, dynprog


def test_greedy_takes_the_shortest_prefix():
    view = chain_view(chain(**EXAMPLE), SHARED)
    lengths = [len(shortest_prefix(view, budget)) for budget in (22, 21, 18, 17, 12, 11)]
    assert lengths == [0, 1, 1, 2, 2, 3]


def test_a_chain_in_slots_has_the_times_of_the_chain_in_microseconds():
    view = chain_view(chain(**EXAMPLE), SHARED)
    slots = in_slots(view, 16, SHARED, 1)
    assert [1000 * us for us in slots.forward_us] == list(view.forward_ns)
    assert [1000 * us for us in slots.backward_us] == list(view.backward_ns)


def test_greedy_offloads_too_much_where_dynprog_finds_the_right_sum():
    """2-partition as in the proof of theorem 3: {1, 2, 3}, V = 3; greedy's prefix is 1 + 2 here."""
    for values, optimum in (((1, 2, 3), 2.0), ((3, 1, 2), 2.0), ((2, 2, 2), 8 / 3)):
        trace = FAMILIES.partition_chain(values)
        volume = sum(values) // 2
        machine = replace(SHARED, link_bytes_per_us=volume)
        view = chain_view(trace, machine)
        found = solve(in_slots(view, 2 * volume, machine, 1))
        assert found is not None
        assert found.idle_us + 2 == pytest.approx(optimum)


def test_dynprog_with_one_state_follows_a_single_set_of_decisions():
    """{2, 4, 3, 1}: no prefix sums to 5, so that the optimum of 2 takes states that look worse."""
    trace = FAMILIES.partition_chain((2, 4, 3, 1))
    machine = replace(SHARED, link_bytes_per_us=5)
    idle = [
        get_planner(spec).plan(Question(trace, 10, machine)).notes["idle_us"]
        for spec in ("dynprog", "dynprog:most_states=1")
    ]
    assert idle[0] == 0 < idle[1]
    with pytest.raises(ConfigError, match="most_states=0"):
        get_planner("dynprog:most_states=0")


@pytest.mark.parametrize("most_states", [1, 4000])
def test_what_dynprog_offloads_idles_as_long_as_it_says(most_states):
    """Also where it follows so few states that a prefix is the best it knows."""
    for values in ((2, 4, 3, 1), (1, 2, 3), (3, 1, 2), (5, 2, 2, 4, 1)):
        machine = replace(SHARED, link_bytes_per_us=sum(values) // 2)
        view = chain_view(FAMILIES.partition_chain(values), machine)
        slots = in_slots(view, sum(values), machine, 1)
        found = solve(slots, most_states)
        assert idle_us(slots, found.offloaded) == found.idle_us


def test_the_counter_example_to_lemma_3_is_27_in_order():
    view = chain_view(chain(**EXAMPLE), SHARED)
    found = solve(in_slots(view, 16, SHARED, 1))
    assert found is not None
    assert (found.idle_us + 23, found.offloaded) == (27, (0, 1))


@pytest.mark.slow
def test_dynprog_is_the_best_of_all_sets_of_decisions():
    rng = random.Random(4)
    feasible = 0
    for _ in range(150):
        count = rng.randint(1, 6)
        draw = lambda n, low, top: [rng.randint(low, top) for _ in range(n)]  # noqa: E731
        trace = chain(draw(count + 1, 1, 5), draw(count + 1, 0, 3), draw(count, 0, 5),
                      draw(count, 0, 6), draw(count, 0, 2), draw(count, 0, 3))  # fmt: skip
        view = chain_view(trace, SHARED)
        memory = view.peak()[0] - rng.randint(0, 10)
        slots = in_slots(view, memory, SHARED, 1)
        sets = itertools.chain.from_iterable(
            itertools.combinations(range(count), n) for n in range(count + 1)
        )
        best = min(idle_us(slots, chosen) for chosen in sets)
        found = solve(slots)
        assert (math.inf if found is None else found.idle_us) == best
        assert (best < math.inf) == (memory >= view.minimum()[0])
        feasible += best < math.inf
    assert feasible > 80


def test_dynprog_equals_the_corrected_formulas_of_the_errata():
    errata = errata_002()
    rng = random.Random(1)
    for _ in range(60):
        c = errata.random_chain(rng, rng.randint(1, 5))
        memory = errata.peak_bytes(c) - rng.randint(0, 8)
        wanted = min(errata.formula_makespan(c, memory, d) for d in errata.decisions(c))
        view = chain_view(
            chain(c.x, c.y, c.time_f, c.time_b, c.extra_f, c.extra_b), SHARED
        )  # fmt: skip
        found = solve(in_slots(view, memory, SHARED, 1))
        assert (math.inf if found is None else found.idle_us + c.compute) == wanted


def errata_002():
    """The test module that holds the formulas and the exhaustive search."""
    folder = str(Path(__file__).resolve().parents[1] / "errata")
    sys.path.insert(0, folder)
    try:
        import test_errata_002
    finally:
        sys.path.remove(folder)
    return test_errata_002


def test_sizes_are_rounded_up_to_slots_and_transfers_down():
    view = chain_view(chain([5, 4, 4], [0, 0, 0], [3, 3], [3, 3], [0, 0], [1, 0]), SHARED)
    slots = in_slots(view, 20, SHARED, 2)
    assert (slots.x, slots.extra_backward, slots.memory) == ((3, 2, 2), (1, 0), 10)
    _, leaves = _steps(slots, 0, States.start(slots, 1))
    assert leaves.due_out.tolist() == [2]  # of three slots: 3 us move 3 bytes, one whole slot


@pytest.mark.parametrize(("transfers", "left"), [("down", 2), ("nearest", 1), ("up", 1)])
def test_what_moves_is_rounded_as_asked(transfers, left):
    """3 us move 3 of 5 bytes, 1.5 slots of 2 bytes."""
    view = chain_view(chain([5, 4, 4], [0, 0, 0], [3, 3], [3, 3], [0, 0], [1, 0]), SHARED)
    slots = in_slots(view, 20, SHARED, 2, transfers)
    _, leaves = _steps(slots, 0, States.start(slots, 1))
    assert leaves.due_out.tolist() == [left]
    assert [slots.moved(us, 0.5) for us in (2.2, 2.8)] == {
        "down": [1, 1], "nearest": [1, 1], "up": [2, 2]
    }[transfers]  # fmt: skip


def test_no_rounding_but_those():
    with pytest.raises(ConfigError, match="has no rounding"):
        get_planner("dynprog:transfers=even")


def test_vdnn_tries_every_threshold_with_all_and_every_other_member():
    view = chain_view(chain([1, 2, 4, 1], [0] * 4, [8, 4, 2], [1, 1, 1], [0] * 3, [0] * 3), SHARED)
    assert list(candidates(view)) == [
        (), (0,), (0,), (0, 1), (0,), (0, 1, 2), (0, 2),
    ]  # fmt: skip


# ---------------------------------------------------------------- hmms


def test_hmms_frees_where_the_link_has_caught_up():
    """20 bytes leave with f2; each call hides 10 bytes: they are free after the second."""
    trace = step("f1: x -> a", "f2: a -> b", "f3: b -> c", "f4: c -> d", "b4: d a -> g",
                 sizes={"a": 20})  # fmt: skip
    a = next(v.id for v in trace.variables if v.name == "a")
    storage = Offloadable(a, 20, True, leaves_with=1, needed_by=4)
    assert {k: v for k, v in ends_of_offload(trace, [storage], MACHINE).items() if v} == {2: [a]}


def test_idle_link_time_is_not_banked():
    """Three idle calls before the offload do not make it free at once."""
    trace = step("f1: x -> q", "f2: q -> r", "f3: r -> a", "f4: a -> b", "f5: b -> c",
                 "b1: c a -> g")  # fmt: skip
    a = next(v.id for v in trace.variables if v.name == "a")
    storage = Offloadable(a, 15, True, leaves_with=3, needed_by=5)
    freed = ends_of_offload(trace, [storage], MACHINE)
    assert {k: v for k, v in freed.items() if v} == {4: [a]}


def test_prefetching_mirrors_offloading():
    trace = step("f1: x -> a", "f2: a -> b", "b1: b -> c", "b2: c -> d", "b3: d -> e",
                 "b4: e a -> g", sizes={"a": 20})  # fmt: skip
    a = next(v.id for v in trace.variables if v.name == "a")
    storage = Offloadable(a, 20, True, leaves_with=1, needed_by=5)
    started = starts_of_prefetch(trace, [storage], MACHINE)
    assert {k: v for k, v in started.items() if v} == {3: [a]}  # b2 and b3 hide it


def test_the_ratio_limits_the_bytes_taken():
    storages = [Offloadable(v, size, True, v, 9) for v, size in enumerate((4, 4, 2, 6))]
    assert [s.var for s in take(storages, 1.0)] == [0, 1, 2, 3]
    assert [s.var for s in take(storages, 0.5)] == [1]
    assert [s.var for s in take(storages, 0.65)] == [1, 2]
    assert list(take(storages, 0.0)) == []


# ---------------------------------------------------------------- lms-grid


def test_the_grid_has_each_share_of_each_parameter_with_every_other():
    found = list(lms._grid(10, 40))
    thresholds, ahead, groups = (10, 6, 3), (0, 2), (0, 4, 40)
    assert found == [Lms(*point) for point in itertools.product(thresholds, ahead, groups)]
    assert {lms.swapout_threshold for lms in lms._grid(1, 40)} == {1}


# ---------------------------------------------------------------- lru


def test_gaps_make_room_for_exactly_the_least_budget_that_a_refusal_names():
    trace = step("f1: x -> a", "f2: a -> b", "b1: a b -> c")
    question = Question(trace, 29, MACHINE)
    gaps = list(swap_gaps(trace))
    with pytest.raises(Infeasible) as refused:
        check_budget("mine", question, gaps)
    assert refused.value.minimum_bytes == 30
    check_budget("mine", replace(question, budget_bytes=30), gaps)


def test_lru_stops_for_each_fault_and_evicts_what_was_touched_first():
    plan = get_planner("lru").plan(Question(NESTED, 30, MACHINE))
    verify(plan, NESTED, 30, MACHINE)
    assert listed(plan, SwapOut) == ["out a"]
    words = listed(plan, Run, SwapIn, SwapOut, Fence)
    assert words[words.index("in a") - 1] == "fence"
    assert words.index("in a") == words.index("run b1") - 1


def test_lru_moves_pages_from_the_front_and_brings_all_back():
    trace = step("f1: x -> a", "f2: a -> b", "f3: b -> c", "b3: c -> gc", "b2: b gc -> gb",
                 "b1: a gb -> ga", sizes={"a": 10})  # fmt: skip
    plan = get_planner("lru:page_bytes=4").plan(Question(trace, 37, MACHINE))
    verify(plan, trace, 37, MACHINE)
    assert listed(plan, SwapOut) == ["out a[0:4]"]
    assert listed(plan, SwapIn) == ["in x", "in a[0:4]"]


def test_lru_keeps_cached_parameters_across_steps():
    trace = step("f1: x w -> a", "f2: a -> b", "b1: b w -> c")
    plan = get_planner("lru").plan(Question(trace, LARGE, MACHINE))
    assert [r for r in plan.schedule.start_device if r[2]] == [(1, 0, 10)]
    assert listed(plan, SwapIn) == ["in x"]


def test_lru_lets_nothing_go_where_the_room_is_just_enough():
    """Variables that move as a whole, in a budget that f3 fills to the byte beside a."""
    trace = step("f1: x -> a", "f2: a -> b", "f3: b -> c", "b1: a c -> d")
    plan = get_planner("lru").plan(Question(trace, 30, MACHINE, granule=Granule(1, ranges=False)))
    assert listed(plan, SwapOut) == []
    assert listed(plan, SwapIn) == ["in x"]


# ---------------------------------------------------------------- window-cyclic


def test_each_gain_of_window_cyclic_stands_alone_and_none_is_the_authors_window():
    trace = traced("vgg11", (8, 3, 64, 64))
    budget_bytes = resolve_budget(trace, "20%")
    off = "resident=false,across=false,tuned=false,ordered=false"
    makespan = lambda spec: get_planner(spec).plan(Question(trace, budget_bytes, PCIE)).makespan_us  # noqa: E731
    plain = makespan(f"window-cyclic:{off}")
    assert plain == makespan("window:persistent=host")
    alone = {
        gain: makespan("window-cyclic:" + off.replace(f"{gain}=false", f"{gain}=true"))
        for gain in ("resident", "across", "tuned", "ordered")
    }
    assert max(alone.values()) <= plain
    assert alone["resident"] == min(plain, makespan("window:persistent=device"))
    assert makespan("window-cyclic") <= min(alone["resident"], alone["across"])


def test_ordered_swap_outs_keep_what_is_needed_first_on_the_device():
    """Both a and b are leaving when c takes room; a began to, and is needed, before b."""
    trace = step("f1: x -> a", "f2: a -> b", "f3: x -> c", "f4: a -> d", "f5: b -> e",
                 sizes={"a": 20, "b": 20, "e": 20})  # fmt: skip
    off = "window-cyclic:resident=false,across=false,tuned=false,ordered="
    in_turn, ordered = (
        get_planner(off + word).plan(Question(trace, 40, MACHINE)) for word in ("false", "true")
    )
    assert [listed(plan, SwapOut) for plan in (in_turn, ordered)] == [
        ["out a", "out b"], ["out b"]
    ]  # fmt: skip
    assert ordered.makespan_us < in_turn.makespan_us


def test_what_window_cyclic_does_not_simulate_is_not_the_fastest(monkeypatch):
    """With a host budget it simulates every list."""
    simulated = []

    def counted(*arguments):
        simulated.append(arguments)
        return make_plan(*arguments)

    monkeypatch.setattr(window, "make_plan", counted)
    trace, planner = traced("vgg11", (8, 3, 64, 64)), get_planner("window-cyclic")
    fewer = 0
    for percent, machine in itertools.product(("0%", "10%", "40%"), (PCIE, NVLINK)):
        budget_bytes = resolve_budget(trace, percent)
        simulated.clear()
        plan = planner.plan(Question(trace, budget_bytes, machine))
        some = len(simulated)
        assert plan == planner.plan(
            Question(trace, budget_bytes, machine, host_budget_bytes=10**12)
        )
        fewer += 2 * some < len(simulated)
    assert fewer


def test_parameters_come_back_for_the_next_step_while_this_one_still_runs():
    trace = traced("vgg11", (8, 3, 64, 64))
    budget_bytes = resolve_budget(trace, "40%")
    across = get_planner("window-cyclic:resident=false,tuned=false,ordered=false")
    plan = across.plan(Question(trace, budget_bytes, PCIE))
    assert plan.notes["resting"] > 0
    at_rest = sum(hi - lo for _, lo, hi in plan.schedule.start_device)
    persistent = sum(trace.variables[v].nbytes for v in trace.end_variables)
    assert 0 < at_rest <= persistent
    verify(plan, trace, budget_bytes, PCIE)


# ---------------------------------------------------------------- real networks


@pytest.mark.parametrize(
    ("model", "shape", "machine"),
    quick(
        [("lenet", (16, 1, 28, 28), NVLINK), ("vgg11", (8, 3, 224, 224), NVLINK),
         ("resnet18", (8, 3, 64, 64), PCIE)],
        0, 1, names=3,
    ),
)  # fmt: skip
def test_lists_for_networks_are_legal_and_belady_is_the_fastest(model, shape, machine):
    trace = traced(model, shape)
    for percent in ("10%", "60%"):
        budget_bytes = resolve_budget(trace, percent)
        makespans = {}
        for spec in SWAP_PLANNERS:
            plan = plan_or_none(spec, trace, budget_bytes, machine)
            if plan is not None:
                verify(plan, trace, budget_bytes, machine)
                makespans[spec] = plan.makespan_us
        # Those which leave parameters on the device between steps; belady's pieces cost 1 %.
        rivals = [us for spec, us in makespans.items() if spec not in ("lru", "window-cyclic")]
        assert makespans["belady"] <= min(rivals) * 1.01
        assert makespans["belady"] >= compute_us(trace, machine)


@pytest.fixture(scope="module")
def small_step():
    """(model, trace, batch, in-core loss and gradients) of LeNet."""
    oc.manual_seed(0)
    model = oc.models.build("lenet", in_channels=1)
    images = np.random.default_rng(0).normal(size=(16, 1, 28, 28)).astype(np.float32)
    batch = (images, np.arange(16) % 10)
    trace = oc.trace(model, (16, 1, 28, 28))
    plan = oc.plan(trace, "100%", planner="keep-all", granule=CHUNKS)
    return model, trace, batch, oc.execute(plan, model, batch)


CHUNKS = oc.Granule(65536, True)


@pytest.mark.parametrize("spec", SWAP_PLANNERS)
def test_at_its_minimum_a_planner_trains_with_the_bits_of_in_core(spec, small_step):
    model, trace, batch, in_core = small_step
    with pytest.raises(Infeasible) as refused:
        oc.plan(trace, 1, planner=spec, granule=CHUNKS)
    plan = oc.plan(trace, refused.value.minimum_bytes, planner=spec, granule=CHUNKS)
    run = oc.execute(plan, model, batch)
    assert run.loss == in_core.loss
    for name, gradient in run.gradients.items():
        np.testing.assert_array_equal(gradient, in_core.gradients[name])


@pytest.mark.slow
def test_a_resnet50_step_of_1440_images_is_planned_by_each():
    trace = traced("resnet50", (1440, 3, 224, 224))
    machine = oc.machine("v100-16gb-nvlink")
    for spec in SWAP_PLANNERS:
        plan = plan_or_none(spec, trace, machine.device_bytes, machine)
        if plan is not None:
            assert plan.peak_bytes <= machine.device_bytes
            verify(plan, trace, machine.device_bytes, machine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [PCIE, NVLINK], ids=["pcie", "nvlink"])
def test_belady_is_within_one_percent_of_the_lp_that_only_offloads(machine):
    """The LP leaves parameters where they are, as belady does."""
    pytest.importorskip("highspy")
    for model, shape in (("vgg19", (64, 3, 224, 224)), ("resnet18", (128, 3, 224, 224))):
        trace = traced(model, shape)
        for percent in ("5%", "25%", "50%"):
            budget_bytes = resolve_budget(trace, percent)
            bound = fluid_bound(trace, budget_bytes, machine, recompute=False, resident=True)
            plan = get_planner("belady").plan(Question(trace, budget_bytes, machine))
            assert bound.makespan_us <= plan.makespan_us <= 1.01 * bound.makespan_us


def plan_or_none(spec: str, trace: Trace, budget_bytes: int, machine: Machine):
    """The plan, or None where the planner needs more."""
    try:
        return get_planner(spec).plan(Question(trace, budget_bytes, machine))
    except Infeasible:
        return None


def traced(model: str, shape: tuple[int, ...]) -> Trace:
    """A network's step, fused, with storage shared."""
    network = oc.models.build(
        model, in_channels=shape[1], stem="imagenet" if shape[2] > 64 else "cifar"
    )
    return apply_rewrites(oc.trace(network, shape), ("fuse", "share_storage"))


@pytest.mark.parametrize(("duplex", "idle_us"), [(False, 7), (True, 4)])
def test_dynprog_waits_for_one_slot_that_is_due_each_way(duplex, idle_us):
    """Equation (9) of paper 002, from one slot on: 3 us to send it and 4 us to fetch one."""
    chain = SlotChain((1,), (1, 1), (0,), (0,), (9.0,), (9.0,), 9, 1 / 3, 1 / 4, duplex)
    assert _idle_between(chain, (0, 1, 1)) == pytest.approx(idle_us)
