"""Each planted bug of `checkmate` is killed by the test named with it, which passes without it."""

from __future__ import annotations

import pytest
from zoo.checkmate_bugs import BUGS

from ooctrain.errors import OoctrainError


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    plant, test = BUGS[bug]
    test()
    plant(monkeypatch)
    with pytest.raises((AssertionError, OoctrainError)):
        test()
