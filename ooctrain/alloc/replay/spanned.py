"""Spanned: what an allocator's blocks take, counted from the blocks and not from its books.

Where an allocator uses its memory as one piece, all from the first byte to the end of the highest
block is reserved: the blocks, and the holes between them. Where it maps memory, wherever it lies,
what its live blocks hold is reserved at least. Both are known from addresses and sizes alone, so an
allocator of one's own whose books leave the holes out is found, named, and counted right. Read
next: `replay.py`, `execution/placement.py`, which do not believe books either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooctrain.alloc.base import Allocator, Block, Reached
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.wrapper import Wrapper
from ooctrain.units import format_bytes


class Spanned(Wrapper):
    """Counts what blocks hold and span.

    Args:
        inner: the allocator.
        memory: what it stands on; None: not known, and its snapshot says where its arena begins.

    Attributes:
        granted_bytes: held by the live blocks now.
        peak_granted_bytes: the most at one time.
        highest_end: behind the last byte of all blocks so far.
    """

    def __init__(self, inner: Allocator, memory: DryMemory | None = None):
        super().__init__(inner)
        self._memory = memory
        self._held: dict[int, int] = {}
        self.granted_bytes = self.peak_granted_bytes = self.highest_end = 0

    @property
    def base(self) -> int | None:
        """Where its piece of memory begins; None where it has several, or maps."""
        if self._memory is not None:
            return self._memory.linear_address
        return self.inner.snapshot().get("base")

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was reserved at one time: what the blocks span, or hold, or the books say,
        whichever is most.
        """
        return max(self.spanned_bytes, self.inner.stats().peak_reserved_bytes)

    @property
    def spanned_bytes(self) -> int:
        """What the blocks say: their extent in one piece of memory, or all that they hold."""
        base = self.base
        reached = self.highest_end - base if base is not None and self.highest_end else 0
        return max(reached, self.peak_granted_bytes)

    @property
    def misbooked(self) -> str:
        """What is wrong with the books, in words; "" for nothing."""
        stats, spanned = self.inner.stats(), self.spanned_bytes
        wrong = []
        # `Limited` books no more than its limit, which is of what is granted, wherever it lies.
        if stats.peak_reserved_bytes < min(spanned, self.budget_bytes):
            wrong.append(
                f"its books say that {format_bytes(stats.peak_reserved_bytes)} are reserved at the "
                f"peak, and its blocks span {format_bytes(spanned)}, holes included"
            )
        if stats.peak_granted_bytes != self.peak_granted_bytes:
            wrong.append(
                f"its books say that {format_bytes(stats.peak_granted_bytes)} are granted at the "
                f"peak, and its blocks hold {format_bytes(self.peak_granted_bytes)}"
            )
        return f"{self.name}: {'; '.join(wrong)}" if wrong else ""

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        block = self.inner.allocate(nbytes, tag)
        self._note(block)
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        super().map_range(block, lo, hi)
        self._note(block)

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Reached] = ()) -> None:
        super().unmap_range(block, lo, hi, after)
        self._note(block)

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        self.inner.free(block, after)
        self.granted_bytes -= self._held.pop(block.id, 0)

    def snapshot(self) -> dict[str, Any]:
        """The inner one's, with where the arena begins and ends if it leaves that out."""
        shot = self.inner.snapshot()
        known: dict[str, Any] = {"allocator": self.name, "budget": self.budget_bytes, "blocks": []}
        base = self.base
        if base is not None and not {"chunks", "segments"} & shot.keys():
            known["base"] = base
        return type(shot)({**known, **shot})

    def _note(self, block: Block) -> None:
        held = block.granted_bytes
        self.granted_bytes += held - self._held.get(block.id, 0)
        self._held[block.id] = held
        self.peak_granted_bytes = max(self.peak_granted_bytes, self.granted_bytes)
        if held and not self.granule.ranges:
            self.highest_end = max(self.highest_end, block.address + held)
