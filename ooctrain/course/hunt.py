"""A hunt: a submitted law is let loose on planted bugs, and on right arenas of the same sizes.

Each broken arena has a right twin: the same size, the same rule, the same random numbers. A law
kills a bug if it stops the broken arena and lets the twin pass, and one right arena that it stops
anywhere makes the whole hunt worthless. All arenas are asked in an order that nobody can know (it
does not depend on the seed), each by a new process. So the question says nothing of the answer:
a law that asks nothing of the arenas, whatever it counts, times or remembers, stops some of 2 n
arenas of which n are right, and can expect at most 1 / (2 n) of the points: it must not hit a right
one. The arenas live here, so a law sees answers and no code. The draws depend on the seed alone.
Read next: `arena_bugs.py`; `remote_law.py`, which asks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ooctrain.course.arena_bugs import BUGS, planted
from ooctrain.course.interview import NoAnswer
from ooctrain.course.outcomes import MOST_BROKEN
from ooctrain.course.rubric import Hunt
from ooctrain.course.submitted import law_of, why_not
from ooctrain.errors import Withheld
from ooctrain.testing.law_by_hand import HoleArena, LawByHand, refusal_of

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
        seed: of sizes, rules and the moments at which bugs strike.
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
    except Exception as error:  # a stranger's: whatever fails, it is the submission's fault
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
