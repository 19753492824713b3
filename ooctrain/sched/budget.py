"""What a budget means: the least a trace needs, the most it can use, and percentages in between.

A budget for the device or the host is written as "25%", "512MiB" or a number of bytes, and is
converted to bytes here. 0% is the least that any order of whole calls needs; 100% is the peak
without any eviction. Both count granted bytes, and both include the region of small objects, which
is always present. Read next: `schedule.py`; `rewrite/pin_small.py` for what lies in the region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ooctrain.sched.schedule import BYTES, Granule
from ooctrain.sched.spans import held_during
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Call, Trace
from ooctrain.units import Percent, parse_budget

#: Where a pinned variable may begin.
ALIGN_BYTES = 512


def resolve_budget(trace: Trace, budget: int | str | Percent, granule: Granule = BYTES) -> int:
    """A budget in bytes; a percentage f means minimum + f (peak - minimum), rounded down.

    Args:
        trace: after `fuse` and `share_storage`, before `tile`.

    Raises:
        ConfigError: not a budget.
    """
    parsed = budget if isinstance(budget, Percent) else parse_budget(budget)
    return parsed if isinstance(parsed, int) else _share_bytes(trace, parsed, granule)


def resolve_host_budget(trace: Trace, budget: int | str | None, machine: Machine) -> int | None:
    """A host budget in bytes; a percentage is of the same scale as a budget's.

    The inputs wait on the host before every step, so a budget below their bytes leaves nothing for
    what is swapped out, and means their bytes.

    Args:
        budget: 0 is one too: no host memory for swapped values; None: the machine's host memory.

    Returns:
        None where host memory is not limited.

    Raises:
        ConfigError: not a budget.
    """
    if budget is None:
        return machine.host_bytes
    parsed = parse_budget(budget, "host budget", least_bytes=0)
    # The host's ledger rounds nothing.
    found = parsed if isinstance(parsed, int) else _share_bytes(trace, parsed, BYTES)
    return max(found, input_bytes(trace))


def input_bytes(trace: Trace) -> int:
    """Host bytes of the inputs, which come anew before each step."""
    variables = (trace.variables[v] for v in trace.initial)
    return sum(variable.nbytes for variable in variables if not variable.persistent)


def lasting_bytes(trace: Trace) -> int:
    """Parameters, slots of the optimizer, running statistics: each once, though a step that ends
    with new values has two variables of it.
    """
    variables = (trace.variables[v] for v in trace.initial)
    return sum(variable.nbytes for variable in variables if variable.persistent)


def _share_bytes(trace: Trace, share: Percent, granule: Granule) -> int:
    least, most = trace_minimum_bytes(trace, granule), trace_peak_bytes(trace, granule)
    return least + int(share.fraction * (most - least))


def trace_minimum_bytes(trace: Trace, granule: Granule = BYTES) -> int:
    """Persistent bytes + the largest need of a single call. Cost: O(uses).

    A call needs the distinct storages of its inputs and outputs, those of persistent variables not
    counted again, and its workspace.
    """
    storage, sizes = trace.storage, _granted(trace, granule)
    persistent = _persistent_storages(trace)

    def need(call: Call) -> int:
        touched = {storage[v] for v in call.touched()} - persistent
        return sum(sizes[s] for s in touched) + granule.granted(call.workspace_bytes)

    lasting = granule.fixed_bytes + sum(sizes[s] for s in persistent)
    return lasting + max(map(need, trace.calls), default=0)


def trace_peak_bytes(trace: Trace, granule: Granule = BYTES) -> int:
    """Persistent bytes + the largest live set without any eviction. Cost: O(uses)."""
    sizes = _granted(trace, granule)
    lasting = sum(sizes[s] for s in _persistent_storages(trace))
    return max([granule.fixed_bytes + lasting, *live_bytes(trace, granule)])


def live_bytes(trace: Trace, granule: Granule = BYTES) -> list[int]:
    """What each call needs on the device, its workspace included, where nothing is evicted.

    A storage lives from the first call that touches it to the last; persistent ones from the start,
    and what stands for them after the step to the end.
    """
    storage, sizes, end = trace.storage, _granted(trace, granule), len(trace.calls)
    persistent = _persistent_storages(trace)
    first, last = dict.fromkeys(persistent, 0), dict.fromkeys(persistent, end - 1)
    for call in trace.calls:
        for variable in call.touched():
            first.setdefault(storage[variable], call.id)
            last[storage[variable]] = call.id
    last |= {storage[variable]: end - 1 for variable in trace.end_variables.values()}
    held = held_during(((first[s], last[s], sizes[s]) for s in first), end)
    fixed = granule.fixed_bytes
    return [fixed + held[c.id] + granule.granted(c.workspace_bytes) for c in trace.calls]


def _granted(trace: Trace, granule: Granule) -> list[int]:
    return [granule.granted(variable.nbytes) for variable in trace.variables]


def _persistent_storages(trace: Trace) -> set[int]:
    return {trace.storage[v] for v in trace.initial if trace.variables[v].persistent}


@dataclass(frozen=True, slots=True)
class Region:
    """Where the pinned variables of a trace lie.

    Args:
        offsets: {pinned variable: its first byte}; what shares a storage shares its place.
        size_bytes: size of the region; 0 where nothing is pinned.
    """

    offsets: Mapping[int, int]
    size_bytes: int


def region(trace: Trace) -> Region:
    """The places of the pinned variables, one after the other in the order of their ids."""
    offsets: dict[int, int] = {}
    place_of: dict[int, int] = {}
    end = 0
    for variable in trace.variables:
        if variable.pinned:
            storage = trace.storage[variable.id]
            if storage not in place_of:
                place_of[storage] = end
                end += -(-variable.value_bytes // ALIGN_BYTES) * ALIGN_BYTES
            offsets[variable.id] = place_of[storage]
    return Region(offsets, end)


def with_region(granule: Granule, trace: Trace) -> Granule:
    """The granule with the trace's region as its constant."""
    return replace(granule, fixed_bytes=granule.granted(region(trace).size_bytes))
