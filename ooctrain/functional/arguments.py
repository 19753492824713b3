"""PyTorch's arguments, turned into what the operations take.

In: arguments as PyTorch takes them. Out: pairs (rows, columns) and lists without None. The one
idea: PyTorch takes one number for both axes and None for an absent tensor; operations take pairs
and only the tensors that there are. Read next: `conv.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from operator import index

from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.step.op import Pair

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
        raise ConfigError(f"{value!r} is neither a whole number nor two of them") from error
