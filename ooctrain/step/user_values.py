"""Values that users give, each of which is checked once, where it enters.

NumPy and Python accept more than can be meant: a masked array without its mask, a complex one
without its imaginary part, words as numbers. Here each array becomes one of real numbers, each
target one array, each path a `Path`, or an error that says what is wrong with it. Source: ours.
Read next: `schema.py`, the same for files.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from ooctrain.errors import ConfigError, ShapeError

REAL_KINDS = "fiub"  # of NumPy's element types: floats, whole numbers, true and false
#: Parts of a structure that an error names.
_MOST_NAMED = 4


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


def as_target(value: Any, what: str = "target", rows: int | None = None) -> np.ndarray:
    """`as_numbers` of a target, which is one array with a row for each sample.

    Args:
        rows: samples of the batch; None: it is the target of a single one.

    Raises:
        ShapeError: several arrays, as mixup and CutMix make them; or as `as_numbers`.
    """
    if _is_several(value, rows):
        raise ShapeError(
            f"{what} is {_described(value)}, not one array",
            fix="for mixup and CutMix class probabilities (N, K), lam * eye[ya] + (1 - lam) * "
            "eye[yb] with eye = np.eye(K, dtype=np.float32): cross_entropy takes them; else one "
            "array with a row for each sample, whose columns your loss slices",
        )
    return as_numbers(value, what)


def _is_several(value: Any, rows: int | None = None) -> bool:
    """Whether it is a structure of several targets: a dictionary, or a tuple or list that mixes
    kinds, or holds whole arrays; a list of a row for each sample is one array."""
    if isinstance(value, Mapping):
        return True
    if not isinstance(value, tuple | list):
        return False
    shapes = {getattr(part, "shape", ()) for part in value}
    if isinstance(value, tuple):
        held = any(isinstance(part, tuple | list | Mapping) for part in value)
        whole = {isinstance(part, Integral | np.integer) for part in value}
        return held or shapes != {()} or len(whole) > 1
    arrays = shapes != {()} and rows not in (None, len(value))
    return len(shapes) > 1 or arrays or any(map(_is_several, value))


def _described(value: Any) -> str:
    """A structure in words: "a tuple of (ndarray (8,), float)"."""
    parts = value.values() if isinstance(value, Mapping) else value
    shapes = (getattr(part, "shape", ()) for part in parts)
    parts = (f"{type(p).__name__} {s}" if s else type(p).__name__
            for p, s in zip(parts, shapes, strict=True))  # fmt: skip
    return f"a {type(value).__name__} of ({', '.join(list(parts)[:_MOST_NAMED])})"


def as_path(given: str | PathLike[str]) -> Path:
    """A path as a user writes it: "~" is the home, "file:///tmp/x" is /tmp/x. A name that merely
    begins with a tilde stays one, as in a shell.

    Raises:
        ConfigError: not a path, or an empty one.
    """
    text: Any = fspath(given) if isinstance(given, str | PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{given!r} is not a path", code="OOC-106", fix="the name of a file")
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    try:
        return Path(text).expanduser()
    except RuntimeError:  # there is no user of this name
        return Path(text)


def _is_masked(value: Any) -> bool:
    # By name: `numpy.ma` is not loaded before it is used, and another thread may be loading it now.
    return any(kind.__name__ == "MaskedArray" for kind in type(value).__mro__)
