"""Checked: every block that an allocator returns is tested.

An allocator, often a user's own, that gives one address to two blocks trains to wrong numbers
without any error. A sorted list of the live blocks is enough to detect it; the error names the
faulty block and its neighbour. The replay before the first step goes through this wrapper, so no
training begins on such an allocator. Read next: `alloc/wrapper.py`, `execution/placement.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ooctrain.alloc.base import Allocator, Block, Reached
from ooctrain.alloc.wrapper import Wrapper
from ooctrain.errors import PlanMismatch

#: Kernels use vector instructions on whole cache lines.
ALIGN_BYTES = 64


class Checked(Wrapper):
    """Names blocks that overlap, are not aligned, or hold less than was asked for.

    Attributes:
        highest_end: behind the last byte of all blocks that were handed out whole.
    """

    def __init__(self, inner: Allocator):
        super().__init__(inner)
        self._places: list[tuple[int, int]] = []  # (address, end) of the live blocks
        self._tags: dict[int, str] = {}  # by address
        self.highest_end = 0

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """Raises PlanMismatch: the block cannot be used."""
        return self._look_at(self.inner.allocate(nbytes, tag), nbytes, tag, held=True)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """Raises PlanMismatch: the range cannot be used."""
        return self._look_at(super().reserve(nbytes, tag), nbytes, tag, held=False)

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        """Gives it back."""
        self.inner.free(block, after)
        place = bisect_left(self._places, (block.address, 0))
        del self._places[place], self._tags[block.address]

    def _look_at(self, block: Block, nbytes: int, tag: str, held: bool) -> Block:
        if not isinstance(block, Block):
            raise self._wrong(tag, f"it is {block!r}")
        granted = self.granule.granted(nbytes)
        lo, hi = block.address, block.address + nbytes
        if lo <= 0 or lo % ALIGN_BYTES:
            raise self._wrong(tag, f"its address {lo} is not a positive multiple of {ALIGN_BYTES}")
        if block.requested_bytes != nbytes or (held and block.granted_bytes != granted):
            raise self._wrong(
                tag, f"{nbytes} B were asked for, {granted} B with rounding; it says "
                f"{block.requested_bytes} B and {block.granted_bytes} B",
            )  # fmt: skip
        place = bisect_left(self._places, (lo, 0))
        for start, end in self._places[max(0, place - 1) : place + 1]:
            if start < hi and lo < end:
                raise self._wrong(tag, f"it lies on {self._tags[start]!r}, which is live")
        self._places.insert(place, (lo, hi))
        if held:
            self.highest_end = max(self.highest_end, lo + granted)
        self._tags[lo] = tag
        return block

    def _wrong(self, tag: str, why: str) -> PlanMismatch:
        return PlanMismatch(
            f"allocator {self.name} hands out a block that cannot be used: {why}",
            code="OOC-132", where=tag or "a block",
            fix="oc.testing.check_allocator finds the shortest list of requests that shows it",
        )  # fmt: skip
