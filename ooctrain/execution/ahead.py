"""A trainer's batches, each read and laid out while the step before it runs.

Reading a batch, turning it channels-last and writing it where a copy can begin at once are work of
the host, which is idle during a step. One thread therefore does this work one batch ahead. It
yields the batches in the order in which they are iterated, each with the bytes that the device
wants, in pinned memory where the device is a GPU. On the device no part of a batch exists before
its step begins: its home is memory that the running step uses, and two homes would have to be in
the budget. An error in the thread is raised when its batch is asked for. Source: docs/gpu.md,
"Inputs". Read next: `../devices/interface.py`, `../train.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ooctrain.errors import ConfigError, DriverError
from ooctrain.execution.evaluation import pair_of
from ooctrain.execution.promise import MOST_AHEAD_BYTES, Promise
from ooctrain.execution.result import Laid, check_value
from ooctrain.execution.sessions import Images, input_values
from ooctrain.step.op import physical_shape, to_logical
from ooctrain.step.trace import Trace

if TYPE_CHECKING:
    from ooctrain.devices.interface import Device, HostBuffer

Pair = tuple[Any, Any]
Values = Mapping[int, Any]
#: Values of a host buffer begin at multiples of this many bytes.
APART = 256
#: Larger batches are read in their turn, as host memory would have to hold two of them more; under
#: a memory budget those of more than `MOST_AHEAD_BYTES`.
MOST_BYTES = 1 << 30
THREAD_NAME = "ooctrain-ahead"


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Where a batch is laid out, and for which step."""

    trace: Trace
    buffer: HostBuffer


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch that has been read.

    Args:
        batch: as it is handed out.
        hand_out: called when it is handed out.
        place, values: where it lies, with its values; None: nowhere yet.
    """

    batch: Pair
    hand_out: Callable[[], object]
    place: StagedBatch | None = None
    values: Values | None = None

    def serves(self, trace: Trace, x: Any, y: Any) -> bool:
        """Whether a step of these arrays can take its bytes."""
        place = self.place
        same = self.batch[0] is x and self.batch[1] is y
        return same and place is not None and place.trace is trace and place.buffer.open


@dataclass(frozen=True, slots=True)
class Manner:
    """How a `DataLoader` reads.

    Args:
        alone: it reads no batch ahead by itself: a memory budget knows nothing of them.
        as_bytes: it gives images as bytes, if it can: the model makes numbers of them.
    """

    alone: bool = False
    as_bytes: bool = False


USUAL = Manner()


class Reader:
    """Reads one batch ahead, in a thread that ends with it."""

    def __init__(self, batches: Iterable[Any], manner: Manner = USUAL):
        self._source = _reading(batches, manner)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME)
        self._next: Future[ReadBatch | None] | None = None

    @property
    def reads(self) -> bool:
        """Whether the next batch is on its way, or there."""
        return self._next is not None

    def begin(self, place: StagedBatch | None = None) -> None:
        """Has the next batch read, and laid out if a place is given."""
        self._next = self._pool.submit(_read, self._source, place)

    def take(self) -> ReadBatch | None:
        """The next batch; None: there is none. Raises what reading it raised."""
        if self._next is None:
            self.begin()
        assert self._next is not None
        asked, self._next = self._next, None
        return asked.result()

    def close(self) -> None:
        """Ends the thread, once it has read what it is about to read."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Ahead:
    """What is read ahead for a trainer."""

    def __init__(self) -> None:
        self._reader: Reader | None = None
        self._read: ReadBatch | None = None  # handed out last
        self._asked: tuple[Pair, Trace, Values] | None = None  # by the step that is to begin

    def over(self, batches: Iterable[Any], manner: Manner = USUAL) -> Generator[Pair, None, None]:
        """The batches, with the next one under way as soon as a step has taken one."""
        reader = self._reader = Reader(batches, manner)
        try:
            while (found := reader.take()) is not None:
                found.hand_out()
                self._read = found
                yield found.batch
        finally:
            reader.close()
            if self._reader is reader:
                self._reader = self._read = self._asked = None

    def inputs(self, trace: Trace, x: Images, y: np.ndarray | None) -> Values:
        """A batch by variable: as it has been laid out, or as `input_values` has it."""
        read = self._read
        known = read is not None and read.serves(trace, x, y)
        found = read.values if known and read is not None else None
        found = input_values(trace, x, y) if found is None else found
        self._asked = (x, y), trace, found
        return found

    def begin(self, device: Device, values: Values, promise: Promise | None = None) -> Values:
        """Has the next batch read while a step takes these values.

        Args:
            promise: that of a memory budget, if there is one.

        Returns:
            The values as they are to be taken: laid out, so that the arrays are not needed any
            more.
        """
        reader, asked, self._asked = self._reader, self._asked, None
        if reader is None or reader.reads or asked is None or asked[2] is not values:
            return values
        _, trace, _ = asked
        if _buffer_bytes(trace) > (MOST_BYTES if promise is None else MOST_AHEAD_BYTES):
            return values
        device.attach()
        try:
            if not all(isinstance(value, Laid) for value in values.values()):
                laid = lay_out(device, trace, values)
                if laid is None:
                    return values
                values = laid
            reader.begin(StagedBatch(trace, device.host_buffer(_buffer_bytes(trace))))
        except DriverError as error:  # there is no more pinned memory
            if error.lost:
                raise
        return values


