"""PyTorch's arguments, turned into the form that the operations take.

PyTorch takes one number for both axes and None for an absent tensor. Operations take pairs (rows,
columns) and lists of only the tensors that are present. Read next: `conv.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from operator import index

from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.step.op import Pair, Sides

IntOrPair = int | Sequence[int]


def present(*tensors: Tensor | None) -> list[Tensor]:
    """Those of the tensors that are not None, in order."""
    return [tensor for tensor in tensors if tensor is not None]


def pair(value: IntOrPair) -> Pair:
    """(rows, columns), from one whole number for both or from two.

    Raises:
        ConfigError: `value` is neither.
    """
    try:
        rows, columns = (value, value) if isinstance(value, int | Integral) else value
        return index(rows), index(columns)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{value!r} is not a whole number or a pair of whole numbers") from error


def sides(value: Sequence[int]) -> Sides:
    """(top, bottom, left, right), from PyTorch's (left, right, top, bottom).

    Raises:
        ConfigError: `value` is not four whole numbers.
    """
    try:
        left, right, top, bottom = map(index, value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"pad: {value!r} is not four whole numbers", code="OOC-106",
            fix="(left, right, top, bottom)",
        ) from error  # fmt: skip
    return top, bottom, left, right


def finite(value: float, what: str) -> float:
    """A finite number. Raises ConfigError: `value` is not one."""
    if not (isinstance(value, Real) and math.isfinite(value)):
        raise ConfigError(f"{what} {value!r} is not a finite number", code="OOC-106")
    return float(value)
