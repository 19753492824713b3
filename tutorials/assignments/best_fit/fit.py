"""Your allocator. It is correct, but uses freed memory again only when all blocks have been freed.

It gets sizes, in the order of a list, and gives blocks in one arena. Yours to write: each block
goes into the smallest hole that takes it, and neighbouring holes become one. `Books` keeps the
statistics and refuses what is wrong; three short methods are yours. Read next: README.md,
`ooctrain/alloc/base.py`.
"""

from ooctrain.alloc.base import Books, describe
from ooctrain.units import Granule


class Fit:
    """One arena; so far each block lies behind the one before."""

    name = "my-fit"
    granule = Granule(512, ranges=False)

    def __init__(self, memory):
        self.budget_bytes = memory.size_bytes // 512 * 512
        self.base = memory.linear()
        self.books = Books(self.name, self.budget_bytes)
        self.top = 0  # behind the last block
        self.holes = []  # (offset, end), ascending; so far none is made or filled

    def place(self, size_bytes):
        """Takes the bytes of a block; returns their offset, or None where there is no room.
        Your work.
        """
        if self.top + size_bytes > self.budget_bytes:
            return None
        self.top += size_bytes
        return self.top - size_bytes

    def give_back(self, offset, end):
        """Makes a hole of [offset, end), or part of one. Your work."""
        if not self.books.live:
            self.top = 0

    def largest_bytes(self):
        """The largest block that could be placed now. Your work."""
        return self.budget_bytes - self.top

    def reserved_bytes(self):
        """All below the last block: blocks, and the holes between them."""
        return self.top

    # What every allocator has; nothing is to be done here.

    def allocate(self, nbytes, tag=""):
        size = self.granule.granted(self.books.checked_size(nbytes))
        before = self.reserved_bytes()
        offset = self.place(size)
        if offset is None:
            free = self.budget_bytes - self.books.granted
            largest = self.largest_bytes()
            raise self.books.refuse(nbytes, size, free, largest, tag, self.snapshot())
        self.books.move(nbytes, size, self.reserved_bytes() - before)
        return self.books.open(self.base + offset, nbytes, size, tag)

    def free(self, block, after=()):
        self.books.retire(block)
        before, offset = self.reserved_bytes(), block.address - self.base
        self.give_back(offset, offset + block.granted_bytes)
        shrink = before - self.reserved_bytes()
        self.books.move(-block.requested_bytes, -block.granted_bytes, -shrink)

    def stats(self):
        return self.books.stats(self.largest_bytes())

    def check(self):
        self.books.check(cached_bytes=self.reserved_bytes() - self.books.granted)

    def snapshot(self):
        return {
            "allocator": self.name, "budget": self.budget_bytes, "base": self.base,
            "blocks": describe(self.books.live.values()), "top": self.top,
        }  # fmt: skip

    def close(self):
        return self.books.close()
