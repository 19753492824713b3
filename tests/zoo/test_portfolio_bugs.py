"""Planted bugs of portfolios and deadlines: a test of `unit/test_portfolio.py` kills each."""

from __future__ import annotations

import inspect

import pytest
from unit import test_portfolio, test_question
from zoo.planting import plant

from ooctrain.errors import OoctrainError
from ooctrain.sched.planners.portfolio import Portfolio
from ooctrain.sched.planning.effort import Deadline

#: {name: (owner, function, piece, wrong)}
BUGS = {
    "plans are compared by what they claim": (
        Portfolio, "run", "self.question.cost(plan)", "plan.makespan_us"),
    "of equals the last stays": (
        Portfolio, "run", "turn.gain * cost_us < self", "turn.gain * cost_us <= self"),
    "nothing has to gain": (Portfolio, "run", "turn.gain * cost_us", "cost_us"),
    "a refusal in whole chunks counts": (
        Portfolio, "run", "if turn.question is None:", "if True:"),
    "no refusal counts": (Portfolio, "run", "if turn.question is None:", "if False:"),
    "a failure is forgotten": (Portfolio, "run", "self.failures.append(failure)", "pass"),
    "a planner has the portfolio's time": (
        Portfolio, "run", "asked.effort.deadline.or_earlier(self.deadline)", "self.deadline"),
    "a planner has its own time": (
        Portfolio, "run", "asked.effort.deadline.or_earlier(self.deadline)",
        "asked.effort.deadline"),
    "of another form there are further ones": (Portfolio, "run", ", forms={})", ")"),
    "no plan says which form it is of": (Portfolio, "run", "if turn.form:", "if False:"),
    "time ends it though there is no plan": (
        Portfolio, "is_over", "self.best is not None and ", ""),
    "no plan says that time was over": (
        Portfolio, "is_over", "self.cut_short |= over", "pass"),
    "the ledger is that of whole chunks": (
        Portfolio, "_counted", "if plan.schedule.granule == granule:", "if True:"),
    "failures are no cause": (
        Portfolio, "outcome", "self.question.budget_bytes, self.failures)",
        "self.question.budget_bytes)"),
    "the later of two deadlines": (
        Deadline, "or_earlier", "Deadline(min(ends, default=None))",
        "Deadline(max(ends, default=None))"),
    "the share that is kept is lost": (
        Deadline, "keeping", "self.earlier(share *", "self.earlier((1 - share) *"),
}  # fmt: skip


def law():
    """All plain tests that take no arguments, and those of two deadlines."""
    for name, test in vars(test_portfolio).items():
        if name.startswith("test_") and not inspect.signature(test).parameters:
            test()
    for earlier in ("its own", "the portfolio's"):
        test_portfolio.test_a_planner_gets_the_earlier_of_two_deadlines(earlier)
    test_portfolio.test_a_turn_may_have_to_gain_more_than_nothing(9.6, 10)
    test_question.test_an_effort_is_shared_by_number_and_by_time()


@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    law()
    plant(monkeypatch, *BUGS[bug])
    with pytest.raises((AssertionError, OoctrainError, ValueError, pytest.fail.Exception)):
        law()
