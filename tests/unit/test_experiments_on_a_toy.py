"""The papers' experiments on a toy show what they showed when somebody looked at it.

Every number that an experiment returns, prints or draws is compared, and no word. So a mistake in
what is computed, in a table or in a figure is seen, although the real networks take too long for a
test. Read next: `../support/toy_experiments.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.toy_experiments import KNOWN, known_of, shown_of

from ooctrain.cli.reproduce import EXPERIMENTS

#: Measured, and different each time.
BY_THE_CLOCK = {"plan_s"}


def same(found: Any, known: Any, where: str = "") -> None:
    """Numbers agree to rounding, all else exactly."""
    if isinstance(known, dict):
        assert list(found) == list(known), where
        for key in known.keys() - BY_THE_CLOCK:
            same(found[key], known[key], f"{where}.{key}")
    elif isinstance(known, list):
        assert len(found) == len(known), where
        for place, (own, other) in enumerate(zip(found, known, strict=True)):
            same(own, other, f"{where}[{place}]")
    elif isinstance(known, float):
        assert found == pytest.approx(known, rel=1e-6, abs=1e-9), where
    else:
        assert found == known, where


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_on_a_toy_shows_what_it_showed(name, tmp_path):
    known = json.loads((KNOWN / f"{name}.json").read_text(encoding="utf-8"))
    shown = shown_of(name, tmp_path)
    same(known_of(shown), known)
    assert str(tmp_path / f"{name}.svg") in shown.printed[-1]


def test_each_experiment_is_known_and_no_other():
    assert {path.stem for path in KNOWN.iterdir()} == set(EXPERIMENTS)
