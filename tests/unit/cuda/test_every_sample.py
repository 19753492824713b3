"""The table of samples of the gradient checks, every operation of it by its GPU kernels.

Slow where nothing is compiled yet: it has nearly all kernels that there are.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ooctrain.testing.check_cuda import check_cuda

PROPERTIES = Path(__file__).parents[2] / "properties"


def samples():
    """The table of the gradient checks; convolutions by an algorithm that every shape has."""
    sys.path.insert(0, str(PROPERTIES))
    try:
        table = importlib.import_module("test_gradients").SAMPLES
    finally:
        sys.path.remove(str(PROPERTIES))
    for op, arrays in table:
        yield replace(op, algorithm="naive") if hasattr(op, "algorithm") else op, arrays


@pytest.mark.slow
def test_the_laws_of_every_sample_on_a_gpu():
    failed = {}
    for op, arrays in samples():
        try:
            check_cuda(op, *arrays, tolerance=2e-5)
        except Exception as error:
            failed[repr(op)] = repr(error)[:500]
    assert not failed
