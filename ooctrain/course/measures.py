"""The part of a grade that is a matter of degree: how long a planned step takes, next to par.

The planner answers in a process of its own, and its answer is a list. The verifier proves that list
and the simulator times it here, so what the planner claims does not matter; a list that is refused
gets a reason and no time. Par is the simulated makespan of a planner of the library for the same
step, or the bound. Read next: `submitted.py`, which asks; `../sched/verify.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from ooctrain.api import step_trace, verify
from ooctrain.course.par import ParComparison, known_par
from ooctrain.course.rubric import BOUND, Measure
from ooctrain.course.submitted import planner_of, why_not
from ooctrain.errors import ConfigError, Infeasible, OoctrainError, PlanMismatch
from ooctrain.execution.planners import get_planner
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.planning.planner import as_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate
from ooctrain.step.presets import machine
from ooctrain.step.trace import Trace
from ooctrain.units import MAX_BYTES, Granule, format_bytes


def step_of(measure: Measure) -> Trace:
    """The step that is to be planned."""
    return step_trace(measure.model, measure.batch, None)


def granule_of(measure: Measure) -> Granule:
    """Sizes to the byte; whole variables, or parts too."""
    return Granule(1, ranges=measure.ranges)


def budget_bytes_of(measure: Measure) -> int:
    """The budget, resolved on the step."""
    return resolve_budget(step_of(measure), measure.budget, granule_of(measure))


@lru_cache(maxsize=32)
def par_us(measure: Measure, par: str | None = None) -> float:
    """The makespan of par.

    Args:
        par: another planner, or "bound", instead of the rubric's own.
    """
    return known_par(replace(measure, par=par or measure.par), _computed_us)


def _computed_us(measure: Measure) -> float:
    step, budget_bytes, where = step_of(measure), budget_bytes_of(measure), machine(measure.machine)
    if measure.par == BOUND:
        found = fluid_bound(step, budget_bytes, where, recompute=False)
        if found is None:
            raise OoctrainError(
                f"nothing fits {measure.budget} of {measure.model}",
                code="OOC-119",
                fix="a larger budget in the assignment's measure",
            )
        return found.makespan_us
    planner = get_planner(measure.par)
    return planner.plan(Question(step, budget_bytes, where, granule_of(measure))).makespan_us


def measured(measure: Measure, submission: str, limit_s: float) -> ParComparison:
    """Asks a submission for a plan, proves it, and times it: makespans in microseconds."""
    # A trace of its own: what a planner does to its input is done to it.
    par, step, where = par_us(measure), replace(step_of(measure)), machine(measure.machine)
    budget_bytes, granule = budget_bytes_of(measure), granule_of(measure)
    try:
        with planner_of(submission, limit_s) as planner:
            plan = as_plan(planner.plan(Question(step, budget_bytes, where, granule)), planner)
    except Infeasible as refusal:
        of_host = refusal.minimum_bytes is None and refusal.needs == "host"
        least = "more host memory" if of_host else _size(refusal.minimum_bytes)
        why = f"it wants {least}, and there are {format_bytes(budget_bytes)}"
        return ParComparison(None, par, why)
    except (ConfigError, PlanMismatch) as error:
        return ParComparison(None, par, why_not(error, "its list is refused: "))
    except Exception as error:  # untrusted: whatever fails, it is the submission's fault
        return ParComparison(None, par, why_not(error))
    try:
        return ParComparison(_judged_us(measure, plan), par)
    except Exception as error:  # untrusted data: whatever fails, it is the data's fault
        return ParComparison(None, par, why_not(error, "its list is refused: "), unsafe=True)


def _judged_us(measure: Measure, plan: Plan) -> float:
    """The makespan of a plan, once it is proved."""
    step, where = step_of(measure), machine(measure.machine)
    if plan.schedule.granule != granule_of(measure):
        raise ValueError(f"it is made for {plan.schedule.granule}")
    verify(plan, step, budget_bytes_of(measure), where)
    return simulate(plan.schedule, plan.trace, where).makespan_us


def _size(size_bytes: Any) -> str:
    """A size from an untrusted value; another value is quoted, its first 40 characters."""
    known = isinstance(size_bytes, int) and abs(size_bytes) < MAX_BYTES
    return format_bytes(size_bytes) if known else f"{size_bytes!r:.40}"
