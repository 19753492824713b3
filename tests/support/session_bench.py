"""A session on hand-written lists, on a device of exactly the reserved peak.

Read next: `hand_lists.py`, `../unit/test_executor.py`.
"""

from __future__ import annotations

import ctypes

import numpy as np
from support.hand_lists import G, N, S, W, X, make_list, small_step

from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.cpu.copy_engine import CopyLink
from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.execution.executor import Session, host_extent_bytes
from ooctrain.execution.placement import reserved_peak


class Bench:
    """A session on a device of exactly the reserved peak, with w = 1."""

    def __init__(
        self, instructions, allocator="va:chunk=4KiB", *, start=None, wanted=(G,), trace=None,
        device=CpuDevice, link="duplex", out_bytes_per_us=None, **options,
    ):  # fmt: skip
        self.trace = trace or small_step()
        self.schedule = make_list(self.trace, instructions, start)
        choice = choose_allocator(allocator, 32 * S)
        reserved = reserved_peak(self.schedule, self.trace, choice)
        extent = host_extent_bytes(self.trace, self.schedule)
        copies = CopyLink(link, out_bytes_per_us, copy_bytes=ctypes.memmove)
        self.device = device(reserved, extent, link=copies, **options)
        self.allocator = choice.make(self.device.memory)
        values = {W: np.ones(N, np.float32)}
        self.session = Session(
            self.trace, self.schedule, self.device, self.allocator, values, wanted
        )

    def step(self, x, lr=0.25):
        return self.session.run_step({X: np.full(N, x, np.float32)}, {"lr": lr})

    def close(self):
        self.session.close()
        self.device.close()
