"""How much of the arena an allocator needs for the blocks of a real step, compared with par.

The blocks are those that a library's planner requests in the first steps of a training; the
allocator gets them one after the other. It answers with addresses, which can be judged without
it: two blocks that live at the same time must share no byte, and the result is the extent that all
blocks span. Addresses that break this get a reason and no extent. Read next: `submitted.py`, which
asks; `alloc/replay.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ooctrain.alloc import AllocationLog
from ooctrain.alloc.base import Allocator, Block
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.replay import peak_bytes
from ooctrain.api import step_trace
from ooctrain.course.par import ParComparison, known_par
from ooctrain.course.rubric import BOUND, Replay
from ooctrain.course.submitted import allocator_of, why_not
from ooctrain.errors import OutOfDeviceMemory
from ooctrain.execution.placement import allocation_log
from ooctrain.execution.planners import get_planner
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.planning.question import Question
from ooctrain.step.presets import machine
from ooctrain.units import MAX_BYTES, Granule, format_bytes

#: As most allocators that move whole variables round.
GRANULE = Granule(512, ranges=False)
#: How many times larger the arena is than what is live at the peak.
ROOM = 8


@lru_cache(maxsize=8)
def log_of(part: Replay) -> AllocationLog:
    """What the step requests."""
    step = step_trace(part.model, part.batch, None)
    budget_bytes = resolve_budget(step, part.budget, GRANULE)
    planner, where = get_planner(part.planner), machine(part.machine)
    plan = planner.plan(Question(step, budget_bytes, where, granule=GRANULE))
    return allocation_log(plan.trace, plan.schedule, budget_bytes)


def addresses_given(log: AllocationLog, allocator: Allocator) -> list[int]:
    """Where an allocator puts the blocks of a log, in the order in which they are requested."""
    live: dict[int, Block] = {}
    addresses = []
    for request in log.requests:
        if request.op == "allocate":
            live[request.key] = allocator.allocate(request.nbytes, request.tag)
            addresses.append(live[request.key].address)
        elif request.op == "free":
            allocator.free(live.pop(request.key))
    return addresses


def extent_bytes(log: AllocationLog, addresses: Sequence[int]) -> int:
    """The bytes that blocks at these addresses span.

    Raises:
        ValueError: too many or too few addresses, an invalid one, or two live blocks that share a
            byte.
    """
    blocks = [request for request in log.requests if request.op == "allocate"]
    if len(blocks) != len(addresses):
        raise ValueError(f"{len(addresses)} addresses for {len(blocks)} blocks")
    if not all(type(at) is int and 0 <= at < MAX_BYTES for at in addresses):
        raise ValueError("an address is a whole number of bytes from 0 to 2**62")
    place = {block.key: at for block, at in zip(blocks, addresses, strict=True)}
    live: dict[int, tuple[int, int, str]] = {}
    for request in log.requests:
        if request.op == "allocate":
            lo, hi = place[request.key], place[request.key] + request.nbytes
            for start, stop, tag in live.values():
                if lo < stop and start < hi:
                    raise ValueError(f"{request.tag} lies on {tag}, which is live")
            live[request.key] = (lo, hi, request.tag)
        elif request.op == "free":
            del live[request.key]
    ends = [place[block.key] + block.nbytes for block in blocks]
    return max(ends, default=0) - min(addresses, default=0)


@lru_cache(maxsize=8)
def par_bytes(part: Replay) -> int:
    """What par needs."""
    return known_par(part, _computed_bytes)


def _computed_bytes(part: Replay) -> int:
    log = log_of(part)
    if part.par == BOUND:
        return peak_bytes(log.requests)
    arena_bytes = ROOM * peak_bytes(log.requests)
    choice = choose_allocator(part.par, arena_bytes, binding=False)
    return extent_bytes(log, addresses_given(log, choice.make(DryMemory(arena_bytes))))


def replayed(part: Replay, submission: str, limit_s: float) -> ParComparison:
    """Asks a submission for addresses, and judges them: extents in bytes."""
    par, log = par_bytes(part), log_of(part)
    arena_bytes = ROOM * peak_bytes(log.requests)
    try:
        with allocator_of(submission, limit_s) as allocator:
            choice = choose_allocator(allocator, arena_bytes, binding=False)
            addresses = addresses_given(log, choice.make(DryMemory(arena_bytes)))
    except OutOfDeviceMemory as refusal:
        arena = format_bytes(arena_bytes)
        why = f"it has no room in {arena}, {ROOM} x what lives: {refusal.what}"
        return ParComparison(None, par, why.splitlines()[0])
    except Exception as error:  # untrusted: whatever fails, it is the submission's fault
        return ParComparison(None, par, why_not(error))
    try:
        return ParComparison(extent_bytes(log, addresses), par)
    except (ValueError, KeyError, TypeError) as error:
        return ParComparison(None, par, f"its addresses are refused: {error}", unsafe=True)
