"""Small objects: biases, scales and statistics lie in one region that never leaves the device.

An allocator of large chunks gives a bias of 4 KiB a chunk of 2 MiB, and swapping the bias would
gain nothing. The small lasting variables of a trace are therefore *pinned*: planners do not see
them, each counts 0 bytes in the ledger, and the region that holds them all, whose size follows from
the allocator's rounding, is a constant in it. Each keeps a place of its own, so the region can
neither fragment nor grow, and its size is known before planning. Values that come and go with the
images (activations and their gradients) are left to the planner, whatever their size: their number
grows with the network, and they use the same memory one after the other. Source:
docs/allocators.md, "Small objects"; PyTorch and nnabla keep pools for small objects, of no fixed
size. Read next: `sched/budget.py`, which counts the region; `sched/planning/question.py`,
which plans with the region set aside; `execution/placement.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from ooctrain.errors import ConfigError
from ooctrain.sched.budget import region
from ooctrain.step.trace import ITEM_BYTES, Trace
from ooctrain.units import Granule

NAME = "pin_small"
KINDS = ("param", "state", "stat")  # what lasts over a step, or from forward to backward
SHARE = 8  # small is what fills less than an eighth of a chunk
LEAST_GRANULE_BYTES = 16 << 10  # with smaller granules rounding wastes little


def pin_small(trace: Trace, most_bytes: int) -> Trace:
    """Pins the parameters, states and statistics of at most `most_bytes` each.

    Variables that share a storage, or carry over to each other, are pinned together or not at all.
    Statistics whose storage a later call takes over are not pinned: a planner may want to compute
    them again, which needs a place for them besides.
    """
    return _pin(trace, {
        v.id
        for v in trace.variables
        if v.kind in KINDS
        and 0 < v.nbytes == math.prod(v.shape) * ITEM_BYTES[v.dtype] <= most_bytes
        and (v.persistent or v.id not in trace.taker)
    })  # fmt: skip


def pin_again(trace: Trace, before: Trace) -> Trace:
    """Pins the variables that were pinned in the trace `before` a rewrite, found by their names.

    For rewrites that build a trace anew; variables that are gone stay out, so the region does not
    grow.
    """
    names = {v.name for v in before.variables if v.pinned}
    return _pin(trace, {v.id for v in trace.variables if v.name in names}) if names else trace


def pin_by_name(trace: Trace, name: str) -> Trace:
    """The rewrite "pin_small:8192". Raises ConfigError: no number of bytes."""
    most = name.partition(":")[2]
    if not (most.isascii() and most.isdigit() and int(most) > 0):
        raise ConfigError(
            f"rewrite {name!r} has no size", code="OOC-106", fix=f"{NAME}:8192 pins up to 8 KiB"
        )
    return pin_small(trace, int(most))


def pinning_for(trace: Trace, granule: Granule) -> tuple[str, ...]:
    """Names of rewrites (one or none) that pin what is small for an allocator with this granule.

    None where pinning might cost memory: the region must be no larger than the chunks that its
    persistent storages would take by themselves. Then neither the least nor the most memory of the
    step grows.
    """
    if granule.size_bytes < LEAST_GRANULE_BYTES:
        return ()
    most = granule.size_bytes // SHARE
    pinned = pin_small(trace, most)
    storages = {head: v for v, head in zip(trace.variables, _heads(trace), strict=True)}
    lasting = sum(
        trace.variables[v.id].persistent for v in storages.values() if pinned.variables[v.id].pinned
    )
    size = granule.granted(region(pinned).size_bytes)
    return (f"{NAME}:{most}",) if 0 < size <= lasting * granule.size_bytes else ()


def pinning_lasting(trace: Trace, room_bytes: int) -> tuple[str, ...]:
    """Names of rewrites (one or none) that pin as many lasting variables, the smallest first, as a
    region of `room_bytes` holds.

    For devices on which mapping costs more than copying: a weight that comes back to another place
    than it left moves all that comes after it, and each step then maps what it holds anew.
    """
    sizes = sorted({v.nbytes for v in trace.variables if v.kind in KINDS and v.nbytes})
    fitting = [most for most in sizes if region(pin_small(trace, most)).size_bytes <= room_bytes]
    return (f"{NAME}:{fitting[-1]}",) if fitting else ()


def _pin(trace: Trace, wanted: Collection[int]) -> Trace:
    """Pins the variables whose storage has only wanted ones."""
    heads = _heads(trace)
    free = {heads[v.id] for v in trace.variables if v.id not in wanted}
    variables = tuple(
        v if heads[v.id] in free else replace(v, nbytes=0, pinned=True) for v in trace.variables
    )
    return replace(trace, variables=variables)


def _heads(trace: Trace) -> list[int]:
    """For each variable one that stands for all that share its storage, be it in this step or, by
    `carries`, in the next.
    """
    heads = list(trace.storage)
    for new, old in trace.carries.items():
        one, other = sorted((heads[new], heads[old]))
        if one != other:
            heads = [one if head == other else head for head in heads]
    return heads
