"""While a step is planned or verified the garbage collector waits longer; then as before."""

from __future__ import annotations

import gc

import pytest

import ooctrain as oc
from ooctrain import api
from ooctrain.api import step_trace
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planning.planner import RARELY, collecting_rarely


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
        def plan(self, question):
            seen.append(gc.get_threshold()[0])
            return super().plan(question)

    oc.plan(step_trace("lenet", 2), "50%", Looks(), "cpu-generic", rewrites=())
    assert seen == [RARELY]
    assert gc.get_threshold() == thresholds


def test_a_plan_is_read_and_verified_so(thresholds, tmp_path, monkeypatch):
    seen, trace = [], step_trace("lenet", 2)
    plan = oc.plan(trace, "50%", "belady", "cpu-generic", rewrites=())
    plan.save(tmp_path / "plan.json")

    def noted(module, name):
        real = getattr(module, name)

        def looks(*args, **kwargs):
            seen.append((name, gc.get_threshold()[0]))
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, looks)

    noted(api, "rows_of_file")
    noted(api.laws, "verify")
    oc.verify(oc.load_plan(tmp_path / "plan.json", trace), trace, "50%")
    assert seen == [("rows_of_file", RARELY), ("verify", RARELY)]
    assert gc.get_threshold() == thresholds
