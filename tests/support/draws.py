"""Arrays of a given shape to try operations on, the same each time.

Values keep away from kinks, so that finite differences exist too. Read next: `op_samples.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Random values, none of them within 0.05 of zero, where ReLU has its kink."""
    x = np.random.default_rng((seed, *shape)).standard_normal(shape)
    return (x + np.sign(x) * 0.05).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    """Random values of at least 0.5."""
    return np.abs(normal(*shape, seed=seed)) + np.float32(0.5)


def distinct(*shape: int) -> np.ndarray:
    """All values different by at least 0.01: the maximum of a window is clear."""
    count = int(np.prod(shape))
    order = np.random.default_rng(count).permutation(count)
    return (order.reshape(shape) * 0.01 - 1).astype(np.float32)


def labels(*shape: int, classes: int, ignored: Sequence[int] = ()) -> np.ndarray:
    """Random classes, or -100 where a place is to be ignored."""
    values = np.random.default_rng(3).integers(0, classes, shape)
    values.reshape(-1)[list(ignored)] = -100
    return values
