"""A planner that runs in another process, for the laws and tests of planners.

A submission's process gets a trace, a budget and a machine, and answers with a plan as data. Here
it is an ordinary `Planner`, so the same laws and tests run over it in a process that has never seen
the submission's code. What it says of its plan is only a claim: the side that asks verifies it.
Read next: `interview.py`; `cage/serve.py`, which answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ooctrain.course.cage.step_data import machine_data, trace_data
from ooctrain.course.cage.told import error_of, printable
from ooctrain.course.interview import Interview
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.units import MAX_BYTES

MOST_LETTERS = 80


class RemotePlanner:
    """A submission as a planner.

    Args:
        interview: with its process.

    Raises:
        NoAnswer: it cannot be loaded.
    """

    def __init__(self, interview: Interview):
        self._interview = interview
        self._sent: tuple[Trace | None, int] = (None, 0)
        self.name = name_told(interview)

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        **rest: Any,
    ) -> Plan:  # fmt: skip
        """The submission's plan. Raises what it raises."""
        given = {"granule": [granule.size_bytes, granule.ranges, granule.fixed_bytes], **rest}
        # Of a step that was asked about just now the process knows the rows.
        known = self._sent == (trace, self._interview.processes) and self._sent[0] is trace
        question = {
            "ask": "plan", "trace": None if known else trace_data(trace),
            "machine": machine_data(machine), "budget_bytes": budget_bytes,
            "given": [*given], **given,
        }  # fmt: skip
        self._sent = (None, 0)
        told = self._interview.ask(question)
        self._sent = (trace, self._interview.processes)
        if not isinstance(told, Mapping):
            raise _no_plan()
        if told.get("changed"):
            # It did so to a copy. Harm of that kind is done here, for the law that looks for it.
            vars(trace)["variable_by_name"] = {}
        if "refusal" in told:
            refusal, _ = error_of(told["refusal"])
            if not isinstance(refusal, Infeasible) or refusal.minimum_bytes < 0:
                raise ConfigError(
                    "its refusal names no minimum_bytes", code="OOC-104",
                    fix="Infeasible(..., minimum_bytes=) of a budget that is enough",
                )  # fmt: skip
            raise refusal
        return plan_told(told.get("plan"), trace)


def plan_told(data: Any, trace: Trace) -> Plan:
    """A plan of a stranger, who rewrites no traces. Raises ConfigError or PlanMismatch where the
    data is no plan.
    """
    if not isinstance(data, Mapping):
        raise _no_plan()
    rewrites, notes = data.get("rewrites"), data.get("notes")
    sizes = [data.get("peak_bytes"), data.get("host_peak_bytes")]
    makespan: Any = data.get("makespan_us")
    fits = (
        rewrites == [] and isinstance(notes, dict)
        and all(type(size) is int and 0 <= size < MAX_BYTES for size in sizes)
        and type(makespan) in (int, float) and -MAX_BYTES < makespan < MAX_BYTES
        and isinstance(data.get("schedule"), dict)
    )  # fmt: skip
    if not fits or not math.isfinite(makespan or 0):
        raise ConfigError(
            "broken plan file: a claim is not a number", code="OOC-104",
            fix="peaks and times that are numbers of 0 or more, and no rewrites",
        )  # fmt: skip
    return Plan.from_json({**data, "lower_bound": None}, trace)


def _no_plan() -> ConfigError:
    return ConfigError(
        "what it answers is not a plan", code="OOC-104",
        fix="plan() returns a Plan, such as `make_plan(...)` gives",
    )  # fmt: skip


def name_told(interview: Interview) -> str:
    """The name that a submission gives itself."""
    told = interview.ask({"ask": "name"})
    name = told.get("name") if isinstance(told, Mapping) else None
    return printable(name)[:MOST_LETTERS] if isinstance(name, str) else "nameless"
