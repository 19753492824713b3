"""Each planted bug of `combined` and its searches is killed by the law named with it, which passes
without it.
"""

from __future__ import annotations

from functools import partial

import pytest
from support.quick import all_but
from zoo.combined_bugs import BUGS, QUICK

from ooctrain.errors import OoctrainError


@pytest.mark.parametrize("bug", all_but(BUGS, *(bug for bug in BUGS if bug not in QUICK)))
def test_bug(bug, monkeypatch):
    plant, law, seeds = BUGS[bug]
    asked = partial(_each, law, seeds)
    asked()
    plant(monkeypatch)
    with pytest.raises((AssertionError, OoctrainError, KeyError, IndexError, ValueError)):
        asked()


def _each(law, seeds):
    for seed in seeds:
        law(seed)
