"""The memory that a planned step gets: options in bytes, as the allocator rounds them.

A percentage in `MemoryOptions` is a share of what the rewritten step needs in rounded bytes. So
rewriting, rounding and budget are found together, here, and `plan` and `simulate` give the same
words the same meaning. The result is `Limits`. Read next: `plan_command.py`, `simulate_command.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ooctrain.activity import doing
from ooctrain.alloc.registry import choose_allocator
from ooctrain.cli.options import MemoryOptions
from ooctrain.cli.workload import is_cpu, spill_of
from ooctrain.execution.compose import RewrittenStep, rewritten
from ooctrain.execution.fit import prepare
from ooctrain.execution.promise import Promise
from ooctrain.execution.settings import DEFAULT_REWRITES, Settings
from ooctrain.sched.budget import resolve_host_budget, trace_peak_bytes
from ooctrain.sched.planning.effort import EVALUATIONS
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
    planner: str
    promise: Promise | None = None


def limits(memory: MemoryOptions, machine: Machine, original: Trace) -> Limits:
    """The limits of a step as traced; without a budget, the memory of the machine; of a memory
    budget, arena and slab as it is divided (`plan` and `simulate` hold nothing themselves)."""
    promise: Promise | None = None
    if memory.memory is not None:
        memory, promise = _divided(memory, machine, original)
    plain = rewritten(original, DEFAULT_REWRITES)
    rounding = _rounding(memory, machine, plain.trace)
    # Percentages are of the step before it is tiled, so that they mean the same for every tiling.
    before = plain.pinned_for(rounding)
    budget = machine.device_bytes if memory.budget is None else memory.budget
    host_bytes = resolve_host_budget(before.trace, memory.host_budget, machine)
    step = before
    if memory.rewrites:
        step = rewritten(original, all_rewrites(memory)).pinned_for(rounding)
    return Limits(step, before.bytes_of(budget), host_bytes, memory.planner, promise)


def promise_rows(promise: Promise | None) -> list[tuple[str, str]]:
    """What is promised, and its parts; nothing where nothing is."""
    if promise is None:
        return []
    return [
        ("memory", f"{format_bytes(promise.memory_bytes)} for the process: {promise.divided()}"),
        ("", promise.besides()),
    ]


def _divided(
    memory: MemoryOptions, machine: Machine, original: Trace
) -> tuple[MemoryOptions, Promise]:
    """The options with a budget of each in place of one for both, and all parts of that."""
    settings = Settings(
        memory.budget, memory.planner, memory.allocator, original.device, machine=machine,
        host_budget=memory.host_budget, time_limit_s=memory.time_limit,
        evaluations=memory.evaluations or EVALUATIONS, threads=original.threads,
        rewrites=all_rewrites(memory), memory=memory.memory, spill=spill_of(memory),
    )  # fmt: skip
    with doing("planning"):
        prepared = prepare(original, settings)
    found = prepared.promise
    assert found is not None, "a memory budget was given"
    slab = str(found.slab_bytes) if memory.spill is None else None
    planner = IN_CORE if prepared.plan.notes.get("planner") == IN_CORE else memory.planner
    arena = str(found.arena_bytes)
    divided = replace(memory, memory=None, budget=arena, host_budget=slab, planner=planner)
    return divided, found


def all_rewrites(memory: MemoryOptions) -> tuple[str, ...]:
    """Those that every step gets, and those that were requested."""
    return (*DEFAULT_REWRITES, *memory.rewrites)


def _rounding(memory: MemoryOptions, machine: Machine, trace: Trace) -> Granule:
    """How the allocator rounds on the cpu device; for a GPU and on a preset of another machine, to
    the byte, in parts where the allocator has ranges."""
    if trace.device != "cpu" or not is_cpu(machine):
        chosen = choose_allocator(memory.allocator, machine.device_bytes, binding=False)
        return Granule(1, chosen.granule.ranges)
    # An allocator may round coarser in a larger arena, so it is made for one of about this size.
    return choose_allocator(memory.allocator, 2 * trace_peak_bytes(trace)).granule
