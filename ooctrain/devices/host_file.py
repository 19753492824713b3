"""The host slab in a file: what is swapped out lies on a disk, not in memory.

A `HostFile` copies between memory and bytes of the slab as the copy engines ask it to. It has
addresses of its own, above all of memory, so `copy(target, source, bytes)` goes either way and an
engine knows no difference. A copy is cut into pieces at fixed places of the file, and several
pieces are on their way at once, since a disk with one request at a time idles between
them. Past the page cache a file is written in whole blocks: a piece that begins or ends inside one
is read, changed and written back, alone; its memory need not be aligned, for it goes through a
buffer that is. Where the page cache cannot be passed by, every copy out waits for the disk and
takes its pages out of the cache, for memory that the system fills with the file is not saved. A
copy is done when all of its pieces are: the list's waits need nothing more. Sources: open(2),
"O_DIRECT"; docs/schedule.md, "Streams". Read next: `spill.py`; `cpu/device.py`.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from queue import SimpleQueue

import numpy as np

from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.devices.spill import (
    BLOCK_BYTES,
    MEANINGS,
    FileCalls,
    Spill,
    aligned_bytes,
    open_file,
    refusal,
)
from ooctrain.errors import TransferError

PIECE_BYTES = 1 << 20
#: Pieces on their way at once. Copies in and out share them.
IN_FLIGHT = 4
#: Where the slab's own addresses begin; a processor's end at 2**57.
BASE_ADDRESS = 1 << 60


class HostFile:
    """A host slab on a disk.

    Args:
        spill: where.
        size_bytes: size of the slab; whole blocks are taken on the disk.
        calls: on the file.
        piece_bytes: what is read or written in one call, whole blocks.

    Attributes:
        bytes_per_us: the rate that copies keep to.
        written_bytes, read_bytes: to and from the disk so far.
        direct: whether the page cache is passed by.
        kept: for another session: `close` does nothing (`KeptFile`).

    Raises:
        ConfigError: the folder is not writable or has too little space.
    """

    address = BASE_ADDRESS
    block_bytes = BLOCK_BYTES

    def __init__(
        self, spill: Spill, size_bytes: int, calls: FileCalls | None = None,
        piece_bytes: int = PIECE_BYTES,
    ):  # fmt: skip
        self.size_bytes, self._folder = size_bytes, spill.folder
        self.bytes_per_us = spill.bytes_per_us
        self._calls, self._piece_bytes = calls or FileCalls(), piece_bytes
        self.reserved_bytes = max(1, -(-size_bytes // BLOCK_BYTES)) * BLOCK_BYTES
        self._file, self.direct = open_file(spill.folder, self.reserved_bytes, self._calls)
        self._unit = BLOCK_BYTES if self.direct else 1
        self.written_bytes = self.read_bytes = 0
        self._count, self._edges = threading.Lock(), threading.Lock()
        self._buffers: SimpleQueue[np.ndarray] = SimpleQueue()
        for _ in range(IN_FLIGHT + 2):  # and one for each copy stream
            self._buffers.put(aligned_bytes(piece_bytes))
        self._workers = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="ooctrain-spill")
        self._open, self.kept = True, False

    def resize(self, size_bytes: int) -> None:
        """Makes it the slab of another session; its bytes are not looked at. The space grows.

        Raises:
            ConfigError: there is too little space; the slab is as before.
        """
        wanted_bytes = max(1, -(-size_bytes // BLOCK_BYTES)) * BLOCK_BYTES
        if wanted_bytes > self.reserved_bytes:
            self._grow(wanted_bytes)
            self.reserved_bytes = wanted_bytes
        self.size_bytes = size_bytes

    def _grow(self, wanted_bytes: int) -> None:
        try:
            if self.direct:  # zeros that are written where nothing can be reserved lie anywhere
                self._calls.bypass(self._file, wanted=False)
            self._calls.reserve(self._file, wanted_bytes)
        except OSError as error:
            with suppress(OSError):  # what there was of it is for others
                self._calls.shrink(self._file, self.reserved_bytes)
            more_bytes = wanted_bytes - self.reserved_bytes
            raise refusal(self._folder, error, more_bytes, self._calls, " more") from error
        finally:
            if self.direct:
                self._calls.bypass(self._file, wanted=True)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Copies between memory and the slab; one of the addresses is the slab's.

        Raises:
            TransferError: the disk has failed or is full; what the range holds is not known.
        """
        writes = target >= self.address
        offset = (target if writes else source) - self.address
        memory = source if writes else target
        if not 0 <= offset <= self.size_bytes - size_bytes:
            raise TransferError(
                "a copy lies outside the host slab", code="OOC-141",
                numbers=f"[{offset}, +{size_bytes}) of {self.size_bytes} bytes",
                fix="please report it: the plan's slots lie within the slab",
            )  # fmt: skip
        move = self._write if writes else self._read
        try:
            pieces = self._pieces(offset, offset + size_bytes)
            self._all([partial(move, lo, hi, memory + lo - offset) for lo, hi in pieces])
            if not self.direct:
                if writes:
                    self._calls.sync(self._file)
                self._calls.forget(self._file, offset, size_bytes)
        except OSError as error:
            raise self._failed("write" if writes else "read", offset, size_bytes, error) from error

    def get(self, offset: int, size_bytes: int) -> np.ndarray:
        """A copy of bytes of the slab."""
        data = np.empty(size_bytes, np.uint8)
        self.copy(data.ctypes.data, self.address + offset, size_bytes)
        return data

    def put(self, offset: int, data: np.ndarray) -> None:
        """Writes uint8 data to the slab."""
        data = np.ascontiguousarray(data)
        self.copy(self.address + offset, data.ctypes.data, data.size)

    def close(self) -> None:
        """Gives the file back, once nothing is on its way any more; nothing, while it is kept."""
        if self.kept:
            return
        self._workers.shutdown(wait=True)
        if self._open:
            self._open = False
            self._calls.close(self._file)

    def _pieces(self, lo: int, hi: int) -> Iterator[tuple[int, int]]:
        """[lo, hi) cut at the multiples of a piece's size."""
        while lo < hi:
            end = min(hi, (lo // self._piece_bytes + 1) * self._piece_bytes)
            yield lo, end
            lo = end

    def _all(self, moves: Sequence[Callable[[], None]]) -> None:
        """Does all of these, several at a time. Nothing of it is on its way when it returns."""
        if len(moves) == 1:
            moves[0]()
            return
        asked = [self._workers.submit(move) for move in moves]
        # Ctrl-C ends the waiting, and not what still uses the memory.
        try:
            wait(asked)
        finally:
            wait(asked)
        for piece in asked:
            piece.result()

    def _write(self, lo: int, hi: int, memory: int) -> None:
        first, end = lo // self._unit * self._unit, -(-hi // self._unit) * self._unit
        part = (lo, hi) != (first, end)
        if not (part or memory % self._unit):
            self._put(first, bytes_at(memory, hi - lo))
            return
        # Two pieces of one block must not both read it before either has written it.
        with self._buffer() as buffer, self._edges if part else nullcontext():
            block = buffer[: end - first]
            if lo != first:
                self._get(first, block[:BLOCK_BYTES])
            if hi != end:
                self._get(end - BLOCK_BYTES, block[-BLOCK_BYTES:])
            block[lo - first : hi - first] = bytes_at(memory, hi - lo)
            self._put(first, block)

    def _read(self, lo: int, hi: int, memory: int) -> None:
        first, end = lo // self._unit * self._unit, -(-hi // self._unit) * self._unit
        if (lo, hi) == (first, end) and not memory % self._unit:
            self._get(first, bytes_at(memory, hi - lo))
            return
        with self._buffer() as buffer:
            block = buffer[: end - first]
            self._get(first, block)
            bytes_at(memory, hi - lo)[:] = block[lo - first : hi - first]

    def _put(self, offset: int, data: np.ndarray) -> None:
        self._through(lambda at: self._calls.write(self._file, data[at:], offset + at), data.size)
        with self._count:
            self.written_bytes += data.size

    def _get(self, offset: int, into: np.ndarray) -> None:
        self._through(lambda at: self._calls.read(self._file, into[at:], offset + at), into.size)
        with self._count:
            self.read_bytes += into.size

    def _through(self, move: Callable[[int], int], size_bytes: int) -> None:
        """Calls until all bytes are moved: the system may move fewer, or be interrupted."""
        done = 0
        while done < size_bytes:
            try:
                count = move(done)
            except InterruptedError:
                continue
            # Past the page cache the next call begins at a block, too.
            gained = (done + count) // self._unit * self._unit - done
            if gained <= 0:
                raise OSError(errno.EIO, "the file ends too soon")
            done += gained

    @contextmanager
    def _buffer(self) -> Iterator[np.ndarray]:
        buffer = self._buffers.get()
        try:
            yield buffer
        finally:
            self._buffers.put(buffer)

    def _failed(self, call: str, offset: int, size_bytes: int, error: OSError) -> TransferError:
        number = error.errno or 0
        what, fix = MEANINGS.get(number, (f"fails: {os.strerror(number)}", "another folder"))
        return TransferError(
            f"the host slab on disk: {self._folder} {what}", code="OOC-141",
            where=f"{call} of [{offset}, +{size_bytes}) of the slab",
            numbers=f"errno {number}, {errno.errorcode.get(number, 'unknown')}",
            fix=f"{fix}; this step is lost, and --resume goes on from the last checkpoint",
        )  # fmt: skip


class KeptFile:
    """The file of a trainer's slabs, one session after the other: its space stays taken.

    A trainer that evaluates closes the session that trains, opens another one, and then the first
    one again. If each had a file of its own, a disk that another program fills meanwhile would end
    a run that had its space. For a larger slab more is taken, and none is given back.
    """

    def __init__(self) -> None:
        self._file: HostFile | None = None
        self._spill: Spill | None = None
        self._ending: weakref.finalize[..., KeptFile] | None = None

    def slab(self, spill: Spill, size_bytes: int) -> HostFile:
        """The file, with at least so much space; its `close` does nothing.

        Args:
            spill: where; another place, or another rate, is another file.
            size_bytes: size of the slab.

        Raises:
            ConfigError: the folder is not writable or has too little space.
        """
        if self._spill != spill:
            self.close()
        if self._file is None:
            self._file, self._spill = HostFile(spill, size_bytes), spill
            self._file.kept = True
            self._ending = weakref.finalize(self, _end, self._file, os.getpid())
            self._ending.atexit = False  # the system takes it back
        self._file.resize(size_bytes)
        return self._file

    def close(self) -> None:
        """Gives the file back. No session may be open."""
        if self._ending is not None:
            self._ending()
        self._file = self._spill = self._ending = None


def _end(file: HostFile, process: int) -> None:
    if os.getpid() == process:  # a fork has neither the threads nor the right
        file.kept = False
        file.close()
