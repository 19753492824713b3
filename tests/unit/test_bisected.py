"""Searches by halving find where an answer turns, and ask only within their bounds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.known_steps import MACHINE

from ooctrain.experiments.bisected import between, bisected, largest
from ooctrain.experiments.paper_004 import split_hmms
from ooctrain.experiments.paper_004.split_hmms import (
    LargestOfMethod,
    SplitCase,
    SplitMethod,
    reached,
)


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 40))
def test_the_largest_that_does_is_found_by_doubling_and_halving(limit, below, first):
    asked = []
    found = largest(lambda n: asked.append(n) or n <= limit, below, first)
    assert found == min(limit, below - 1)
    assert all(0 < n < below for n in asked)
    assert first >= below or asked[0] == first
    assert len(asked) == len(set(asked)) <= 2 * below.bit_length() + 1


@given(st.integers(0, 99), st.integers(0, 99))
def test_between_what_does_and_what_does_not_lies_the_largest_that_does(low, more):
    limit = low + more // 2
    assert between(lambda n: n <= limit, low, low + more + 1) == limit


@given(st.floats(2, 9))
def test_halving_comes_within_a_billionth(turn):
    assert abs(bisected(2, 9, lambda x: x < turn) - turn) < 1e-8


@given(st.integers(0, 40), st.integers(1, 7), st.integers(7, 300), st.booleans())
def test_the_largest_batch_of_a_method_has_its_plan(limit, step, most, tiles):
    """What may tile is tried with the most at once; else batches are doubled, then halved."""
    tried = []

    def plan(model, method, where, batch):
        tried.append((model, method, where, batch))
        return SimpleNamespace(makespan_us=2e6, peak_bytes=10 * batch) if batch <= limit else None

    method, steps = SplitMethod("m", "banded" if tiles else "hmms"), most // step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_hmms, "_plan", plan)
        (found,) = reached(SplitCase("net", method, MACHINE, step, most))
    batch = min(limit // step, steps) * step
    assert found == LargestOfMethod(batch, batch / 2, 10 * batch)
    assert all(case[:3] == ("net", method, MACHINE) for case in tried)
    assert all(case[3] % step == 0 and 0 < case[3] <= most for case in tried)
    assert tried[0][3] == (steps * step if tiles else step)
