"""A host budget is of the slab: what its slots hold, and the gaps between them.

Planners count what lies on the host at a time. Slots of different sizes come and go, and where the
next one is too large for a gap, the slab is longer than what it holds, as an arena is. So a plan
whose slab is beyond the budget is asked for again with as much less. What slots are aligned by is
not counted, neither here nor by the planners. Read next: `prepare.py`, which asks;
`../sched/host.py` for where slots lie.
"""

from __future__ import annotations

from collections.abc import Callable

from ooctrain.errors import DoesNotFit, Infeasible
from ooctrain.sched.host import host_slots
from ooctrain.sched.schedule import Plan
from ooctrain.units import format_bytes

#: Plans that are asked for, each with less on the host.
HOST_TRIES = 4


def within_host(
    planned: Callable[[int | None], tuple[Plan, int]], host_bytes: int | None, align_bytes: int,
    least_bytes: int,
) -> tuple[Plan, int]:  # fmt: skip
    """A plan whose slab is within a host budget, and its reserved peak.

    Args:
        planned: makes both within a number of bytes on the host.
        host_bytes: None: no limit.
        align_bytes: of slots.
        least_bytes: on the host in any plan: the inputs.

    Raises:
        DoesNotFit: plans hold no more than the budget, but their slabs are longer.
        Infeasible: there is no plan within the budget at all.
    """
    plan, reserved = planned(host_bytes)
    if host_bytes is None:
        return plan, reserved
    extent, over = _slab(plan, host_bytes, align_bytes)
    first, limit = extent, host_bytes
    for _ in range(HOST_TRIES - 1):
        limit -= over
        if over <= 0 or limit < least_bytes:
            break
        try:
            plan, reserved = planned(limit)
        except Infeasible:
            break
        _, over = _slab(plan, host_bytes, align_bytes)
    if over <= 0:
        return plan, reserved
    raise DoesNotFit(
        "the host slab does not fit: slots leave gaps between them", reserved_bytes=first,
        budget_bytes=host_bytes,
        numbers=f"host budget {format_bytes(host_bytes)}, slab {format_bytes(first)}",
        fix=f"--host-budget {first}, or another planner",
    )  # fmt: skip


def _slab(plan: Plan, host_bytes: int, align_bytes: int) -> tuple[int, int]:
    """The length of a plan's slab, and how much of it is too much."""
    found = host_slots(plan.trace, plan.schedule, align_bytes=align_bytes)
    slots = len({*found.offsets.values(), *found.start_offsets})
    return found.extent_bytes, found.extent_bytes - host_bytes - align_bytes * slots
