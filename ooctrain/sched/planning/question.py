"""The question put to a planner, as one value.

A step, a budget and a machine travel together, so the arguments of `Planner.plan` form one
`Question`, which all parts of a planner pass on. Read next: `lower.py`, which answers once it is
decided what moves; `beside_region.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ooctrain.sched.planning.effort import collecting_rarely, with_effort
from ooctrain.sched.planning.planner import Planner
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Question:
    """A step to be planned, and the limits that its plan has to keep; all as of `Planner.plan`.

    Args:
        evaluations: of a planner that searches and was not given a number itself; None: its own.
    """

    trace: Trace
    budget_bytes: int
    machine: Machine
    granule: Granule = BYTES
    host_budget_bytes: int | None = None
    seed: int = 0
    time_limit_s: float | None = None
    evaluations: int | None = None

    @collecting_rarely()
    def put_to(self, planner: Planner) -> Plan:
        """The answer of a planner.

        Raises:
            Infeasible: the planner's.
        """
        return with_effort(planner, self.evaluations).plan(
            self.trace, self.budget_bytes, self.machine, granule=self.granule,
            host_budget_bytes=self.host_budget_bytes, seed=self.seed,
            time_limit_s=self.time_limit_s,
        )  # fmt: skip
