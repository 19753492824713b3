"""Steps on ranks of this machine, over imposed bandwidths, beside paper 004's formula."""

from __future__ import annotations

import pytest

from ooctrain.experiments.paper_004 import distributed
from ooctrain.experiments.paper_004.distributed import RankStep

START = {"forward_us": 40.0, "step_us": 100.0, "gradient_bytes": 1000}


@pytest.mark.parametrize(
    ("ranks", "bytes_per_us", "predicted_us"),
    [(1, 0.001, 100), (2, 100.0, 100), (2, 10.0, 140), (4, 10.0, 190)],
)
def test_a_network_is_hidden_behind_the_backward_pass_or_follows_the_forward_pass(
    ranks, bytes_per_us, predicted_us
):
    """40 us forwards, 60 us backwards; 1000 bytes go 2 (k - 1) / k times around."""
    assert distributed._predicted_us(START, ranks, bytes_per_us) == predicted_us


def test_six_times_the_batch_is_compared_with_the_small_one_over_the_same_network():
    small = RankStep(2, 2, 1.0, 10.0, 100.0, 110.0)
    large = RankStep(2, 12, 1.0, 60.0, 120.0, 110.0)
    assert distributed._times_as_fast(small, large) == ("5.00", "6.00")
    assert distributed._times_as_fast(small, small) == ("", "")


@pytest.mark.slow
def test_a_step_over_a_slow_network_takes_what_the_formula_says(monkeypatch):
    """At 0.25 Gbit/s two ranks need 1.2 s for 37 MB, so that what else runs here hardly counts."""
    if distributed.why_not():
        pytest.skip(distributed.why_not())
    monkeypatch.setattr(distributed, "BATCHES", (1,))
    monkeypatch.setattr(distributed, "GBIT_S", (0.25,))
    monkeypatch.setattr(distributed, "ROUNDS", 3)
    free, slow = distributed.rank_steps((2,))
    assert (free.gbit_s, free.predicted_us, slow.gbit_s) == (None, None, 0.25)
    assert slow.step_us > 1.18e6 > free.step_us
    assert slow.predicted_us == pytest.approx(slow.step_us, rel=0.15)
