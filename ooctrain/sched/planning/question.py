"""What a planner is asked: step, budget, machine, limits.

These travel together, so the arguments of `Planner.plan` form one `Question`, which all parts of a
planner pass on. Planners know nothing of a region of small objects: a granule's `fixed_bytes` are
always taken by it, so it is a constant in every ledger. `plan_excluding` plans within the budget
less that constant, which is then added to the ledger and the peak of the plan. Read next:
`lower.py`, which makes the list once it is decided what moves; `rewrite/pin_small.py` for what the
region holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ooctrain.errors import Infeasible, failing_as
from ooctrain.sched.planning.effort import collecting_rarely, with_effort
from ooctrain.sched.planning.planner import (
    HOST_TOO_SMALL,
    Planner,
    as_plan,
    checked_refusal,
    infeasible,
)
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Question:
    """A step to be planned, and the limits that its plan has to keep; see `Planner.plan`.

    Args:
        evaluations: for a searching planner that was not given a number itself; None: its own.
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
    def ask(self, planner: Planner) -> Plan:
        """The plan that a planner makes.

        Raises:
            Infeasible: the planner's.
            PartFailed: it raised an error that is not the library's.
        """
        with failing_as(f"planner {planner.name!r}"):
            return with_effort(planner, self.evaluations).plan(
                self.trace, self.budget_bytes, self.machine, granule=self.granule,
                host_budget_bytes=self.host_budget_bytes, seed=self.seed,
                time_limit_s=self.time_limit_s,
            )  # fmt: skip


def plan_excluding(planner: Planner, question: Question) -> Plan:
    """A plan within the budget, excluding the region of small objects.

    Args:
        question: its granule has `fixed_bytes` if the trace has pinned variables
            (`budget.with_region`).

    Raises:
        Infeasible: the planner's; its minimum includes the region.
        ConfigError: what the planner returned is not a plan, or its refusal names no bytes.
    """
    granule, budget_bytes = question.granule, question.budget_bytes
    fixed, rest = granule.fixed_bytes, replace(granule, fixed_bytes=0)
    try:
        found = replace(question, budget_bytes=budget_bytes - fixed, granule=rest).ask(planner)
    except Infeasible as refusal:
        checked_refusal(refusal, planner)
        if not fixed or refusal.minimum_bytes == HOST_TOO_SMALL:
            raise
        least, witness = refusal.minimum_bytes + fixed, refusal.witness_call
        raise infeasible(planner.name, budget_bytes, least, witness) from refusal.__cause__
    plan = as_plan(found, planner)
    if not fixed:
        return plan
    schedule = replace(plan.schedule, granule=replace(plan.schedule.granule, fixed_bytes=fixed))
    return replace(plan, schedule=schedule, peak_bytes=plan.peak_bytes + fixed)
