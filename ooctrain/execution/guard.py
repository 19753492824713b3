"""Persistent values stay as they were before a step that cannot be completed.

A step cannot be completed if its loss or a number that it is about to write is not finite, or if an
operation raises (one of the user's own; a file that is read by rows). The list is then walked to
its end all the same, since only its copies bring every persistent value to where the next step
looks for it; calls are skipped. An update works in place, so skipping it leaves the old value in
place. What had been changed before the failure is restored from copies: of running statistics,
which change before the loss is known, and, where an operation may fail (`may_fail`), of all that
persists. Read next: `executor.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooctrain.devices.interface import Device
from ooctrain.errors import TrainingStopped
from ooctrain.step.op import computed_by, physical_shape
from ooctrain.step.trace import Call, Trace


def may_fail(trace: Trace) -> bool:
    """Whether a step keeps copies of all that it changes, on the host, until it is done.

    It does if an operation of the user's own is among its calls, which may raise at any time, or
    one whose gradient has a pole. The copies are as large as parameters and optimizer slots
    together. Other gradients are finite unless they overflow.
    """
    return any(getattr(computed_by(call.op), "may_fail", False) for call in trace.calls)


def expect_finite(
    loss: float, written: NotFinite | None, step: int, lr: float, *batch: Any
) -> None:
    """Raises TrainingStopped unless the loss of a step, and all that it was about to write, are
    finite numbers.

    Args:
        written: what was not, though the loss is.
        batch: what the step was given; arrays are looked at for numbers that are not finite.
    """
    if math.isfinite(loss) and written is None:
        return
    counts = [_not_finite(part) for part in batch if isinstance(part, np.ndarray)]
    numbers = [f"{sum(counts)} values of the batch are not finite in float32"] * any(counts)
    fix = "a smaller --lr, or clip the gradients"
    if any(counts):
        fix = "batches without them: look at the data, and at what scales it"
    what, done = f"the loss of step {step} is {loss}", "the step has changed nothing"
    if math.isfinite(loss) and written is not None:
        what = f"step {step} would make {written.name!r} other than finite; its loss is {loss}"
        fix = "an operation whose gradient is finite where it is used, or a smaller --lr"
        if written.changed:
            numbers.append(f"{written.changed} values were updated before, and keep the update")
            done = "clip judges all gradients before the first update"
    raise TrainingStopped(
        what, step=step, where=f"learning rate {lr}", numbers="; ".join(numbers),
        fix=f"{fix}; {done}",
    )  # fmt: skip


def _not_finite(array: np.ndarray) -> int:
    """How many values are not finite in float32."""
    if array.dtype.kind != "f":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        return int(np.count_nonzero(~np.isfinite(array.astype(np.float32, copy=False))))


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A value that a step was about to make other than finite.

    Args:
        changed: values that the step has changed before it was seen, and that keep the change, as
            no copies of them were kept.
    """

    name: str
    changed: int


