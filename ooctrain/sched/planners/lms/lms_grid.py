"""lms-grid: TFLMS with the best of a grid of parameters, by simulated time.

LMS's own tuner considers memory only. To show what LMS can do at its best, this planner simulates
each point of a grid and takes the fastest list that fits. The grid spreads from the tuner's point,
which is included, down to the smallest numbers. Source: ours, as a fair baseline. Read next:
`sched/planners/window/window.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ooctrain.sched.planners.lms.lms import LevelGraph, Lms, list_with
from ooctrain.sched.planners.lms.lms_auto import search, starting_points
from ooctrain.sched.planners.lms.lms_peak import HeldCurve
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.fastest import Candidate, fastest_list
from ooctrain.sched.planning.planner import infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: Shares of the largest threshold that fits, and of the height of the graph for the other two.
THRESHOLD_SHARES = (1.0, 0.6, 0.3)
AHEAD_SHARES = (0.0, 0.05)
GROUPBY_SHARES = (0.0, 0.1, 1.0)


class LmsGrid:
    """The fastest of a grid. Cost: a list for each point, a simulation for those that may be it."""

    name = "lms-grid"

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is that of the points the tuner starts with; a time limit ends
        the asking.
        """
        deadline = Deadline.after(time_limit_s)
        graph, curve = LevelGraph(trace), HeldCurve(trace, granule)
        lists: list[Candidate] = []
        for lms in _fitting(graph, curve, budget_bytes):
            lists.append(list_with(graph, lms, budget_bytes, granule))
            if deadline.passed():
                lists = [replace(c, notes={**c.notes, "cut_short": True}) for c in lists]
                break
        if not lists:
            peaks = (curve.peak(graph.trips(lms)) for lms in starting_points(graph))
            raise infeasible(self.name, budget_bytes, *min(peaks))
        question = Question(trace, budget_bytes, machine, granule, host_budget_bytes)
        return fastest_list(self.name, question, lists)


def _fitting(graph: LevelGraph, curve: HeldCurve, budget_bytes: int) -> Iterator[Lms]:
    """The points of the grid that fit and lead to different lists, the tuner's own first."""

    def fits(lms: Lms) -> bool:
        return curve.peak(graph.trips(lms))[0] <= budget_bytes

    start = next((lms for lms in starting_points(graph) if fits(lms)), None)
    if start is None:
        return
    found = search(start, graph.height, fits)
    seen = set()
    for lms in (found, *_grid(found.swapout_threshold, graph.height)):
        trips = tuple(graph.trips(lms))
        if trips not in seen and fits(lms):
            yield lms
        seen.add(trips)


def _grid(threshold: int, height: int) -> Iterator[Lms]:
    for shares in itertools.product(THRESHOLD_SHARES, AHEAD_SHARES, GROUPBY_SHARES):
        yield Lms(
            max(1, round(threshold * shares[0])),
            round(height * shares[1]),
            round(height * shares[2]),
        )
