"""The process that a student's code is asked in: `python -m ooctrain.course.answer`.

In: a file with a submission and a question: a step to be planned, or blocks to be placed. Out: a
file with the answer as data, or one sentence about what went wrong. The one idea: nothing but
numbers leaves this process, and whoever reads them trusts none. Read next: `measures.py`,
`replays.py`, which ask.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooctrain.alloc import AllocationLog
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.course.measures import granule_of, step_of
from ooctrain.course.replays import ROOM, addresses_given
from ooctrain.course.rubric import Measure
from ooctrain.errors import Infeasible, OutOfDeviceMemory
from ooctrain.plugins import fault_of_own_code
from ooctrain.sched.planners.registry import as_planner
from ooctrain.sched.schedule import Plan
from ooctrain.step.presets import machine
from ooctrain.units import format_bytes

SAMPLE_BYTES = 1 << 20


def answer(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a submission says: to a step, to a log, or just whether it can be made."""
    submission = asked["submission"]
    if "measure" in asked:
        return planned(submission, Measure(**asked["measure"]), asked["budget_bytes"])
    if "log" in asked:
        return placed(submission, AllocationLog.load(asked["log"]), asked["arena_bytes"])
    if asked["kind"] == "planner":
        return {"name": as_planner(submission).name}
    return {"name": choose_allocator(submission, SAMPLE_BYTES, binding=False).name}


def planned(submission: str, measure: Measure, budget_bytes: int) -> Mapping[str, Any]:
    """A plan of a step, or the least that it takes."""
    planner = as_planner(submission)
    try:
        plan = planner.plan(
            step_of(measure), budget_bytes, machine(measure.machine), granule=granule_of(measure)
        )
    except Infeasible as refusal:
        return {"minimum_bytes": refusal.minimum_bytes}
    if not isinstance(plan, Plan):
        return {"error": f"plan() returned {type(plan).__name__}, not a Plan"}
    return {"plan": plan.to_json()}


def placed(submission: str, log: AllocationLog, arena_bytes: int) -> Mapping[str, Any]:
    """The addresses of a log's blocks, in their order."""
    choice = choose_allocator(submission, arena_bytes, binding=False)
    try:
        return {"addresses": addresses_given(log, choice.make(DryMemory(arena_bytes)))}
    except OutOfDeviceMemory as refusal:
        arena = format_bytes(arena_bytes)
        return {"error": f"it has no room in {arena}, {ROOM} x what lives: {refusal.what}"}


def main(asked_path: str, answer_path: str) -> None:
    """Reads a question, writes the answer."""
    Path(answer_path).write_text(" ", encoding="utf-8")  # started: from now on the time counts
    asked = json.loads(Path(asked_path).read_text(encoding="utf-8"))
    try:
        text = json.dumps(answer(asked))
    except Exception as error:
        fault = fault_of_own_code(error, [asked["submission"]])
        where = f" ({fault.where})" if fault else ""
        told = fault.what if fault else str(error) or type(error).__name__
        text = json.dumps({"error": f"{told.splitlines()[0]}{where}"})
    Path(answer_path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
