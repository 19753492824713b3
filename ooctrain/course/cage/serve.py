"""What a submission's process does once it is confined: it answers, question by question.

Questions and answers are data, and each question stands alone: a planner gets a trace that is made
for that question, and each answer names its question. What a kind needs is imported where it is
needed: a law gets a new process for each arena, and has no use for plans and NumPy. Read next:
`serve_allocator.py` for allocators; `../remote.py`, the other side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ooctrain.course.cage.wire import Line, error_data
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.plugins import resolve

Answer = Callable[[Mapping[str, Any]], Any]


def serve(line: Line, kind: str, submission: str) -> None:
    """Answers until the pipe is closed.

    Args:
        kind: "planner", "allocator", "bands" or "law".
        submission: "file.py:Class", with parameters or without.
    """
    answer: Answer | None = None
    while True:
        try:
            question = line.receive()
        except EOFError:
            return
        try:
            if answer is None:
                answer = _asked(line, kind, submission)
            reply = {"answer": answer(question)}
        except Exception as error:
            reply = {"error": error_data(error, submission)}
        line.send({**_sayable(reply, submission), "id": question["id"]})


def _asked(line: Line, kind: str, submission: str) -> Answer:
    if kind == "planner":
        return _planner(submission)
    if kind == "law":
        from ooctrain.course.cage.serve_law import serve_law  # see the head of this file

        return serve_law(line, submission)
    if kind == "bands":
        return _bands(submission)
    from ooctrain.course.cage.serve_allocator import Shelf  # see the head of this file

    return Shelf(line, submission)


def _sayable(reply: dict[str, Any], submission: str) -> dict[str, Any]:
    try:
        json.dumps(reply, allow_nan=False)
    except Exception as error:  # an answer of a submission, with whatever it has put there
        return {"error": error_data(error, submission)}
    return reply


def _planner(submission: str) -> Answer:
    # See the head of this file.
    from ooctrain.sched.planning.planner import expect_planner

    planner = resolve(submission, {}, group="ooctrain.nobody", what="planner")
    expect_planner(planner)
    kept: list[Any] = []  # the trace of the last question, for the next one about the same

    def answer(question: Mapping[str, Any]) -> Any:
        if question["ask"] == "name":
            return {"name": str(planner.name)}
        if question["trace"] is not None:
            kept[:] = [question["trace"]]
        return _planned(planner, question, kept[0])

    return answer


def _bands(submission: str) -> Answer:
    bands = resolve(submission, {}, group="ooctrain.nobody", what="bands")
    if not callable(getattr(bands, "rows", None)) or not hasattr(bands, "name"):
        raise ConfigError(
            f"{type(bands).__name__} does not define bands: it lacks `name` or `rows`",
            code="OOC-108",
            fix="the assignment's handout says what a class of bands has",
        )  # fmt: skip

    def answer(question: Mapping[str, Any]) -> Any:
        if question["ask"] == "name":
            return {"name": str(bands.name)}
        layers = [tuple(layer) for layer in question["layers"]]
        return {"rows": bands.rows(layers, list(question["cuts"]))}

    return answer


def _planned(planner: Any, question: Mapping[str, Any], step: Mapping[str, Any]) -> Any:
    # See the head of this file.
    from ooctrain.course.cage.step_data import machine_of, trace_data, trace_of
    from ooctrain.sched.planning.question import Question
    from ooctrain.sched.schedule import Granule, Plan
    from ooctrain.testing.planner_cases import has_other_views

    trace, machine = trace_of(step), machine_of(question["machine"])
    before, fingerprint = repr(machine), trace.fingerprint
    asked = Question(
        trace, question["budget_bytes"], machine, Granule(*question["granule"]),
        question["host_budget_bytes"], question["seed"],
    )  # fmt: skip
    try:
        plan = planner.plan(asked)
    except Infeasible as refusal:
        reply: dict[str, Any] = {"refusal": error_data(refusal, "")}
    else:
        if not isinstance(plan, Plan):
            raise ConfigError(
                f"plan() returned {type(plan).__name__}, not a Plan",
                code="OOC-108",
                fix="plan() returns a Plan, such as `make_plan(...)` gives",
            )
        reply = {"plan": plan.to_json()}
        if plan.trace is trace:  # whatever has become of it
            reply["plan"]["trace_fingerprint"] = fingerprint
    changed = json.loads(json.dumps(trace_data(trace))) != step or has_other_views(trace)
    return {**reply, "changed": changed or repr(machine) != before}
