"""What the functions do alike with their arguments.

In: arguments as PyTorch takes them. Out: as the operations want them. Read next: `conv.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.autograd import Tensor

IntOrPair = int | Sequence[int]
Pair = tuple[int, int]


def present(*tensors: Tensor | None) -> list[Tensor]:
    """Those that are there."""
    return [tensor for tensor in tensors if tensor is not None]


def pair(value: IntOrPair) -> Pair:
    """(rows, columns) of a number for both, or of two."""
    if isinstance(value, int):
        return value, value
    rows, columns = value
    return int(rows), int(columns)
