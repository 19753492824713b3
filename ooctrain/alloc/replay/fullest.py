"""The arena at its fullest: the moment to look at when allocators are compared.

From a log and the result of its replay comes the allocator's `snapshot()` at the moment that
decided how much it needs, or at which it refused. This is when a block lies highest, or, where
blocks may lie anywhere (virtual addressing), when most is granted. One more replay finds the
request, and another takes the snapshot after it. Read next: `alloc/arena_map.py`.
"""

from __future__ import annotations

from typing import Any

from ooctrain.alloc.base import Allocator, Block
from ooctrain.alloc.replay.log import AllocationLog
from ooctrain.alloc.replay.replay import Replayed, replay, spanned_dry
from ooctrain.alloc.wrapper import Wrapper


def snapshot_at_peak(log: AllocationLog, found: Replayed) -> dict[str, Any]:
    """Replays a log on an arena of the same size, and looks at it when it matters.

    Args:
        log: that was replayed.
        found: what it came to.

    Cost: that of two replays.
    """
    first = _Watched(spanned_dry(found.allocator, found.budget_bytes))
    replay(log, first)
    if found.failure:
        return first.snapshot()
    again = _Watched(spanned_dry(found.allocator, found.budget_bytes), first.fullest)
    replay(log, again)
    return again.shot


class _Watched(Wrapper):
    """Counts claims, remembers the one behind which most is needed, and looks at one of them.

    Args:
        inner: the allocator that does it.
        look_at: number of the claim at which to take the snapshot, from 1.

    Attributes:
        fullest: number of the claim behind which most is needed.
        shot: the snapshot.
    """

    def __init__(self, inner: Allocator, look_at: int = 0):
        super().__init__(inner)
        self.fullest, self.shot = 0, inner.snapshot()
        self._look_at = look_at
        self._has_places = "base" in self.shot
        self._claims = self._most = 0

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """A claim."""
        block = self.inner.allocate(nbytes, tag)
        self._look(block.address + block.granted_bytes)
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """A claim."""
        super().map_range(block, lo, hi)
        self._look(0)

    def _look(self, end: int) -> None:
        self._claims += 1
        needed = end if self._has_places else self.inner.stats().granted_bytes
        if needed > self._most:
            self._most, self.fullest = needed, self._claims
        if self._claims == self._look_at:
            self.shot = self.inner.snapshot()
