"""What the functions do alike with their arguments.

In: arguments as PyTorch takes them. Out: as the operations want them. Read next: `conv.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from operator import index

from ooctrain.autograd import Tensor
from ooctrain.errors import ConfigError

IntOrPair = int | Sequence[int]
Pair = tuple[int, int]


def present(*tensors: Tensor | None) -> list[Tensor]:
    """Those that are there."""
    return [tensor for tensor in tensors if tensor is not None]


def pair(value: IntOrPair) -> Pair:
    """(rows, columns) of a number for both, or of two.

    Raises:
        ConfigError: neither.
    """
    try:
        rows, columns = (value, value) if isinstance(value, int | Integral) else value
        return index(rows), index(columns)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{value!r} is neither a whole number nor two of them") from error
