"""Where the holdings of a step lie in the arena, if best fit places them.

A list says who holds memory and when, and leaves the addresses to an allocator. So a picture of the
arena needs one: the holdings of a `Record` are given to best fit in the order of time, and each has
the same address for as long as it lives. Another allocator gives other addresses; `ooctrain replay
LOG --picture` draws those. Read next: `snapshot.py` and `page_data.py`, which show the addresses;
`../alloc/best_fit.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ooctrain.alloc.base import Block
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.report.holdings import Holding
from ooctrain.units import MAX_BYTES


def placed(found: Sequence[Holding], end_us: float) -> Iterator[tuple[int, Block, bool]]:
    """(number of the holding, its block, whether it comes), in time; at one time what goes does so
    first, and what stays until `end_us` never goes.
    """
    arena = BestFit(DryMemory(MAX_BYTES))
    live: dict[int, Block] = {}
    for number, comes in _in_time(found, end_us):
        if comes:
            live[number] = arena.allocate(found[number].size_bytes, found[number].name)
            yield number, live[number], True
        else:
            block = live.pop(number)
            arena.free(block)
            yield number, block, False


def offsets(found: Sequence[Holding], end_us: float) -> list[int]:
    """The first byte of each holding, counted from the beginning of the arena."""
    address = {number: block.address for number, block, comes in placed(found, end_us) if comes}
    base = min(address.values(), default=0)
    return [address[number] - base for number in range(len(found))]


def _in_time(found: Sequence[Holding], end_us: float) -> Iterator[tuple[int, bool]]:
    moments = [(one.from_us, 1, number) for number, one in enumerate(found)]
    moments += [(one.until_us, 0, number) for number, one in enumerate(found)
                if one.until_us < end_us]  # fmt: skip
    for _, comes, number in sorted(moments):
        yield number, bool(comes)
