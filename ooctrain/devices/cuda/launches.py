"""Launches of our own: kernels as cubins, arguments packed by `struct`, started by the driver.

Operations on arrays, given as addresses, become kernels queued on one stream. A training step
repeats the same calls. The constant parts of a call (kernels, grids, shapes, tuples) are worked out
and packed once (`launch_form.py`); its arrays' addresses are filled in once for each place where
they lie; and the few numbers that follow from step scalars are filled in when a scalar has changed.
So a call costs a look-up and a ctypes call for each launch. Numba only compiles, and where cubins
are kept it is not needed even for that. Source: cuda.h, cuLaunchKernel. Read next:
`launch_form.py`, `device.py`, `layers/kernels/cuda/runtime/cubins.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.devices.cuda.launch_form import (
    CallForm,
    LaunchForm,
    LaunchRecorder,
    form_of,
    likeness,
    marks_of,
)
from ooctrain.devices.cuda.step_numbers import StepNumbers
from ooctrain.devices.driver_calls import GpuDriver
from ooctrain.layers.kernels.cuda.runtime.cubins import Cubin, CubinStore
from ooctrain.layers.kernels.cuda.runtime.launcher import count_up
from ooctrain.layers.kernels.cuda.runtime.packing import moved
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel
from ooctrain.step.op import Op, Scalars

_KEPT = 1 << 16
#: cuda.h's CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END.
_BUFFER, _SIZE, _END = 1, 2, 0


class LaunchDriver(GpuDriver, Protocol):
    """A GPU's driver that loads code and launches it."""

    def function(self, image: bytes, entry: str) -> int:
        """A kernel of an image, which is loaded when it is first asked for."""

    def launch(
        self, function: int, grid: tuple[int, int, int], threads: int, stream: int, packed: Any
    ) -> None:
        """Queues a kernel; `packed` is `cuLaunchKernel`'s `extra`."""


class CodeStore(Protocol):
    """Where kernels' code is found, or made."""

    def get(self, kernel: Kernel, capability: Capability) -> Cubin:
        """A kernel's code for a capability."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch with everything in its place; `extra` points to `buffer`, the packed arguments."""

    form: LaunchForm
    function: int
    buffer: Any
    extra: Any
    held: Any


@dataclass(frozen=True, slots=True)
class _Call:
    """An operation on its arrays; who keeps it keeps their ids."""

    op: Op
    ins: tuple[Any, ...]
    outs: tuple[Any, ...]
    workspace: Any

    def form(self, scalars: Scalars) -> CallForm:
        """What its launches are made of in one step."""
        return form_of(self.op, self.ins, self.outs, self.workspace, scalars)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return *self.ins, *self.outs, self.workspace


@dataclass(slots=True)
class _Known:
    """The launches of a call on certain arrays; they have the numbers of the scalars in `read`."""

    call: _Call
    form: CallForm
    launches: tuple[Launch, ...]
    read: Mapping[str, float | int]

    def serves(self, scalars: Scalars) -> bool:
        return all(scalars[name] == value for name, value in self.read.items())


