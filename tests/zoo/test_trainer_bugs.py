"""The laws of trainers bite: with each planted bug one trainer trains, and a law is broken.

The laws are those of tests/properties/test_trainers_of_one_model.py, in the orders that are written
down there (a search finds each bug too, but how soon is luck), and of tests/unit/test_residence.py.
"""

from __future__ import annotations

import pytest
from properties import test_trainers_of_one_model as ORDERS
from support.quick import all_but
from unit import test_cpu_device as DEVICE
from unit import test_executor as EXECUTOR
from unit import test_residence as RESIDENCE
from zoo import trainer_bugs as ZOO

from ooctrain.errors import OoctrainError


def any_order():
    with ORDERS.quickly():
        ORDERS.check_orders()


def a_sessions_threads():
    opened = []
    try:
        EXECUTOR.test_each_step_of_a_session_may_be_another_threads(
            lambda *args: opened.append(EXECUTOR.Bench(*args)) or opened[-1]
        )
    finally:
        for one in opened:
            one.close()


def patched(law, *args):
    """A law that changes something for a while."""

    def tried():
        with pytest.MonkeyPatch.context() as patch:
            law(*args, patch)

    return tried


LAW = {
    "any order": any_order,
    "changes while it is fetched": patched(
        RESIDENCE.test_a_value_that_changes_while_it_is_fetched_stays_where_it_is, 3
    ),
    "the tape": RESIDENCE.test_the_tape_sees_what_changed_and_not_what_moved,
    "a device's threads": DEVICE.test_any_thread_walks_after_it_has_said_so,
    "a session's threads": a_sessions_threads,
    "a second thread": RESIDENCE.test_a_second_thread_is_refused_and_nothing_is_broken,
    "an operation": patched(RESIDENCE.test_an_operation_that_looks_at_a_value_in_a_step_is_refused),
    "dropped": patched(RESIDENCE.test_forty_dropped_trainers_leave_nothing, None, True),
    "dropped with values": RESIDENCE.test_a_dropped_trainer_loses_no_value,
    "a dropped device": DEVICE.test_a_device_that_nobody_closes_leaves_no_thread_and_no_file,
    "dropped in a look": patched(
        RESIDENCE.test_a_trainer_may_be_dropped_in_the_midst_of_a_look_at_its_values
    ),
    "home": patched(
        RESIDENCE.test_values_are_brought_home_one_at_a_time_and_their_pages_given_back
    ),
    "home from the slab": patched(
        lambda patch: RESIDENCE.test_values_that_wait_in_the_slab_come_home_when_the_arena_is_empty(
            patch, "best-fit"
        )
    ),
    "a fork": patched(RESIDENCE.test_a_fork_touches_nothing_of_its_parents),
    "a fork within": patched(RESIDENCE.test_a_fork_in_the_midst_of_an_evaluation_is_refused),
}


# The orders are a test of their own, and take some seconds.
@pytest.mark.slow  # the laws themselves run where they stand
@pytest.mark.parametrize("law", [law for law in LAW if law != "any order"])
def test_without_a_bug_the_law_holds(law):
    assert LAW[law]() is None


@pytest.mark.parametrize(
    "bug",
    all_but(
        ZOO.BUGS,
        "a dropped trainer stays open",
        "a device's threads keep it",
        "a trainer goes on from its own values",
        "a trainer fetches what is on the host, and not what another one has",
        *[*ZOO.BUGS][1::3],
        *[*ZOO.BUGS][2::3],
    ),
)
def test_bug(bug, monkeypatch):
    ZOO.plant(monkeypatch, bug)
    for rooms in (RESIDENCE, DEVICE):
        monkeypatch.setattr(rooms, "PATIENCE_S", 0.5)  # some bugs hang
    assert RESIDENCE.same(RESIDENCE.after(2), TWO_STEPS)
    with pytest.raises((AssertionError, OoctrainError, pytest.fail.Exception)):
        LAW[ZOO.BUGS[bug][0]]()


TWO_STEPS = RESIDENCE.after(2)
