"""The laws of interrupts bite: with each planted bug a value is lost, or half a step stays.

The laws are those of tests/strangers/test_interrupts.py, at places that are written down here, and
of tests/properties/test_bad_losses.py.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from properties import test_bad_losses as LOSSES
from strangers import test_interrupts as INTERRUPTS
from support.quick import all_but
from zoo import interrupt_bugs as ZOO


def at(kind, *places, form="window"):
    """The law at places of one kind."""

    def tried():
        with TemporaryDirectory() as folder:
            for place in places:
                INTERRUPTS.check(kind, place, "sgd", form, Path(folder))

    return tried


def gradients():
    for kind in LOSSES.FINITE_LOSSES:
        LOSSES.test_a_gradient_that_is_not_finite_is_not_written(kind, None, None)


def errors():
    law = INTERRUPTS.test_an_error_half_way_leaves_all_values_as_they_were
    for number in (0, 1, -1):
        for others in ("here", "held"):
            law("a model's state", number, others)


def ranks_that_fail():
    for call in (4, 6):
        INTERRUPTS.test_where_an_operation_of_one_rank_raises_all_keep_the_step_before(call)


def second_signals():
    with TemporaryDirectory() as folder:
        INTERRUPTS.test_what_is_asked_after_a_second_interrupt_comes_after_the_step(
            "arrays", "window", Path(folder)
        )


LAW = {
    "a second signal": second_signals,
    "a signal": at("signal", 0.1, 0.3, 0.5, 0.7, 0.9),
    "an operation": at("operation", 0.0, 0.1, 0.25, 0.4, form="belady"),
    "backwards": at("operation", 0.2, 0.25, 0.3),
    "an instruction": at("instruction", *(n / 40 for n in range(14)), form="plain"),
    "ranks": lambda: (
        INTERRUPTS.test_where_one_rank_is_interrupted_the_others_end_with_the_same_values("in-core")
    ),
    "ranks that fail": ranks_that_fail,
    "gradients": gradients,
    "a schedule": INTERRUPTS.test_no_interrupt_comes_between_a_step_and_its_schedule,
    "a state": lambda: INTERRUPTS.test_an_eager_step_and_a_state_are_taken_whole_or_not_at_all(
        "an optimizer's state", "adam"
    ),
    "an error": errors,
}


@pytest.mark.slow  # the laws themselves run where they stand
@pytest.mark.parametrize("law", LAW)
def test_without_a_bug_the_law_holds(law):
    assert LAW[law]() is None


@pytest.mark.parametrize(
    "bug",
    all_but(
        ZOO.BUGS,
        "an interrupt goes on while the step still runs",
        "a rank that leaves says nothing",  # the other one waits for a minute, as for the next two
        "a rank that has failed sends what it has",
        "a rank that has failed sends nothing",
        "a failed step counts",
        "what may fail comes last",
        "what was changed is not restored after an error",
    ),
)
def test_bug(bug):
    with pytest.MonkeyPatch.context() as patch:
        ZOO.plant(patch, bug)
        # What breaks a law may be an assertion, a lost value, an interrupt at the wrong place.
        with pytest.raises(BaseException):  # noqa: B017
            LAW[ZOO.BUGS[bug][0]]()
