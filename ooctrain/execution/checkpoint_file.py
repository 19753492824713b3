"""How a checkpoint lies in its file: a header, the values, and a checksum over both.

Values are written and read one at a time, since they may come from a device to a host that has no
room for all of them. Each is fetched only once, so the header is written twice: first to take its
place, and at the end with the checksum of what was written. Source of the format: the safetensors
specification (8 bytes length, JSON header, raw bytes). Read next: `checkpoint.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol

import numpy as np

from ooctrain.step.schema import parse_json

STATE_KEY, CHECKSUM_KEY = "ooctrain", "sha256"
#: What PyTorch's tools say of their files.
WEIGHTS = MappingProxyType({"format": "pt"})
_DTYPE_NAMES = {
    "float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip
_DTYPES = {text: np.dtype(name) for name, text in _DTYPE_NAMES.items()}
_LENGTH_BYTES = 8
#: Values are put in order and written in parts of about this size.
PART_BYTES = 4 << 20


class Storable(Protocol):
    """What can be saved: an array, or a tensor, whose value is fetched when its turn comes."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray: ...


def write(
    path: Path, values: Mapping[str, Storable], state: str | None,
    before: os.stat_result | None = None,
) -> None:  # fmt: skip
    """Writes the values one after the other, and then the header again, with their checksum.

    Args:
        state: of the run; None: the values are weights alone, as other tools write them.
        before: the file whose place it takes, and whose access rights and owner it gets; None:
            those of any other file of the user, by the umask.
    """
    checksum = Checksum(state or "")
    first = 0o666 if before is None else 0o600
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, first)
    with os.fdopen(descriptor, "wb") as file:
        if before is not None:
            _hand_on(path, before)
        file.write(_header(values, state, checksum.text()))
        for name, value in values.items():
            _write_value(file, name, value, checksum)
        file.seek(0)
        file.write(_header(values, state, checksum.text()))
        file.flush()
        os.fsync(file.fileno())


def _hand_on(path: Path, before: os.stat_result) -> None:
    """Gives a file another's owner, where this user may, and its access rights."""
    own = path.stat()
    if hasattr(os, "chown") and (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid):
        with suppress(OSError):
            os.chown(path, before.st_uid, before.st_gid)
    os.chmod(path, stat.S_IMODE(before.st_mode))


def _write_value(file: BinaryIO, name: str, value: Storable, checksum: Checksum) -> None:
    """Fetches a value, writes it, and forgets it before the next one is fetched."""
    array = np.asarray(value)
    assert (array.dtype, array.shape) == (np.dtype(value.dtype), tuple(value.shape)), name
    checksum.begin(name, array)
    for part in _in_parts(array):
        checksum.add(part)
        file.write(part)


class FileArrays(Mapping[str, np.ndarray]):
    """The arrays of a file by name, each read when it is asked for, by any thread; the file may get
    another name meanwhile, or none.

    Args:
        path: a whole safetensors file.

    Attributes:
        metadata: its texts.

    Raises:
        OSError: it cannot be read.
        ValueError, KeyError: it is not such a file, or its elements have another type than ours.
    """

    def __init__(self, path: str | Path):
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - it ends with this object
        weakref.finalize(self, self._file.close)
        self._reading = threading.Lock()  # the file has one position
        self._begin = _LENGTH_BYTES + int.from_bytes(self._read(0, _LENGTH_BYTES), "little")
        described = parse_json(self._read(_LENGTH_BYTES, self._begin - _LENGTH_BYTES).decode())
        self.metadata: dict[str, str] = described.pop("__metadata__", {})
        self._described = {name: described[name] for name in sorted(described)}

    def __getitem__(self, name: str) -> np.ndarray:
        described = self._described[name]
        first, end = described["data_offsets"]
        data = np.frombuffer(self._read(self._begin + first, end - first), np.uint8)
        return data.view(_DTYPES[described["dtype"]]).reshape(described["shape"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def _read(self, first: int, size_bytes: int) -> bytearray:
        found, done = bytearray(size_bytes), 0
        with self._reading:
            self._file.seek(first)
            while done < size_bytes:
                got = self._file.readinto(memoryview(found)[done:])
                if not got:
                    raise ValueError(f"it ends after {first + done} bytes")
                done += got
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, such as for another rank, has all values."""
        return dict, (dict(self),)


class Checksum:
    """SHA-256 over a state and arrays: names, types, shapes, bytes."""

    def __init__(self, state: str):
        self._digest = hashlib.sha256(state.encode())

    def begin(self, name: str, array: np.ndarray) -> None:
        """Adds what an array is; its bytes come next."""
        self._digest.update(f"\n{name}|{array.dtype.name}|{array.shape}|".encode())

    def add(self, part: memoryview) -> None:
        """Adds bytes of the array that was begun."""
        self._digest.update(part)

    def text(self) -> str:
        """Of what has been added so far; always as long."""
        return self._digest.hexdigest()


def checksum_of(arrays: Mapping[str, np.ndarray], state: str) -> str:
    """The checksum of a file that holds these."""
    checksum = Checksum(state)
    for name, array in arrays.items():
        checksum.begin(name, array)
        for part in _in_parts(array):
            checksum.add(part)
    return checksum.text()


def size_bytes(value: Storable) -> int:
    """Of its elements."""
    return math.prod(value.shape) * np.dtype(value.dtype).itemsize


def _in_parts(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of an array, row by row of its first axis where its order must be changed: many
    rows at a time, so that there is no second copy of the whole.
    """
    rows = array if array.ndim else array.reshape(1)
    step = max(1, PART_BYTES * len(rows) // max(1, array.nbytes))
    for begin in range(0, len(rows), step):
        part = np.asarray(rows[begin : begin + step], order="C")
        yield part.reshape(-1).view(np.uint8).data


def _header(values: Mapping[str, Storable], state: str | None, checksum: str) -> bytes:
    about = WEIGHTS if state is None else {STATE_KEY: state, CHECKSUM_KEY: checksum}
    header: dict[str, Any] = {"__metadata__": dict(about)}
    offset = 0
    for name, value in values.items():
        size = size_bytes(value)
        header[name] = {
            "dtype": _DTYPE_NAMES[np.dtype(value.dtype).name],
            "shape": list(value.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    padded = text + b" " * (-len(text) % 8)  # the bytes that follow are aligned to 8
    return len(padded).to_bytes(_LENGTH_BYTES, "little") + padded
