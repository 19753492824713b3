"""What a planner answers to one question, asked once: a plan or a refusal, and how long it took.

A question is a step, a budget, a machine and a planner by name; the answer is a `Planned`. Planning
is a pure function, so its answer is kept (`kept.py`) whatever it is used for: comparing the same
plans with another bound, or under a budget typed in other words, plans nothing again. A kept plan
is trusted no more than a planner is: the code that uses it verifies it. Read next: `compare.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ooctrain.errors import Infeasible
from ooctrain.execution.compose import found_by
from ooctrain.execution.planners import get_planner
from ooctrain.experiments.kept import ResultStore, digest, planner_sources
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.units import Granule


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """Everything that decides a plan, apart from the sources.

    Args:
        step: to be planned, rewritten already.
        budget_bytes, machine: as for any planner.
        planner: by name, with parameters, or "file.py:Class".
        granule_bytes: what sizes are rounded to.
        seed: seed of planners that draw random numbers.
        evaluations: evaluations of searching planners; None: as many as they make by themselves.
        time_limit_s: interrupts them; None: nothing does.
        host_budget_bytes: budget of host copies; None: unlimited.
    """

    step: Trace
    budget_bytes: int
    machine: Machine
    planner: str
    granule_bytes: int = 1
    seed: int = 0
    evaluations: int | None = None
    time_limit_s: float | None = None
    host_budget_bytes: int | None = None

    @property
    def name(self) -> str:
        """Names the question's content, and the sources that answer it."""
        return digest(
            self.step.fingerprint, self.budget_bytes, repr(self.machine), self.planner,
            self.granule_bytes, self.seed, self.evaluations, self.time_limit_s,
            self.host_budget_bytes, planner_sources(self.planner),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """An answer.

    Args:
        plan: None where the planner refuses.
        minimum_bytes: its own least budget, where it refuses and names one.
        plan_s: time to plan.
    """

    plan: Plan | None
    minimum_bytes: int | None
    plan_s: float

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives back an equal answer."""
        return {
            "plan": self.plan and self.plan.to_json(),
            "minimum_bytes": self.minimum_bytes,
            "plan_s": self.plan_s,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any], step: Trace) -> Planned:
        """An answer read back for its step."""
        plan = data["plan"]
        if plan is not None:
            plan = Plan.from_json(plan, apply_rewrites(step, plan["rewrites"]))
        return Planned(plan, data["minimum_bytes"], data["plan_s"])


def planned(question: PlanQuestion, store: ResultStore) -> Planned:
    """The answer to a question, from the store if it is there.

    Raises:
        ConfigError: an unknown planner.
    """
    name = f"plan-{question.name}.json"
    kept = store.read(name)
    if kept is not None:
        return Planned.from_json(kept, question.step)
    answer = _ask(question)
    store.write(name, answer.to_json())
    return answer


def least_bytes(question: PlanQuestion, store: ResultStore) -> int:
    """The planner's least budget for a step, host memory aside: asked for none it has to name it.

    Raises:
        ConfigError: an unknown planner.
    """
    refused = planned(replace(question, budget_bytes=0, host_budget_bytes=None), store)
    return refused.minimum_bytes or 0


def _ask(asked: PlanQuestion) -> Planned:
    question = Question(
        asked.step, asked.budget_bytes, asked.machine, Granule(asked.granule_bytes),
        asked.host_budget_bytes, asked.seed, Effort.within(asked.time_limit_s, asked.evaluations),
    )  # fmt: skip
    plan = minimum_bytes = None
    started = time.perf_counter()
    try:
        plan = found_by(get_planner(asked.planner), question)
    except Infeasible as refusal:
        minimum_bytes = refusal.minimum_bytes
    return Planned(plan, minimum_bytes, time.perf_counter() - started)
