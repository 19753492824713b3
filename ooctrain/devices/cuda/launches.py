"""Launches of our own: a repeated call costs a look-up, then one ctypes call for each kernel.

Operations on arrays, given as addresses, become kernels queued on one stream. A training step
repeats the same calls. The constant parts of a call (kernels, grids, shapes, tuples) are worked out
and packed once (`CallForm`); its arrays' addresses are filled in once for each place where they
lie; and the few numbers that follow from step scalars are filled in when a scalar has changed.
Kernels are cubins, arguments are packed by `struct` and started by the driver. Numba only compiles,
and where cubins are kept it is not needed even for that. Source: cuda.h, cuLaunchKernel. Read next:
`device.py`, `step_graph.py`, `layers/kernels/cuda/runtime/cubins.py`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.devices.driver_calls import GpuDriver, give_back
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import CaptureRefused, ConfigError, DriverError
from ooctrain.layers.kernels.cuda.runtime.cubins import Cubin, CubinStore
from ooctrain.layers.kernels.cuda.runtime.launcher import Blocks, count_up
from ooctrain.layers.kernels.cuda.runtime.packing import (
    ADDRESS_AT,
    layout_of,
    letters_by_argument,
    moved,
    pack_arguments,
    places_of,
)
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.kernels.kernel_table import WatchedScalars
from ooctrain.step.op import Op, Scalars

_KEPT = 1 << 16
#: cuda.h's CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END.
_BUFFER, _SIZE, _END = 1, 2, 0


class LaunchDriver(GpuDriver, Protocol):
    """A GPU's driver that loads code and launches it."""

    def function(self, image: bytes, entry: str) -> int:
        """A kernel of an image, which is loaded when it is first requested."""

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
    """An operation on its arrays; keeping it keeps their ids."""

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
        store: store of cubins; default: the one in the cache folder.
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


# The parts of a call's launches without addresses and step scalars. The functions that start
# kernels only add to an address, and compare it with another. So they are run once on arrays whose
# addresses are marks, the same mark for arrays at the same place, and each mark that comes out
# gives the array and the offset in it. Filling in real addresses is then a few stores, for every
# call of the same operation and shapes, wherever its arrays lie.

#: Marks are so far apart that no array reaches from one to the next.
_MARK_BITS = 48
_ADDRESS = struct.Struct("@Q")


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """A launch without its addresses.

    Args:
        kernel, grid: what runs, on how many blocks.
        packed: its arguments; marks stand for addresses.
        addresses: (place in `packed`, which array of the call, bytes within it) of each.
        changing: (first byte, behind the last) of the numbers that may change from step to step.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    packed: bytes
    addresses: tuple[tuple[int, int, int], ...]
    changing: tuple[tuple[int, int], ...]

    def fill(self, buffer: Any, addresses: Sequence[int]) -> None:
        """Writes the addresses of a call's arrays into its packed arguments."""
        for place, which, within in self.addresses:
            _ADDRESS.pack_into(buffer, place, addresses[which] + within)


@dataclass(frozen=True, slots=True)
class CallForm:
    """The launches of an operation on arrays of certain shapes.

    Args:
        launches: in their order.
        read: the step scalars that were read, with their values.
    """

    launches: tuple[LaunchForm, ...]
    read: Mapping[str, float | int]

    @property
    def declared(self) -> bool:
        """Whether the kernels say which of their arguments depend on the step scalars."""
        return bool(self.read) and all(launch.changing for launch in self.launches)


def form_of(op: Op, ins: Sequence[Any], outs: Sequence[Any], space: Any, scalars: Any) -> CallForm:
    """Works a call out. Cost: some 20 to 50 us.

    Args:
        ins, outs, space: arrays of the call; their addresses do not matter.
    """
    marked = marks_of((*ins, *outs, space))
    recorder, watched, split = LaunchRecorder(), WatchedScalars(scalars), len(ins)
    CUDA.run(op, recorder, marked[:split], marked[split:-1], marked[-1], watched)
    return CallForm(tuple(recorder.launches), watched.read)


def likeness(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """All of a call's arrays that its form depends on: shapes, types, and which have one place."""
    first: dict[int, int] = {}
    return tuple(
        (array.shape, array.dtype, first.setdefault(array.address, number))
        for number, array in enumerate(arrays)
    )


def marks_of(arrays: Sequence[Any]) -> list[DeviceArray]:
    """Arrays like these, at marks."""
    return [
        DeviceArray((first + 1) << _MARK_BITS, shape, dtype)
        for shape, dtype, first in likeness(arrays)
    ]


class LaunchRecorder:
    """A `Launcher` that works launches out, on arrays of `marks_of`, and starts none."""

    def __init__(self) -> None:
        self.launches: list[LaunchForm] = []

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        """Works one launch out."""
        x, y, z, *_ = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)
        places = places_of(kernel)
        packed = pack_arguments(kernel, args)
        addresses = tuple(_marks(args, places))
        changing = tuple(places[n] for n in kernel.changing)
        self.launches.append(LaunchForm(kernel, (x, y, z), packed, addresses, changing))

    def part(self, workspace: DeviceArray, offset_bytes: int, count: int, dtype: str) -> Any:
        """A piece of a workspace."""
        part = DeviceArray(workspace.address + offset_bytes, (count,), dtype)
        if offset_bytes < 0 or offset_bytes + part.nbytes > workspace.nbytes:
            raise ConfigError(
                "a kernel wants more workspace than its call requested",
                numbers=f"{offset_bytes + part.nbytes} of {workspace.nbytes} bytes",
                fix="a workspace_bytes of the operation's kernel that counts all that it takes",
            )
        return part


def _marks(
    args: Sequence[Any], places: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Of each array among the arguments: where its address is packed, which one it is a part of,
    and how far within."""
    for value, (start, _) in zip(args, places, strict=True):
        if isinstance(value, DeviceArray):
            number, within = divmod(value.address, 1 << _MARK_BITS)
            yield start + ADDRESS_AT, number - 1, within


# The numbers of a step in a block of device memory, which a recorded step reads anew each time. A
# graph keeps the arguments that it was recorded with, so learning rates and dropout's keys lie in
# cells of device memory, and kernels are launched with the cells' addresses. The host writes the
# numbers into pinned memory before each launch of the graph, whose first piece copies the block.
# Calls of equal operations with the same step scalars share their cells.

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
            form: form of the call, with the numbers of these scalars.
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
