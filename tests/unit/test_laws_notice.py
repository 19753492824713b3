"""Laws notice each lie that they are there for, and say what they saw; what is true they let pass.

A liar answers as a right one does, but for one thing. Each law meets a liar of its own for each of
its sentences: so none of them can be left out, and none may be a byte or a microsecond too mild.
The planted bugs of `../zoo/` are mistakes of planners and splits; these are lies about one number.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from support.known_numbers import numbers_in

from ooctrain.errors import Infeasible
from ooctrain.execution.planners import get_planner
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES, Free, Plan, SwapIn
from ooctrain.step.machine import Machine
from ooctrain.testing.byte_list import LawBroken
from ooctrain.testing.check_planner import PlannerFailure, check_planner, random_case
from ooctrain.testing.planner_cases import Breach, Case, budgets_to_try, least_bytes
from ooctrain.testing.planner_laws import LAWS, STEPS
from ooctrain.testing.random_traces import random_trace
from ooctrain.testing.run_list import HashOp

MACHINE = Machine("liars", 10, 50, 7, link_in_bytes_per_us=3, latency_us=0.5)
CASE = Case(
    random_trace(random.Random(3), calls=9, max_bytes=40, duration_ns=9000), MACHINE, BYTES, 5
)
RIGHT = get_planner("belady")
LEAST = least_bytes(RIGHT, CASE)
BUDGETS = budgets_to_try(RIGHT, CASE)
USED = RIGHT.plan(Question(CASE.trace, LEAST, MACHINE, BYTES)).host_peak_bytes


class Lying:
    """Answers as belady does, but for what `lie` says.

    Args:
        lie: (question, how many were asked before, what gives the right answer) -> answer.
    """

    name = "lying"

    def __init__(self, lie):
        self.lie, self.count = lie, -1

    def plan(self, question):
        self.count += 1
        return self.lie(question, self.count, lambda asked=question: RIGHT.plan(asked))


def refusal(minimum, witness=""):
    return Infeasible("no", minimum_bytes=minimum, witness_call=witness)


class Padded(Plan):
    """Its file has more in it than is read."""

    def to_json(self):
        found = Plan(*(getattr(self, name) for name in self.__dataclass_fields__)).to_json()
        return {**found, "more": 1}


def padded(plan, question, count):
    return Padded(*(getattr(plan, name) for name in plan.__dataclass_fields__))


def of_plan(change):
    """A lie about plans."""
    return lambda question, count, right: change(right(), question, count)


def of_refusal(change):
    """A lie about refusals."""

    def lie(question, count, right):
        try:
            return right()
        except Infeasible as error:
            raise change(error, question, count) from None

    return lie


def refuses(when):
    """Refuses, now and then."""

    def lie(question, count, right):
        if when(question, count):
            raise refusal(1)
        return right()

    return lie


def without(kind):
    """The first instruction of a kind is left out."""

    def change(plan, question, count):
        listed = list(plan.schedule.instructions)
        place = next((n for n, one in enumerate(listed) if isinstance(one, kind)), None)
        if place is not None:
            del listed[place]
        return replace(plan, schedule=replace(plan.schedule, instructions=tuple(listed)))

    return of_plan(change)


def slower(by_us, when=lambda question, count: True):
    return of_plan(
        lambda plan, question, count: replace(
            plan, makespan_us=plan.makespan_us + by_us * when(question, count)
        )
    )


def renamed(question):
    return question.trace.calls[0].name.startswith("renamed/")


def of_scaled(bytes_times, more):
    """The least budget of a step of larger variables is larger."""

    def change(error, question, count):
        size = sum(v.nbytes for v in question.trace.variables)
        larger = size > sum(v.nbytes for v in CASE.trace.variables)
        return refusal(int(error.minimum_bytes * (1 + more * (larger == bytes_times))))

    def lie(question, count, right):
        """All calls in a row, so that time does not depend on bytes."""
        took_us = sum(call.duration_ns for call in question.trace.calls) / 1000
        return replace(of_refusal(change)(question, count, right), makespan_us=took_us)

    return lie


def scaled_us(more, of_times):
    """A step whose calls take longer, or not, takes `more` of itself longer."""

    def change(plan, question, count):
        ns = sum(c.duration_ns for c in question.trace.calls)
        longer = ns > sum(c.duration_ns for c in CASE.trace.calls)
        return replace(plan, makespan_us=plan.makespan_us * (1 + more * (longer == of_times)))

    return of_plan(change)


def below_the_bound(by_us):
    def change(plan, question, count):
        bound = lower_bound(plan.trace, question.budget_bytes, question.machine).makespan_us
        return replace(plan, makespan_us=bound - by_us)

    return of_plan(change)


def with_a_host(change):
    """A lie where the host is limited."""

    def lie(question, count, right):
        if question.host_budget_bytes is None:
            return right()
        return change(question, right)

    return lie


def host_used_anyway(question, right):
    return RIGHT.plan(replace(question, host_budget_bytes=None))


def host_refused(minimum):
    def change(question, right):
        if question.host_budget_bytes >= USED or question.budget_bytes > LEAST:
            return RIGHT.plan(replace(question, budget_bytes=LEAST, host_budget_bytes=None))
        raise refusal(minimum)

    return change


def refused_then(question, right):
    """Less host memory: it names a budget that it then refuses, too."""
    if question.host_budget_bytes >= USED:
        return right()
    raise refusal(LEAST + 1)


def forgets_views(question, count, right):
    """Changes what a trace keeps of itself."""
    question.trace.uses  # noqa: B018 - which it keeps from now on
    vars(question.trace)["uses"] = ()
    return RIGHT.plan(replace(question, trace=replace(question.trace)))


def changes_the_machine(question, count, right):
    question.machine.profile[f"more {count}"] = 1
    return right()


#: {law: {lie: (the liar, numbers that the complaint begins with; None: it is no lie)}}
LIES = {
    "plans are legal": {
        "refuses more than the least": (
            refuses(lambda q, n: q.budget_bytes == LEAST + 1),
            [LEAST + 1],
        ),
        "refuses what is enough in core": (
            refuses(lambda q, n: q.budget_bytes == BUDGETS[-2]),
            [BUDGETS[-2]],
        ),
        "refuses twice what is enough": (
            refuses(lambda q, n: q.budget_bytes == BUDGETS[-1]),
            [BUDGETS[-1]],
        ),
        "refuses a budget between": (
            refuses(lambda q, n: q.budget_bytes == BUDGETS[2]),
            [BUDGETS[2]],
        ),
        "another file": (of_plan(padded), []),
        "no copy in": (without(SwapIn), [LEAST]),
        "no free": (without(Free), [LEAST]),
        "another peak": (of_plan(lambda p, q, n: replace(p, peak_bytes=p.peak_bytes + 1)), [LEAST]),
        "no least": (of_refusal(lambda e, q, n: refusal(None)), []),
    },
    "results are exact": {
        "no copy in": (without(SwapIn), [1]),
        "no free": (without(Free), [1]),
        "refuses the least": (refuses(lambda q, n: q.budget_bytes == LEAST), [LEAST]),
    },
    "infeasible is honest": {
        "another call": (of_refusal(lambda e, q, n: refusal(e.minimum_bytes, "nothing")), []),
        "a call": (
            of_refusal(lambda e, q, n: refusal(e.minimum_bytes, CASE.trace.calls[-1].name)),
            None,
        ),
        "a byte less, asked for half": (
            of_refusal(lambda e, q, n: refusal(e.minimum_bytes - (q.budget_bytes == LEAST // 2))),
            [LEAST, 0, LEAST - 1, LEAST // 2],
        ),
        "a byte more, asked for a byte less": (
            of_refusal(lambda e, q, n: refusal(e.minimum_bytes + (q.budget_bytes == LEAST - 1))),
            [LEAST, 0, LEAST + 1, LEAST - 1],
        ),
        "a byte more than the least": (
            of_refusal(lambda e, q, n: refusal(e.minimum_bytes + 1)),
            [LEAST + 1, LEAST],
        ),
        "refuses what is enough in core": (
            refuses(lambda q, n: q.budget_bytes == BUDGETS[-2]),
            [LEAST, BUDGETS[-2], 1],
        ),
        "names another least the second time": (
            of_refusal(lambda e, q, n: refusal(e.minimum_bytes + (n > 1))),
            [LEAST, 0, LEAST + 1],
        ),
    },
    "planning is pure": {
        "later it takes longer": (slower(1, lambda q, n: n == BUDGETS.index(LEAST) + 3), []),
        "other names, another list": (
            lambda q, n, right: (
                get_planner("naive").plan(replace(q, budget_bytes=10**6)) if renamed(q) else right()
            ),
            [],
        ),
        "other names, another time": (slower(1, lambda q, n: renamed(q)), None),
        "changes the machine": (changes_the_machine, []),
        "forgets views": (forgets_views, []),
        "the list in between": (
            slower(1, lambda q, n: q.budget_bytes == BUDGETS[len(BUDGETS) // 2]),
            None,
        ),
    },
    "scale does not matter": {
        "7 % more bytes": (of_scaled(True, 0.07), [64]),
        "6 % more bytes": (of_scaled(True, 0.06), None),
        "7 % less bytes": (of_scaled(True, -0.07), [64]),
        "7 % more time": (scaled_us(0.07, True), [8]),
        "6 % more time": (scaled_us(0.06, True), None),
        "7 % less time": (scaled_us(-0.07, True), [8]),
        "7 % more time, of what takes no longer": (scaled_us(0.08, False), [8]),
    },
    "the host budget is kept": {
        "it is not": (with_a_host(host_used_anyway), [USED - 1, USED]),
        "refuses what it uses": (
            with_a_host(lambda q, right: refuses(lambda q, n: True)(q, 0, right)),
            [USED],
        ),
        "no least": (with_a_host(host_refused(None)), None),
        "the same least": (with_a_host(host_refused(LEAST)), [LEAST, LEAST]),
        "a least that does not keep to it": (
            with_a_host(host_refused(LEAST + 1)),
            [USED - 1, USED],
        ),
        "a least that is refused": (with_a_host(refused_then), [USED - 1, LEAST + 1]),
    },
    "no plan beats the bound": {
        "it does": (below_the_bound(0.01), []),
        "it is equal": (below_the_bound(0.0), None),
        "by less than is counted": (below_the_bound(0.0009), None),
        "a third of it": (of_plan(lambda p, q, n: replace(p, makespan_us=p.makespan_us / 3)), []),
    },
    "delays change nothing": {
        "a higher peak": (of_plan(lambda p, q, n: replace(p, peak_bytes=p.peak_bytes + 1)), []),
        "no copy in": (without(SwapIn), []),
        "nothing": (of_plan(lambda p, q, n: p), None),
    },
}
ALL = [(law, lie) for law, lies in LIES.items() for lie in lies]


def breach_of(law: str, liar: Lying) -> Breach | None:
    case = replace(CASE, trace=replace(CASE.trace), machine=replace(MACHINE, profile={}))
    try:
        LAWS[law](liar, case)
    except Breach as breach:
        return breach
    return None


def test_the_step_is_one_on_which_lies_can_be_seen():
    assert USED > 0
    assert 1 < LEAST < LEAST + 1 < BUDGETS[2] < BUDGETS[-2] < BUDGETS[-1] == 2 * BUDGETS[-2]
    assert list(LIES) == list(LAWS)
    assert STEPS == 3


@pytest.mark.parametrize(("law", "lie"), ALL)
def test_a_lie_is_noticed_and_its_numbers_are_shown(law, lie):
    tell, numbers = LIES[law][lie]
    breach = breach_of(law, Lying(tell))
    if numbers is None:
        assert breach is None
        return
    assert breach is not None
    shown = [float(n.rstrip(".,%x")) for line in numbers_in([str(breach)]) for n in line]
    assert shown[: len(numbers)] == numbers


@pytest.mark.parametrize("law", LAWS)
def test_the_right_one_passes(law):
    assert breach_of(law, Lying(lambda question, count, right: right())) is None


def test_what_is_never_refused_needs_nothing():
    generous = Lying(
        lambda question, count, right: RIGHT.plan(replace(question, budget_bytes=10**6))
    )
    assert least_bytes(generous, CASE) == 0
    assert budgets_to_try(generous, CASE)[0] == 0


@pytest.mark.parametrize("spoils", [True, False])
def test_a_workspace_that_is_written_by_others_is_noticed(spoils):
    workspace = np.zeros(8, np.uint8)
    outs = [workspace[2:5] if spoils else np.zeros(3, np.uint8)]
    with pytest.raises(LawBroken) if spoils else nullcontext():
        HashOp("f").cpu(None, [np.arange(3, dtype=np.uint8)], outs, workspace, {})
    assert len(set(workspace[:2])) == 1


def test_what_breaks_a_law_is_reported_on_a_smaller_step():
    with pytest.raises(PlannerFailure) as caught:
        check_planner(Lying(without(SwapIn)), laws=("plans are legal", "results are exact"), seed=2)
    failure = caught.value
    assert (failure.code, failure.law) == ("OOC-291", "plans are legal")
    assert len(failure.trace.calls) <= 3
    assert f"trace of {len(failure.trace.calls)} calls" in failure.where
    assert "list, instructions 0 to" in failure.where


def test_what_is_raised_is_a_breach_and_a_liar_that_is_not_seen_twice_is_shown_as_it_was():
    def breaks(question, count, right):
        raise ZeroDivisionError("1")

    with pytest.raises(PlannerFailure, match="ZeroDivisionError: 1") as caught:
        check_planner(Lying(breaks))
    assert caught.value.trace.calls
    once = Lying(refuses(lambda question, count: count == 5))
    with pytest.raises(PlannerFailure, match="refuses") as caught:
        check_planner(once, laws=("plans are legal",))
    first = random_case(random.Random("0/0")).trace
    assert caught.value.trace.fingerprint in (
        first.fingerprint,
        random_case(random.Random("0/1")).trace.fingerprint,
    )


@pytest.mark.parametrize(("limit_s", "tried"), [(-1.0, 1), (60.0, 3)])
def test_no_case_is_begun_after_the_limit(limit_s, tried):
    law = ("no plan beats the bound",)
    assert check_planner("keep-all", examples=3, time_limit_s=limit_s, laws=law) == tried
