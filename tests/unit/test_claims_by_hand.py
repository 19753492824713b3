"""What a plan claims beside what comes out: to the byte, to half a nanosecond."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ooctrain as oc
from ooctrain.errors import ConfigError
from ooctrain.sched.planning.planner import check_evaluations
from ooctrain.sched.rules import Recomputed, bound_claim, makespan_claim

STEP = oc.chain([8] * 4, [8] * 4, [2] * 3, [3] * 3, [0] * 3, [0] * 3)
PLAN = oc.plan(STEP, "90%", "naive", oc.Machine("m", 1, 1, link_bytes_per_us=1))


@pytest.mark.parametrize(("off_us", "is_wrong"), [(0, 0), (0.0004, 0), (0.0006, 1), (-0.0006, 1)])
def test_a_makespan_is_claimed_to_half_a_nanosecond(off_us, is_wrong):
    again = Recomputed(PLAN, PLAN.peak_bytes, PLAN.host_peak_bytes, PLAN.makespan_us + off_us)
    assert (makespan_claim(again) is not None) == is_wrong
    assert bound_claim(again) is None
    assert makespan_claim(again._replace(makespan_us=None)) is None  # no machine to time it on
    assert makespan_claim(again._replace(plan=replace(PLAN, makespan_us="1"))) is not None


@pytest.mark.parametrize("number", [None, 0, 0.5, 1])
def test_no_evaluation_at_all_is_a_number_of_evaluations(number):
    check_evaluations("auto", number)
    with pytest.raises(ConfigError, match="not a finite number of 0 or more"):
        check_evaluations("auto", -0.5)
