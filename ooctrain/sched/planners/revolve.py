"""revolve: the optimal way to recompute a chain of equal stages with few checkpoints.

With c free slots, run on to some stage q, keep x_q in one of them, differentiate the stages after q
with c - 1 slots, then those before q with c again. Counting forward steps alone decides where to
put q. With c slots, the input's among them, and r runs of each stage before its last one, which
keeps all, binomial(c + r, c) stages can be differentiated: memory grows with the logarithm of the
length. The plan is the fastest that fits over all numbers of checkpoints. Source: Griewank and
Walther, Algorithm 799: revolve (2000). Departure: stages count alike, as there; which numbers of
checkpoints fit is found from the list that really results. Read next: `rotor.py`, for stages that
are not alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ooctrain.sched.planning.chain_runs import ChainStep, Kind, fastest_that_fits
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan

#: The table of splits grows with the cube of the stages, so a longer chain's are joined.
MOST_STAGES = 150


class Revolve:
    """Binomial checkpointing.

    Cost: O(stages^3) for the table of splits, for at most `MOST_STAGES` stages, and the runs of
    each number of checkpoints; the best that fits is lowered.
    """

    name = "revolve"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least over the numbers of checkpoints."""
        view = chain_view(question.trace, question.machine, question.granule, MOST_STAGES)
        splits = Splits(len(view))
        choices = (list(splits.steps(slots)) for slots in range(len(view)))
        return fastest_that_fits(self.name, question, view, choices)


class Splits:
    """Where to put checkpoints in a chain of equal stages.

    Args:
        stages: length of the chain.
    """

    def __init__(self, stages: int):
        self.stages = stages
        # forward_steps(length, slots): the least number of runs of stages, the last one of each
        # keeping all.
        self.forward_steps = cache(self._forward_steps)
        # split(length, slots): how many stages run before the first checkpoint is set.
        self.split = cache(self._split)

    def steps(self, slots: int) -> Iterator[ChainStep]:
        """The chain's steps with `slots` checkpoints besides the input."""
        # Stages first .. first + length - 1 to be differentiated, with the input of the first at
        # hand; the next on top.
        to_do = [(0, self.stages, slots)]
        while to_do:
            first, length, slots = to_do.pop()
            if length == 1:
                yield ChainStep(Kind.ALL, first)
                yield ChainStep(Kind.BACKWARD, first)
                continue
            q = self.split(length, slots)
            yield ChainStep(Kind.CHECKPOINT, first)
            yield from (ChainStep(Kind.NONE, first + k) for k in range(1, q))
            to_do += [(first, q, slots), (first + q, length - q, max(0, slots - 1))]

    def _forward_steps(self, length: int, slots: int) -> int:
        if length == 1:
            return 1
        if not slots:
            return length * (length + 1) // 2
        return min(self._with_checkpoint(length, slots, q) for q in range(1, length))

    def _with_checkpoint(self, length: int, slots: int, q: int) -> int:
        return q + self.forward_steps(length - q, slots - 1) + self.forward_steps(q, slots)

    def _split(self, length: int, slots: int) -> int:
        if not slots:
            return length - 1  # no checkpoint: run on to the last stage, then start again
        return min(range(1, length), key=lambda q: self._with_checkpoint(length, slots, q))
