"""The stub driver's law bites: each planted bug is found, by the calls that are meant for it."""

from __future__ import annotations

import pytest
from doubles.stub_driver import Stub, why_no_stub
from support.two_drivers import check_alike
from zoo.stub_bugs import BUGS, StubBug, library_with

pytestmark = pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())


def test_without_a_bug_none_of_these_calls_shows_anything():
    stub = Stub()
    for bug in BUGS:
        check_alike(stub, bug.actions)


@pytest.mark.parametrize(
    "bug",
    [BUGS[0], *(pytest.param(bug, marks=pytest.mark.slow) for bug in BUGS[1:])],  # each compiles
    ids=lambda bug: bug.name,
)
def test_a_planted_bug_is_found(bug: StubBug, tmp_path):
    stub = Stub(library_with(bug, tmp_path))
    with pytest.raises(AssertionError):
        check_alike(stub, bug.actions)
