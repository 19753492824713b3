"""The memory that a planned step gets: options in bytes, as the allocator rounds them.

A percentage of a budget is a share of what the rewritten step needs in rounded bytes. So
rewriting, rounding and budget are found together, here, and `plan` and `simulate` give the same
words the same meaning. The result is `Limits`. Read next: `plan_command.py`, `simulate_command.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ooctrain.activity import doing
from ooctrain.alloc.registry import choose_allocator
from ooctrain.cli.workload import is_cpu
from ooctrain.execution.compose import RewrittenStep, rewritten
from ooctrain.execution.fit import prepare
from ooctrain.execution.promise import Promise
from ooctrain.execution.settings import DEFAULT_REWRITES, Options
from ooctrain.sched.budget import resolve_host_budget, trace_peak_bytes
from ooctrain.sched.planning.planner import Planner
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.units import Granule, format_bytes

IN_CORE = "keep-all"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan has to keep to.

    Args:
        step: rewritten, and rounded as the allocator does.
        host_budget_bytes: None: unlimited.
        planner: makes it; where a memory budget is enough for in-core, no planner runs.
        promise: how a memory budget was divided; None where there is none.
    """

    step: RewrittenStep
    budget_bytes: int
    host_budget_bytes: int | None
    planner: str | Planner
    promise: Promise | None = None


def limits(how: Options, machine: Machine, original: Trace) -> Limits:
    """The limits of a step as traced; without a budget, the memory of the machine; of a memory
    budget, arena and slab as it is divided (`plan` and `simulate` hold nothing themselves)."""
    promise: Promise | None = None
    if how.memory is not None:
        how, promise = _divided(how, machine, original)
    plain = rewritten(original, DEFAULT_REWRITES)
    rounding = _rounding(how, machine, plain.trace)
    # Percentages are of the step before it is tiled, so that they mean the same for every tiling.
    before = plain.pinned_for(rounding)
    budget = machine.device_bytes if how.budget is None else how.budget
    host_bytes = resolve_host_budget(before.trace, how.host_budget, machine)
    step = before
    if how.rewrites != DEFAULT_REWRITES:
        step = rewritten(original, how.rewrites).pinned_for(rounding)
    return Limits(step, before.bytes_of(budget), host_bytes, how.planner, promise)


def promise_rows(promise: Promise | None) -> list[tuple[str, str]]:
    """What is promised, and its parts; nothing where nothing is."""
    if promise is None:
        return []
    return [
        ("memory", f"{format_bytes(promise.memory_bytes)} for the process: {promise.divided()}"),
        ("", promise.besides()),
    ]


def _divided(how: Options, machine: Machine, original: Trace) -> tuple[Options, Promise]:
    """The options with a budget of each in place of one for both, and all parts of that."""
    with doing("planning"):
        # The machine is with its link, or on its disk, already.
        named = replace(how, machine=machine, link_bandwidth=None, threads=original.threads)
        prepared = prepare(original, named.settings)
    found = prepared.promise
    assert found is not None, "a memory budget was given"
    slab = found.slab_bytes if how.disk is None else None
    planner = IN_CORE if prepared.plan.notes.get("planner") == IN_CORE else how.planner
    divided = replace(how, memory=None, budget=found.arena_bytes, host_budget=slab, planner=planner)
    return divided, found


def _rounding(how: Options, machine: Machine, trace: Trace) -> Granule:
    """How the allocator rounds on the cpu device; for a GPU and on a preset of another machine, to
    the byte, in parts where the allocator has ranges."""
    if trace.device != "cpu" or not is_cpu(machine):
        chosen = choose_allocator(how.allocator, machine.device_bytes, binding=False)
        return Granule(1, chosen.granule.ranges)
    # An allocator may round coarser in a larger arena, so it is made for one of about this size.
    return choose_allocator(how.allocator, 2 * trace_peak_bytes(trace)).granule
