"""Each planted bug of `capuchin` is killed by the test named with it, which passes without it."""

from __future__ import annotations

import pytest
from zoo.capuchin_bugs import BUGS


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    plant, test = BUGS[bug]
    test()
    plant(monkeypatch)
    with pytest.raises((AssertionError, StopIteration)):
        test()
