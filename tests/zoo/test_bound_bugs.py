"""Each planted bug of the bound for a host without room is killed by its law, which passes else."""

from __future__ import annotations

import pytest
from zoo.bound_bugs import BUGS, law


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    law()
    BUGS[bug](monkeypatch)
    with pytest.raises(AssertionError):
        law()
