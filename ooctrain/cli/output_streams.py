"""The output streams of a command, which may be closed or have lost their reader.

A command must not fail for want of a reader before its work is safe, and nothing that it prints may
control the terminal. So a stream that is closed or has no reader is led nowhere, and text is made
printable first. This file needs click alone, as `doctor` does. Read next: `terminal.py`, for tables
and pictures; `../errors.py`, `printable`.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from types import TracebackType

import click

from ooctrain.errors import printable

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """What the caller closed (`>&-`) leads nowhere from now on; else the next file that is opened
    would take its number, and get what others print there."""
    for name, mode in STREAMS:
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the smallest number that is free
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))


def give_up_output() -> None:
    """Streams without a reader lead nowhere, so that Python does not complain at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):  # it has no number, as in tests
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def say(text: str) -> None:
    """A message on the error stream, if that has a reader."""
    with suppress(OSError):
        click.echo(printable(f"ooctrain: {text}"), err=True)


def show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """In place of Python's own: the same text, which may hold names and messages of others."""
    with suppress(OSError):
        sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))
