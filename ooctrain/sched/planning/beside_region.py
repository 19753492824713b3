"""Plans for a device with a region of small objects, by planners that know nothing of it.

A granule's `fixed_bytes` are always taken by the region, so the region is a constant in every
ledger. The planner is asked for a plan within the budget less that constant, and the constant is
then added to the ledger and the peak of its plan. Read next: `rewrite/pin_small.py` for what the
region holds; `planner.py` for the interface of a planner.
"""

from __future__ import annotations

from dataclasses import replace

from ooctrain.errors import Infeasible
from ooctrain.sched.planning.planner import HOST_LACKS, Planner, as_plan, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan


def plan_beside(planner: Planner, question: Question) -> Plan:
    """The plan of a planner, within what the region leaves of the budget.

    Args:
        question: its granule has `fixed_bytes` if the trace has pinned variables
            (`budget.with_region`).

    Raises:
        Infeasible: the planner's; its minimum includes the region.
        ConfigError: what the planner returned is not a plan.
    """
    granule, budget_bytes = question.granule, question.budget_bytes
    fixed, rest = granule.fixed_bytes, replace(granule, fixed_bytes=0)
    try:
        found = replace(question, budget_bytes=budget_bytes - fixed, granule=rest).put_to(planner)
    except Infeasible as refusal:
        if not fixed or refusal.minimum_bytes == HOST_LACKS:
            raise
        least, witness = refusal.minimum_bytes + fixed, refusal.witness_call
        raise infeasible(planner.name, budget_bytes, least, witness) from None
    plan = as_plan(found, planner)
    if not fixed:
        return plan
    schedule = replace(plan.schedule, granule=replace(plan.schedule.granule, fixed_bytes=fixed))
    return replace(plan, schedule=schedule, peak_bytes=plan.peak_bytes + fixed)