def handed_out(batches: Iterable[Any], manner: Manner = USUAL) -> Iterator[Pair]:
    """The batches as inputs and targets, none read before it is asked for."""
    for batch, hand_out in _reading(batches, manner):
        hand_out()
        yield pair_of(batch)


def lay_out(device: Device, trace: Trace, values: Values) -> Values | None:
    """Values as the device wants them, in its next host buffer; None: one of them is read by
    rows."""
    return _lay(StagedBatch(trace, device.host_buffer(_buffer_bytes(trace))), values)


def position_of(batches: Iterable[Any]) -> int:
    """How many batches of an epoch have been handed out before, as a `DataLoader` knows it."""
    state = batches.state_dict() if hasattr(batches, "state_dict") else {}
    return int(state.get("position", 0))


def is_last(batches: Iterable[Any], number: int) -> bool:
    """Whether the batch that was handed out last, the number-th from 1 on, is known to be the last
    one of its epoch."""
    if hasattr(batches, "reading"):
        return position_of(batches) == 0  # a `DataLoader` stands at the next epoch then
    return isinstance(batches, list | tuple) and number == len(batches)


def no_batch(epoch: int) -> ConfigError:
    """What is wrong with batches that end before the first one of an epoch, counted from 0."""
    return ConfigError(
        f"epoch {epoch + 1} has no batch to train on", code="OOC-106",
        fix="a list of batches, or a DataLoader with at least one; a generator ends after one "
        "epoch",
    )  # fmt: skip


def _read(source: Iterator[tuple[Any, Callable[[], object]]], place: StagedBatch | None) -> Any:
    """What the thread does."""
    found = next(source, None)
    if found is None:
        return None
    x, y = (_still(part) for part in pair_of(found[0]))
    if place is None:
        return ReadBatch((x, y), found[1])
    try:
        values = _lay(place, input_values(place.trace, x, y))
    except Exception:  # the step that takes the batch says it in its turn
        values = None
    return ReadBatch((x, y), found[1], place if values is not None else None, values)


def _lay(place: StagedBatch, values: Values) -> dict[int, Laid] | None:
    """Values in a host buffer; None: it is closed, or one of them is read by rows, in its own
    time."""
    variables, found = place.trace.variables, {}
    if not all(isinstance(value, np.ndarray) for value in values.values()):
        return None
    for variable, value in values.items():
        check_value(value, variables[variable])

    def write(data: np.ndarray) -> None:
        at = 0
        for variable, value in values.items():
            part = data[at : at + value.nbytes]
            whole = part.view(value.dtype).reshape(physical_shape(value.shape))
            to_logical(whole)[...] = value
            described = variables[variable]
            found[variable] = Laid(described.shape, described.dtype, part)
            at += -(-value.nbytes // APART) * APART

    return found if place.buffer.fill(write) else None


def _buffer_bytes(trace: Trace) -> int:
    """Bytes of a step's inputs."""
    inputs = [v for v in trace.variables if v.kind == "input"]
    return sum(-(-v.value_bytes // APART) * APART for v in inputs)


def _still(part: Any) -> Any:
    """An array that cannot be written to, so that what was laid out stays what it is."""
    if not isinstance(part, np.ndarray) or isinstance(part, np.ma.MaskedArray):
        return part
    seen = np.asarray(part).view()
    seen.flags.writeable = False
    return seen


def _reading(batches: Iterable[Any], manner: Manner) -> Iterator[tuple[Any, Callable[[], object]]]:
    """Batches, each with what is called when it is handed out."""
    if hasattr(batches, "reading"):
        yield from batches.reading(ahead=not manner.alone, as_bytes=manner.as_bytes)
    else:
        for batch in batches:
            yield batch, lambda: None
