"""A hunt: a submitted law is let loose on planted bugs, and on right arenas of the same sizes.

A law kills a bug if it stops the broken arena and lets a right one of the same size and rule pass.
A law that stops everything kills nothing. The arenas live here; the law's process asks them through
the pipe, so it sees answers and no code. The draws depend on the seed alone. Read next:
`arena_bugs.py`; `remote_law.py`, which asks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ooctrain.course.arena_bugs import BUGS, planted
from ooctrain.course.remote_law import RemoteLaw
from ooctrain.course.rubric import Hunt
from ooctrain.course.submitted import law_of, why_not
from ooctrain.testing.law_by_hand import HoleArena, LawByHand, refusal_of


@dataclass(frozen=True, slots=True)
class Hunted:
    """How a law does against one bug.

    Args:
        bug: what is wrong with the arenas.
        killed, draws: how many of them it has stopped.
        why: it has not stopped all.
    """

    bug: str
    killed: int
    draws: int
    why: str


def hunted(hunt: Hunt, submission: str, limit_s: float, seed: int) -> Iterator[Hunted]:
    """A law against each kind of bug, with a limit of time for each arena.

    Raises:
        ConfigError: the submission is not a file.
    """
    with law_of(submission, limit_s) as law:
        for name in BUGS:
            reasons = [
                _alive(name, f"{seed}/{name}/{number}", law) for number in range(hunt.draws)
            ]  # fmt: skip
            alive = [reason for reason in reasons if reason]
            yield Hunted(name, hunt.draws - len(alive), hunt.draws, next(iter(alive), ""))


def _alive(name: str, drawn: str, law: RemoteLaw) -> str:
    """Why a bug is alive; "" if it is killed."""
    try:
        law.begin()
        broken = planted(name, random.Random(drawn))
        return _judged(law, broken, HoleArena(broken.size, broken.pick))
    except Exception as error:  # a stranger's: whatever fails, it is the submission's fault
        return why_not(error)


def _judged(law: LawByHand, broken: HoleArena, right: HoleArena) -> str:
    seed = broken.size
    if alarm := refusal_of(law, right, seed):
        return f"a false alarm: a right arena of {right.size} bytes is stopped: {alarm}"
    if not refusal_of(law, broken, seed):
        return f"alive, in an arena of {broken.size} bytes: your law finds nothing wrong with it"
    return ""
