"""The memory of an lms list before it is written: TFLMS's searches ask for hundreds of them.

From a trace and its trips this file computes the peak of the list in which every swap-out is waited
for at once. The memory that a step holds without trips is a fixed curve; a trip takes its bytes off
between two points of the curve. Each call has two points: one while it runs, and one when the
values swapped in right after it have arrived. Source: `sched/planning/residency.py`, which does the
same for gaps. Read next: `lms_auto.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ooctrain.sched.planning.list_writer import last_uses
from ooctrain.sched.schedule import Granule
from ooctrain.step.trace import Trace


class HeldCurve:
    """What a step holds at each point, inputs included.

    Args:
        trace: the step.
        granule: how sizes are rounded.

    Attributes:
        held_bytes: [0]: before the first call; [2 k + 1]: while call k runs; [2 k + 2]: when what
            is swapped in right after it has come.
    """

    def __init__(self, trace: Trace, granule: Granule):
        self.trace = trace
        self.size = np.array([granule.granted(v.nbytes) for v in trace.variables], np.int64)
        points = 2 * len(trace.calls) + 1
        change = np.zeros(points + 1, np.int64)
        for v, last in enumerate(last_uses(trace)):
            stays = trace.variables[v].persistent and not trace.uses[v]
            # A variable is gone right after its last call.
            first, stop = self._first_point(v), points if stays else min(2 * last + 2, points)
            if first < stop:
                change[first] += self.size[v]
                change[stop] -= self.size[v]
        self.held_bytes = np.cumsum(change[:-1])
        workspace = [granule.granted(call.workspace_bytes) for call in trace.calls]
        self.held_bytes[1::2] += np.array(workspace, np.int64)

    def _first_point(self, variable: int) -> int:
        producer = self.trace.producer[variable]
        if producer is None:
            return 0
        takes_over = variable in self.trace.calls[producer].reuse
        return 2 * producer + 1 + takes_over  # until then its storage is its predecessor's

    def peak(self, trips: Iterable[tuple[int, int, int]]) -> tuple[int, str]:
        """(bytes, call): the peak with (variable, after, trigger) away, and whose it is."""
        change = np.zeros(len(self.held_bytes) + 1, np.int64)
        variable, after, trigger = np.array(list(trips), np.int64).reshape(-1, 3).T
        away = self.size[variable]
        np.add.at(change, 2 * after + 2, -away)
        np.add.at(change, 2 * trigger + 2, away)
        held_bytes = self.held_bytes + np.cumsum(change[:-1])
        point = int(held_bytes.argmax())
        name = self.trace.calls[(point - 1) // 2].name if point else ""
        return int(held_bytes[point]), name
