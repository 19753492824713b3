"""Right plug-ins pass, wrong ones break a law, and the law that breaks says what is wrong.

The plug-ins are in `allocators.py` and `planners.py`, each as somebody would write it who knows the
interface and not the laws.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.quick import quick

from ooctrain.plugins import load_from_file
from ooctrain.testing.check_allocator import find_failure
from ooctrain.testing.check_planner import PlannerFailure, check_planner

HERE = Path(__file__).resolve().parent
BACKENDS = ("strict", "plain")
#: {wrong allocator: laws that may be found broken first}
WRONG_ALLOCATORS = {
    "JoinsOverASmallBlock": "P1 P16",
    "NeverJoins": "P12",
    "ForgetsASmallRest": "P12",
    "LosesOnRefusal": "P8",
    "RoundsDown": "P2 P9",
    "FreesTwice": "P10",
    "StartsTooLarge": "P5 P16",
    "ForgetsHoles": "P19",
}
#: {allocator whose mistake begins after 40 blocks: laws that may be found broken first}
LATE_ALLOCATORS = {
    "RoundsDownLate": "P2 P9",
    "NeverJoinsLate": "P12",
    "OverlapsLate": "P1 P16",
    "ForgetsARestLate": "P12 P16",
    "OverlapsAMany": "P1 P16",
}
#: {wrong planner: a law that it breaks, and what its report says}
WRONG_PLANNERS = {
    "Stale": ("plans are legal", "R406"),
    "HalvesApart": ("plans are legal", "R206"),
    "ForgetsWorkspace": ("plans are legal", "R301"),
    "OverAtForks": ("plans are legal", "R301"),
    "SetOrder": ("planning is pure", "other names"),
    "TakesTurns": ("planning is pure", "."),
    "EditsItsTrace": ("planning is pure", "changes the trace"),
}


def planner(name):
    return load_from_file(str(HERE / "planners.py"), name)()


def test_a_right_planner_passes():
    assert check_planner(planner("Farthest"), examples=10) == 10


@pytest.mark.parametrize("name", quick([*WRONG_PLANNERS], 0, 3, 6))
def test_a_wrong_planner_breaks_a_law_and_the_report_is_short(name):
    law, said = WRONG_PLANNERS[name]
    with pytest.raises(PlannerFailure, match=said) as found:
        check_planner(planner(name), laws=(law,))
    assert len(found.value.trace.calls) <= 8, "the step is shrunken"
    assert found.value.where.startswith("trace of")


def allocator(name):
    return load_from_file(str(HERE / "allocators.py"), name)


def test_a_right_allocator_passes():
    assert find_failure(allocator("FirstHole"), 20, 0, BACKENDS) is None


@pytest.mark.parametrize("name", quick([*WRONG_ALLOCATORS], 0, 3, 6))
def test_a_wrong_allocator_breaks_the_law_that_names_its_mistake(name):
    failure = find_failure(allocator(name), 50, 0, BACKENDS)
    assert failure is not None
    assert failure.law in WRONG_ALLOCATORS[name].split()
    assert len(failure.requests) <= 7, "the list is shrunken"


@pytest.mark.parametrize("name", LATE_ALLOCATORS)
def test_a_mistake_that_begins_late_breaks_its_law(name):
    failure = find_failure(allocator(name), 50, 0, BACKENDS, shortest=False)
    assert failure is not None
    assert failure.law in LATE_ALLOCATORS[name].split()
