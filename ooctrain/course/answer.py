"""The process that a student's planner is asked in: `python -m ooctrain.course.answer`.

In: a file with a submission and, if a plan is wanted, a question. Out: a file with a plan as data,
the least budget that a refusal names, or one sentence about what went wrong. The one idea: nothing
but numbers leaves this process, and whoever reads them trusts none. Read next: `measures.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooctrain.cli.own_code import fault_of_own_code
from ooctrain.course.measures import granule_of, step_of
from ooctrain.course.rubric import Measure
from ooctrain.errors import Infeasible
from ooctrain.machines import machine
from ooctrain.sched.registry import as_planner
from ooctrain.sched.schedule import Plan


def answer(submission: str, measure: Measure | None, budget_bytes: int) -> Mapping[str, Any]:
    """What a submission says.

    Args:
        measure: the step to be planned; None: whether it can be made at all.
    """
    planner = as_planner(submission)
    if measure is None:
        return {"name": planner.name}
    try:
        plan = planner.plan(
            step_of(measure), budget_bytes, machine(measure.machine), granule=granule_of(measure)
        )
    except Infeasible as refusal:
        return {"minimum_bytes": refusal.minimum_bytes}
    if not isinstance(plan, Plan):
        return {"error": f"plan() returned {type(plan).__name__}, not a Plan"}
    return {"plan": plan.to_json()}


def main(asked_path: str, answer_path: str) -> None:
    """Reads a question, writes the answer."""
    Path(answer_path).write_text(" ", encoding="utf-8")  # started: from now on the time counts
    asked = json.loads(Path(asked_path).read_text(encoding="utf-8"))
    measure = asked["measure"] and Measure(**asked["measure"])
    try:
        found = answer(asked["submission"], measure, asked["budget_bytes"])
        text = json.dumps(found)
    except Exception as error:
        fault = fault_of_own_code(error, [asked["submission"]])
        where = f" ({fault.where})" if fault else ""
        told = fault.what if fault else str(error) or type(error).__name__
        text = json.dumps({"error": f"{told.splitlines()[0]}{where}"})
    Path(answer_path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
