"""While a step is planned the garbage collector waits longer, and afterwards as long as before."""

from __future__ import annotations

import gc

import pytest

import ooctrain as oc
from ooctrain.api import step_trace
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planning.effort import RARELY, collecting_rarely


@pytest.fixture
def thresholds():
    """Those that a test begins with; put back afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    yield 701, 11, 12
    gc.set_threshold(*before)


def test_inside_it_waits_and_behind_it_is_as_before_whatever_happens(thresholds):
    with collecting_rarely():
        assert gc.get_threshold() == (RARELY, 11, 12)
        with collecting_rarely():
            assert gc.get_threshold()[0] == RARELY
        assert gc.get_threshold()[0] == RARELY
    assert gc.get_threshold() == thresholds
    with pytest.raises(KeyError), collecting_rarely():
        raise KeyError
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("first", [0, RARELY, RARELY + 1])
def test_who_collects_never_or_as_rarely_is_left_alone(thresholds, first):
    gc.set_threshold(first)
    with collecting_rarely():
        assert gc.get_threshold()[0] == first
    assert gc.get_threshold()[0] == first


def test_a_step_is_planned_so(thresholds):
    seen = []

    class Looks(Belady):
        def plan(self, *args, **kwargs):
            seen.append(gc.get_threshold()[0])
            return super().plan(*args, **kwargs)

    oc.plan(step_trace("lenet", 2), "50%", Looks(), "cpu-generic", rewrites=())
    assert seen == [RARELY]
    assert gc.get_threshold() == thresholds
