"""The bound for a host without room: exhaustive search, the LP, by hand, the command."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.test_docs import python_in
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import traces
from unit.test_checkmate import PLAIN, graph_of_eight, subsets, there_and_back

import ooctrain as oc
from ooctrain.api import step_trace
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.experiments.compare import CompareCase, row_of
from ooctrain.sched.bounds import recompute
from ooctrain.sched.bounds.closed import compute_us
from ooctrain.sched.bounds.linear_program import LinearProgram
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.bounds.recompute import (
    FORWARD,
    Depth,
    RecomputeProgram,
    StepValues,
    dearest_ends,
    recompute_bound,
    widest_ends,
)
from ooctrain.sched.budget import input_bytes, trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.dtr import Dtr
from ooctrain.sched.planners.prefix import Prefix
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.trace import Call, Trace, Variable

#: Inputs come in a nanosecond, so that only what is computed counts.
QUICK = replace(PLAIN, name="quick", link_bytes_per_us=1e9)


def least_us(trace, budget_bytes, *, backward=True):
    """The least time of any list that copies nothing out: Dijkstra over (first runs done, values on
    the device). A call may run at any time, in any order, and any part may go after it. The first
    one reads the input, which comes in a nanosecond, as all others do.
    """
    size = [variable.nbytes for variable in trace.variables]
    queue, done = [(0, 0, ())], set()
    while queue:
        time_ns, first, alive = heapq.heappop(queue)
        if first == len(trace.calls):
            return (1 + time_ns) / 1000
        if (first, alive) in done:
            continue
        done.add((first, alive))
        for call in trace.calls[: first + 1]:
            again = call.id < first
            if again and not (call.pure and (backward or call.phase in FORWARD)):
                continue
            there = {*alive, *(v for v in call.ins if v in trace.initial)}
            claimed = [v for v in call.outs if v not in call.reuse]
            needs = sum(size[v] for v in there) + sum(size[v] for v in claimed)
            if not there.issuperset(call.ins) or needs + call.workspace_bytes > budget_bytes:
                continue
            after = (there - set(call.reuse.values())) | set(call.outs)
            for left in subsets(after):
                state = (first + (not again), tuple(sorted(left)))
                if state not in done:
                    heapq.heappush(queue, (time_ns + call.duration_ns, *state))
    return None


def varied(seed):
    """A step of eight calls: some outputs take the storage, and have the size, of a value that
    nobody reads later; some calls are impure, and some read the input again.
    """
    rng = random.Random(seed)
    trace = graph_of_eight(seed)
    variables, calls = list(trace.variables), []
    for call in trace.calls:
        ins = call.ins if rng.random() < 0.8 else tuple(sorted({0, *call.ins}))
        source = next((v for v in call.ins if v and trace.readers[v][-1] == call.id), None)
        out, reuse = call.outs[0], {}
        if source is not None and rng.random() < 0.5:
            size = variables[source].nbytes
            variables[out] = replace(variables[out], shape=(size,), nbytes=size)
            reuse = {out: source}
        calls.append(replace(call, ins=ins, reuse=reuse, pure=rng.random() < 0.9))
    return Trace(tuple(variables), tuple(calls))


def never_above_the_least(seeds, *, more=(0, 3), reads=(1, 2, 3, 10)):
    """Whatever the stages and the class, at the least budget that a list fits, and a little above;
    returns by how much the bounds are above the LP's.
    """
    gained = 0.0
    for seed in seeds:
        trace = varied(seed)
        least = trace_minimum_bytes(trace, BYTES)
        while least_us(trace, least) is None:
            least += 1
        for budget, backward in itertools.product([least + some for some in more], (True, False)):
            truth = least_us(trace, budget, backward=backward)
            for number in reads:
                bound = recompute_bound(
                    trace, budget, QUICK, backward=backward, depth=Depth(number)
                )
                if truth is None:
                    continue
                assert bound is not None, (seed, budget, number)
                assert bound.proved_us <= truth * (1 + 1e-9), (seed, budget, number, backward)
                assert bound.lp_us <= bound.makespan_us <= truth * (1 + 1e-6) + 1e-6
                gained += max(0.0, bound.proved_us - bound.lp_us)
    return gained


def has_the_optima_that_it_had():
    """Of two programs of a small U-Net, in us. It fails where the rows allow more or less, or where
    calls take other times.
    """
    step, where = step_trace("unet", 8, 32), oc.machine("v100-pcie")
    for share, reads, proved_us in ((0.1, 4, 1222.856), (0.05, 3, 1275.832)):
        values = StepValues(step, budget_of(step, share), True)
        program = RecomputeProgram(values, where, widest_ends(values, reads))
        found = program.program.search(500, guess=False)
        least_us = (sum(program.duration_ns) + found.objective * program.unit_ns) / 1000
        assert (found.ended, round(least_us, 3)) == ("optimal", proved_us)


def budget_of(step, share):
    low, high = trace_minimum_bytes(step), trace_peak_bytes(step)
    return low + round(share * (high - low))


def proves_as_much_as_it_did():
    """What both choices of stages prove of it, too, and that no unfinished search says more."""
    has_the_optima_that_it_had()
    step, where = step_trace("unet", 8, 32), oc.machine("v100-pcie")
    budget = budget_of(step, 0.05)
    whole, root = (
        recompute_bound(step, budget, where, depth=Depth(3, nodes)) for nodes in (500, 1)
    )
    assert (whole.ended, round(whole.proved_us, 2)) == ("optimal", 1319.9)
    assert root.proved_us < whole.proved_us


@pytest.mark.slow
def test_two_programs_have_the_optima_that_they_had():
    has_the_optima_that_it_had()
    assert least_us(there_and_back(2), 100) == 4.001


@pytest.mark.slow
def test_it_proves_as_much_as_it_did():
    proves_as_much_as_it_did()


def test_it_is_never_above_the_least_time():
    assert never_above_the_least(range(3)) > 0


@pytest.mark.slow
def test_it_is_never_above_the_least_time_of_more_steps():
    assert never_above_the_least(range(3, 60)) > 0


def as_high_as_the_least(stages=3):
    """Where each value of a chain has to be made again, the bound says so, to the last run."""
    trace = there_and_back(stages)
    budget = trace_minimum_bytes(trace, BYTES)
    while (truth := least_us(trace, budget)) is None:
        budget += 1
    bound = recompute_bound(trace, budget, QUICK)
    assert bound.ended == "optimal"
    assert bound.proved_us <= truth
    return bound.proved_us / truth


def test_of_a_chain_without_room_it_is_near_the_least_time():
    assert as_high_as_the_least() > 0.95


def test_below_what_a_call_needs_there_is_no_bound_for_there_is_no_list():
    trace = there_and_back()
    least = trace_minimum_bytes(trace, BYTES)
    assert recompute_bound(trace, least, QUICK) is not None
    assert recompute_bound(trace, least - 1, QUICK) is None


def test_where_all_fits_it_is_the_compute_time():
    trace = graph_of_eight(3)
    bound = recompute_bound(trace, trace_peak_bytes(trace, BYTES), QUICK)
    assert bound.makespan_us == pytest.approx(compute_us(trace, QUICK) + 0.001, rel=1e-6)


def test_fewer_nodes_prove_less_but_never_too_much():
    trace = graph_of_eight(5)
    budget = trace_minimum_bytes(trace, BYTES) + 1
    few, many = (
        recompute_bound(trace, budget, QUICK, depth=Depth(nodes=nodes)) for nodes in (1, 1000)
    )
    assert few.proved_us <= many.proved_us <= least_us(trace, budget)


def test_lists_that_run_only_the_forward_pass_again_have_the_higher_bound():
    found = {}
    trace = graph_of_eight(1)
    for backward in (True, False):
        budget = trace_minimum_bytes(trace, BYTES)
        found[backward] = recompute_bound(trace, budget, QUICK, backward=backward)
    assert found[True].proved_us <= found[False].proved_us
    assert "of the forward pass" in found[False].covers
    assert "of the forward pass" not in found[True].covers
    assert found[False].lower_bound().kind != found[True].lower_bound().kind


def test_a_call_runs_again_in_stages_after_its_own_while_its_outputs_are_of_use():
    step = StepValues(graph_of_eight(0), 20, True)
    ends = range(len(step.trace.calls))
    program = RecomputeProgram(step, PLAIN, ends)  # a stage for each call
    assert set(program.run) == {
        (call, stage)
        for call, until in step.again.items()
        for stage in ends
        if call < stage <= until
    }


def test_values_of_just_the_share_that_is_small_are_left_out():
    """Without a variable that never leaves, the room is the budget."""
    trace = graph_of_eight(0)
    computed = [v for v in trace.variables if v.id not in trace.initial]
    for small_bytes in range(10):
        step = StepValues(trace, 20, True, small=small_bytes / 20)
        assert step.values == [v.id for v in computed if v.nbytes > small_bytes]


def resting(extra_bytes):
    """A step on two parameters that never leave, one of which it updates in its place."""
    builder = TraceBuilder()
    frozen, old, new = (builder.variable(n, (s,), "uint8", "param")
                        for n, s in (("frozen", 3), ("w", 7), ("w'", 7)))  # fmt: skip
    out = builder.variable("y", (extra_bytes,), "uint8", "activation")
    builder.call("f", None, (frozen, old), (out,), duration_ns=2000)
    builder.call("update", None, (old,), (new,), reuse={new: old}, pure=False, phase="update",
                 duration_ns=1000)  # fmt: skip
    builder.carries[new] = old
    return builder.build()


def test_the_room_is_the_budget_less_what_never_leaves_each_storage_once():
    step = StepValues(resting(5), 20, True)
    assert step.room_bytes == 20 - (3 + 7)
    assert step.size == [0, 0, 0, 5 / 10]


def test_where_what_never_leaves_fills_the_budget_the_bound_is_the_compute_time():
    bound = recompute_bound(resting(0), 3 + 7, QUICK)
    assert bound.makespan_us == pytest.approx(3)


@pytest.mark.parametrize(("gain", "rounds"), [(0.0, 1), (1.0, recompute.ROUNDS)])
def test_each_round_tries_each_call_once_and_the_last_is_one_that_proves_no_more(
    monkeypatch, gain, rounds
):
    step, solved = StepValues(graph_of_eight(0), 20, True), itertools.count()
    monkeypatch.setattr(recompute, "_relaxed", lambda *_: gain * next(solved))
    dearest_ends(step, PLAIN, {3: 1.0})
    assert next(solved) == 1 + rounds * (len(step.trace.calls) - 1)


def test_of_a_long_step_stages_end_around_the_widest_calls_that_read_again():
    variables = [Variable(0, "x", (1,), "uint8", 1, "input")]
    calls = []
    for k, reads in enumerate([(0,), (1,), (2,), (3,), (4, 1), (5,), (6, 2), (7,)]):
        size = 9 if k == 6 else 1
        variables.append(Variable(k + 1, f"v{k}", (size,), "uint8", size, "activation"))
        calls.append(Call(k, f"c{k}", None, reads, (k + 1,), duration_ns=1000))
    step = StepValues(Trace(tuple(variables), tuple(calls)), 20, True)
    assert widest_ends(step, 1) == [5, 6, 7]
    assert widest_ends(step, 2) == [3, 4, 5, 6, 7]
    assert widest_ends(step, 4) == list(range(8))


def waits_for_what_the_first_call_reads():
    """An input of 30 bytes, and one of 5 that a later call reads; a parameter is there already."""
    builder = TraceBuilder()
    first, later = (builder.variable(f"x{n}", (n,), "uint8", "input") for n in (30, 5))
    weight = builder.variable("w", (7,), "uint8", "param")
    middle, last = (builder.variable(name, (1,), "uint8", "activation") for name in "yz")
    builder.call("f", None, (first, weight), (middle,), duration_ns=2000)
    builder.call("g", None, (middle, later), (last,), duration_ns=3000)
    trace = builder.build()
    bound = recompute_bound(trace, trace_peak_bytes(trace, BYTES), PLAIN)
    assert bound.proved_us == pytest.approx(35)
    plan = Prefix(steps=3).plan(Question(trace, trace_peak_bytes(trace, BYTES), PLAIN))
    assert bound.makespan_us <= plan.makespan_us


def test_nothing_runs_before_the_first_call_has_its_inputs():
    waits_for_what_the_first_call_reads()


def proves_most_where_memory_has_a_price():
    """No few calls of a ResNet fill its memory by themselves: what the relaxation proves with
    stages that end around the widest, and where a byte more would be worth most."""
    step, where = step_trace("resnet18", 8, 64), oc.machine("v100-pcie")
    low, high = trace_minimum_bytes(step), trace_peak_bytes(step)
    budget = low + round(0.1 * (high - low))
    fluid = fluid_bound(step, budget, where, resident=True, host_budget_bytes=input_bytes(step))
    values = StepValues(step, budget, False)
    by_width, by_price = (
        RecomputeProgram(values, where, ends).program.solve().dual
        for ends in (widest_ends(values, 5), dearest_ends(values, where, fluid.memory_prices))
    )
    assert by_price > 2.5 * by_width > 0


@pytest.mark.slow
def test_few_stages_prove_most_where_memory_has_a_price():
    proves_most_where_memory_has_a_price()


@pytest.mark.slow
def test_the_figures_in_the_docs_are_what_it_prints(capsys):
    block = python_in(Path(__file__).parents[2] / "docs" / "planners.md", "dearest_ends")
    exec(compile(block, "planners.md", "exec"), {})
    printed = ", ".join(capsys.readouterr().out.splitlines())
    assert printed == block.rpartition("# ")[2].strip()


@settings(max_examples=30)
@given(traces(max_calls=8), st.floats(0, 1), st.integers(1, 5))
def test_no_planner_beats_it(trace, share, reads):
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    budget = least + round(share * (most - least))
    bound = recompute_bound(trace, budget, PLAIN, depth=Depth(reads, 20))
    for planner in (Prefix(steps=3), Dtr()):
        try:
            plan = planner.plan(
                Question(trace, budget, PLAIN, host_budget_bytes=input_bytes(trace))
            )
        except Infeasible:
            continue
        assert bound is not None
        assert plan.makespan_us >= bound.makespan_us * (1 - 1e-6)


def test_a_search_without_guesses_finds_the_same_optimum():
    program = LinearProgram()
    columns = [program.column(cost=cost, upper=1.0, whole=True) for cost in (3.0, 4.0, 5.0)]
    program.at_most([(column, -size) for column, size in zip(columns, (2, 3, 4), strict=True)], -5)
    with_guesses, without = (program.search(100, guess=guess) for guess in (True, False))
    assert with_guesses.bound == pytest.approx(without.bound) == pytest.approx(7.0)


def case(bound, host_budget):
    return CompareCase(
        "lenet", 2, 32, "v100-pcie", "60%", "prefix", bound=bound, host_budget=host_budget
    )


def test_compare_takes_it_where_the_host_has_no_room():
    lp, all_calls, forward = (
        row_of(case(bound, "0")) for bound in ("lp-resident", "recompute", "recompute-forward")
    )
    assert lp.lower_bound_us <= all_calls.lower_bound_us <= forward.lower_bound_us
    assert forward.lower_bound_us <= forward.makespan_us
    assert forward.lower_bound_kind == "MILP of recomputation of the forward pass"


@pytest.mark.parametrize("host_budget", [None, "1MiB"])
def test_compare_refuses_it_where_the_host_has_room(host_budget):
    with pytest.raises(ConfigError, match="host budget") as refused:
        row_of(case("recompute", host_budget))
    assert "--host-budget 0" in str(refused.value)
