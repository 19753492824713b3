"""Where the bytes of a list lie while it is laid out: single bytes, and arenas that grow.

An arena gives the addresses of as many bytes as are requested. It never refuses, and it soon reuses
a freed block, which a `random.Random` picks. In a list that frees a byte too early, another
variable therefore soon occupies that address. Read next: `byte_list.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class ListedByte:
    """A byte of a variable on the device or in a host slot."""

    address: int
    holder: int
    writer: int | None
    readers: set[int] = field(default_factory=set)

    def users(self) -> set[int]:
        """Steps that have written or read it."""
        return self.readers if self.writer is None else self.readers | {self.writer}


class GrowingArena:
    """Blocks of an arena that grows when it must; a freed block is given out again soon."""

    def __init__(self, rng: random.Random, block_bytes: int):
        self.rng, self.block_bytes, self.blocks = rng, block_bytes, 0
        self.free: list[int] = []

    def take(self, count: int) -> list[int]:
        """The addresses of all blocks."""
        taken = []
        for _ in range(count):
            if not self.free:
                self.free.append(self.blocks)
                self.blocks += 1
            last = len(self.free) - 1
            taken.append(
                self.free.pop(last if self.rng.random() < 0.5 else self.rng.randint(0, last))
            )
        return [block * self.block_bytes + i for block in taken for i in range(self.block_bytes)]

    def give(self, addresses: Iterable[int]) -> None:
        """Gives the blocks of these addresses back."""
        self.free += sorted({address // self.block_bytes for address in addresses})
