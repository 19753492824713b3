"""Each planted bug of bands through norms breaks a law of `properties/test_bands_of_norms.py`."""

from __future__ import annotations

import pytest
from properties.test_bands_of_losses import check_global_pooling, check_loss
from properties.test_bands_of_norms import all_named_graphs
from zoo.norm_band_bugs import LOSS_BAND_BUGS, NORM_BAND_BUGS, OF_KERNELS

from ooctrain.errors import OoctrainError

#: What a slip of a line ends in, where it does not end in wrong numbers.
KILLED = (AssertionError, OoctrainError, ValueError, KeyError, IndexError)
QUICK = ("statistics per band", "means of the two sums over the band", "a barrier is missing")


@pytest.mark.slow
def test_the_laws_hold_without_bugs() -> None:
    assert all_named_graphs("cpu") is None
    assert all_named_graphs("reference") is None


@pytest.mark.parametrize(
    "bug", [pytest.param(b, marks=() if b in QUICK else pytest.mark.slow) for b in NORM_BAND_BUGS]
)
def test_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    NORM_BAND_BUGS[bug](monkeypatch)
    with pytest.raises(KILLED):
        all_named_graphs("cpu" if bug in OF_KERNELS else "reference")


def laws_of_losses() -> None:
    check_loss("mse", again=False)
    check_global_pooling()


@pytest.mark.slow
@pytest.mark.parametrize("bug", LOSS_BAND_BUGS)
def test_bug_of_losses(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    laws_of_losses()
    LOSS_BAND_BUGS[bug](monkeypatch)
    with pytest.raises(KILLED):
        laws_of_losses()