class DriverKernels:
    """Runs operations on a GPU (`device.Kernels`) by launches that are worked out once.

    Args:
        driver: opened, and current in this thread.
        stream: that everything is queued on.
        store: of cubins; default: the one in the cache folder.
        graphs: whether whole steps are to be recorded where they can be.

    Attributes:
        numbers: where calls that are recorded now find what changes from step to step; None: they
            get it as arguments.
    """

    def __init__(
        self,
        driver: LaunchDriver,
        stream: int,
        store: CodeStore | None = None,
        graphs: bool = False,
    ):
        self.graphs = graphs
        self._driver, self._stream = driver, stream
        self._store, self._capability = store or CubinStore(), driver.capability()
        self.numbers: StepNumbers | None = None
        self._functions: dict[Kernel, int] = {}
        self._known: dict[tuple[int, ...], _Known] = {}
        self._forms: dict[tuple[Any, ...], tuple[CallForm, Op]] = {}
        self._numbers: dict[tuple[Any, ...], CallForm] = {}

    def array(self, address: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """The device array at an address."""
        return DeviceArray(address, shape, dtype)

    def count(self, array: DeviceArray) -> None:
        """Queues `count_up` on 32 elements of uint32."""
        recorder = LaunchRecorder()
        recorder.launch(count_up, 1, *marks_of([array]))
        self._start([self._filled(form, [array]) for form in recorder.launches])

    def launch(
        self, op: Op, ins: Sequence[Any], outs: Sequence[Any], workspace: Any, scalars: Scalars
    ) -> None:
        """Queues one operation. Cost: 3 us for each launch once the call is known; 10 us where its
        arrays lie elsewhere than ever before; 6 us where its numbers have changed."""
        key = (id(op), id(workspace), *map(id, ins), *map(id, outs))
        known = self._known.get(key)
        if known is None:
            known = self._known_at(_Call(op, tuple(ins), tuple(outs), workspace), scalars)
            _keep(self._known, key, known)
        if known.read and not known.serves(scalars):
            self._renumber(known, scalars)
        if known.read and self.numbers is not None:
            self._start_moved(known, scalars, self.numbers)
        else:
            self._start(known.launches)

    def number_anew(self) -> StepNumbers:
        """From now on calls find what changes from step to step in a new block of numbers. The
        kernels for that are loaded here, since loading may wait, and a stream that records not."""
        for known in self._known.values():
            for launch in known.launches if known.form.declared else ():
                self._function(moved(launch.form.kernel))
        self.numbers = StepNumbers(self._driver)
        return self.numbers

    def _start(self, launches: Sequence[Launch]) -> None:
        start, stream = self._driver.launch, self._stream
        for launch in launches:
            form = launch.form
            start(launch.function, form.grid, form.kernel.threads, stream, launch.extra)

    def _start_moved(self, known: _Known, scalars: Scalars, numbers: StepNumbers) -> None:
        """Starts a call whose numbers are in device memory."""
        given = [(launch.form, launch.buffer) for launch in known.launches]
        packed = numbers.pack(known.call.op, scalars, known.form, known.call.form, given)
        for (kernel, arguments), launch in zip(packed, known.launches, strict=True):
            buffer = ctypes.create_string_buffer(arguments, len(arguments))
            extra, _held = _extra(buffer, len(arguments))
            form, function = launch.form, self._function(kernel)
            self._driver.launch(function, form.grid, kernel.threads, self._stream, extra)

    def _known_at(self, call: _Call, scalars: Scalars) -> _Known:
        """A call's launches: its addresses in what is known of the operation on these shapes."""
        arrays = call.arrays
        shapes = (id(call.op), len(call.ins), *likeness(arrays))
        if shapes not in self._forms:
            _keep(self._forms, shapes, (call.form(scalars), call.op))
        form, _ = self._forms[shapes]
        return _Known(call, form, self._all_filled(form, call), form.read)

    def _all_filled(self, form: CallForm, call: _Call) -> tuple[Launch, ...]:
        arrays = call.arrays
        return tuple(self._filled(launch, arrays) for launch in form.launches)

    def _filled(self, form: LaunchForm, arrays: Sequence[Any]) -> Launch:
        """A launch on certain arrays."""
        function = self._function(form.kernel)
        buffer = ctypes.create_string_buffer(form.packed, max(1, len(form.packed)))
        form.fill(buffer, [array.address for array in arrays])
        return Launch(form, function, buffer, *_extra(buffer, len(form.packed)))

    def _function(self, kernel: Kernel) -> int:
        function = self._functions.get(kernel)
        if function is None:
            code = self._store.get(kernel, self._capability)
            function = self._functions[kernel] = self._driver.function(code.image, code.entry)
        return function

    def _renumber(self, known: _Known, scalars: Scalars) -> None:
        """Puts this step's numbers into a call's launches."""
        form = self._form_now(known, scalars)
        known.read = {name: scalars[name] for name in form.read}
        if not form.declared or len(form.launches) != len(known.launches):
            # Its kernels do not say what changes: everything may have.
            known.form, known.launches = form, self._all_filled(form, known.call)
            return
        for launch, now in zip(known.launches, form.launches, strict=True):
            for lo, hi in now.changing:
                launch.buffer[lo:hi] = now.packed[lo:hi]

    def _form_now(self, known: _Known, scalars: Scalars) -> CallForm:
        """A form with this step's numbers; for those that are declared, of any arrays, since they
        follow from operation and scalars alone."""
        if not known.form.declared:
            return known.call.form(scalars)
        op = known.call.op
        key = (op, *(scalars[name] for name in known.read))
        try:
            found = self._numbers.get(key)
        except TypeError:  # an operation that cannot be compared
            return known.call.form(scalars)
        if found is None:
            found = known.call.form(scalars)
            _keep(self._numbers, key, found)
        return found


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Keeps a value, and nothing else where there are too many."""
    if len(kept) >= _KEPT:
        kept.clear()
    kept[key] = value


def _extra(buffer: Any, size_bytes: int) -> tuple[Any, Any]:
    """`cuLaunchKernel`'s `extra` for packed arguments, and what else it points to."""
    size = ctypes.c_size_t(size_bytes)
    places = (_BUFFER, ctypes.addressof(buffer), _SIZE, ctypes.addressof(size), _END)
    return (ctypes.c_void_p * len(places))(*places), size
