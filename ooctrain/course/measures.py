"""The part of a grade that is a matter of degree: how long a planned step takes, beside par.

In: a measure of a rubric, a submission. Out: its makespan and par's, both simulated here, or why
there is none. The one idea: the planner answers in a process of its own, and its answer is a list;
the verifier proves that list and the simulator times it here, so it does not matter what the
planner claims. Par is what a planner of the library needs for the same step, or the bound. Read
next: `answer.py`, the other process; `../sched/verify.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from ooctrain.api import step_trace
from ooctrain.course.beside_par import BesidePar
from ooctrain.course.child import ask
from ooctrain.course.rubric import BOUND, Measure
from ooctrain.errors import OoctrainError
from ooctrain.rewrite import REWRITES, apply_rewrites
from ooctrain.sched.bounds.lp import fluid_bound
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate
from ooctrain.sched.verify import verify
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
        par: another planner, or "bound", in the place of the rubric's own.
    """
    step, budget_bytes, where = step_of(measure), budget_bytes_of(measure), machine(measure.machine)
    name = par or measure.par
    if name == BOUND:
        found = fluid_bound(step, budget_bytes, where, recompute=False)
        if found is None:
            raise OoctrainError(f"nothing fits {measure.budget} of {measure.model}", code="OOC-119")
        return found.makespan_us
    return (
        get_planner(name).plan(step, budget_bytes, where, granule=granule_of(measure)).makespan_us
    )


def measured(measure: Measure, submission: str, limit_s: float) -> BesidePar:
    """Asks a submission for a plan, proves it, and times it: makespans in microseconds."""
    par = par_us(measure)
    asked = {"measure": asdict(measure), "budget_bytes": budget_bytes_of(measure)}
    answer = ask(submission, limit_s, asked)
    if "error" in answer:
        return BesidePar(None, par, answer["error"])
    if "minimum_bytes" in answer:
        budget, least = budget_bytes_of(measure), answer["minimum_bytes"]
        return BesidePar(
            None, par, f"it wants {_size(least)}, and there are {format_bytes(budget)}"
        )
    try:
        return BesidePar(_judged_us(measure, answer["plan"]), par)
    except Exception as error:  # data of a stranger: whatever fails, it is the data's fault
        return BesidePar(None, par, f"its list is refused: {error}".splitlines()[0])


def _judged_us(measure: Measure, data: Mapping[str, Any]) -> float:
    """The makespan of a plan that is given as data, once it is proved."""
    step, where = step_of(measure), machine(measure.machine)
    plan = Plan.from_json(data, apply_rewrites(step, data["rewrites"]))
    if plan.schedule.granule != granule_of(measure):
        raise ValueError(f"it is made for {plan.schedule.granule}")
    verify(plan, step, budget_bytes_of(measure), where, rewrites=REWRITES)
    return simulate(plan.schedule, plan.trace, where).makespan_us


def _size(size_bytes: Any) -> str:
    """A size as a stranger states it; what is none is quoted, its first 40 characters."""
    known = isinstance(size_bytes, int) and abs(size_bytes) < MAX_BYTES
    return format_bytes(size_bytes) if known else f"{size_bytes!r:.40}"
