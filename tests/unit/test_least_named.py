"""The least budget that `auto` names holds, and is the same whatever budget was refused."""

from __future__ import annotations

import pytest
from support.quick import every

import ooctrain as oc
from ooctrain import nn
from ooctrain.errors import Infeasible
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings

CHUNK = 64 << 10


def step():
    """A small net whose narrow form needs less than it, and is offered to small budgets alone."""
    oc.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 4),
    ]  # fmt: skip
    return oc.trace(nn.Sequential(*layers), (8, 3, 8, 8), threads=1)


def least(trace, budget_bytes, planner):
    how = Settings(budget=budget_bytes, planner=planner, machine="cpu-generic", threads=1)
    with pytest.raises(Infeasible) as refused:
        prepare(trace, how)
    return refused.value.minimum_bytes


@pytest.mark.parametrize("planner", every(["combined", "auto"], 2))
def test_the_least_is_the_same_whatever_was_asked_and_holds(planner):
    """65,536 bytes were told that 393,216 would do, and these that it takes 458,752."""
    trace = step()
    named = {asked: least(trace, asked, planner) for asked in (1, CHUNK, 2 * CHUNK, 3 * CHUNK)}
    assert len({*named.values()}) == 1, named
    least_bytes = named[1]
    assert least(trace, least_bytes - 1, planner) == least_bytes
    how = Settings(budget=least_bytes, planner=planner, machine="cpu-generic", threads=1)
    assert prepare(trace, how).reserved_bytes <= least_bytes
