"""Recomputation on chains: binomial counts, optimality of rotor, and the laws of planners."""

from __future__ import annotations

from collections import Counter
from math import comb

import pytest

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.chen import ChenSqrt, segmented
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planners.revolve import Revolve, Splits
from ooctrain.sched.planners.rotor import CostTable, Rotor
from ooctrain.sched.planning.chain_runs import ChainStep, Kind, Lift
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.sched.planning.decisions import lives
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, SwapOut
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.testing.check_planner import check_planner
from ooctrain.testing.random_traces import FakeOp

MACHINE = oc.machine("v100-pcie")


def equal_stages(count):
    """Equal stages whose backward reads only their input and a gradient without bytes."""
    return oc.chain([1] * (count + 1), [0] * (count + 1), [1] * count, [1] * count,
                    [0] * count, [0] * count)  # fmt: skip


@pytest.fixture(scope="module")
def resnet():
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    return apply_rewrites(oc.trace(model, (128, 3, 32, 32)), ("fuse", "share_storage"))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("sweeps", [1, 2, 3])
def test_revolve_runs_as_often_as_the_binomial_formula_says(slots, sweeps):
    """Griewank and Walther, theorem 1: t(l, s) = r l - binomial(s + r, r - 1) forward steps for
    l = binomial(s + r, s), with s slots, the input's among them; ours keep all once more each.
    """
    length = comb(slots + sweeps, slots)
    forward_steps = Splits(length).forward_steps(length, slots - 1)
    assert forward_steps == sweeps * length - comb(slots + sweeps, sweeps - 1) + length


@pytest.mark.parametrize("slots", range(4))
def test_revolve_does_what_it_counts(slots):
    splits = Splits(9)
    kinds = Counter(step.kind for step in splits.steps(slots))
    assert kinds[Kind.BACKWARD] == kinds[Kind.ALL] == 9
    assert sum(kinds.values()) - 9 == splits.forward_steps(9, slots)


@pytest.mark.parametrize("segments", [1, 2, 3, 7])
def test_chen_keeps_borders_and_runs_each_stage_at_most_twice(segments):
    steps = list(segmented(7, segments))
    forward = Counter(step.stage for step in steps if step.kind is not Kind.BACKWARD)
    assert set(forward.values()) <= {1, 2}
    assert [s.stage for s in steps if s.kind is Kind.BACKWARD] == list(range(6, -1, -1))


def test_lifted_steps_make_runs_whose_inputs_are_alive(resnet):
    view = chain_view(resnet, MACHINE)
    for segments in (1, 2, 4, len(view)):
        runs = Lift(view).runs(segmented(len(view), segments))
        lives(resnet, runs)
        first_runs = list(dict.fromkeys(run.call for run in runs))
        assert first_runs == [call.id for call in resnet.calls]
        assert (len(runs) > len(first_runs)) == (segments > 1)


def test_keeping_everything_is_the_step_itself(resnet):
    view = chain_view(resnet, MACHINE)
    steps = [ChainStep(Kind.ALL, i) for i in range(len(view))]
    steps += [ChainStep(Kind.BACKWARD, i) for i in reversed(range(len(view)))]
    assert [run.call for run in Lift(view).runs(steps)] == [call.id for call in resnet.calls]


@pytest.mark.parametrize("spec", ["chen-sqrt", "revolve", "rotor"])
def test_planners_keep_the_laws(spec):
    assert check_planner(get_planner(spec), examples=8, seed=5, time_limit_s=30) >= 2


@pytest.mark.parametrize("share", [0.6, 0.8])
def test_rotor_is_the_fastest_of_them(resnet, share):
    least, most = trace_minimum_bytes(resnet, BYTES), trace_peak_bytes(resnet, BYTES)
    budget = round(least + share * (most - least))
    plan = Rotor().plan(Question(resnet, budget, MACHINE))
    verify(plan, resnet, budget, MACHINE)
    assert not any(isinstance(i, SwapOut) for i in plan.schedule.instructions)
    for other in (ChenSqrt(), Revolve()):
        try:
            assert (
                plan.makespan_us
                <= other.plan(Question(resnet, budget, MACHINE)).makespan_us * 1.001
            )
        except Infeasible:
            continue


