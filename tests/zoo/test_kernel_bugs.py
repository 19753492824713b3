"""The emulator bites: each planted bug of a kernel is named, in both orders of the threads."""

from __future__ import annotations

import numpy as np
import pytest
from support.quick import quick
from zoo import kernel_bugs as ZOO

from ooctrain.testing.emulator import EmulatedLauncher

ORDERS = pytest.mark.parametrize("order", [1, -1])


def turn_round(kernel, order):
    """Runs a kernel on ascending numbers; whether it turned them round."""
    x = np.arange(ZOO.COUNT, dtype=np.float32)
    y = np.zeros_like(x)
    EmulatedLauncher(order).launch(kernel, 1, x, y)
    return bool((y == x[::-1]).all())


@ORDERS
@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO.RIGHT)
def test_kernels_without_a_bug_pass(name, order):
    assert turn_round(ZOO.RIGHT[name], order)


@ORDERS
@pytest.mark.parametrize("name", quick(list(ZOO.BUGS), *range(0, len(ZOO.BUGS), 4)))
def test_a_bug_is_named(name, order):
    kernel, said = ZOO.BUGS[name]
    with pytest.raises(AssertionError, match=said):
        assert turn_round(kernel, order), "wrong result"
