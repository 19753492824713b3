"""Steps of thousands of calls: coarser chains, and searches that look at few values.

A planner whose table grows with the cube of a chain's stages joins stages and says so; what it
plans is a plan of the whole step. The run-time of dtr asks few values what they cost, and finds the
least all the same.
"""

from __future__ import annotations

import math
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners import rotor
from ooctrain.sched.planners.dtr import GivenUp, GoneForGood, Neighbours, Runtime
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import call_durations_ns

MACHINE = oc.machine("v100-pcie")
MIB = 1 << 20


def equal_stages(count: int) -> oc.Trace:
    return oc.chain([4] * (count + 1), [1] * (count + 1), [2] * count, [3] * count,
                    [0] * count, [0] * count)  # fmt: skip


@pytest.mark.parametrize("most", [1, 2, 5, 7, 40])
def test_a_coarser_view_has_every_call_in_one_stage(most):
    trace = oc.trace(oc.models.build("resnet18", num_classes=10), (2, 3, 32, 32))
    finest, view = chain_view(trace, MACHINE), chain_view(trace, MACHINE, most_stages=most)
    assert len(view) == min(most, len(finest))
    assert view.notes()["stages"] == len(view)
    assert view.notes().get("stages_of_step", len(view)) == len(finest)
    forward = [call for stage in view.stages for call in stage.forward]
    backward = [call for stage in reversed(view.stages) for call in stage.backward]
    assert forward + backward == list(range(len(trace.calls)))
    crossings = {stage.forward.stop: stage.output for stage in finest.stages}
    assert all(crossings[stage.forward.stop] == stage.output for stage in view.stages)
    joined = [
        len(stage.forward) for stage in chain_view(equal_stages(60), MACHINE, BYTES, 8).stages
    ]
    assert max(joined) - min(joined) <= 1


def test_a_plan_of_a_coarser_chain_is_a_plan_of_the_step():
    trace = equal_stages(40)
    budget = (trace_minimum_bytes(trace, BYTES) + trace_peak_bytes(trace, BYTES)) // 2
    view = chain_view(trace, MACHINE, BYTES, 8)
    plan = rotor.Rotor().plan_chain(Question(trace, budget, MACHINE), view)
    verify(plan, trace, budget, MACHINE)
    assert (plan.notes["stages"], plan.notes["stages_of_step"]) == (8, 40)


class AskingAll(Runtime):
    """A run-time that compares what it evicts with the least h of all values."""

    compared = 0

    def _least(self) -> int:
        possible = (v for v in range(len(self.size)) if self.evictable[v] and not self.locks[v])
        expected = min(((self.h_now(v), v) for v in possible), default=None)
        found = super()._least()
        assert expected is not None
        assert found == expected[1]
        self.compared += 1
        return found

    def h_now(self, var: int) -> float:
        space_time = self.size[var] * (self.now_ns - int(self.touched_ns[var]))
        return cost_now(self.around, var) / space_time if space_time else math.inf


def cost_now(around: Neighbours, var: int) -> int:
    """What a value costs, written a second time; nothing is remembered."""
    names = {around._find(around.set_of[v]) for v in around.neighbours[var] if v in around.set_of}
    return around.own_ns[var] + sum(around.total_ns[name] for name in names)


@pytest.mark.parametrize("name", ["unet", "resnet18"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_dtr_finds_the_least_without_asking_all(name, share):
    trace = oc.trace(oc.models.build(name), (2, 3, 32, 32))
    least, most = trace_minimum_bytes(trace, BYTES), trace_peak_bytes(trace, BYTES)
    limit = int(least + share * (most - least))
    runtime = AskingAll(trace, limit, call_durations_ns(trace, MACHINE), BYTES, frozenset())
    with suppress(GivenUp, GoneForGood):
        runtime.play()
    assert runtime.compared > 10


def test_costs_are_never_less_than_what_is_known_of_them():
    """A set beside falls away whole when the value between comes back."""
    trace = oc.trace(oc.models.build("resnet18", num_classes=10), (2, 3, 32, 32))
    around = Runtime(trace, 1 << 40, call_durations_ns(trace, MACHINE), BYTES, frozenset()).around
    values = [v.id for v in trace.variables if around.neighbours[v.id] and not v.persistent]
    for step in range(400):
        var = values[(7 * step * step + step) % len(values)]
        (around.is_back if var in around.set_of else around.is_gone)(var)
        for asked in values[step % 5 :: 5]:
            around.cost_ns(asked)
        costs = [cost_now(around, v) for v in values]
        at_least = around.least_ns(np.array(values))
        assert all(low <= cost for low, cost in zip(at_least, costs, strict=True))


def test_dtr_computes_what_it_has_lost_twice_for_one_call_twice():
    """w is computed from a, b, m, which are gone; m and a from d, and b leaves no room for d."""
    sizes = {"x": 1, "c": 3, "d": 3, "a": 3, "m": 3, "b": 5, "w": 4, "z": 1, "y": 1}
    builder, limit = TraceBuilder(), 16
    ids = {
        name: builder.variable(name, (size,), "uint8", "input" if name == "x" else "activation")
        for name, size in sizes.items()
    }
    for ins, out, workspace in (
        ("x", "c", 0), ("c", "d", 0), ("d", "a", 0), ("d", "m", 0), ("x", "b", 6),
        ("abm", "w", 0), ("x", "z", limit - 2), ("w", "y", 0),
    ):  # fmt: skip
        builder.call(out, None, tuple(ids[name] for name in ins), (ids[out],),
                     workspace_bytes=workspace, duration_ns=1000)  # fmt: skip
    trace = builder.build()
    runtime = Runtime(trace, limit, [1000] * len(trace.calls), BYTES, frozenset())
    runtime.play()
    made = "".join(trace.variables[trace.calls[run.call].outs[0]].name for run in runtime.runs)
    assert made.partition("z")[2] == "cdm" + "b" + "cda" + "w" + "y"
    assert not runtime.locks.any()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["rotor", "revolve", "pofo", "dtr", "window", "prefix"])
def test_five_thousand_stages_are_planned_in_500_mib(spec):
    trace = equal_stages(5000)
    budget = (trace_minimum_bytes(trace, BYTES) + trace_peak_bytes(trace, BYTES)) // 2
    tracemalloc.start()
    plan = get_planner(spec).plan(Question(trace, budget, MACHINE))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    verify(plan, trace, budget, MACHINE)
    assert peak < 500 * MIB
    assert math.isfinite(plan.makespan_us)
