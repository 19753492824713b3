"""Tensors out of nothing: constants, ranges, random numbers, with PyTorch's names and arguments.

Values are float32, whole numbers int64, as everywhere here. What PyTorch would make in another
element type, or on another device, is refused by `dtype` alone: there is no such argument as
`device`. Random numbers come from streams that `manual_seed` begins anew; they are others than
PyTorch's. Read next: `autograd.py`, for tensors from arrays.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np

from ooctrain.engine.autograd import tensor, wrap
from ooctrain.engine.tensor import Tensor, current_tape
from ooctrain.errors import ConfigError
from ooctrain.step.arguments import checked

#: Element types by PyTorch's names.
float32, int64, long, uint8 = "float32", "int64", "int64", "uint8"
_DTYPES = (float32, int64, uint8)
Size = int | Sequence[int]


@checked
def zeros(*size: Size, dtype: str | None = None, requires_grad: bool = False) -> Tensor:
    """Zeros of a shape: `zeros(2, 3)` or `zeros((2, 3))`. Raises ConfigError: not a shape."""
    return full(_shape(size), 0, dtype=dtype or float32, requires_grad=requires_grad)


@checked
def ones(*size: Size, dtype: str | None = None, requires_grad: bool = False) -> Tensor:
    """Ones of a shape, as `zeros`."""
    return full(_shape(size), 1, dtype=dtype or float32, requires_grad=requires_grad)


@checked
def full(
    size: Size, fill_value: float, *, dtype: str | None = None, requires_grad: bool = False
) -> Tensor:
    """One value everywhere; whole numbers make int64 where no `dtype` is given."""
    kind = dtype or (int64 if isinstance(fill_value, Integral) else float32)
    with _as_numpy_can("full"):
        array = np.full(_shape((size,)), fill_value, _checked(kind))
    return wrap(array, requires_grad=requires_grad)


@checked
def zeros_like(input: Tensor, *, dtype: str | None = None, requires_grad: bool = False) -> Tensor:
    """Zeros of a tensor's shape and element type."""
    return full(input.shape, 0, dtype=dtype or input.dtype, requires_grad=requires_grad)


@checked
def ones_like(input: Tensor, *, dtype: str | None = None, requires_grad: bool = False) -> Tensor:
    """Ones of a tensor's shape and element type."""
    return full(input.shape, 1, dtype=dtype or input.dtype, requires_grad=requires_grad)


@checked
def full_like(
    input: Tensor, fill_value: float, *, dtype: str | None = None, requires_grad: bool = False
) -> Tensor:
    """One value everywhere, of a tensor's shape and element type."""
    kind = dtype or input.dtype
    return full(input.shape, fill_value, dtype=kind, requires_grad=requires_grad)


@checked
def arange(
    start: float, end: float | None = None, step: float = 1, *, dtype: str | None = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """From `start` (with one number: from 0) to below `end`; int64 where all are whole numbers.

    Raises:
        ConfigError: a step of 0, or one that leads away from the end.
    """
    low, high = (0, start) if end is None else (start, end)
    if not step or (high - low) / step < 0:
        raise ConfigError(
            f"arange: steps of {step} do not lead from {low} to {high}", code="OOC-106"
        )
    whole = all(isinstance(value, Integral) for value in (low, high, step))
    kind = _checked(dtype or (int64 if whole else float32))
    with _as_numpy_can("arange"):
        count = math.ceil((high - low) / step)
        array = (low + np.arange(count) * step).astype(kind)
    return wrap(array, requires_grad=requires_grad)


@checked
def linspace(
    start: float, end: float, steps: int, *, dtype: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`steps` values at equal distances, both ends among them."""
    with _as_numpy_can("linspace"):
        array = np.linspace(start, end, steps).astype(_checked(dtype or float32))
    return wrap(array, requires_grad=requires_grad)


@checked
def eye(
    n: int, m: int | None = None, *, dtype: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Ones on the diagonal of n rows and m columns (None: n), zeros elsewhere."""
    with _as_numpy_can("eye"):
        array = np.eye(n, m, dtype=_checked(dtype or float32))
    return wrap(array, requires_grad=requires_grad)


@checked
def rand(*size: Size, requires_grad: bool = False) -> Tensor:
    """Uniform numbers from 0 to below 1."""
    array = _generator().random(_shape(size), np.float32)
    return wrap(array, requires_grad=requires_grad)


@checked
def randn(*size: Size, requires_grad: bool = False) -> Tensor:
    """Normally distributed numbers of mean 0 and deviation 1."""
    array = _generator().standard_normal(_shape(size), np.float32)
    return wrap(array, requires_grad=requires_grad)


@checked
def rand_like(input: Tensor, *, requires_grad: bool = False) -> Tensor:
    """`rand` of a tensor's shape."""
    return rand(input.shape, requires_grad=requires_grad)


@checked
def randn_like(input: Tensor, *, requires_grad: bool = False) -> Tensor:
    """`randn` of a tensor's shape."""
    return randn(input.shape, requires_grad=requires_grad)


@checked
def randint(low: int, high: int | Size = (), size: Size | None = None) -> Tensor:
    """Whole numbers from `low` to below `high`: `randint(low, high, size)`, `randint(high, size)`.

    Raises:
        ConfigError: there is no number between the two.
    """
    first, stop, wanted = (0, low, high) if size is None else (low, high, size)
    if not isinstance(stop, int) or stop <= first:
        raise ConfigError(f"randint: no number from {first} to below {stop}", code="OOC-106")
    return wrap(_generator().integers(first, stop, _shape((wanted,)), np.int64))


@checked
def randperm(n: int) -> Tensor:
    """The whole numbers from 0 to below n in a random order."""
    if n < 0:
        raise ConfigError(f"randperm: {n} is not a number of values", code="OOC-106")
    return wrap(_generator().permutation(n).astype(np.int64))


@checked
def as_tensor(data: Any, dtype: str | None = None) -> Tensor:
    """A tensor as it is, or a copy of an array as a tensor."""
    if isinstance(data, Tensor) and dtype in (None, data.dtype):
        return data
    if dtype is None:
        return tensor(data)
    value = data.numpy() if isinstance(data, Tensor) else np.asarray(data)
    return wrap(np.array(value, _checked(dtype)))


def from_numpy(ndarray: np.ndarray) -> Tensor:
    """A copy of an array as a tensor. (PyTorch's shares the memory.)"""
    return tensor(ndarray)


@contextmanager
def _as_numpy_can(name: str) -> Iterator[None]:
    """Raises ConfigError: NumPy makes no array of what is given, such as one of -1 values."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{name}: {error}", code="OOC-106") from error


def _shape(size: Sequence[Any]) -> tuple[int, ...]:
    """A shape given as numbers or as one sequence. Raises ConfigError: neither."""
    given: Any = size[0] if len(size) == 1 and not isinstance(size[0], Integral) else size
    try:
        shape = tuple(operator.index(extent) for extent in given)
        if min(shape, default=0) >= 0:
            return shape
    except TypeError:
        pass
    raise ConfigError(f"{given!r} is not a shape", code="OOC-106", fix="zeros(2, 3)")


def _checked(dtype: str) -> np.dtype:
    """An element type. Raises ConfigError: not one of a tensor's."""
    kind = getattr(dtype, "__name__", str(dtype))
    if kind not in _DTYPES:
        raise ConfigError(
            f"a tensor cannot be made of {kind}", code="OOC-106", fix="float32, int64 or uint8"
        )
    return np.dtype(kind)


def _generator() -> np.random.Generator:
    return current_tape().next_generator()()
