"""ONNX's operators on numbers: the sizes that a file computes from shapes.

Exporters write `x.view(x.size(0), -1)` as Shape, Gather, Concat, Reshape. Nothing of that is a
tensor of the network, so it is computed with NumPy when a call is recorded, for the batch at hand.
`NUMBERS` is the table; its functions take the operators' inputs and attributes as those of
`onnx_ops.py` do. Read next: `onnx_graph.py`, where they are called.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np

from ooctrain.engine.tensor import Tensor
from ooctrain.interop.onnx_ops import ints, refused

#: How many numbers one node may make: more are no sizes.
MOST_NUMBERS = 1 << 16
#: {ONNX's number of an element type: NumPy's}
TYPES: Mapping[int, str] = MappingProxyType(
    {1: "float32", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}
)


def shape_of(x: Tensor | np.ndarray, *, start: int = 0, end: int | None = None) -> np.ndarray:
    """Extents, also of a tensor; this is where sizes come from."""
    return np.array(x.shape[start:end], np.int64)


def size_of(x: Tensor | np.ndarray) -> np.ndarray:
    """The number of elements, also of a tensor."""
    return np.array(math.prod(x.shape), np.int64)


def cast(x: np.ndarray, *, to: int, saturate: int = 1, round_mode: str = "up") -> np.ndarray:
    """To another type."""
    if to not in TYPES:
        raise refused(f"numbers of type {to}")
    return x.astype(TYPES[to])


def gather(x: np.ndarray, indices: np.ndarray, *, axis: int = 0) -> np.ndarray:
    """Places along an axis."""
    return np.take(x, indices, axis)


def squeeze(x: np.ndarray, axes: Any = None) -> np.ndarray:
    """Without axes of extent 1."""
    return np.squeeze(x, None if axes is None else ints(axes))


def unsqueeze(x: np.ndarray, axes: Any) -> np.ndarray:
    """With new axes."""
    return np.expand_dims(x, ints(axes))


def concat(*parts: np.ndarray, axis: int) -> np.ndarray:
    """One after the other."""
    return np.concatenate(parts, axis)


def slice_of(
    x: np.ndarray, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> np.ndarray:
    """Along some axes."""
    over = range(len(ints(starts))) if axes is None else ints(axes)
    by = [1] * len(ints(starts)) if steps is None else ints(steps)
    keys = [slice(None)] * x.ndim
    for start, end, axis, step in zip(ints(starts), ints(ends), over, by, strict=True):
        keys[axis] = slice(start, end, step)
    return x[tuple(keys)]


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whole numbers are rounded towards 0."""
    if np.any(b == 0):
        raise refused("a division by 0")
    quotient = a / b
    whole = np.result_type(a, b).kind in "iu"
    return np.trunc(quotient).astype(np.result_type(a, b)) if whole else quotient


def modulo(a: np.ndarray, b: np.ndarray, *, fmod: int = 0) -> np.ndarray:
    """What a division leaves."""
    if np.any(b == 0):
        raise refused("a division by 0")
    return np.fmod(a, b) if fmod else np.mod(a, b)


def reshape(x: np.ndarray, shape: Any, *, allowzero: int = 0) -> np.ndarray:
    """0: the extent of the input."""
    wanted = ints(shape)
    return x.reshape([n or (0 if allowzero else x.shape[i]) for i, n in enumerate(wanted)])


def filled(shape: np.ndarray, *, value: Any = None) -> np.ndarray:
    """One number in a shape."""
    if not 0 <= math.prod(ints(shape)) <= MOST_NUMBERS:
        raise refused(f"a constant of shape {ints(shape)}")
    given = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    return np.full(ints(shape), given[0], given.dtype)


def arange(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """From a start up to a limit."""
    if delta == 0 or abs((limit - start) / delta) > MOST_NUMBERS:
        raise refused("a range of too many numbers")
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def expand(x: np.ndarray, shape: Any) -> np.ndarray:
    """Repeated to fit a shape."""
    wanted = np.broadcast_shapes(x.shape, ints(shape))
    if math.prod(wanted) > MOST_NUMBERS:
        raise refused(f"a constant of shape {wanted}")
    return np.broadcast_to(x, wanted).copy()


def split(
    x: np.ndarray, split: Any = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> tuple[np.ndarray, ...]:
    """In parts."""
    each = -(-x.shape[axis] // outputs)
    sizes = [each] * outputs if split is None else ints(split)
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


def product(x: np.ndarray, axes: Any = None, *, keepdims: int = 1, **_: int) -> np.ndarray:
    """Of some axes."""
    return np.prod(x, None if axes is None else ints(axes), keepdims=bool(keepdims))


def total(x: np.ndarray, axes: Any = None, *, keepdims: int = 1, **_: int) -> np.ndarray:
    """Of some axes."""
    return np.sum(x, None if axes is None else ints(axes), keepdims=bool(keepdims))


def transpose(x: np.ndarray, *, perm: Sequence[int] = ()) -> np.ndarray:
    """The axes in another order."""
    return x.transpose(perm or None)


def clip(x: np.ndarray, min: Any = None, max: Any = None) -> np.ndarray:  # noqa: A002
    """Between two numbers."""
    return x if min is None and max is None else np.clip(x, min, max)


def _all(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *arrays: reduce(function, arrays)


#: {operator: what computes it of numbers}
NUMBERS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "Shape": shape_of, "Size": size_of, "Cast": cast, "Gather": gather, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Concat": concat, "Slice": slice_of, "Reshape": reshape,
    "ConstantOfShape": filled, "Range": arange, "Expand": expand, "Split": split,
    "ReduceProd": product, "ReduceSum": total, "Transpose": transpose,
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": divide, "Mod": modulo,
    "Neg": operator.neg, "Abs": np.abs, "Floor": np.floor, "Ceil": np.ceil, "Round": np.round,
    "Sqrt": np.sqrt, "Pow": np.power, "Clip": clip,
    "Max": _all(np.maximum), "Min": _all(np.minimum), "Where": np.where,
    "Equal": np.equal, "Greater": np.greater, "Less": np.less, "Not": np.logical_not,
    "And": np.logical_and, "Or": np.logical_or,
})  # fmt: skip
#: Operators whose result is numbers even of tensors.
SIZES = frozenset(("Shape", "Size"))
