"""Checks of data from outside that becomes part of a step: arrays, files of JSON, and paths.

NumPy and Python accept more than can be meant: a masked array without its mask, a complex one
without its imaginary part, words as numbers, lists nested until the interpreter's stack ends. So
each value is checked once, where it enters, and becomes an array of real numbers or plain data, or
an error that says what is wrong with it. Read next: `trace.py`, for the element types that a step
knows.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from ooctrain.errors import ConfigError, ShapeError

REAL_KINDS = "fiub"  # of NumPy's element types: floats, whole numbers, true and false
#: Lists within lists, in files that this library reads.
MOST_NESTED = 100
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r"[][{}]")


def as_numbers(value: Any, what: str) -> np.ndarray:
    """An array of real numbers of any element type, without a copy where it is one.

    Args:
        what: its name in the error.

    Raises:
        ShapeError: masked, complex, text, objects, dates; or nothing that NumPy makes an array of.
    """
    if _is_masked(value):
        raise ShapeError(
            f"{what} is a masked array, and its hidden values would count",
            fix="filled(0), or an array of the values that count",
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ShapeError(
            f"{what} of type {type(value).__name__} makes no array of numbers: {error}",
            fix="an array of real numbers, such as .detach().float().numpy() of a torch tensor",
        ) from error
    if array.dtype.kind not in REAL_KINDS:
        raise ShapeError(
            f"{what} has element type {array.dtype}, which a tensor cannot hold",
            fix="real numbers: float32, or int64 for class numbers",
        )
    return array


def as_path(given: str | PathLike[str]) -> Path:
    """A path as a user writes it: "~" is the home, "file:///tmp/x" is /tmp/x. A name that merely
    begins with a tilde stays one, as in a shell.

    Raises:
        ConfigError: it is no path, or an empty one.
    """
    text: Any = fspath(given) if isinstance(given, str | PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{given!r} is not a path", code="OOC-106", fix="the name of a file")
    if isinstance(given, str) and text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    try:
        return Path(text).expanduser()
    except RuntimeError:  # nobody is called so
        return Path(text)


def _is_masked(value: Any) -> bool:
    # By name: `numpy.ma` is not loaded before it is used, and another thread may be loading it now.
    return any(kind.__name__ == "MaskedArray" for kind in type(value).__mro__)


def parse_json(text: str) -> Any:
    """Plain data from JSON.

    Raises:
        ValueError: it is not JSON, or nested deeper than any file of this library.
    """
    if text.count("[") + text.count("{") > MOST_NESTED and _depth(text) > MOST_NESTED:
        raise ValueError(f"lists are nested deeper than {MOST_NESTED}")
    return json.loads(text)


def _depth(text: str) -> int:
    """How deep lists and objects are nested, whether or not they are closed."""
    brackets = _BRACKET.findall(_STRING.sub("", text))
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)
