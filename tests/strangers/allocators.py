"""A right allocator, and wrong ones, as somebody writes them who has read `alloc/base.py` only.

`FirstHole` keeps every law; each of the other classes differs from it in one thought. Laws have to
judge what they were not made for; these files were written without a look at the zoo. Read next:
`test_strangers.py`.
"""

from __future__ import annotations

from ooctrain.alloc.base import Books, describe
from ooctrain.units import Granule

ROUND_BYTES = 512


class FirstHole:
    """The first hole that is large enough; holes are a sorted list of (start, end)."""

    name = "first-hole"
    granule = Granule(ROUND_BYTES, ranges=False)

    def __init__(self, memory):
        self.budget_bytes = memory.size_bytes // ROUND_BYTES * ROUND_BYTES
        self._base = memory.linear()
        self._books = Books(self.name, self.budget_bytes)
        self._holes = [(0, self.budget_bytes)]

    def allocate(self, nbytes, tag=""):
        size, before = self.rounded(self._books.checked_size(nbytes)), self.reserved()
        for place, (start, end) in enumerate(self._holes):
            if end - start >= size:
                self._holes[place : place + 1] = self.rest(start + size, end)
                self._books.move(nbytes, size, self.reserved() - before)
                return self._books.open(self._base + start, nbytes, size, tag)
        free = sum(end - start for start, end in self._holes)
        raise self._books.refuse(nbytes, size, free, self.largest(), tag)

    def free(self, block, after=()):
        self._books.retire(block)
        start, before = block.address - self._base, self.reserved()
        self.give_back(start, start + block.granted_bytes)
        change = self.reserved() - before
        self._books.move(-block.requested_bytes, -block.granted_bytes, change)

    def rounded(self, nbytes):
        return self.granule.granted(nbytes)

    def rest(self, start, end):
        return [(start, end)] if end > start else []

    def give_back(self, start, end):
        joined = []
        for hole in sorted([*self._holes, (start, end)]):
            if joined and self.touch(joined[-1], hole):
                joined[-1] = (joined[-1][0], hole[1])
            else:
                joined.append(hole)
        self._holes = joined

    def touch(self, left, right):
        return left[1] == right[0]

    def largest(self):
        return max((end - start for start, end in self._holes), default=0)

    def stats(self):
        return self._books.stats(self.largest())

    def reserved(self):
        """All below the highest block: the blocks, and the holes between them."""
        start, end = self._holes[-1] if self._holes else (0, 0)
        return start if end == self.budget_bytes else self.budget_bytes

    def check(self):
        self._books.check(cached_bytes=self.reserved() - self._books.granted)

    def snapshot(self):
        return {
            "base": self._base,
            "blocks": describe(self._books.live.values()),
            "holes": [list(hole) for hole in self._holes],
        }

    def close(self):
        return self._books.close()


class JoinsOverASmallBlock(FirstHole):
    """Holes count as neighbours when no more than a granule lies between them."""

    def touch(self, left, right):
        return right[0] - left[1] <= ROUND_BYTES


class NeverJoins(FirstHole):
    """A hole stays as small as the block that it was."""

    def touch(self, left, right):
        return False


class ForgetsASmallRest(FirstHole):
    """A rest of one granule is not worth a hole, and is gone for ever."""

    def rest(self, start, end):
        return [(start, end)] if end > start + ROUND_BYTES else []


class LosesOnRefusal(FirstHole):
    """Takes a hole off the list before it knows whether one is large enough."""

    def allocate(self, nbytes, tag=""):
        if self._holes and self.largest() < self.rounded(self._books.checked_size(nbytes)):
            self._holes.pop()
        return super().allocate(nbytes, tag)


class RoundsDown(FirstHole):
    """Grants a granule less than what was asked for."""

    def rounded(self, nbytes):
        return max(ROUND_BYTES, nbytes // ROUND_BYTES * ROUND_BYTES)


class FreesTwice(FirstHole):
    """A second free is nothing to talk about."""

    def free(self, block, after=()):
        if block.id in self._books.live:
            super().free(block, after)


class StartsTooLarge(FirstHole):
    """The arena has a granule more than there is."""

    def __init__(self, memory):
        super().__init__(memory)
        self._holes = [(0, self.budget_bytes + ROUND_BYTES)]


class ForgetsHoles(FirstHole):
    """Only what is granted is reserved."""

    def reserved(self):
        return self._books.granted

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        self._books.move(0, 0, self._books.granted - self._books.reserved)
        return block

    def free(self, block, after=()):
        super().free(block, after)
        self._books.move(0, 0, self._books.granted - self._books.reserved)


class After40(FirstHole):
    """Right until it has given 40 blocks, as one that only leaks or counts is."""

    given = 0

    def allocate(self, nbytes, tag=""):
        block = super().allocate(nbytes, tag)
        self.given += 1
        return block

    @property
    def late(self):
        return self.given >= 40


class RoundsDownLate(After40):
    def rounded(self, nbytes):
        return RoundsDown.rounded(self, nbytes) if self.late else super().rounded(nbytes)


class NeverJoinsLate(After40):
    def touch(self, left, right):
        return super().touch(left, right) and not self.late


class OverlapsLate(After40):
    """The rest of a hole begins a granule within the block."""

    def rest(self, start, end):
        return super().rest(start - ROUND_BYTES * self.late, end)


class ForgetsARestLate(After40):
    def rest(self, start, end):
        return ForgetsASmallRest.rest(self, start, end) if self.late else super().rest(start, end)


class OverlapsAMany(FirstHole):
    """Wrong where 40 blocks live at once."""

    def rest(self, start, end):
        many = len(self._books.live) >= 40
        return super().rest(start - ROUND_BYTES * many, end)
