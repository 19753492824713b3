"""The file of `--json` when a command fails before it could write the file itself.

A reader of the file must find in it why there are no numbers, even if an option was wrong and the
command never began. So the arguments are searched for `--json` by hand, and the file gets a JSON
object with the message as `error`. A file that the command has written itself says more and is left
alone. Read next: `docs/json.md`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from ooctrain.errors import OoctrainError
from ooctrain.step.user_values import as_path

JSON_VERSION = 1
OPTION = "--json"


def write_file(path: str, text: str) -> None:
    """Writes what a command leaves in a file.

    Raises:
        OoctrainError: it cannot be written; a full disk does not name the file by itself.
    """
    write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
    """`write_file` for data that is not text."""
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise OoctrainError(
            f"{path} cannot be written: {error.strerror or error}", code="OOC-117",
            fix="another file, or another disk",
        ) from error  # fmt: skip


def write_numbers(path: str, content: object) -> None:
    """Writes the object of `--json`. Raises OoctrainError as `write_file`."""
    write_file(path, json.dumps(content, indent=1) + "\n")


class NumbersFile:
    """The file of a command's `--json`, if any, and its state before.

    Args:
        given: the arguments of the whole command line.
    """

    def __init__(self, given: Sequence[str]):
        self._command = next((word for word in given if not word.startswith("-")), None)
        self._path = _path_in(given)
        self._before = self._state()

    def tell(self, message: str) -> None:
        """Writes why the command failed, unless it has written the file itself, or the file cannot
        be written."""
        if self._path is None or self._state() != self._before:
            return
        content = {"version": JSON_VERSION, "command": self._command, "error": message}
        with suppress(OoctrainError):
            write_numbers(str(self._path), content)

    def _state(self) -> tuple[int, int] | None:
        """(time of the last change in ns, bytes); None: there is no such file."""
        try:
            found = self._path.stat() if self._path else None
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_size)


def _path_in(given: Sequence[str]) -> Path | None:
    """What stands behind `--json`, or after `--json=`."""
    for word, following in pairwise([*given, ""]):
        text = following if word == OPTION else word.removeprefix(f"{OPTION}=")
        if text and (word == OPTION or text != word):
            return as_path(text)
    return None
