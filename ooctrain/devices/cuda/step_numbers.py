"""The numbers of a step in a block of device memory, which a recorded step reads anew each time.

A graph keeps the arguments that it was recorded with, so learning rates and dropout's keys, which
change from step to step, lie in cells of device memory, and kernels are launched with the cells'
addresses. The host writes the numbers into pinned memory before each launch of the graph, whose
first piece copies the block. Calls of equal operations with the same step scalars have the same
numbers, and share their cells. Read next: `launches.py`, `layers/kernels/cuda/runtime/packing.py`,
`step_graph.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ooctrain.devices.cuda.launch_form import CallForm, LaunchForm
from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import CaptureRefused, DriverError
from ooctrain.layers.kernels.cuda.runtime.packing import layout_of, letters_by_argument, moved
from ooctrain.step.op import Op, Scalars

BLOCK_BYTES, CELL_BYTES = 1 << 14, 8
FormNow = Callable[[Scalars], CallForm]


@dataclass(slots=True)
class _Group:
    """Calls that have the same numbers.

    Args:
        op, scalars: what they follow from, as it was recorded.
        form_now: what gives them for a step.
        read: scalars that they were written with.
        first: their first cell.
        cells: for each (launch of the form, which of its parameters, how it lies).
    """

    op: Op
    scalars: Scalars
    form_now: FormNow
    first: int
    cells: list[tuple[int, int, str]]
    read: dict[str, float | int] = field(default_factory=dict)


class StepNumbers:
    """A block of numbers, and its image in pinned memory. Raises DriverError: no memory for it."""

    def __init__(self, driver: GpuDriver):
        self._driver = driver
        self._host = driver.host_alloc(BLOCK_BYTES)
        try:
            self._block = driver.allocate(BLOCK_BYTES)
        except DriverError:
            give_back(driver.host_free, self._host)
            raise
        self._image = bytes_at(self._host, BLOCK_BYTES)
        self._groups: list[_Group] = []
        self._used = 0

    @property
    def scalars(self) -> list[Scalars]:
        """By group, the step scalars that were recorded."""
        return [group.scalars for group in self._groups]

    def queue_copy(self, stream: int) -> None:
        """Queues the copy of the whole block."""
        self._driver.copy_in(self._block, self._host, BLOCK_BYTES, stream)

    def write(self, scalars: Sequence[Scalars]) -> None:
        """Writes the numbers of a step, by group; nothing uses the image meanwhile."""
        for group, values in zip(self._groups, scalars, strict=True):
            if not group.read or any(values[n] != value for n, value in group.read.items()):
                form = group.form_now(values)
                group.read = {name: values[name] for name in form.read}
                self._fill(group, form)

    def pack(self, op: Op, scalars: Scalars, form: CallForm, form_now: FormNow,
             launches: Sequence[tuple[LaunchForm, Any]]) -> list[tuple[Any, bytes]]:  # fmt: skip
        """(moved kernel, its arguments) of a call's launches.

        Args:
            form: of the call, with the numbers of these scalars.
            launches: (form, packed arguments with real addresses).

        Raises:
            CaptureRefused: a kernel does not say which of its arguments change, or there are too
                many numbers.
        """
        if not form.declared:
            names = ", ".join(sorted({launch.kernel.name for launch in form.launches}))
            raise CaptureRefused(
                "a kernel reads step scalars and does not say which of its arguments change",
                where=f"{op.name}: {names}", fix="kernel(..., changing=(positions,))",
            )  # fmt: skip
        group = self._group(op, scalars, form, form_now)
        made, cell = [], group.first
        for launch, packed in launches:
            words = list(layout_of(launch.kernel).unpack(bytes(packed)[: len(launch.packed)]))
            for place in _words_that_change(launch):
                words[place] = self._block + CELL_BYTES * cell
                cell += 1
            kernel = moved(launch.kernel)
            made.append((kernel, layout_of(kernel).pack(*words)))
        return made

    def close(self) -> None:
        """Gives the block back."""
        give_back(self._driver.free, self._block)
        give_back(self._driver.host_free, self._host)

    def _group(self, op: Op, scalars: Scalars, form: CallForm, form_now: FormNow) -> _Group:
        cells = []
        for number, launch in enumerate(form.launches):
            letters = "".join(letters_by_argument(launch.kernel))
            cells += [(number, place, letters[place]) for place in _words_that_change(launch)]
        for group in self._groups:
            if group.scalars is scalars and group.op == op and group.cells == cells:
                return group
        group = _Group(op, scalars, form_now, self._used, cells)
        self._used += len(cells)
        if self._used * CELL_BYTES > BLOCK_BYTES:
            raise CaptureRefused(
                "the step has more numbers than the block in device memory holds", where=op.name,
                numbers=f"{self._used} of {BLOCK_BYTES // CELL_BYTES}",
                fix="OOCTRAIN_LAUNCHER=driver; or fewer operations with numbers of their own",
            )  # fmt: skip
        self._groups.append(group)
        return group

    def _fill(self, group: _Group, form: CallForm) -> None:
        words = [layout_of(launch.kernel).unpack(launch.packed) for launch in form.launches]
        for cell, (number, place, letter) in enumerate(group.cells, start=group.first):
            struct.pack_into(letter, self._image.data, CELL_BYTES * cell, words[number][place])


def _words_that_change(launch: LaunchForm) -> list[int]:
    """Which of a launch's parameters are numbers that change."""
    found: list[int] = []
    first = 0
    for argument, letters in enumerate(letters_by_argument(launch.kernel)):
        if argument in launch.kernel.changing:
            found += range(first, first + len(letters))
        first += len(letters)
    return found
