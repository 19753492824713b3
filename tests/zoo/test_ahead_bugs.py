"""The laws of tests/unit/test_ahead.py bite: each planted bug breaks one."""

from __future__ import annotations

import pytest
from unit import test_ahead as LAWS
from unit.test_cuda_training import Fakes
from zoo.ahead_bugs import BUGS
from zoo.planting import plant

LAW = {
    "there": lambda patch: LAWS.check_that_the_next_batch_is_there("cpu", patch),
    "there on a GPU": lambda patch: LAWS.check_that_the_next_batch_is_there("newest", patch),
    "changes": lambda patch: LAWS.check_what_the_user_changes(),
    "errors": lambda patch: LAWS.check_that_an_error_comes_in_its_turn(),
    "no more": LAWS.check_that_nobody_reads_what_no_budget_knows_of,
    "a loader": lambda patch: LAWS.check_a_loader_counts_what_was_handed_out(),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    law, *piece = BUGS[bug]
    Fakes(monkeypatch).choose = max
    monkeypatch.setattr(LAWS, "PATIENCE_S", 0.3)
    plant(monkeypatch, *piece)
    with pytest.raises((Exception, pytest.fail.Exception)) as found:
        LAW[law](monkeypatch)
    print(f"{bug}: {found.value!r}"[:300])
