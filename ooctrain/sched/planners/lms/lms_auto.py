"""lms-auto: TFLMS with the parameters that its own tuner would find.

Three searches follow each other, each for the largest number that still fits: the threshold (swap
as few edges as possible), then how far ahead to swap in, then how far apart readers may share a
trip. None of them considers how long the step takes.

Sources: paper 001, section 3.1; the authors' TFLMS (branch tflmsv2, lms.py, `_search_params`).
Departures: where the code raises its synchronous modes because threshold 1 does not fit, we swap in
right before the reader, which is their effect on memory; the code estimates memory (90 % of the
limit, swap-outs that last one level), we count the list's bytes. Like the code we search by
bisection, although what fits need not be monotone. Erratum (docs/errata.md,
001-tuning-has-no-time): the paper says that tuning reduces communication; feasibility is all it
looks at. Read next: `lms_grid.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from ooctrain.sched.planners.lms.lms import LevelGraph, Lms, list_with
from ooctrain.sched.planners.lms.lms_peak import HeldCurve
from ooctrain.sched.planning.fastest import Candidate, fastest_list
from ooctrain.sched.planning.planner import infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

Fits = Callable[[Lms], bool]


class LmsAuto:
    """TFLMS's three searches. Cost: one list; about 3 log(levels) peaks."""

    name = "lms-auto"

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is that of the parameters the search starts with."""
        found = tuned_list(self.name, trace, budget_bytes, granule)
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
        return fastest_list(self.name, question, [found])


def tuned_list(name: str, trace: Trace, budget_bytes: int, granule: Granule) -> Candidate:
    """The list of the parameters that the searches find.

    Args:
        name: of the planner, for what is raised.

    Raises:
        Infeasible: the parameters the search starts with do not fit.
    """
    graph, curve = LevelGraph(trace), HeldCurve(trace, granule)

    @cache
    def need(lms: Lms) -> tuple[int, str]:
        return curve.peak(graph.trips(lms))

    starts = starting_points(graph)
    least, witness = min(need(lms) for lms in starts)
    if least > budget_bytes:
        raise infeasible(name, budget_bytes, least, witness)
    fitting = next(lms for lms in starts if need(lms)[0] <= budget_bytes)
    found = search(fitting, graph.height, lambda lms: need(lms)[0] <= budget_bytes)
    return list_with(graph, found, budget_bytes, granule)


def starting_points(graph: LevelGraph) -> tuple[Lms, ...]:
    """What the search tries to start with: no swapping, swapping all with a head start, swapping
    all and waiting for it.
    """
    return (Lms(graph.height + 1, 1, 0), Lms(1, 1, 0), Lms(1, 0, 0))


def search(start: Lms, height: int, fits: Fits) -> Lms:
    """The three searches, from parameters that fit."""
    found = start
    if found.swapout_threshold <= height:
        threshold = _largest(1, height, lambda n: fits(replace(found, swapout_threshold=n)))
        found = replace(found, swapout_threshold=threshold)
    if found.swapin_ahead:
        ahead = _largest(1, height, lambda n: fits(replace(found, swapin_ahead=n)))
        found = replace(found, swapin_ahead=ahead)
    if fits(replace(found, swapin_groupby=height)):
        return replace(found, swapin_groupby=height)
    return replace(
        found, swapin_groupby=_first_half(height, lambda n: fits(replace(found, swapin_groupby=n)))
    )


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits, by bisection from one that does."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _first_half(high: int, fits: Callable[[int], bool]) -> int:
    """The first of high / 2, high / 4, .. that fits; 0 where none does."""
    while high > 0:
        high //= 2
        if fits(high):
            return high
    return 0
