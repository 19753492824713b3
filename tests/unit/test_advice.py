"""Advice of `ooctrain plan`: what it proposes fits, and it costs few plans."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from ooctrain.cli import main
from ooctrain.cli.advice import BATCH_TRIES, Change, FitQuestion, changes_that_fit
from ooctrain.errors import Infeasible
from ooctrain.models import build
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planning.planner import infeasible
from ooctrain.step.presets import machine
from ooctrain.step.trace import Trace
from ooctrain.tracing import trace
from ooctrain.units import BYTES

MOST_PLANS = 2 + BATCH_TRIES


class Crooked(KeepAll):
    """In-core; what it needs is no line over the batch, but steps on a curve."""

    name = "crooked"

    def __init__(self, power: float, step_bytes: int) -> None:
        self.power, self.step_bytes, self.asked = power, step_bytes, 0

    def plan(self, question):
        trace, budget_bytes = question.trace, question.budget_bytes
        self.asked += 1
        plan = super().plan(replace(question, budget_bytes=1 << 40))
        needs = plan.peak_bytes * images(trace) ** self.power
        needs = math.ceil(needs / self.step_bytes) * self.step_bytes
        if needs > budget_bytes:
            raise infeasible(self.name, budget_bytes, needs, "")
        return replace(plan, peak_bytes=needs)


def images(step: Trace) -> int:
    return step.variable_by_name["input"].shape[0]


@cache
def of_batch(batch: int) -> Trace:
    return trace(build("lenet"), (batch, 3, 32, 32), threads=1)


def refusal_of(question: FitQuestion, planner: Crooked) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        question.ask(planner, question.retrace(question.batch), question.budget_bytes)
    return caught.value


def option(change: Change) -> int:
    return int(change.option.split()[1])


@pytest.mark.parametrize(("power", "step_bytes"), [(-0.3, 1 << 20), (0.0, 1), (0.5, 1)])
def test_what_is_proposed_fits_and_costs_few_plans(power, step_bytes):
    planner = Crooked(power, step_bytes)
    one = FitQuestion(of_batch, 64, 1, machine("cpu-generic"), BYTES)
    least, most = (
        refusal_of(replace(one, batch=batch), planner).minimum_bytes for batch in (1, 64)
    )
    for share in (0.1, 0.4, 0.9):
        budget_bytes = int(least + share * (most - least))
        question = replace(one, budget_bytes=budget_bytes)
        refusal = refusal_of(question, planner)
        planner.asked = 0
        found = {c.kind: c for c in changes_that_fit(question, refusal, planner, {})}
        assert planner.asked <= MOST_PLANS
        assert set(found) == {"budget", "batch"}
        question.ask(planner, of_batch(64), option(found["budget"]))
        assert question.ask(planner, of_batch(option(found["batch"])), budget_bytes)


@pytest.mark.slow
def test_what_auto_is_said_to_fit_below_the_least_of_whole_calls_fits(capsys):
    """Tilings alone fit 1 MiB; asking for all of their plans took most of the command's time."""
    arguments = ["plan", "lenet", "--machine", "cpu-generic"]
    assert main([*arguments, "--batch", "256", "--budget", "1MiB"]) == 3
    lines = [line for line in capsys.readouterr().out.splitlines() if "an image)" in line]
    options = {line.split("--")[1].split()[0]: line.split("--")[1].split()[1] for line in lines}
    assert set(options) == {"budget", "batch"}
    assert main([*arguments, "--batch", "256", "--budget", options["budget"]]) == 0
    assert main([*arguments, "--batch", options["batch"], "--budget", "1MiB"]) == 0
