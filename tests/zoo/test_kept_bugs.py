"""The law of kept calls bites: each planted bug leaves a first step right, and breaks it.

The law is in `properties/test_kept_calls.py`.
"""

from __future__ import annotations

import pytest
from properties.test_kept_calls import check_kept
from zoo.kept_bugs import BUGS

from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_kept_calls_breaks_the_law(bug, monkeypatch):
    (op, arrays), plant = BUGS[bug]
    pool = ThreadPool(2)
    check_kept(op, arrays, pool)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_kept(op, arrays, pool)
    pool.close()
