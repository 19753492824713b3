"""Each planted bug of the search over what is kept is killed by the law named with it."""

from __future__ import annotations

from functools import partial

import pytest
from support.quick import all_but
from zoo.kept_bugs import BUGS

from ooctrain.errors import OoctrainError


@pytest.mark.parametrize("bug", all_but(BUGS, *list(BUGS)[1:]))
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