def test_the_steps_of_rotor_take_what_its_table_says():
    stages = 6
    trace = oc.chain([4, 6, 4, 6, 2, 5, 3], [3] * 7, [3, 1, 1, 4, 1, 5], [5, 6, 7, 2, 3, 4],
                     [1, 1, 2, 0, 3, 1], [1, 0, 0, 2, 1, 0])  # fmt: skip
    view = chain_view(trace, MACHINE)
    table, last = CostTable(view, 40), stages - 1
    amounts, costs_ns = table.amounts(0, last, table.slots)
    assert len(amounts) > 4
    for slots, cost_ns in zip(amounts, costs_ns, strict=True):
        steps = table.steps(0, last, int(slots))
        times = ((view.backward_ns if step.kind is Kind.BACKWARD else view.forward_ns)[step.stage]
                 for step in steps)  # fmt: skip
        assert sum(times) == cost_ns


def test_with_all_memory_nothing_runs_again(resnet):
    most = trace_peak_bytes(resnet, BYTES)
    for planner in (ChenSqrt(), Rotor()):
        assert planner.plan(Question(resnet, most, MACHINE)).notes["runs_again"] == 0


def test_a_call_that_touches_no_value_of_the_chain_cuts_nothing():
    """A counter that moves between two stages: the same value crosses before it and behind it."""

    def view(counted):
        builder = TraceBuilder()
        x, a, b = (builder.variable(n, (8,), "uint8", k) for n, k in
                   (("x", "input"), ("a", "activation"), ("b", "activation")))  # fmt: skip
        grads = [builder.variable(f"d{name}", (8,), "uint8", "grad") for name in "ba"]
        builder.call("f", FakeOp(), (x,), (a,), duration_ns=1000)
        if counted:
            old = builder.variable("n", (8,), "uint8", "state")
            new = builder.variable("n.new", (8,), "uint8", "state")
            builder.call("count", FakeOp(), (old,), (new,), reuse={new: old}, duration_ns=1000)
            builder.carries[new] = old
        builder.call("g", FakeOp(), (a,), (b,), duration_ns=1000)
        builder.call("loss", FakeOp(), (b,), (grads[0],), phase="loss", duration_ns=1000)
        builder.call("dg", FakeOp(), (a, b, grads[0]), (grads[1],), phase="backward",
                     duration_ns=1000)  # fmt: skip
        return chain_view(builder.build(), Machine("m", 1, 1, link_bytes_per_us=1))

    assert len(view(True)) == len(view(False))
    assert view(True).x == view(False).x


def an_input_that_crosses_alone_cuts_nothing():
    """Its other reader needs it, so it is not away there; the least was named without it."""
    builder = TraceBuilder()
    x, y = (builder.variable(n, (size,), "uint8", "input") for n, size in (("x", 1), ("y", 4)))
    a, b, c, d, e = (builder.variable(name, (size,), "uint8") for name, size in zip(
        "abcde", (3, 4, 4, 3, 2), strict=True))  # fmt: skip
    for name, ins, outs, phase in (
        ("f0", (x,), (a,), "forward"), ("f1", (x, y), (b, c), "forward"),
        ("b0", (a, x), (d,), "backward"), ("b1", (c, d), (e,), "backward"),
    ):  # fmt: skip
        builder.call(name, FakeOp(), ins, outs, phase=phase, duration_ns=1000)
    trace = builder.build()
    machine = Machine("plain", 1, 1, 1.0, link="duplex", latency_us=0.0, call_overhead_us=0.0)
    assert len(chain_view(trace, machine)) == 1
    for name in ("greedy", "dynprog", "vdnn", "pofo", "rotor"):
        with pytest.raises(Infeasible) as refused:
            get_planner(name).plan(Question(trace, 0, machine))
        least = refused.value.minimum_bytes
        verify(get_planner(name).plan(Question(trace, least, machine)), trace, least, machine)


def test_an_input_that_crosses_alone_cuts_nothing():
    an_input_that_crosses_alone_cuts_nothing()
