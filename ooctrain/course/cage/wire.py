"""Messages between a grader and a submission's process: a length, then JSON, both limited.

Plain data arrives unchanged on the other side, or `BadMessage` is raised. The other side may be
hostile, so a reader waits no longer than a deadline and reads no more than a limit, and rejects
what JSON does not say (NaN, infinity, a bare value, nesting without end). Read next:
`../interview.py` and `serve.py`, which speak through it.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Of what a submission may say at once, and of what it may be asked.
MOST_ANSWERED_BYTES, MOST_ASKED_BYTES = 4 << 20, 256 << 20
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
        most_bytes: of a message that comes.
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
            TypeError, ValueError: it is no plain data.
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
