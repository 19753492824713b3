"""The client's record of a block that it holds: which bytes are held and what they should be.

A block of parts is a set of granules with a mark each; a whole block has one mark. Work on either
is ordered by the events of its latest write and of the reads since. The wording of complaints is
here too. Read next: `allocator_client.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ooctrain.alloc.base import Block, Reached
from ooctrain.errors import DriverError
from ooctrain.testing.allocator_laws import hold


@dataclass(slots=True, eq=False)
class Held:
    """A live block.

    Args:
        block: as the allocator gave it.
        unit: bytes of a granule.
        marks: of the granules that are held; None: the whole block has `mark`.
        mark: what was written last; before the first write the number of the block.
        wrote, reads: events of the latest write, and of the reads behind it.
    """

    block: Block
    unit: int
    marks: dict[int, int] | None
    mark: int = 0
    wrote: Reached | None = None
    reads: list[Reached] = field(default_factory=list)

    def uses(self) -> list[Reached]:
        """The events of all work that may still use the block."""
        return [*self.reads, *([self.wrote] if self.wrote else [])]

    def bytes_of(self, granule: int) -> tuple[int, int]:
        """[lo, hi) of a granule."""
        lo = granule * self.unit
        return lo, min(lo + self.unit, self.block.requested_bytes)

    def ranges(self) -> list[tuple[int, int]]:
        """[lo, hi) of the bytes that are held."""
        if self.marks is None:
            return [(0, self.block.requested_bytes)]
        return [self.bytes_of(granule) for granule in sorted(self.marks)]


@contextmanager
def reaching(block: Block) -> Iterator[None]:
    """Work on a block that the driver refuses breaks P5."""
    try:
        yield
    except DriverError as error:
        hold("P5", False, f"{block.tag} cannot be used: {error.what} {error.numbers}")


def difference(before: Any, after: Any) -> str:
    """Where two nested values differ first."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            if before.get(key) != after.get(key):
                return f"{key}: {difference(before.get(key), after.get(key))}"
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for left, right in zip(before, after, strict=True):
            if left != right:
                return difference(left, right)
    return f"{before!r} -> {after!r}"
