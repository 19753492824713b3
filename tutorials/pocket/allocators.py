"""allocators: where values lie, and why enough free memory may still be too little.

The list says when a value claims memory; an allocator says where. `BestFit` puts it into the
smallest hole that takes it. After a while the free memory is in pieces, but a value needs one
piece, so a list that fits by the ledger may still fail. `Pages` cuts memory into pages of one size.
A value gets any pages that are free, and a table leads from its address to them: a reader sees one
piece. This fails only when too few bytes are free; the price is that sizes are rounded up to whole
pages.

Grown-up room: `ooctrain/alloc`, a file for each allocator. They find a hole without looking
at all of them, leave the table to the hardware (of the processor, or of a GPU), and can place the
blocks of a whole step before it begins. Read next: tiles.py.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from steplist import Free, Instruction, Run, SwapIn, SwapOut, ledger
from tape import Step


class BestFit:
    """Puts a block into the smallest hole that takes it.

    Attributes:
        blocks: {address: bytes} of what is in use; the holes are what lies between.
        extent: end of the highest block so far.
    """

    def __init__(self, size: int):
        self.memory = np.zeros(size, np.uint8)
        self.blocks, self.extent = {}, 0

    def holes(self) -> list[tuple[int, int]]:
        """(bytes, address) of each."""
        found, end = [], 0
        for address, size in [*sorted(self.blocks.items()), (len(self.memory), 0)]:
            assert address >= end, f"two blocks overlap at {address}"
            if address > end:
                found.append((address - end, end))
            end = address + size
        return found

    def allocate(self, size: int) -> int:
        """The address of a new block."""
        holes = self.holes()
        large_enough = [hole for hole in holes if hole[0] >= size]
        if not large_enough:
            free = sum(length for length, _ in holes)
            raise MemoryError(f"{free} bytes are free, but no hole takes {size}")
        _, address = min(large_enough)
        self.blocks[address] = size
        self.extent = max(self.extent, address + size)
        return address

    def free(self, address: int) -> None:
        """Gives a block back; with the holes beside it, it is one hole."""
        del self.blocks[address]

    def read(self, address: int) -> np.ndarray:
        """The bytes of a block."""
        return self.memory[address : address + self.blocks[address]]

    def write(self, address: int, data: np.ndarray) -> None:
        """Fills a block."""
        self.read(address)[:] = data


class Pages:
    """Gives a block any pages that are free.

    Attributes:
        free_pages: their numbers.
        table: {address: numbers of the pages behind it, in order}.
    """

    def __init__(self, size: int, page: int):
        self.page = page
        self.memory = np.zeros((size // page, page), np.uint8)
        self.free_pages, self.table = list(range(size // page)), {}
        self._next_address = 0  # addresses are never used up

    def allocate(self, size: int) -> int:
        """The address of a new block."""
        count = -(-size // self.page)
        if count > len(self.free_pages):
            raise MemoryError(f"{count} pages are needed, {len(self.free_pages)} are free")
        address = self._next_address
        self._next_address += count * self.page
        self.table[address] = [self.free_pages.pop() for _ in range(count)]
        return address

    def free(self, address: int) -> None:
        """Gives the pages of a block back."""
        self.free_pages += self.table.pop(address)
        in_use = [page for pages in self.table.values() for page in pages]
        everything = sorted(self.free_pages + in_use)
        assert everything == list(range(len(self.memory))), "a page is lost, or used twice"

    def read(self, address: int) -> np.ndarray:
        """The bytes of a block, collected page by page: hardware would not have to copy them."""
        return self.memory[self.table[address]].reshape(-1)

    def write(self, address: int, data: np.ndarray) -> None:
        """Fills a block, up to the end of its last page."""
        pages = self.table[address]
        padded = np.zeros(len(pages) * self.page, np.uint8)
        padded[: len(data)] = data
        self.memory[pages] = padded.reshape(-1, self.page)


def in_pages(step: Step, page: int) -> Step:
    """The step with the sizes that its values have in whole pages."""
    return replace(step, size={v: -(-size // page) * page for v, size in step.size.items()})


def best_fit_extent(step: Step, instructions: Sequence[Instruction]) -> int:
    """How much memory a list takes with best fit: its ledger, and what is lost in holes."""
    arena = BestFit(16 * max(ledger(step, instructions)))
    address = {value: arena.allocate(step.size[value]) for value in step.on_device}
    for instruction in instructions:
        match instruction:
            case Run(value) | SwapIn(value):
                address[value] = arena.allocate(step.size[value])
            case Free(value):
                arena.free(address.pop(value))
            case SwapOut():
                pass
    return arena.extent
