"""superneurons, bn-recompute, tflms-hybrid, dtr: their laws, and each one's idea on small steps."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from support.quick import all_but
from support.strategies import SEEDS, machines, traces

import ooctrain as oc
from ooctrain.cli import main
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import resolve_budget, trace_peak_bytes
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.bn_recompute import BnRecompute, offloadable_share, outputs_of_norms
from ooctrain.sched.planners.dtr import Dtr, Neighbours, online
from ooctrain.sched.planners.hmms import Hmms
from ooctrain.sched.planners.lms import LmsAuto
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planners.superneurons import (
    SuperNeurons,
    checkpoint_outputs,
    cost_aware,
    least_recently_used,
)
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid, times_to_drop_ns
from ooctrain.sched.planners.window import WindowCyclic
from ooctrain.sched.planning.decisions import Gap, lives, runs_once
from ooctrain.sched.planning.planner import call_need_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import (
    NO_CHECKPOINT,
    checkpoints_by_types,
    droppable,
    rematerialise,
    segments,
)
from ooctrain.sched.planning.unroll import plan_runs, unroll
from ooctrain.sched.schedule import BYTES, Run, SwapIn, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.machine import call_durations_ns
from ooctrain.testing.check_planner import check_planner
from ooctrain.testing.interpreter import in_core, interpret
from ooctrain.testing.random_traces import random_values

FAMILY = ("bn-recompute", "dtr", "superneurons", "tflms-hybrid")
PCIE = oc.machine("v100-pcie")


@pytest.fixture(scope="module")
def resnet():
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    return apply_rewrites(oc.trace(model, (128, 3, 32, 32)), ("fuse", "share_storage"))


@pytest.fixture(scope="module")
def chain():
    """Stages 0 to 5; `F_i` reads x_i and writes x_{i+1}, `B_i` reads x_i, x_{i+1}, y_{i+1}."""
    return oc.chain([8] * 7, [8] * 7, [2] * 6, [3] * 6, [0] * 6, [0] * 6)


def again(plan, trace):
    """{call: how often it ran besides the first time}."""
    runs = (i.call for i in plan.schedule.instructions if isinstance(i, Run))
    return Counter(runs) - Counter(call.id for call in trace.calls)


def swapped(plan):
    return {i.var for i in plan.schedule.instructions if isinstance(i, SwapOut)}


@pytest.mark.parametrize(
    "spec",
    all_but([*FAMILY, "bn-recompute:swap=belady"], "bn-recompute", "bn-recompute:swap=belady"),
)
def test_planners_keep_the_laws(spec):
    assert check_planner(get_planner(spec), examples=6, seed=8, time_limit_s=20) >= 2


@pytest.mark.parametrize("spec", all_but(FAMILY, "tflms-hybrid"))
def test_the_minimum_is_exact_on_a_network(spec, resnet):
    planner = get_planner(spec)
    with pytest.raises(Infeasible) as refused:
        planner.plan(Question(resnet, 0, PCIE))
    least = refused.value.minimum_bytes
    verify(planner.plan(Question(resnet, least, PCIE)), resnet, least, PCIE)
    with pytest.raises(Infeasible) as refused:
        planner.plan(Question(resnet, least - 1, PCIE))
    assert refused.value.minimum_bytes == least
    assert refused.value.witness_call in {call.name for call in resnet.calls}


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["dtr", "superneurons", "tflms-hybrid"])
def test_with_all_memory_nothing_runs_again(spec, resnet):
    plan = get_planner(spec).plan(Question(resnet, trace_peak_bytes(resnet, BYTES), PCIE))
    assert not again(plan, resnet)
    assert not swapped(plan)


# ---------------------------------------------------------------- planning/unroll.py


def test_runs_that_happen_once_unroll_to_the_step_itself(resnet):
    unrolled = unroll(resnet, runs_once(resnet))
    assert [c.name for c in unrolled.trace.calls] == [c.name for c in resnet.calls]
    assert call_durations_ns(unrolled.trace, PCIE) == call_durations_ns(resnet, PCIE)
    assert trace_peak_bytes(unrolled.trace, BYTES) == trace_peak_bytes(resnet, BYTES)
    assert not unrolled.scratch


def test_readers_read_the_copy_that_was_made_for_them(chain):
    x3 = chain.variable_by_name["x3"].id
    unrolled = unroll(chain, rematerialise(chain, [x3])).trace
    readers = {v.name: [unrolled.calls[k].name for k in unrolled.readers[v.id]]
               for v in unrolled.variables if v.name.startswith("x3")}  # fmt: skip
    assert readers == {"x3": ["F3"], "x3, run 2": ["B3", "B2"]}


@settings(max_examples=60)
@given(traces(), machines(), SEEDS)
def test_any_swap_planner_plans_runs_that_happen_again(trace, machine, seed):
    rng = random.Random(seed)
    dropped = [v for v in droppable(trace) if rng.random() < 0.7]
    runs = rematerialise(trace, dropped, again=[v for v in dropped if rng.random() < 0.5])
    planner = rng.choice([LmsAuto(), Hmms(), Belady(), WindowCyclic()])
    try:
        plan_runs("test", Question(trace, 0, machine), runs, planner, {})
        least = 0
    except Infeasible as refusal:
        least = refusal.minimum_bytes
    plan = plan_runs("test", Question(trace, least, machine), runs, planner, {})
    verify(plan, trace, least, machine)
    assert again(plan, trace).total() == len(runs) - len(trace.calls)
    start = random_values(trace, rng)
    outcome = interpret(trace, plan.schedule, start, rng, shared_link=machine.link == "shared")
    assert outcome.persistent == in_core(trace, start).persistent


# ------------------------------------- sched/planning/rematerialise.py, planners/tflms_hybrid.py


def test_checkpoints_are_numbered_in_order_and_name_their_segments(resnet):
    found = checkpoints_by_types(resnet, ["Conv2D"])
    assert [c.id for c in found] == list(range(1, 21))
    assert found[0].name.startswith("conv1")
    assert all(c.size_bytes == resnet.variables[c.var].nbytes for c in found)
    segment = segments(resnet, [c.var for c in found])
    owned = [v for values in segment.values() for v in values]
    assert len(owned) == len(set(owned))
    assert not set(owned) & {c.var for c in found}
    assert not segment[NO_CHECKPOINT]
    first = [resnet.variables[v].name for v in segment[found[0].var]]
    assert all(name.startswith(("conv1", "bn1", "relu", "maxpool")) for name in first), first


def test_a_value_belongs_to_the_checkpoint_before_it(chain):
    names = chain.variable_by_name
    segment = segments(chain, [names["x1"].id, names["x3"].id])
    assert [chain.variables[v].name for v in segment[names["x1"].id]] == ["x2"]
    assert [chain.variables[v].name for v in segment[names["x3"].id]][:2] == ["x4", "x5"]


def test_without_a_list_the_hybrid_is_lms_auto(resnet):
    budget = resolve_budget(resnet, "60%")
    hybrid = TflmsHybrid(checkpoint_list=None).plan(Question(resnet, budget, PCIE))
    lms = LmsAuto().plan(Question(resnet, budget, PCIE))
    assert not again(hybrid, resnet)
    assert hybrid.makespan_us == lms.makespan_us


def test_where_recomputation_alone_makes_room_nothing_is_swapped(resnet):
    everything = TflmsHybrid(checkpoint_list="all")
    budget = resolve_budget(resnet, "75%")
    plan = everything.plan(Question(resnet, budget, PCIE))
    assert again(plan, resnet)
    assert not swapped(plan)
    assert swapped(everything.plan(Question(resnet, resolve_budget(resnet, "50%"), PCIE)))


def test_the_listed_segments_run_again_and_no_others(resnet):
    planner = TflmsHybrid(checkpoint_list="1+3")
    plan = planner.plan(Question(resnet, resolve_budget(resnet, "75%"), PCIE))
    known = planner.checkpoints(resnet)
    segment = segments(resnet, [checkpoint.var for checkpoint in known])
    owned = {*segment[known[0].var], *segment[known[2].var]}
    assert set(again(plan, resnet)) == {resnet.producer[v] for v in owned}
    assert plan.notes["checkpoint_list"] == "1+3"


def test_the_list_chosen_is_no_worse_than_none_and_all(resnet):
    budget = resolve_budget(resnet, "50%")
    chosen = TflmsHybrid().plan(Question(resnet, budget, PCIE))
    verify(chosen, resnet, budget, PCIE)
    for checkpoint_list in (None, "all"):
        other = TflmsHybrid(checkpoint_list=checkpoint_list).plan(Question(resnet, budget, PCIE))
        assert chosen.makespan_us <= other.makespan_us


def test_what_it_costs_to_drop_a_segment_is_what_runs_again(resnet):
    durations = call_durations_ns(resnet, PCIE)
    sets = [values for values in TflmsHybrid().segments(resnet).values() if values]
    sets.append([v for values in sets for v in values])  # all of them at once
    for dropped, time_ns in zip(sets, times_to_drop_ns(resnet, PCIE, sets), strict=True):
        runs = rematerialise(resnet, dropped)
        assert time_ns == sum(durations[run.call] for run in runs) - sum(durations) > 0


@pytest.mark.parametrize("checkpoint_list", ["0", 21, "2+x"])
def test_a_list_that_names_nothing_is_refused(resnet, checkpoint_list):
    with pytest.raises(ConfigError, match="checkpoint_list"):
        TflmsHybrid(checkpoint_list=checkpoint_list).plan(Question(resnet, 1 << 40, PCIE))


def test_the_command_lists_checkpoints_by_number_name_and_size(capsys):
    assert main(["plan", "resnet18", "--batch", "8", "--list-checkpoints"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0].isdigit()]
    assert [int(row[0]) for row in rows] == list(range(1, 21))
    assert all("conv" in row[1] or "downsample" in row[1] for row in rows)
    assert all(row[-1].endswith("iB") for row in rows)


# ---------------------------------------------------------------- planners/superneurons.py


def test_outputs_of_dear_layers_joins_and_forks_are_checkpoints(resnet):
    names = {resnet.variables[v].name for v in checkpoint_outputs(resnet)}
    ops = Counter(type(resnet.calls[resnet.producer[v]].op).__name__
                  for v in checkpoint_outputs(resnet))  # fmt: skip
    assert ops["Conv2d"] == 20
    assert ops["Linear"] == 1
    assert any(name.startswith("layer1.0.bn2") or "add" in name or "relu" in name
               for name in names), names  # fmt: skip
    dropped, _ = cost_aware(resnet, BYTES)
    kinds = {type(resnet.calls[resnet.producer[v]].op).__name__ for v in dropped}
    assert "Conv2d" not in kinds
    assert "BatchNormApply" in kinds
    assert not set(dropped) & set(checkpoint_outputs(resnet))


def test_a_segment_larger_than_the_largest_layer_comes_back_for_each_reader(chain):
    """No stage is dear: all hang on the input; 6 x 8 bytes are more than 4 x 8 of a B_i."""
    dropped, anew = cost_aware(chain, BYTES)
    largest = max(call_need_bytes(call, chain, BYTES) for call in chain.calls)
    assert sum(chain.variables[v].nbytes for v in dropped) > largest
    assert set(anew) == set(dropped)
    short = oc.chain([8] * 3, [8] * 3, [2] * 2, [3] * 2, [0] * 2, [0] * 2)
    dropped, anew = cost_aware(short, BYTES)
    assert dropped
    assert not anew


def test_the_cache_gives_up_what_was_touched_first():
    gaps = [Gap(0, 0, 4, 0, 9), Gap(1, 0, 4, 1, 8), Gap(2, 0, 4, 2, 7)]
    resident = [4, 8, 12, 12, 12, 12, 12, 8, 8, 4]
    assert [g.var for g in least_recently_used(gaps, resident, 12, BYTES)] == []
    assert [g.var for g in least_recently_used(gaps, resident, 8, BYTES)] == [0]


def test_what_leaves_makes_room_in_every_run():
    """A gap makes none in the runs at its ends: its value is there."""
    rng = random.Random(0)
    left = 0
    for _ in range(300):
        runs = rng.randint(2, 8)
        gaps = []
        for var in range(rng.randint(1, 6)):
            ends = sorted(rng.sample(range(runs), rng.choice([2, min(runs, 4)]) // 2 * 2))
            size = rng.randint(1, 9)
            gaps += [Gap(var, 0, size, *pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
        resident = [rng.randint(0, 20) for _ in range(runs)]
        away = [sum(g.hi for g in gaps if g.after < run < g.before) for run in range(runs)]
        budget = max(there - gone for there, gone in zip(resident, away, strict=True))
        found = list(least_recently_used(gaps, resident, budget, BYTES))
        assert len(set(found)) == len(found)
        for run, there in enumerate(resident):
            assert there - sum(g.hi for g in found if g.after < run < g.before) <= budget
        left += len(found)
    assert left > 100


def test_superneurons_swaps_checkpoints_only_when_it_computes_again(resnet):
    with pytest.raises(Infeasible) as refused:
        SuperNeurons().plan(Question(resnet, 0, PCIE))
    plan = SuperNeurons().plan(Question(resnet, refused.value.minimum_bytes, PCIE))
    if again(plan, resnet):
        dropped, _ = cost_aware(resnet, BYTES)
        assert not swapped(plan) & set(dropped)


# ---------------------------------------------------------------- planners/bn_recompute.py


def test_norms_without_a_shortcut_run_again_and_nothing_else(resnet):
    outputs = outputs_of_norms(resnet)
    for var in outputs:
        op = resnet.calls[resnet.producer[var]].op
        assert type(op).__name__ == "BatchNormApply"
        assert not op.residual
    plan = BnRecompute(swap="belady").plan(Question(resnet, resolve_budget(resnet, "25%"), PCIE))
    assert set(again(plan, resnet)) == {resnet.producer[v] for v in outputs}
    assert max(again(plan, resnet).values()) == 1


def test_norms_computed_again_let_the_link_carry_a_larger_share():
    model = oc.models.build("resnet18", num_classes=1000, stem="imagenet")
    trace = apply_rewrites(oc.trace(model, (64, 3, 224, 224)), ("fuse", "share_storage"))
    machine = oc.machine("p100-nvlink")
    plain = offloadable_share(trace, machine)
    norms = offloadable_share(trace, machine, outputs_of_norms(trace))
    assert norms / plain > 70 / 55


def test_less_memory_is_enough_for_hmms_when_norms_are_computed_again(resnet):
    def least(planner):
        with pytest.raises(Infeasible) as refused:
            planner.plan(Question(resnet, 0, PCIE))
        return refused.value.minimum_bytes

    assert least(BnRecompute()) < least(Hmms())


def test_a_planner_that_is_none_of_the_swappers_is_refused():
    with pytest.raises(ConfigError, match="swap='rotor'"):
        BnRecompute(swap="rotor")


# ---------------------------------------------------------------- planners/dtr/


def test_dtr_throws_away_the_cheap_the_large_and_the_stale():
    """x1 is cheap to get back, x2 large, all are equally old: h decides."""

    def first_again(sizes, times):
        trace = oc.chain([1, *sizes, 1], [1] * 5, times, [1] * 4, [0] * 4, [0] * 4)
        limit = trace_peak_bytes(trace, BYTES) - 1
        runs = online(trace, limit, call_durations_ns(trace, PCIE), BYTES)
        lives(trace, runs)
        seen = set()
        return next(trace.calls[r.call].name for r in runs
                    if r.call in seen or seen.add(r.call))  # fmt: skip

    assert first_again([8, 8, 8], [50, 1, 50, 50]) == "F1"
    assert first_again([8, 8, 8], [1, 50, 50, 50]) == "F0"


def test_evicted_neighbours_cost_together(chain):
    names = chain.variable_by_name
    around = Neighbours(chain, [1] * len(chain.calls))
    x1, x2, x3, x4 = (names[f"x{i}"].id for i in (1, 2, 3, 4))
    assert around.cost_ns(x2) == 1
    around.is_gone(x1)
    around.is_gone(x3)
    assert around.cost_ns(x2) == 3
    around.is_gone(x2)
    assert around.cost_ns(x4) == 4
    around.is_back(x2)
    assert around.cost_ns(x4) == 3


def test_dtr_computes_more_the_less_memory_there_is_and_moves_nothing(resnet):
    times = []
    for share in ("30%", "50%", "75%", "100%"):
        budget = resolve_budget(resnet, share)
        try:
            plan = Dtr().plan(Question(resnet, budget, PCIE))
        except Infeasible:
            continue
        verify(plan, resnet, budget, PCIE)
        assert not swapped(plan)
        inputs = {i.var for i in plan.schedule.instructions if isinstance(i, SwapIn)}
        assert all(resnet.variables[v].kind == "input" for v in inputs)
        times.append(plan.makespan_us)
    assert len(times) >= 3
    assert times == sorted(times, reverse=True)


def test_of_the_cheapest_checkpoints_none_all_and_numbers_between_are_tried(resnet):
    hybrid = TflmsHybrid()
    order = hybrid.by_recompute_time(resnet, PCIE)
    tried = list(hybrid._prefixes(resnet, PCIE))
    assert tried[0] == ()
    assert tried[-1] == tuple(sorted(order))
    assert tried == [tuple(sorted(order[: len(ids)])) for ids in tried]
