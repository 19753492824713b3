"""Each planted bug of paper 003's analysis is found by the test named with it.

Read next: `segment_bugs.py`.
"""

from __future__ import annotations

import pytest
from support.quick import quick
from zoo.segment_bugs import SEGMENT_BUGS

from ooctrain.errors import Infeasible, PartFailed

KILLED = (AssertionError, IndexError, ValueError, Infeasible, PartFailed, pytest.fail.Exception)


@pytest.mark.parametrize("name", quick(list(SEGMENT_BUGS), 6))
def test_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, law = SEGMENT_BUGS[name]
    law()
    plant(monkeypatch)
    with pytest.raises(KILLED):
        law()
