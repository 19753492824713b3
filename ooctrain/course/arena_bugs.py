"""The bugs of the hunt: arenas that break a promise, each under a condition that is drawn.

Each bug is a right arena with one method changed. Its number k says when it strikes: at which size,
after how many frees, among how many blocks. So a law that tries a few fixed requests finds some of
them, and one that tries many kinds finds all. A course wheel leaves this file out. Read next:
`hunt.py`, which lets a law loose on them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from ooctrain.testing.law_by_hand import Hole, HoleArena, random_arena


class BuggyArena(HoleArena):
    """A right arena that counts what a bug may wait for.

    Attributes:
        k: when the bug strikes.
        frees: how many blocks were given back.
    """

    most_k = 6
    k = 1
    frees = 0

    def free(self, offset: int) -> None:
        self.frees += offset in self.blocks
        super().free(offset)


class _LosesRest(BuggyArena):
    def leave(self, rest: Hole) -> None:
        if rest[1] != self.k:
            super().leave(rest)


class _RefusesExactFit(BuggyArena):
    def takes(self, hole: Hole, size: int) -> bool:
        return super().takes(hole, size) and not hole[1] == size <= self.k + 2


class _TakesTooLarge(BuggyArena):
    def takes(self, hole: Hole, size: int) -> bool:
        return super().takes(hole, size) or hole[1] + 1 == size > 2 * self.k


class _MeltsNotBehind(BuggyArena):
    def touch(self, hole: Hole, block: Hole) -> bool:
        behind = hole[0] == sum(block) and hole[1] <= self.k
        return super().touch(hole, block) and not behind


class _MeltsNotBefore(BuggyArena):
    def touch(self, hole: Hole, block: Hole) -> bool:
        before = sum(hole) == block[0] and block[1] == self.k
        return super().touch(hole, block) and not before


class _MeltsFromAfar(BuggyArena):
    def touch(self, hole: Hole, block: Hole) -> bool:
        return super().touch(hole, block) or hole[0] == sum(block) + self.k


class _GivesBackLess(BuggyArena):
    def give_back(self, block: Hole) -> None:
        super().give_back((block[0], block[1] - (block[1] > 1 and self.frees % (3 * self.k) == 0)))


class _GivesBackMore(BuggyArena):
    def give_back(self, block: Hole) -> None:
        room = sum(block) < self.size and block[1] == self.k + 1
        super().give_back((block[0], block[1] + room))


class _ForgetsAFree(BuggyArena):
    def give_back(self, block: Hole) -> None:
        if self.frees != 4 * self.k:
            super().give_back(block)


class _OneBlockTooMany(BuggyArena):
    most_k = 3

    def place(self, hole: Hole, size: int) -> int:
        crowded = len(self.blocks) == self.k + 2
        others = [offset for offset in self.blocks if offset + 1 not in self.blocks]
        return max(others) + 1 if crowded and others else hole[0]


class _SticksOut(BuggyArena):
    def place(self, hole: Hole, size: int) -> int:
        last = sum(hole) == self.size and hole[1] == size > self.k
        return hole[0] + last


class _WholeNoMore(BuggyArena):
    def takes(self, hole: Hole, size: int) -> bool:
        return super().takes(hole, size) and not (self.frees >= 2 * self.k and size == self.size)


#: {what is wrong: the arena}.
BUGS: Mapping[str, type[BuggyArena]] = MappingProxyType(
    {
        "a small rest of a hole is lost": _LosesRest,
        "a hole of just the size is refused": _RefusesExactFit,
        "a block may be a byte too large for its hole": _TakesTooLarge,
        "a small hole behind does not melt": _MeltsNotBehind,
        "a block does not melt with the hole before": _MeltsNotBefore,
        "a hole melts with one that it does not touch": _MeltsFromAfar,
        "now and then a byte is not given back": _GivesBackLess,
        "a byte too many is given back": _GivesBackMore,
        "a free is forgotten": _ForgetsAFree,
        "a block lies on another": _OneBlockTooMany,
        "a block sticks out of the arena": _SticksOut,
        "the whole arena is never given again": _WholeNoMore,
    }
)


def planted(name: str, rng: random.Random) -> BuggyArena:
    """An arena with a bug, of a random size and rule, that strikes at a random number."""
    kind = BUGS[name]
    arena = random_arena(rng, kind)
    assert isinstance(arena, BuggyArena)
    arena.k = rng.randint(1, kind.most_k)
    return arena
