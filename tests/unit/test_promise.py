"""The parts of a memory budget that are neither arena nor slab."""

from __future__ import annotations

import ooctrain as oc
from ooctrain.execution.promise import THREAD_BYTES, parts_of


def test_each_thread_costs_as_much_as_a_thread():
    step = oc.chain([8] * 3, [8] * 3, [1] * 2, [1] * 2, [0] * 2, [0] * 2)
    parts = [parts_of(step, 1 << 40, None, threads) for threads in (1, 2, 7)]
    assert parts[0].working_bytes - parts[1].working_bytes == -THREAD_BYTES
    assert parts[0].left_bytes - parts[2].left_bytes == 6 * THREAD_BYTES
