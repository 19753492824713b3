"""Allocators without bytes: what a list of requests would come to, before anything runs.

In: an allocator over `PaperMemory`, and requests. Out: its books. The one idea: where blocks lie
depends on the order of requests alone, so fragmentation is known before the first step. Requests
are recorded by id, never by address. Source: RMM's replay benchmark. Read next:
`../execution/placement.py`, which makes the same requests from a schedule, in replay and in
earnest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ooctrain.alloc.base import (
    Allocator,
    Block,
    Changes,
    RangedAllocator,
    Reached,
    Stats,
    make_changes,
)
from ooctrain.errors import ConfigError
from ooctrain.units import Granule

_FIRST_ADDRESS = 1 << 20
_GAP_BYTES = 1 << 20


class PaperMemory:
    """Addresses without bytes behind them, linear and virtual.

    Args:
        size_bytes: of the arena it stands for.
    """

    ranges = True

    def __init__(self, size_bytes: int):
        self.size_bytes = size_bytes
        self._next = _FIRST_ADDRESS

    def linear(self) -> int:
        """Address of the whole."""
        return self.reserve(self.size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """A fresh range; ranges never touch."""
        address = self._next
        self._next += size_bytes + _GAP_BYTES
        return address

    def map(self, address: int, offset: int, size_bytes: int) -> None:
        """Nothing to be done."""

    def unmap(self, address: int, size_bytes: int) -> None:
        """Nothing to be done."""

    def release(self, address: int) -> None:
        """Nothing to be done."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to an allocator.

    Args:
        op: which.
        key: number of the block, in order of its making.
        nbytes: its size ("allocate", "reserve").
        lo, hi: the range ("map", "unmap").
        tag: who asked.
    """

    op: Literal["allocate", "free", "reserve", "map", "unmap"]
    key: int
    nbytes: int = 0
    lo: int = 0
    hi: int = 0
    tag: str = ""


class Recorder:
    """An allocator that writes down what is asked of another.

    Args:
        inner: the allocator that does it.
    """

    def __init__(self, inner: Allocator):
        self.inner = inner
        self.name, self.budget_bytes = inner.name, inner.budget_bytes
        self.granule: Granule = inner.granule
        self.requests: list[Request] = []
        self._first_id: int | None = None

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        """Passed on, and written down if granted."""
        block = self.inner.allocate(nbytes, tag)
        self.requests.append(Request("allocate", self._key(block), nbytes, tag=tag))
        return block

    def reserve(self, nbytes: int, tag: str = "") -> Block:
        """Passed on and written down."""
        block = self._ranged().reserve(nbytes, tag)
        self.requests.append(Request("reserve", self._key(block), nbytes, tag=tag))
        return block

    def map_range(self, block: Block, lo: int, hi: int) -> None:
        """Passed on, and written down if granted."""
        self._ranged().map_range(block, lo, hi)
        self.requests.append(Request("map", self._key(block), lo=lo, hi=hi))

    def unmap_range(self, block: Block, lo: int, hi: int, after: Sequence[Reached] = ()) -> None:
        """Passed on and written down."""
        self._ranged().unmap_range(block, lo, hi, after)
        self.requests.append(Request("unmap", self._key(block), lo=lo, hi=hi))

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        """Passed on and written down."""
        self.inner.free(block, after)
        self.requests.append(Request("free", self._key(block)))

    def take_changes(self) -> Changes | None:
        """The inner allocator's."""
        return self.inner.take_changes()

    def stats(self) -> Stats:
        """The inner allocator's."""
        return self.inner.stats()

    def check(self) -> None:
        """The inner allocator's."""
        self.inner.check()

    def snapshot(self) -> dict[str, Any]:
        """The inner allocator's."""
        return self.inner.snapshot()

    def close(self) -> list[Block]:
        """The inner allocator's."""
        return self.inner.close()

    def _key(self, block: Block) -> int:
        if self._first_id is None:
            self._first_id = block.id
        return block.id - self._first_id

    def _ranged(self) -> RangedAllocator:
        if not isinstance(self.inner, RangedAllocator):
            raise ConfigError(f"allocator {self.name} has no ranges", code="OOC-108")
        return self.inner


def replay(requests: Iterable[Request], allocator: Allocator) -> Stats:
    """Makes recorded requests of an allocator and returns its books.

    Raises:
        OutOfDeviceMemory: it cannot serve one of them.
        ConfigError: ranges, and it has none.
    """
    blocks: dict[int, Block] = {}
    ranged = allocator if isinstance(allocator, RangedAllocator) else None
    for request in requests:
        if request.op == "allocate":
            blocks[request.key] = allocator.allocate(request.nbytes, request.tag)
        elif request.op == "free":
            allocator.free(blocks.pop(request.key))
        elif ranged is None:
            raise ConfigError(f"allocator {allocator.name} has no ranges", code="OOC-108")
        elif request.op == "reserve":
            blocks[request.key] = ranged.reserve(request.nbytes, request.tag)
        elif request.op == "map":
            ranged.map_range(blocks[request.key], request.lo, request.hi)
        else:
            ranged.unmap_range(blocks[request.key], request.lo, request.hi)
        make_changes(allocator)
    return allocator.stats()
