"""What tests of several kernels stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ooctrain.layers.kernels.cpu.runtime.pool import ThreadPool


@pytest.fixture(scope="module")
def pools() -> Iterator[list[ThreadPool]]:
    """Pools that must give the same bits: one, two and three threads, and a shuffled order."""
    made = [ThreadPool(1), ThreadPool(2), ThreadPool(3), ThreadPool(3, shuffle_seed=5)]
    yield made
    for pool in made:
        pool.close()
