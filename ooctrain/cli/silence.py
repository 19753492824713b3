"""No command is silent for more than two seconds: then it says what it is doing, and for how long.

A thread looks at when something was printed last. In a terminal it writes one line, over and over,
which is gone before the next output; into a pipe a line now and then. Both go to the error stream,
so what a command prints stays as it is. Read next: `../activity.py`, from which it knows what is
done; `output_streams.py`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from ooctrain.activity import Activity, Listener, listening

#: Seconds of silence in a terminal, between two looks there, and between two lines in a pipe.
SILENT_S, LOOK_S, PIPE_S = 2.0, 0.5, 20.0
_CLEARED = "\r\x1b[2K"


@contextmanager
def never_silent() -> Iterator[None]:
    """Within the block, long silences of this process are broken."""
    speaker = Speaker(sys.stderr)
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Heard(stream, speaker) for stream in streams)
    thread = threading.Thread(target=speaker.speak, name="silence", daemon=True)
    thread.start()
    try:
        with listening(speaker.listener):
            yield
    finally:
        speaker.end()
        thread.join()
        sys.stdout, sys.stderr = streams


class Speaker:
    """Knows when something was printed, and breaks the silence after it.

    Args:
        stream: where it speaks.
    """

    def __init__(self, stream: TextIO):
        self.listener = Listener()
        self._stream, self._is_terminal = stream, stream.isatty()
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._heard_s = self._spoke_s = time.monotonic()
        self._line_stands = False

    def hear(self) -> None:
        """Something is about to be printed."""
        self._heard_s = self._spoke_s = time.monotonic()
        if self._line_stands:
            with self._lock:
                self._clear()

    def end(self) -> None:
        """Nothing is said from now on."""
        self._ended.set()
        with self._lock:
            self._clear()

    def speak(self) -> None:
        """What the thread does."""
        while not self._ended.wait(LOOK_S):
            with self._lock, suppress(OSError, ValueError):  # nobody reads, or it is closed
                self._look(time.monotonic())

    def _look(self, now_s: float) -> None:
        silent_s = now_s - self._heard_s
        if self._ended.is_set():
            return
        if self._is_terminal and silent_s >= SILENT_S:
            self._write(f"{_CLEARED}{said(self.listener.under_way, now_s, silent_s)}")
            self._line_stands = True
        elif not self._is_terminal and now_s - self._spoke_s >= PIPE_S:
            self._write(f"ooctrain: {said(self.listener.under_way, now_s, silent_s)}\n")
            self._spoke_s = now_s

    def _clear(self) -> None:
        if self._line_stands:
            self._line_stands = False
            self._write(_CLEARED)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Heard:
    """A stream whose writes a speaker hears; in all else the stream itself."""

    def __init__(self, stream: TextIO, speaker: Speaker):
        self._stream, self._speaker = stream, speaker

    def write(self, text: str) -> int:
        self._speaker.hear()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def said(under_way: list[Activity], now_s: float, silent_s: float) -> str:
    """In words: the innermost piece of work, how far it is, and how long it still takes.

    Args:
        under_way: the innermost is the last.
        now_s: the time, by the clock of `Activity.began_s`.
        silent_s: since when nothing has been printed, where no work has a name.
    """
    if not under_way:
        return f"working ... {silent_s:.0f} s"
    work = under_way[-1]
    took_s = now_s - work.began_s
    if not work.of:
        return f"{work.what} ... {took_s:.0f} s"
    text = f"{work.what}, {min(work.done + 1, work.of)} of {work.of} ... {took_s:.0f} s"
    share = work.done_share
    if 0 < share < 1 and work.done < work.of:
        text += f", about {took_s / share * (1 - share):.0f} s to go"
    return text
