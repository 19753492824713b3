"""A hunt: a submitted law is let loose on planted bugs, among right arenas of the same sizes.

Each broken arena has a right twin: the same size, the same rule, the same random numbers. A law
kills a bug if it stops the broken arena and lets the twin pass, and one right arena that it stops
anywhere makes the whole hunt worthless. The arenas come in an order that cannot be known (it does
not depend on the seed), each in a new process, so the order says nothing of the answer. A law that
makes no use of the arenas, whatever it counts, times or remembers, stops some of 2 n arenas of
which n are right, and can expect at most 1 / (2 n) of the points: it must not hit a right one. The
arenas live here, so a law sees answers and no code. The draws depend on the seed alone. Read next:
`remote.py`, a law that runs in another process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType

from ooctrain.course.interview import NoAnswer
from ooctrain.course.outcomes import MOST_BROKEN
from ooctrain.course.rubric import Hunt
from ooctrain.course.submitted import law_of, why_not
from ooctrain.errors import Withheld
from ooctrain.testing.law_by_hand import Hole, HoleArena, LawByHand, random_arena, refusal_of

# The hunt.

#: Makes a law that knows nothing of what was asked before.
Fresh = Callable[[], AbstractContextManager[LawByHand]]


@dataclass(frozen=True, slots=True)
class Hunted:
    """How a law does against one bug.

    Args:
        bug: what is wrong with the arenas.
        killed, draws: how many of them it has stopped.
        why: it has not stopped all.
        false_alarm: because a right arena is stopped.
    """

    bug: str
    killed: int
    draws: int
    why: str
    false_alarm: bool = False


@dataclass(frozen=True, slots=True)
class _Said:
    """What a law says of an arena.

    Args:
        alarm: why it stops the arena; "" if it lets it pass.
        fault: why it says neither.
    """

    alarm: str = ""
    fault: str = ""


def hunted(hunt: Hunt, submission: str, limit_s: float, seed: int) -> list[Hunted]:
    """A law against each kind of bug, with a process and a limit of time for each arena.

    Raises:
        ConfigError: the submission is not a file.
    """
    order = random.SystemRandom()
    return hunt_with(lambda: law_of(submission, limit_s), hunt.draws, seed, order)


def hunt_with(fresh: Fresh, draws: int, seed: int, order: random.Random) -> list[Hunted]:
    """A law against each kind of bug.

    Args:
        draws: how many arenas of each kind.
        seed: seed of sizes, rules and the moments at which bugs strike.
        order: draws in which order the arenas are asked.
    """
    try:
        pairs = {
            (name, number): _pair(name, f"{seed}/{name}/{number}")
            for name in BUGS for number in range(draws)
        }  # fmt: skip
    except Withheld as error:  # in a course wheel
        return [Hunted(name, 0, draws, why_not(error)) for name in BUGS]
    asked = [(pair, side) for pair in pairs for side in (0, 1)]
    order.shuffle(asked)
    said: dict[tuple[tuple[str, int], int], _Said] = {}
    ended = 0
    for pair, side in asked:
        if ended == MOST_BROKEN:
            said[pair, side] = _Said(fault=f"not tried: {MOST_BROKEN} others had to be ended")
            continue
        drawn = f"{seed}/{pair}"  # the same of both sides
        said[pair, side], was_ended = _asked(fresh, pairs[pair][side], drawn)
        ended += was_ended
    alarms = [(pairs[pair][1], said[pair, 1].alarm) for pair in pairs if said[pair, 1].alarm]
    return [_hunted(name, draws, pairs, said, alarms) for name in BUGS]


def _pair(name: str, drawn: str) -> tuple[HoleArena, HoleArena]:
    """A broken arena and its right twin."""
    broken = planted(name, random.Random(drawn))
    return broken, HoleArena(broken.size, broken.pick)


def _asked(fresh: Fresh, arena: HoleArena, drawn: str) -> tuple[_Said, bool]:
    """What a law says of an arena, and whether its process had to be ended."""
    try:
        with fresh() as law:
            return _Said(alarm=refusal_of(law, arena, drawn)), False
    except Exception as error:  # untrusted: whatever fails, it is the submission's fault
        return _Said(fault=why_not(error)), isinstance(error, NoAnswer)


def _hunted(
    name: str, draws: int, pairs: dict[tuple[str, int], tuple[HoleArena, HoleArena]],
    said: dict[tuple[tuple[str, int], int], _Said], alarms: Sequence[tuple[HoleArena, str]],
) -> Hunted:  # fmt: skip
    if alarms:
        right, alarm = alarms[0]
        return Hunted(name, 0, draws, (
            f"a false alarm, and a law that stops a right arena kills nothing: a right arena of "
            f"{right.size} bytes is stopped: {alarm}"
        ), false_alarm=True)  # fmt: skip
    reasons = []
    for number in range(draws):
        broken, twin = said[(name, number), 0], said[(name, number), 1]
        size = pairs[name, number][0].size
        alive = f"alive, in an arena of {size} bytes: your law finds nothing wrong with it"
        reasons.append(broken.fault or twin.fault or ("" if broken.alarm else alive))
    why = next(filter(None, reasons), "")
    return Hunted(name, reasons.count(""), draws, why)


# The bugs: each is a right arena with one method changed. Its number k says when it strikes: at
# which size, after how many frees, among how many blocks. So a law that tries a few fixed requests
# finds some of them, and one that tries many kinds finds all. A course wheel leaves them out.


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
