"""The laws of ranks bite: each planted bug breaks one."""

from __future__ import annotations

from pathlib import Path

import pytest
from properties import test_ranks as LAWS
from support.quick import quick
from zoo import rank_bugs as ZOO

from ooctrain.errors import OoctrainError

BUGS = list(ZOO.BUGS)


@pytest.mark.parametrize("bug", quick(BUGS, 0, 3))
def test_bug(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ZOO.plant_bug(monkeypatch, bug)
    with pytest.raises((AssertionError, OoctrainError)):
        check_everything(tmp_path, monkeypatch)


@pytest.mark.slow
def test_without_a_bug_the_laws_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_everything(tmp_path, monkeypatch)


def check_everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All laws; the cheapest first."""
    LAWS.check_sums(3, seed=1)
    LAWS.check_sums(5, seed=2)
    LAWS.check_resume(folder)
    LAWS.check_same_bits(4, 600, 1, {})
    LAWS.check_masks()
    LAWS.check_bad_loss()
    LAWS.check_named(LAWS._rate, "optimizer")
    LAWS.check_versions(monkeypatch)
