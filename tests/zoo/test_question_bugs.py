"""Facts of a question that are handed on too far: the law of `unit/test_question.py` sees each."""

from __future__ import annotations

import pytest
from unit.test_question import facts_are_those_of_the_step
from zoo.planting import plant

from ooctrain.sched.planning.question import StepFacts

BUGS = {
    "facts in another granule": (" and self.granule == granule", ""),
    "facts of another step": ("self.trace is trace and ", ""),
    "facts of another step of as many calls": (
        "self.trace is trace", "len(self.trace.calls) == len(trace.calls)"
    ),
}  # fmt: skip


def law():
    for seed in range(8):
        facts_are_those_of_the_step(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    law()
    plant(monkeypatch, StepFacts, "describe", *BUGS[bug])
    with pytest.raises(AssertionError):
        law()
