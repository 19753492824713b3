"""Laws by hand: a function that asks an arena for blocks, and says when a promise is broken.

An arena of a given size gives the offset of a block, or None where it has no room, and takes
blocks back. A law tries one arena and raises AssertionError where the arena breaks a promise; it
sees nothing but the answers. A law is worth something if it lets every right arena pass and stops
every broken one. `check_law` holds the first half, over right arenas of several kinds and sizes;
the second half is a hunt for planted bugs (`course/hunt.py`). Source: mutation testing (DeMillo,
Lipton and Sayward, 1978). Read next: `laws/test_law.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from ooctrain.errors import OoctrainError

Hole = tuple[int, int]
#: Sizes of arenas that laws are tried on, in bytes.
LEAST_SIZE, MOST_SIZE = 24, 96


class AskedArena(Protocol):
    """What a law may ask.

    Attributes:
        size: bytes in all.
    """

    size: int

    def allocate(self, size: int) -> int | None:
        """The offset of a new block; None where no free range takes it."""
        ...

    def free(self, offset: int) -> None:
        """Gives a block back. Raises KeyError: no block begins at this offset."""
        ...


class LawByHand(Protocol):
    """A law."""

    name: str

    def check(self, arena: AskedArena, rng: random.Random) -> None:
        """Raises AssertionError where a fresh arena breaks a promise."""
        ...


class HoleArena:
    """A right arena: holes by address, which melt; a block goes into the hole that a rule picks.

    Args:
        size: bytes in all.
        pick: the rule: of the holes that take a block, whose place it gets.
    """

    def __init__(self, size: int, pick: Callable[[list[Hole]], Hole]):
        self.size, self.pick = size, pick
        self.holes: list[Hole] = [(0, size)]
        self.blocks: dict[int, int] = {}

    def allocate(self, size: int) -> int | None:
        """See `AskedArena`."""
        fitting = [hole for hole in self.holes if self.takes(hole, size)]
        if not fitting:
            return None
        hole = self.pick(fitting)
        self.holes.remove(hole)
        self.leave((hole[0] + size, hole[1] - size))
        offset = self.place(hole, size)
        self.blocks[offset] = size
        return offset

    def free(self, offset: int) -> None:
        """See `AskedArena`."""
        size = self.blocks.pop(offset)
        self.give_back((offset, size))

    def takes(self, hole: Hole, size: int) -> bool:
        """Whether a block may go into a hole."""
        return hole[1] >= size

    def place(self, hole: Hole, size: int) -> int:
        """The offset of a block in its hole."""
        return hole[0]

    def leave(self, rest: Hole) -> None:
        """What a block leaves of its hole."""
        if rest[1] > 0:
            self.holes = sorted([*self.holes, rest])

    def give_back(self, block: Hole) -> None:
        """Makes a hole of a block's bytes, joined with adjacent holes."""
        lo, hi = block[0], sum(block)
        for hole in [hole for hole in self.holes if self.touch(hole, (lo, hi - lo))]:
            self.holes.remove(hole)
            lo, hi = min(lo, hole[0]), max(hi, sum(hole))
        self.holes = sorted([*self.holes, (lo, hi - lo)])

    def touch(self, hole: Hole, block: Hole) -> bool:
        """Whether a hole melts with what is given back."""
        return sum(hole) == block[0] or sum(block) == hole[0]


#: {how a hole is picked: the rule}; all are right.
PICKS: Mapping[str, Callable[[list[Hole]], Hole]] = MappingProxyType(
    {
        "the first hole": min,
        "the smallest hole": lambda holes: min(holes, key=lambda hole: (hole[1], hole[0])),
        "the largest hole": lambda holes: max(holes, key=lambda hole: (hole[1], hole[0])),
        "the last hole": max,
    }
)


def random_arena(rng: random.Random, kind: type[HoleArena] = HoleArena) -> HoleArena:
    """An arena of a random size and rule."""
    return kind(rng.randint(LEAST_SIZE, MOST_SIZE), PICKS[rng.choice(list(PICKS))])


class LawFailure(OoctrainError, AssertionError):
    """A law is not a law."""

    default_code = "OOC-295"


#: What is held of every law.
LAW_LAWS = ("right arenas pass", "asked twice")


def refusal_of(law: LawByHand, arena: AskedArena, seed: int | str) -> str:
    """What a law says against an arena; "" for nothing. Raises what else it raises."""
    try:
        law.check(arena, random.Random(seed))
    except AssertionError as error:
        return str(error) or "it is broken"
    return ""


def told_apart(law: LawByHand, kind: type[HoleArena], seed: int | str, pairs: int = 10) -> int:
    """How many broken arenas a law distinguishes from right ones.

    Each broken arena has a right twin of the same size and rule, tried with the same random
    numbers. All are tried in an order that no seed decides, so a law cannot know which is which
    without asking for blocks.

    Args:
        kind: what is wrong with the broken ones.
        pairs: how many there are.

    Returns:
        The number of broken arenas that are stopped; 0 if a right one is stopped, too.
    """
    broken = [random_arena(random.Random(f"{seed}/{number}"), kind) for number in range(pairs)]
    asked = [(number, broken[number]) for number in range(pairs)]
    asked += [(number, HoleArena(one.size, one.pick)) for number, one in asked]
    random.SystemRandom().shuffle(asked)
    stopped = [type(arena) for number, arena in asked if refusal_of(law, arena, number)]
    return 0 if HoleArena in stopped else len(stopped)


def check_law(
    law: LawByHand, *, examples: int = 20, seed: int = 0, law_of_laws: str = LAW_LAWS[0]
) -> int:  # fmt: skip
    """Tries a law on right arenas.

    Args:
        examples: how many.
        law_of_laws: one of `LAW_LAWS`: a right arena passes; the same arena and seed give the same
            answer.

    Returns:
        The number of arenas.

    Raises:
        LawFailure: a false alarm, or two answers.
    """
    for number in range(examples):
        drawn = f"{seed}/{number}"
        said = [
            refusal_of(law, random_arena(random.Random(drawn)), number)
            for _ in range(1 if law_of_laws == LAW_LAWS[0] else 2)
        ]
        arena = random_arena(random.Random(drawn))
        rule = next(name for name, pick in PICKS.items() if pick is arena.pick)
        where = f"an arena of {arena.size} bytes, in which a block goes into {rule}"
        if len(set(said)) > 1:
            raise LawFailure(f"asked twice, it says {said[0]!r} and {said[1]!r}", where=where)
        if said[0] and law_of_laws == LAW_LAWS[0]:
            raise LawFailure(
                f"a false alarm: the arena is right, and the law says: {said[0]}", where=where,
                fix="which promise is broken there? compare your books by hand",
            )  # fmt: skip
    return examples