class Guard:
    """Watches over one step.

    Args:
        loss: the variable that must be a finite number; None: nothing is watched.
        undoes: whether copies are kept of all that the step changes, on the host, until it is done.

    Attributes:
        error: what an operation raised; None: nothing.
        not_finite: the first value that would not have been finite.
    """

    def __init__(self, device: Device, trace: Trace, loss: int | None, undoes: bool = False):
        self.loss, self._device, self._trace, self._undoes = loss, device, trace, undoes
        self._looks = device.name == "cpu"  # a GPU has not computed yet when a call returns
        self._sound: bool | None = None  # not known yet
        self._kept: dict[int, np.ndarray] = {}
        self._changed = 0
        self.error: BaseException | None = None
        self.not_finite: NotFinite | None = None

    def fail(self, error: BaseException) -> None:
        """From now on calls are skipped; `error` is what the step ends with."""
        self.error, self._sound = self.error or error, False

    def changed_by(self, call: Call) -> Sequence[int]:
        """The variables whose next values a call makes: there before the step, or made of such in
        their place, as where running statistics are moved several times."""
        if call.pure or self.loss is None:
            return ()
        first, lasting = self._trace.storage, self._trace.carried_from
        return [v for v in call.ins if first[v] in lasting]

    def lets(self, call: Call, places: Sequence[tuple[int, int]], ins: Sequence[int]) -> bool:
        """Whether a call may run; called by the compute stream's work, as `look` is.

        Args:
            places: (variable, address) of all in `changed_by`.
            ins: addresses of the call's inputs.
        """
        if places and not self._may_change(call, places, ins):
            return False
        return self.error is None or self._tells_others(call, ins)

    def _may_change(
        self, call: Call, places: Sequence[tuple[int, int]], ins: Sequence[int]
    ) -> bool:
        """Whether a call may change what persists; copies are kept where it is to be undone."""
        in_place = len(call.reuse) == len(call.outs)
        if self._sound is False and in_place:
            return False
        if self._sound is None or self._undoes or not in_place:
            self._keep(places)
            return True
        return self._expect_finite(call, dict(places), ins)

    def _tells_others(self, call: Call, ins: Sequence[int]) -> bool:
        """Whether a call exchanges a message, for which other ranks wait. After an error it sends
        NaN, so that they stop with this step, too."""
        op = computed_by(call.op)
        if getattr(op, "sends", None) is not None:
            for array in map(self._array, call.ins, ins):
                array.fill(np.nan if array.dtype.kind == "f" else 0)
            return True
        return getattr(op, "awaits", None) is not None

    def _keep(self, places: Sequence[tuple[int, int]]) -> None:
        for variable, address in places:
            if variable not in self._trace.carried_from:
                continue  # what was there before has been kept by the call that made it
            size = self._trace.variables[variable].value_bytes
            self._kept[variable] = self._device.capture(address, size)

    def _expect_finite(self, call: Call, changed: Mapping[int, int], ins: Sequence[int]) -> bool:
        """Whether the gradients of an update are finite numbers; no copy is kept of what they
        change."""
        given = zip(call.ins, ins, strict=True)
        if not self._looks or all(v in changed or is_finite(self._array(v, at)) for v, at in given):
            self._changed += len(changed)
            return True
        self._refuse(next(iter(changed)), self._changed)
        return False

    def look_at_changes(self, call: Call, outs: Sequence[int]) -> None:
        """Looks at what a call has written that persists, of which copies are kept.

        Args:
            outs: addresses of the call's outputs.
        """
        if not self._looks or self._sound is False:
            return
        for new, address in zip(call.outs, outs, strict=True):
            old = self._trace.carries.get(new, new)
            kept = self._kept.get(old)
            if kept is None:
                continue
            array = self._array(new, address)
            if not is_finite(array) and is_finite(kept.view(array.dtype)):
                self._refuse(old, 0)

    def _array(self, variable: int, address: int) -> Any:
        described = self._trace.variables[variable]
        return self._device.view(address, physical_shape(described.shape), described.dtype)

    def _refuse(self, variable: int, changed: int) -> None:
        self._sound = False
        name = self._trace.variables[variable].name
        self.not_finite = self.not_finite or NotFinite(name, changed)

    def look(self, address: int) -> None:
        """Looks at the loss, which has been written to an address."""
        assert self.loss is not None, "a loss was named"
        described = self._trace.variables[self.loss]
        value = self._device.look(address, described.value_bytes).view(described.dtype)
        if self._sound is None:
            self._sound = bool(np.isfinite(value).all())

    def to_restore(self) -> Mapping[int, np.ndarray]:
        """{variable: its bytes before the step}, of what must be put back after it."""
        return self._kept if self._sound is False else {}


def is_finite(array: np.ndarray) -> bool:
    """Whether all elements of an array are finite numbers.

    Cost: one pass; a second one where the sum is not finite.
    """
    if array.dtype.kind != "f":
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduce(array, axis=None)
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())


class RecordedGuard(Guard):
    """Watches over a step that is being recorded: what it looks at is copied, and seen whenever the
    record has been done; until then the loss is taken for a finite number.

    Attributes:
        looked: whether the piece of work that was submitted last has looked.
    """

    def __init__(self, device: Device, trace: Trace, loss: int | None):
        super().__init__(device, trace, loss)
        self.looked = False
        self._copied = np.empty(0)

    def look(self, address: int) -> None:
        """Copies the loss."""
        assert self.loss is not None, "a loss was named"
        described = self._trace.variables[self.loss]
        copied = self._device.capture(address, described.value_bytes)
        self._copied = copied.view(described.dtype)
        self._sound = self.looked = True

    def seen(self) -> Guard:
        """A guard that has looked at the copy, for what is not recorded."""
        made = Guard(self._device, self._trace, self.loss)
        made._sound, made._kept = self.is_sound(), dict(self._kept)
        return made

    def is_sound(self) -> bool:
        """Whether the copied loss is a finite number."""
        return bool(np.isfinite(self._copied).all())
