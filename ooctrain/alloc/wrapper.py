"""The base of all wrappers: an allocator around an allocator that passes every call on.

A wrapper always has the methods for ranges; whether they work is given by the inner allocator's
`granule.ranges`, which planners check in any case. Read next: `wrappers.py`, the wrappers that add
something.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ooctrain.alloc.base import Allocator, Block, Event, RangedAllocator, Stats
from ooctrain.errors import ConfigError
from ooctrain.units import Granule


class Wrapper:
    """Passes everything on; a subclass says what happens around a call, or overrides it.

    Args:
        inner: the allocator that does it.
    """

    def __init__(self, inner: Allocator):
        self.inner = inner
        self.name, self.budget_bytes = inner.name, inner.budget_bytes
        self.granule: Granule = inner.granule

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        with self._around("allocate"):
            return self.inner.allocate(nbytes, tag)

    def free(self, block: Block, after: Sequence[Event] = ()) -> None:
        with self._around("free"):
            self.inner.free(block, after)

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """An address range of the inner allocator. Raises ConfigError: it has none."""
        with self._around("reserve"):
            return self._ranged().reserve(nbytes, tag)

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Claims a range of the inner allocator. Raises ConfigError: it has none."""
        with self._around("map_range"):
            self._ranged().map_range(block, lo, hi)

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Event] = ()) -> None:
        """Gives a range back. Raises ConfigError: the inner allocator has none."""
        with self._around("unmap_range"):
            self._ranged().unmap_range(block, lo, hi, after)

    def stats(self) -> Stats:
        with self._around("stats"):
            return self.inner.stats()

    def check(self) -> None:
        with self._around("check"):
            self.inner.check()

    def snapshot(self) -> dict[str, Any]:
        with self._around("snapshot"):
            return self.inner.snapshot()

    def close(self) -> list[Block]:
        with self._around("close"):
            return self.inner.close()

    def _around(self, method: str) -> AbstractContextManager[None]:
        """What happens before and after each call; here nothing."""
        return nullcontext()

    def _ranged(self) -> RangedAllocator:
        if not self.granule.ranges or not isinstance(self.inner, RangedAllocator):
            raise ConfigError(
                f"allocator {self.name} has no ranges",
                code="OOC-108",
                fix="va, which has; or a planner that moves whole tensors",
            )
        return self.inner
