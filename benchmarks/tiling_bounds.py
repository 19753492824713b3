"""Below which time no step in bands can come: two bounds, for cases of `bench_tile.py`.

The LP bound is that of *one* tiled trace: any list of its calls, whatever is kept, moved or run
again, as `sched/bounds/lp_bound.py` says. Another tiling may come below it. The other bound holds
for *all* tilings of a chain, in whatever order. When the loss is known, both memories hold no more
than they can, so of all that backward reads the rest is computed once more, and a row takes no less
in a band than its share of the untiled call. What is stored is best that which takes longest to
compute for its bytes. Room to work in is left out. Source: ours. Read next: `bench_tile.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace

#: Calls of a step whose LP is solved; that of more takes minutes.
MOST_LP_CALLS = 3000
#: Bytes in a microsecond over a link that nothing is worth sending over.
SLOW = 1e-2


def lp_us(trace: Trace, budget: int, machine: Machine, host_bytes: int | None) -> float | None:
    """The LP bound of a tiled trace; None: too many calls, or it finds none.

    The LP knows no host budget. Where there is one, the bound is that of a device as large as both
    memories from which nothing is sent: whatever lies on the host could lie there.
    """
    if len(trace.calls) > MOST_LP_CALLS:
        return None
    if host_bytes is not None:
        slow = replace(machine, link_out_bytes_per_us=SLOW)
        bound = fluid_bound(trace, budget + host_bytes, slow, resident=True)
    else:
        bound = fluid_bound(trace, budget, machine)
    return None if bound is None else bound.makespan_us


def any_tiling_us(trace: Trace, both_memories: int, machine: Machine) -> float:
    """Least computing time of any tiling of an untiled step whose forward calls are a chain.

    Args:
        both_memories: of the device and of the host.
    """
    durations = call_durations_ns(trace, machine)
    held = sum(trace.variables[v].nbytes for v in trace.initial)
    room, again_ns = both_memories - held, 0.0
    for time_ns, size in sorted(_read_backward(trace, durations), key=lambda one: -one[0] / one[1]):
        stored = min(max(room, 0), size)
        room -= stored
        again_ns += time_ns * (1 - stored / size)
    return (sum(durations) + again_ns) / 1e3


def _read_backward(trace: Trace, durations: list[int]) -> list[tuple[int, int]]:
    """(time to compute it from the one before, bytes) of what backward reads, layer by layer.

    Bytes are the fewest of all results on the way, any of which might be stored in its place.
    """
    found, time_ns, size = [], 0, 1 << 62
    for call in trace.calls:
        if call.phase != "forward" or not call.pure:
            continue
        time_ns += durations[call.id]
        size = min(size, trace.variables[call.outs[0]].nbytes)
        if any(trace.calls[r].phase == "backward" for v in call.outs for r in trace.readers[v]):
            found.append((time_ns, size))
            time_ns, size = 0, 1 << 62
    return found
