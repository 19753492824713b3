"""Messages to a submission's process or from it: a length, then JSON, both limited.

Plain data arrives unchanged on the other side, or `BadMessage` is raised. The other side may be
hostile, so a reader waits no longer than a deadline and reads no more than a limit, and rejects
what is not JSON (NaN, infinity, a bare value, nesting without end). Errors travel as data too. Read
next: `../interview.py` and `serve.py`, which speak through it.
"""

from __future__ import annotations

import builtins
import json
import os
import select
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from ooctrain import errors
from ooctrain.plugins import fault_of_own_code

#: Of what a submission may say at once, and of what it may be asked.
MOST_REPLY_BYTES, MOST_REQUEST_BYTES = 4 << 20, 256 << 20
_LENGTH = struct.Struct(">I")
_PIECE_BYTES = 1 << 16
#: On the monotonic clock, in seconds; or what says it whenever it is reached: it may have moved.
Deadline = float | Callable[[], float]


class BadMessage(Exception):
    """What came is not a message."""


class OutOfTime(Exception):
    """The deadline is over."""


class Line:
    """Two pipes, one for each direction.

    Args:
        read_from, write_to: descriptors; `close` closes them.
        most_bytes: most bytes of a message that comes.
        patient: no deadline is ever given, so the descriptors may block.
    """

    def __init__(self, read_from: int, write_to: int, most_bytes: int, *, patient: bool = False):
        self._read_from, self._write_to = read_from, write_to
        self._most_bytes = most_bytes
        self._ahead = b""  # read already, of what follows
        os.set_blocking(read_from, patient)
        os.set_blocking(write_to, patient)

    def send(self, message: Mapping[str, Any], deadline: Deadline | None = None) -> None:
        """Says something.

        Raises:
            OutOfTime: the other side does not listen.
            OSError: the other side is gone.
            TypeError, ValueError: it is not plain data.
        """
        text = json.dumps(message, allow_nan=False).encode()
        rest = memoryview(_LENGTH.pack(len(text)) + text)
        while rest:
            _wait(self._write_to, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._write_to, rest[:_PIECE_BYTES]) :]
            except BlockingIOError:  # less room than a piece
                continue

    def receive(self, deadline: Deadline | None = None) -> dict[str, Any]:
        """What the other side says.

        Raises:
            EOFError: it has closed the pipe.
            OutOfTime: it says nothing.
            BadMessage: it says what is not a message.
        """
        (size,) = _LENGTH.unpack(self._bytes(_LENGTH.size, deadline))
        if size > self._most_bytes:
            raise BadMessage(f"an answer of {size} bytes, and {self._most_bytes} are allowed")
        try:
            found = json.loads(self._bytes(size, deadline), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"an answer that is no JSON ({type(error).__name__})") from error
        if not isinstance(found, dict):
            raise BadMessage(f"an answer that is {type(found).__name__}, not an object")
        return found

    def close(self) -> None:
        """Closes both pipes."""
        os.close(self._read_from)
        os.close(self._write_to)

    def _bytes(self, count: int, deadline: Deadline | None) -> bytes:
        pieces, missing = [self._ahead], count - len(self._ahead)
        while missing > 0:
            _wait(self._read_from, select.POLLIN, deadline)
            try:
                piece = os.read(self._read_from, _PIECE_BYTES)
            except BlockingIOError:
                continue
            if not piece:
                raise EOFError
            pieces.append(piece)
            missing -= len(piece)
        whole = b"".join(pieces)
        self._ahead = whole[count:]
        return whole[:count]


def _wait(descriptor: int, event: int, deadline: Deadline | None) -> None:
    """Until something can be read or written; no deadline: reading and writing block by
    themselves.
    """
    if deadline is None:
        return
    poll = select.poll()
    poll.register(descriptor, event)
    while True:
        left_s = (deadline() if callable(deadline) else deadline) - time.monotonic()
        if left_s <= 0:
            raise OutOfTime
        if poll.poll(left_s * 1000):
            return


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a number")


# Errors as data. An exception becomes its kind, its words and its numbers, and on the other side an
# exception of the same kind. A kind is a word from a short list, because laws and tests use it to
# distinguish a refusal (`Infeasible`, `OutOfDeviceMemory`) from a mistake. Any other kind counts as
# the submission's own error, so a submission can neither end nor skip a test.

