"""Persistent values stay unchanged by a step whose loss is not a finite number.

The guard watches the loss and the calls that change persistent values: it decides whether a call
may run, and afterwards which values are restored. Updates work in place and come after the loss, so
skipping an update leaves the old value in place, and the rest of the list runs as planned. Only
values that change before the loss is known (running statistics, a few numbers per layer) have to be
saved. Read next: `executor.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooctrain.devices.base import Device
from ooctrain.errors import TrainingStopped
from ooctrain.step.trace import Call, Trace


def expect_finite(loss: float, step: int, lr: float, *batch: Any) -> None:
    """Raises TrainingStopped unless the loss of a step is a finite number.

    Args:
        batch: what it was given; arrays are looked at for numbers that are not finite.
    """
    if math.isfinite(loss):
        return
    counts = [_not_finite(part) for part in batch if isinstance(part, np.ndarray)]
    numbers = f"{sum(counts)} values of the batch are no finite numbers in float32"
    fix = "a smaller --lr, or clip the gradients"
    if any(counts):
        fix = "batches without them: look at the data, and at what scales it"
    raise TrainingStopped(
        f"the loss of step {step} is {loss}", step=step, where=f"learning rate {lr}",
        numbers=numbers if any(counts) else "", fix=f"{fix}; the step has changed nothing",
    )  # fmt: skip


def _not_finite(array: np.ndarray) -> int:
    """How many values are no finite float32."""
    if array.dtype.kind != "f":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        return int(np.count_nonzero(~np.isfinite(array.astype(np.float32, copy=False))))


class Guard:
    """Watches over one step.

    Args:
        loss: the variable that must be a finite number; None: nothing is watched.
    """

    def __init__(self, device: Device, trace: Trace, loss: int | None):
        self.loss, self._device, self._trace = loss, device, trace
        self._sound: bool | None = None  # nobody knows yet
        self._kept: dict[int, np.ndarray] = {}

    def changed_by(self, call: Call) -> Sequence[int]:
        """The variables whose next values a call makes: there before the step, or made of such in
        their place, as where running statistics are moved several times."""
        if call.pure or self.loss is None:
            return ()
        first, lasting = self._trace.storage, self._trace.carried_from
        return [v for v in call.ins if first[v] in lasting]

    def lets(self, call: Call, places: Sequence[tuple[int, int]]) -> bool:
        """Whether a call may run; called by the compute stream's work, as `look` is.

        Args:
            places: (variable, address) of all in `changed_by`.
        """
        in_place = len(call.reuse) == len(call.outs)
        if self._sound is False and in_place:
            return False
        if self._sound is None or not in_place:
            for variable, address in places:
                if variable not in self._trace.carried_from:
                    continue  # what was there before has been kept by the call that made it
                size = self._trace.variables[variable].value_bytes
                self._kept[variable] = self._device.capture(address, size)
        return True

    def look(self, address: int) -> None:
        """Looks at the loss, which has been written to an address."""
        assert self.loss is not None, "somebody has asked for it"
        described = self._trace.variables[self.loss]
        value = self._device.look(address, described.value_bytes).view(described.dtype)
        self._sound = bool(np.isfinite(value).all())

    def to_restore(self) -> Mapping[int, np.ndarray]:
        """{variable: its bytes before the step}, of what must be put back after it."""
        return self._kept if self._sound is False else {}


class RecordedGuard(Guard):
    """Watches over a step that is being recorded: what it looks at is copied, and seen whenever the
    record has been done; until then the loss is taken for a finite number.

    Attributes:
        looked: whether the piece of work that was submitted last has looked.
    """

    def __init__(self, device: Device, trace: Trace, loss: int | None):
        super().__init__(device, trace, loss)
        self.looked = False
        self._bytes = np.empty(0, np.uint8)

    def look(self, address: int) -> None:
        """Copies the loss."""
        assert self.loss is not None, "somebody has asked for it"
        self._bytes = self._device.capture(address, self._trace.variables[self.loss].value_bytes)
        self._sound = self.looked = True

    def seen(self) -> Guard:
        """A guard that has looked at the copy, for what is not recorded."""
        made = Guard(self._device, self._trace, self.loss)
        made._sound, made._kept = self.is_sound(), dict(self._kept)
        return made

    def is_sound(self) -> bool:
        """Whether the copied loss is a finite number."""
        dtype = "float32" if self.loss is None else self._trace.variables[self.loss].dtype
        return bool(np.isfinite(self._bytes.view(dtype)).all())
