"""Errors that arise in a user's own file, shown with their place instead of a traceback.

In: an unexpected error, the arguments as given. Out: an error of the library that names file, line
and function, or None where the error did not pass through a file of the user's. The one idea: an
error in a file that was named as file.py:Name is most likely that file's, so its author wants the
line, not the calls of this library that led there; any other unexpected error is ours, and keeps
its traceback. Read next: `ooctrain/plugins.py`, which loads such files.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from ooctrain.errors import OoctrainError

_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def fault_of_own_code(error: Exception, given: Sequence[str]) -> OoctrainError | None:
    """The error as its author should read it; None if it did not pass through a file of his."""
    files = {Path(file).resolve() for file in own_files(given)}
    places = [p for p in _places(error) if Path(p[0]).resolve() in files]
    if not places:
        return None
    file, line, function = places[-1]
    kind = type(error).__name__
    text = error.msg if isinstance(error, SyntaxError) else str(error)  # the place stands below
    return OoctrainError(
        f"your own code raised {kind}" + (f": {text}" if text else ""),
        code="OOC-115",
        where=f"{file}, line {line}" + (f", in {function}" if function else ""),
        fix="`ooctrain --traceback COMMAND ...` shows the whole way there",
    )


def own_files(given: Sequence[str]) -> Iterator[str]:
    """The Python files named in arguments such as mine.py:Mine or --planner=lru,mine.py:Mine."""
    for word in given:
        value = word.partition("=")[2] if word.startswith("--") else word
        for name in (value, *value.split(",")):  # a list of names, or a path with a comma
            file, separator, _ = name.partition(".py:")
            if separator:
                yield f"{file}.py"


def _places(error: Exception) -> list[tuple[str, int, str]]:
    """(file, line, function) from the outermost frame to the innermost, syntax errors included."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno or 0, frame.name) for frame in frames]
    # An error in a worker process comes with the frames of that process as text only.
    remote = getattr(error.__cause__, "tb", "")
    places += [(file, int(line), function) for file, line, function in _FRAME.findall(remote)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno or 0, ""))
    return places
