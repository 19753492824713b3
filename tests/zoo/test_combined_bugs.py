"""Each planted bug of `combined` is killed by the law named with it, which passes without it."""

from __future__ import annotations

from functools import partial

import pytest
from support.quick import all_but
from zoo.combined_bugs import BUGS

from ooctrain.errors import OoctrainError


@pytest.mark.parametrize("bug", all_but(BUGS, *list(BUGS)[1:]))
def test_bug(bug, monkeypatch):
    plant, law, seeds = BUGS[bug]
    asked = partial(_each, law, seeds)
    asked()
    plant(monkeypatch)
    with pytest.raises((AssertionError, OoctrainError, KeyError)):
        asked()


def _each(law, seeds):
    for seed in seeds:
        law(seed)
