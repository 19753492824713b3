"""chen-sqrt: keep the borders of some segments, compute the rest again, segment by segment.

Cut n stages into k segments. The forward pass keeps only what crosses the borders, k values. Before
the backward pass of a segment its n / k stages run again and keep everything. Memory k + n / k is
least at the square root of n, for one more forward pass. The plan is the fastest that fits over all
numbers of segments. Source: Chen, Xu, Zhang and Guestrin, Training deep nets with sublinear memory
cost (2016), section 4.1, to which the papers compare. Departure: every number of segments is tried,
not the square root alone, as stages are not alike. Read next: `revolve.py`, which spends less
memory for more time; `rotor.py`, which is optimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ooctrain.sched.planning.chain_runs import ChainStep, Kind, fastest_that_fits
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan


class ChenSqrt:
    """Segments of equal numbers of stages.

    Cost: the runs of each number of segments, O(calls) each; the best that fits is lowered.
    """

    name = "chen-sqrt"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least over the numbers of segments."""
        view = chain_view(question.trace, question.machine, question.granule)
        stages = len(view)
        choices = (list(segmented(stages, count)) for count in numbers_of_segments(stages))
        return fastest_that_fits(self.name, question, view, choices)


def numbers_of_segments(stages: int) -> list[int]:
    """Those that differ in the length of their longest segment, and one for each stage."""
    return sorted({-(-stages // length) for length in range(1, stages + 1)})


def segmented(stages: int, segments: int) -> Iterator[ChainStep]:
    """Forward, keeping borders; then segment by segment, the last first.

    The last segment keeps all at once: its backward comes next.
    """
    borders = [round(place * stages / segments) for place in range(segments + 1)]
    for first, after in pairwise(borders):
        for stage in range(first, after):
            if after == stages:
                yield ChainStep(Kind.ALL, stage)
            else:
                yield ChainStep(Kind.CHECKPOINT if stage == first else Kind.NONE, stage)
    for first, after in reversed(list(pairwise(borders))):
        if after != stages:
            yield from (ChainStep(Kind.ALL, stage) for stage in range(first, after))
        yield from (ChainStep(Kind.BACKWARD, stage) for stage in reversed(range(first, after)))
