"""The state at the start of a step: which ranges of which variables lie on the device or the host.

The schedule says where each step starts, so values are written and read there between steps. From a
program this file collects these ranges by variable, with their places in the host slab. Read next:
`executor.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.devices.base import Device
from ooctrain.errors import PlanMismatch
from ooctrain.execution.program import Program

_POISONED_BYTES = 16 << 20


def check_slab(program: Program, device: Device) -> None:
    """Raises PlanMismatch: the host slab is too small. Poisons it, if that is wanted."""
    needed = program.slots.extent_bytes
    if device.host_bytes < needed:
        raise PlanMismatch(
            "the host slab is smaller than the schedule's host slots",
            numbers=f"slab {device.host_bytes} B, slots {needed} B",
            fix="make the device with host_bytes=host_extent_bytes(trace, schedule)",
        )
    if device.debug.poison is not None:
        for lo in range(0, needed, _POISONED_BYTES):  # the slab may be larger than memory
            size_bytes = min(needed - lo, _POISONED_BYTES)
            device.write_host(lo, np.full(size_bytes, device.debug.poison, np.uint8))


def start_ranges(
    program: Program,
) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[tuple[int, int, int]]]]:
    """By variable: ranges on the device, and on the host with their offsets, before a step."""
    on_device: dict[int, list[tuple[int, int]]] = {}
    for variable, lo, hi in program.schedule.start_device:
        if lo < hi:  # what has no bytes has no block
            on_device.setdefault(variable, []).append((lo, hi))
    on_host: dict[int, list[tuple[int, int, int]]] = {}
    starts = zip(program.schedule.start_host, program.slots.start_offsets, strict=True)
    for (variable, lo, hi), offset in starts:
        on_host.setdefault(variable, []).append((lo, hi, offset))
    return on_device, on_host