MOST_LETTERS = 4000
_OURS = (
    "OoctrainError", "ConfigError", "Infeasible", "InvalidFree", "OutOfDeviceMemory",
    "PlanMismatch", "ScheduleError", "ShapeError",
)  # fmt: skip
_PYTHON_S = (
    "ArithmeticError", "AssertionError", "AttributeError", "FileNotFoundError", "ImportError",
    "IndexError", "KeyError", "LookupError", "MemoryError", "ModuleNotFoundError", "NameError",
    "NotImplementedError", "OSError", "OverflowError", "PermissionError", "RecursionError",
    "RuntimeError", "TypeError", "ValueError", "ZeroDivisionError",
)  # fmt: skip
#: Numbers that an error of ours may carry, and those without which it cannot be made.
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "Infeasible": ("minimum_bytes",),
    "OutOfDeviceMemory": (
        "granted_bytes", "free_bytes", "largest_bytes", "budget_bytes", "enough_bytes",
    ),
}  # fmt: skip
_WORDS: Mapping[str, tuple[str, ...]] = {
    "Infeasible": ("needs", "witness_call"), "OutOfDeviceMemory": ("arena",),
    "ScheduleError": ("rule",),
}  # fmt: skip


class OwnError(Exception):
    """An error of a submission of a kind of its own."""


def error_data(error: BaseException, submission: str) -> dict[str, Any]:
    """An error as words and numbers."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    kind = next((name for name in kinds if name in (*_OURS, *_PYTHON_S)), "")
    ours = isinstance(error, errors.OoctrainError)
    what = error.what if isinstance(error, errors.OoctrainError) else str(error)
    data: dict[str, Any] = {"kind": kind, "what": what, "line": _line(error, submission)}
    if not kind:
        data["what"] = f"{type(error).__name__}: {error}"
    wanted = ("code", "where", "numbers", "fix", *_NUMBERS.get(kind, ()), *_WORDS.get(kind, ()))
    if ours:
        data |= {word: getattr(error, word, None) for word in wanted}
    short = {word: _short(value) for word, value in data.items()}
    return {**short, "driver": isinstance(error, errors.DriverError)}


def _line(error: BaseException, submission: str) -> str:
    """An error in one line, with its place in the submission."""
    fault = fault_of_own_code(error, [submission]) if isinstance(error, Exception) else None
    if fault is None:
        return next(iter(str(error).splitlines()), "") or type(error).__name__
    return f"{next(iter(fault.what.splitlines()), '')} ({fault.where})"


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MOST_LETTERS]
    return value if type(value) is int else None


def error_of(data: Any) -> tuple[Exception, str]:
    """(the exception, the same in one line); a `TypeError` where there was none."""
    if not isinstance(data, Mapping):
        return _no_error(data)
    word = {key: printable(value) for key, value in data.items() if isinstance(value, str)}
    kind, what = word.get("kind", ""), word.get("what", "")
    line = word.get("line", "").replace("\n", " ") or what
    if kind in _PYTHON_S:
        return getattr(builtins, kind)(what), line
    if kind not in _OURS:
        return OwnError(what), line
    details: dict[str, Any] = {key: word.get(key, "") for key in ("where", "numbers", "fix")}
    for key in _NUMBERS.get(kind, ()):
        if kind == "Infeasible" and data.get(key) is None and word.get("needs") == "host":
            details[key] = None  # no device budget makes up for it
        elif type(data.get(key)) is not int or abs(data[key]) >= 2**63:
            return _no_error(data.get(key))
        else:
            details[key] = data[key]
    for key in _WORDS.get(kind, ()):
        details[key] = word.get(key, "")
    if kind == "Infeasible":
        details["needs"] = "host" if word.get("needs") == "host" else "device"
    if kind != "ScheduleError":
        details["code"] = word.get("code", "OOC-000")[:16]
    return getattr(errors, kind)(what, **details), line


def printable(text: str) -> str:
    """A stranger's words: not too many, and nothing in them that a terminal obeys."""
    return "".join(c if c == "\n" or c.isprintable() else "?" for c in text[:MOST_LETTERS])


def _no_error(data: Any) -> tuple[Exception, str]:
    why = f"it reports an error of an unknown form: {data!r:.40}"
    return TypeError(why), why
