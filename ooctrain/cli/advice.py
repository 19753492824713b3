"""Whether a step fits a budget, how much is missing, and the cheapest change that makes it fit.

A planner that finds no plan names the least budget with which it would. So four changes can be
tried and timed: another planner, a larger budget, a smaller batch, more host memory. Each is proved
by a plan that fits; its time is about that of the plan which a longer search finds. What a step
needs grows almost linearly with the batch, so the batch that fits lies near the line through the
needs of two batches, and each refusal gives a better line. Below the least of whole calls only
tilings can fit, and the first one that does is enough. Read next: `sched/planners/auto.py`,
`plan_command.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ooctrain.errors import Infeasible, PartFailed
from ooctrain.execution.planners import get_planner
from ooctrain.rewrite.narrow import narrower
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planners.keep_all import KeepAll, write_in_core
from ooctrain.sched.planning.effort import Effort
from ooctrain.sched.planning.planner import Planner, plan_excluding
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.step.trace import Trace
from ooctrain.units import MAX_BYTES, Granule, format_bytes, format_us

Retrace = Callable[[int], Trace]
#: Batches that are planned until one fits.
BATCH_TRIES = 3
#: Of planners that search: several changes are tried.
EVALUATIONS = 3000
#: What `auto` asks where whole calls do not fit, cut short: the first tiling that has a plan.
FIRST_TILING = "banded:planner=belady,untiled=false,choices=1"


@dataclass(frozen=True, slots=True)
class FitQuestion:
    """What is to fit.

    Args:
        retrace: gives the rewritten trace of a step at a batch size.
        batch: images in the step asked about.
        budget_bytes, host_budget_bytes: budgets of device and host (None: not limited).
        machine, granule: the device, and the granule of its allocator.
        seed: seed of the planner.
    """

    retrace: Retrace
    batch: int
    budget_bytes: int
    machine: Machine
    granule: Granule
    host_budget_bytes: int | None = None
    seed: int = 0

    def ask_cheaply(self, planner: Planner, trace: Trace, budget_bytes: int) -> Plan:
        """A plan of a budget that the planner manages too, but not all that `auto` compares where
        whole calls do not fit: the first form of the step, or the first tiling, that fits. Raises
        Infeasible.
        """
        if planner.name != "auto" or budget_bytes >= trace_minimum_bytes(trace, self.granule):
            return self.ask(planner, trace, budget_bytes)
        for form in narrower(trace, budget_bytes).values():
            with suppress(Infeasible):
                return self.ask(get_planner("window"), form, budget_bytes)
        return self.ask(get_planner(FIRST_TILING), trace, budget_bytes)

    def ask(self, planner: Planner, trace: Trace, budget_bytes: int) -> Plan:
        """The planner's plan of a trace. Raises Infeasible."""
        question = Question(
            trace, budget_bytes, self.machine, self.granule, self.host_budget_bytes, self.seed,
            Effort(EVALUATIONS),
        )  # fmt: skip
        return plan_excluding(planner, question)


@dataclass(frozen=True, slots=True)
class Change:
    """A change with which the step fits.

    Args:
        kind: "planner", "budget", "batch" or "host".
        option: what to type instead, such as "--batch 96".
        us_per_image: predicted time of a step, divided by its images; another plan may be faster.
    """

    kind: str
    option: str
    us_per_image: float


@dataclass(frozen=True, slots=True)
class Need:
    """What a step needs by itself, whatever the planner.

    Args:
        in_core_bytes: without any eviction, reached at `peak_call`.
        minimum_bytes: the least that any order of whole calls needs (0% of a budget).
        compute_us: all calls, one after the other.
        in_core_us: the step without any eviction: the calls, their issue, the copy of the batch.
    """

    in_core_bytes: int
    peak_call: str
    minimum_bytes: int
    compute_us: float
    in_core_us: float


def need_of(trace: Trace, machine: Machine, granule: Granule) -> Need:
    """See `Need`. Cost: O(uses)."""
    question = Question(trace, MAX_BYTES, machine, granule)
    in_core = plan_excluding(KeepAll(), question)
    peak_call = write_in_core(trace, granule, early_inputs=False).peak_call
    minimum_bytes = trace_minimum_bytes(trace, granule)
    compute_us = sum(call_durations_ns(trace, machine)) / 1000
    return Need(in_core.peak_bytes, peak_call, minimum_bytes, compute_us, in_core.makespan_us)


def changes_that_fit(
    question: FitQuestion, refusal: Infeasible, planner: Planner, others: Mapping[str, Planner]
) -> list[Change]:
    """Changes with which the step fits, the fastest per image first.

    Args:
        question: what did not fit.
        refusal: what the planner said.
        planner: found it.
        others: {name: planner} to ask instead.
    """
    trace = question.retrace(question.batch)
    found = [_by_planner(question, trace, name, other) for name, other in others.items()]
    least = refusal.minimum_bytes
    if least is not None and least > question.budget_bytes:
        found.append(_by_budget(question, trace, planner, least))
        found.append(_by_batch(question, planner, least))
    if question.host_budget_bytes is not None:
        found.append(_by_host_budget(question, trace, planner))
    return sorted((c for c in found if c is not None), key=lambda change: change.us_per_image)


def describe_change(change: Change) -> str:
    """A change in words."""
    return f"{change.option}  (about {format_us(change.us_per_image)} an image)"


def _by_planner(question: FitQuestion, trace: Trace, name: str, other: Planner) -> Change | None:
    try:
        plan = question.ask(other, trace, question.budget_bytes)
    except (Infeasible, PartFailed):
        return None
    return Change("planner", f"--planner {name}", plan.makespan_us / question.batch)


def _by_budget(
    question: FitQuestion, trace: Trace, planner: Planner, minimum_bytes: int
) -> Change | None:
    try:
        plan = question.ask_cheaply(planner, trace, minimum_bytes)
    except Infeasible:
        return None
    option = f"--budget {minimum_bytes} ({format_bytes(minimum_bytes)})"
    return Change("budget", option, plan.makespan_us / question.batch)


def _by_host_budget(question: FitQuestion, trace: Trace, planner: Planner) -> Change | None:
    """What the planner takes of the host without a limit."""
    try:
        plan = replace(question, host_budget_bytes=None).ask(planner, trace, question.budget_bytes)
    except Infeasible:
        return None
    needed = plan.host_peak_bytes
    option = f"--host-budget {needed} ({format_bytes(needed)})"
    return Change("host", option, plan.makespan_us / question.batch)


def _by_batch(question: FitQuestion, planner: Planner, minimum_bytes: int) -> Change | None:
    """A batch that fits: on the line through the needs of one image and of the least batch that was
    refused, and after a refusal below the line, as needs may grow on a curve.
    """
    of_one = _minimum(question, planner, question.retrace(1)) if question.batch > 1 else None
    if of_one is None or of_one > question.budget_bytes:
        return None
    refused, needs = question.batch, minimum_bytes
    for attempt in range(BATCH_TRIES):
        slope = (needs - of_one) / (refused - 1) or 1.0
        more = (1 - attempt / BATCH_TRIES) * (question.budget_bytes - of_one) / slope
        batch = min(refused - 1, 1 + int(more))
        try:
            plan = question.ask_cheaply(planner, question.retrace(batch), question.budget_bytes)
            return Change("batch", f"--batch {batch}", plan.makespan_us / batch)
        except Infeasible as refusal:
            least = refusal.minimum_bytes
            if batch == 1 or least is None or least <= question.budget_bytes:
                return None
            refused, needs = batch, least
    return None


def _minimum(question: FitQuestion, planner: Planner, trace: Trace) -> int | None:
    """The least budget that the planner names for a trace; None if it names none."""
    try:
        return question.ask(planner, trace, 1).peak_bytes
    except Infeasible as refusal:
        return refusal.minimum_bytes
