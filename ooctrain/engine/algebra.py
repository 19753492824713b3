"""Operators and methods of a tensor, under PyTorch's names.

Each method takes a tensor, numbers and other tensors, turns them into one or a few operations, and
hands these to the tape through the one method that `Tensor` adds. Nothing is computed here. Every
operator of Python either is as in PyTorch or is refused with what to write instead.
Read next: `tensor.py`; `../layers/arithmetic.py`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import numpy as np

from ooctrain.errors import ConfigError, ShapeError
from ooctrain.layers.arithmetic import Arithmetic, Arithmetics, common_shape
from ooctrain.layers.combine import Add, Concat, Constant, Scale
from ooctrain.layers.extremes import MaxAlong
from ooctrain.layers.function import Elementwise
from ooctrain.layers.layout import Reshape
from ooctrain.layers.linear import MatMul
from ooctrain.layers.permute import Permute
from ooctrain.layers.reduction import Spread, groups_of_axes, sum_over
from ooctrain.layers.regions import Slice, StridedSlice
from ooctrain.step.arguments import checked
from ooctrain.step.op import Op

Dims = int | Sequence[int] | None
Key = slice | int | EllipsisType | None


_OWN_OP = "write an oc.Op"
_MOST_POWER = 64
#: Of float32: what infinities are taken for.
_LARGEST = float(np.finfo(np.float32).max)
_OF_VALUES = "of x.numpy(), which has no gradient"


def _refused(symbol: str, instead: str) -> Callable[..., NoReturn]:
    """A method for an operator that tensors do not have. Raises ConfigError: it was used."""

    def method(_self: object, *_others: object) -> NoReturn:
        raise ConfigError(
            f"a tensor has no {symbol}", code="OOC-106",
            fix=instead if instead == _OWN_OP else f"{instead}; or {_OWN_OP}",
        )  # fmt: skip

    return method


class Extremes(NamedTuple):
    """What `max` and `min` give along an axis."""

    values: Any
    indices: Any


class Algebra:
    """Operators and methods of tensors."""

    __slots__ = ()
    #: `array * tensor` is the tensor's business, which names the mistake.
    __array_priority__ = 1000
    shape: tuple[int, ...]
    storage: Any

    if TYPE_CHECKING:  # of `Tensor`

        def item(self) -> float: ...

        def numpy(self) -> np.ndarray: ...

        def detach(self) -> Self: ...

        def __len__(self) -> int: ...

    def _outputs(self, op: Op, *ins: Any) -> tuple[Self, ...]:
        """Records one call; returns its outputs."""
        raise TypeError(f"{type(self).__name__} records no calls")

    def _apply(self, op: Op, *ins: Any) -> Self:
        """Records one call; returns its first output."""
        return self._outputs(op, *ins)[0]

    # Shapes

    @checked
    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """The same elements in (N, C, H, W) order under another shape; one extent may be -1."""
        wanted: Any = shape if len(shape) != 1 or isinstance(shape[0], int) else shape[0]
        known = math.prod(n for n in wanted if n != -1)
        size = math.prod(self.shape)
        full = tuple(size // known if n == -1 and known else n for n in wanted)
        return self._apply(Reshape(self.shape, full), self)

    view = reshape

    @checked
    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Joins the axes from `start_dim` to `end_dim`."""
        if not self.shape:
            return self.reshape(1)
        (start,), (end,) = (axes_of(dim, len(self.shape)) for dim in (start_dim, end_dim))
        joined = math.prod(self.shape[start : end + 1])
        return self.reshape(*self.shape[:start], joined, *self.shape[end + 1 :])

    @checked
    def unsqueeze(self, dim: int) -> Self:
        """One axis more, of extent 1, before axis `dim`."""
        (place,) = axes_of(dim, len(self.shape) + 1)
        return self.reshape((*self.shape[:place], 1, *self.shape[place:]))

    @checked
    def squeeze(self, dim: Dims = None) -> Self:
        """Without those of the axes `dim` (None: of all) that have extent 1."""
        axes = axes_of(dim, len(self.shape))
        kept = (n for axis, n in enumerate(self.shape) if axis not in axes or n != 1)
        return self.reshape(tuple(kept))

    @checked
    def permute(self, *dims: int | Sequence[int]) -> Self:
        """The axes in another order: axis i of the result is axis dims[i] of this.

        Raises:
            ShapeError: these are not all axes, each once.
        """
        wanted: Any = dims if len(dims) != 1 or isinstance(dims[0], int) else dims[0]
        return self._apply(Permute(tuple(axis % max(len(self.shape), 1) for axis in wanted)), self)

    @checked
    def transpose(self, dim0: int, dim1: int) -> Self:
        """Two axes exchanged."""
        order = list(range(len(self.shape)))
        (a,), (b,) = axes_of(dim0, len(order)), axes_of(dim1, len(order))
        order[a], order[b] = order[b], order[a]
        return self.permute(order)

    # Parts and repetitions

    @checked
    def narrow(self, dim: int, start: int, length: int) -> Self:
        """`length` places along an axis, from `start` on.

        Raises:
            ShapeError: there are fewer.
        """
        (axis,) = axes_of(dim, len(self.shape))
        extent = self.shape[axis]
        if not (-extent <= start <= extent and 0 <= length <= extent - start % (extent or 1)):
            raise ShapeError(f"an axis of extent {extent} has no {length} places from {start} on")
        return self._along(axis, slice(start % extent, start % extent + length))

    @checked
    def select(self, dim: int, index: int) -> Self:
        """One place along an axis, which goes: x[:, index] for dim=1."""
        (axis,) = axes_of(dim, len(self.shape))
        return self[(*(slice(None),) * axis, index)]

    @checked
    def split(self, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Parts along an axis, each of this size (the last has the rest), or of these sizes.

        Raises:
            ShapeError: a size is not positive, or the sizes are not the extent together.
        """
        (axis,) = axes_of(dim, len(self.shape))
        extent, given = self.shape[axis], split_size_or_sections
        if isinstance(given, int):
            each = max(given, 0)
            sizes = [min(each, extent - at) for at in range(0, extent, each)] if each else [-1]
        else:
            sizes = [int(size) for size in given]
        if sum(sizes) != extent or min(sizes, default=0) < 0:
            raise ShapeError(f"split: an axis of extent {extent} has no parts of {given}")
        ends = list(itertools.accumulate(sizes, initial=0))
        return tuple(self._along(axis, slice(a, b)) for a, b in itertools.pairwise(ends))

    @checked
    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """At most `chunks` parts along an axis, all but the last of the same size."""
        (axis,) = axes_of(dim, len(self.shape))
        if chunks < 1:
            raise ShapeError(f"chunk: {chunks} parts")
        return self.split(max(-(-self.shape[axis] // chunks), 1), axis)

    @checked
    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Each place along an axis, which goes."""
        (axis,) = axes_of(dim, len(self.shape))
        return tuple(self.select(axis, place) for place in range(self.shape[axis]))

    @checked
    def flip(self, *dims: int | Sequence[int]) -> Self:
        """Backwards along these axes."""
        named: Any = dims if len(dims) != 1 or isinstance(dims[0], int) else dims[0]
        axes = axes_of(named, len(self.shape)) if named else ()
        places = [(n - 1, -1) if a in axes else (0, 1) for a, n in enumerate(self.shape)]
        start, steps = (tuple(pair[i] for pair in places) for i in (0, 1))
        return self._apply(StridedSlice(self.shape, start, steps, self.shape), self)

    @checked
    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int]) -> Self:
        """Moved along these axes; what leaves at one end comes in at the other.

        Raises:
            ShapeError: there is no such axis, or not a shift for each.
        """
        moves, named = ((n,) if isinstance(n, int) else tuple(n) for n in (shifts, dims))
        if len(moves) != len(named):
            raise ShapeError(f"roll: {len(moves)} shifts for {len(named)} axes")
        result = self
        for shift, dim in zip(moves, named, strict=True):
            (axis,) = axes_of(dim, len(self.shape))
            cut = -shift % max(self.shape[axis], 1)
            if cut:
                parts = result._along(axis, slice(cut, None)), result._along(axis, slice(0, cut))
                result = self._apply(Concat(axis), *parts)
        return result

    @checked
    def expand(self, *sizes: int | Sequence[int]) -> Self:
        """Repeated along axes of extent 1, and along new ones before them; -1: as it is.

        Raises:
            ShapeError: another axis has another extent.
        """
        wanted: Any = sizes if len(sizes) != 1 or isinstance(sizes[0], int) else sizes[0]
        own = (*(1,) * (len(wanted) - len(self.shape)), *self.shape)
        full = tuple(n if size == -1 else size for size, n in zip(wanted, own, strict=False))
        if len(own) != len(full) or any(a not in (1, b) for a, b in zip(own, full, strict=True)):
            raise ShapeError(f"a tensor of shape {self.shape} cannot be expanded to {wanted}")
        x = self if own == self.shape else self.reshape(own)
        return x if full == own else x._apply(Spread(full), x)

    @checked
    def expand_as(self, other: Self) -> Self:
        """Expanded to the shape of another tensor."""
        return self.expand(other.shape)

    @checked
    def repeat(self, *sizes: int | Sequence[int]) -> Self:
        """So many times along each axis, one behind the other.

        Raises:
            ShapeError: fewer numbers than axes, or one that is not positive.
        """
        times: Any = sizes if len(sizes) != 1 or isinstance(sizes[0], int) else sizes[0]
        if len(times) < len(self.shape) or min(times, default=1) < 1:
            raise ShapeError(f"repeat: {tuple(times)} for a tensor of shape {self.shape}")
        x = self.reshape((*(1,) * (len(times) - len(self.shape)), *self.shape))
        once = [n if x.shape[axis] == 1 else 1 for axis, n in enumerate(times)]
        x = x.expand([n if n > 1 else -1 for n in once])
        for axis, (n, done) in enumerate(zip(times, once, strict=True)):
            if n != done:
                x = self._apply(Concat(axis), *[x] * n)
        return x

    def _along(self, axis: int, places: slice) -> Self:
        """A part along one axis."""
        return self[(*(slice(None),) * axis, places)]

    # Reductions

    @checked
    def sum(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """The sum over the axes `dim`; None: over all of them.

        Args:
            keepdim: these axes stay, with extent 1.

        Raises:
            ShapeError: there is no such axis.
        """
        return self._summed(dim, keepdim, mean=False)

    @checked
    def mean(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """The mean over the axes `dim`, as `sum`."""
        return self._summed(dim, keepdim, mean=True)

    def _summed(self, dim: Dims, keepdim: bool, *, mean: bool) -> Self:
        axes = axes_of(dim, len(self.shape))
        count = math.prod(self.shape[axis] for axis in axes)
        result = self
        if count != 1:
            factor = 1 / count if mean else 1.0
            result = sum_over(self._apply, self, axes, factor)
        if keepdim or not axes:
            return result
        return result.reshape(tuple(n for a, n in enumerate(self.shape) if a not in axes))

    @checked
    def amax(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """The largest element over the axes `dim`; equal ones share its gradient evenly.

        Args:
            keepdim: these axes stay, with extent 1.
        """
        axes, x = axes_of(dim, len(self.shape)), self
        if len(groups_of_axes(self.shape, axes)) > 1:  # not side by side in memory
            rest = [axis for axis in range(len(self.shape)) if axis not in axes]
            x = self.permute([*rest, *axes]).reshape([*(self.shape[a] for a in rest), -1])
            found = self._apply(MaxAlong((len(rest),), "even"), x)
        else:
            found = self._apply(MaxAlong(axes, "even"), x)
        kept = tuple(1 if a in axes else n for a, n in enumerate(self.shape))
        wanted = kept if keepdim else tuple(n for a, n in enumerate(self.shape) if a not in axes)
        return found if found.shape == wanted else found.reshape(wanted)

    @checked
    def amin(self, dim: Dims = None, keepdim: bool = False) -> Self:
        """The smallest element over the axes `dim`, as `amax`."""
        return -(-self).amax(dim, keepdim)

    @checked
    def max(self, dim: Self | int | None = None, keepdim: bool = False) -> Any:
        """The largest of all elements; along one axis (values, indices), where the first of equal
        ones has the gradient; or, with another tensor, `maximum`.
        """
        if isinstance(dim, Algebra):
            return self.maximum(dim)
        if dim is None:
            return self.amax()
        (axis,) = axes_of(dim, len(self.shape))
        values, indices = self._outputs(MaxAlong((axis,)), self)
        if keepdim:
            return Extremes(values, indices)
        rest = tuple(n for a, n in enumerate(self.shape) if a != axis)
        return Extremes(values.reshape(rest), indices.reshape(rest))

    @checked
    def min(self, dim: Self | int | None = None, keepdim: bool = False) -> Any:
        """The smallest, as `max`."""
        if isinstance(dim, Algebra):
            return self.minimum(dim)
        if dim is None:
            return self.amin()
        values, indices = (-self).max(dim, keepdim)
        return Extremes(-values, indices)

    @checked
    def var(
        self, dim: Dims | bool = None, unbiased: bool = True, keepdim: bool = False,
        *, correction: float | None = None,
    ) -> Self:  # fmt: skip
        """The variance over the axes `dim`; None: over all of them.

        Args:
            unbiased: whether the sum of squares is divided by one less than their number.
            correction: by how much less, in place of that.
            keepdim: these axes stay, with extent 1.

        Raises:
            ShapeError: there are not more numbers than the correction.
        """
        dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
        less = float(unbiased) if correction is None else correction
        count = math.prod(self.shape[axis] for axis in axes_of(dim, len(self.shape)))
        if count <= less:
            raise ShapeError(f"a variance of {count} numbers with a correction of {less}")
        away = self - self.mean(dim, keepdim=True)
        return (away * away).sum(dim, keepdim) / (count - less)

    @checked
    def std(
        self, dim: Dims | bool = None, unbiased: bool = True, keepdim: bool = False,
        *, correction: float | None = None,
    ) -> Self:  # fmt: skip
        """The standard deviation, as `var`; its gradient where it is 0 is 0."""
        variance = self.var(dim, unbiased, keepdim, correction=correction)
        return variance._apply(Elementwise("length"), variance)

    @checked
    def norm(self, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False) -> Self:
        """The p-norm of the elements over the axes `dim`; its gradient where it is 0 is 0.

        Args:
            p: a number above 0, or infinity; "fro" and None: 2.

        Raises:
            ConfigError: another one.
        """
        if p in (2, "fro", None):
            squares = (self * self).sum(dim, keepdim)
            return squares._apply(Elementwise("length"), squares)
        if not isinstance(p, Real) or not p > 0:
            raise ConfigError(f"norm: {p!r} is not a number above 0", code="OOC-106")
        if p == math.inf:
            return self.abs().amax(dim, keepdim)
        if p == 1:
            return self.abs().sum(dim, keepdim)
        return (self.abs() ** float(p)).sum(dim, keepdim) ** (1 / float(p))

    @checked
    def logsumexp(self, dim: Dims, keepdim: bool = False) -> Self:
        """log(sum(exp(x))) over the axes `dim`."""
        top = self.amax(dim, keepdim=True).detach().clamp(-_LARGEST, _LARGEST)
        result = (self - top).exp().sum(dim, keepdim=True).log() + top
        axes = axes_of(dim, len(self.shape))
        rest = tuple(n for axis, n in enumerate(self.shape) if axis not in axes)
        return result if keepdim else result.reshape(rest)

    # Products of matrices

    def matmul(self, other: Self) -> Self:
        """The product of matrices along the last two axes, as `x @ y`; the axes before these are
        repeated to fit. A tensor of one axis is a row on the left and a column on the right.

        Raises:
            ShapeError: columns and rows, or the other axes, do not fit; a number.
        """
        if not isinstance(other, Algebra) or not (self.shape and other.shape):
            raise ShapeError(
                "a product of matrices is of two tensors with axes", fix="x * y; oc.tensor(array)"
            )
        if len(self.shape) == 1:
            return self.unsqueeze(0).matmul(other).squeeze(-2 if len(other.shape) > 1 else 0)
        if len(other.shape) == 1:
            return self.matmul(other.unsqueeze(1)).squeeze(-1)
        if len(other.shape) == 2:
            rows = self if len(self.shape) == 2 else self.reshape((-1, self.shape[-1]))
            return self._apply(MatMul(), rows, other).reshape((*self.shape[:-1], other.shape[1]))
        outer = common_shape(self.shape[:-2], other.shape[:-2])
        if outer is None:
            raise ShapeError(f"matmul: shapes {self.shape} and {other.shape} do not fit")
        pairs = [
            x.expand((*outer, *x.shape[-2:])).reshape((math.prod(outer), *x.shape[-2:]))
            for x in (self, other)
        ]
        return self._apply(MatMul(), *pairs).reshape((*outer, self.shape[-2], other.shape[-1]))

    __matmul__ = matmul

    def mm(self, mat2: Self) -> Self:
        """The product of two matrices. Raises ShapeError: not of two."""
        return self._product(mat2, 2)

    def bmm(self, mat2: Self) -> Self:
        """Products of equally many matrices, (B, M, K) and (B, K, N). Raises ShapeError: others."""
        return self._product(mat2, 3)

    def _product(self, other: Self, axes: int) -> Self:
        if len(self.shape) != axes or len(other.shape) != axes:
            raise ShapeError(f"shapes {self.shape} and {other.shape} are not of {axes} axes each")
        return self._apply(MatMul(), self, other)

    # Two tensors, compared

    def maximum(self, other: Self) -> Self:
        """The larger of two elements; equal ones have half of the gradient each."""
        return self._with("maximum", other)

    def minimum(self, other: Self) -> Self:
        """The smaller of two elements, as `maximum`."""
        return self._with("minimum", other)

    def gt(self, other: Any) -> Self:
        """1.0 where this is larger, else 0.0; without a gradient. For `where`."""
        return self._test("greater", self, other)

    def ge(self, other: Any) -> Self:
        """1.0 where this is larger or equal, else 0.0; as `gt`."""
        return self._test("greater_equal", self, other)

    def lt(self, other: Any) -> Self:
        """1.0 where this is smaller, else 0.0; as `gt`."""
        return self._test("greater", other, self)

    def le(self, other: Any) -> Self:
        """1.0 where this is smaller or equal, else 0.0; as `gt`."""
        return self._test("greater_equal", other, self)

    def eq(self, other: Any) -> Self:
        """1.0 where both are equal, else 0.0; as `gt`."""
        return self._test("equal", self, other)

    def ne(self, other: Any) -> Self:
        """1.0 where they differ, else 0.0; as `gt`."""
        return 1.0 - self.eq(other)

    def _test(self, function: Arithmetics, a: Any, b: Any) -> Self:
        one, two = (
            x if isinstance(x, Algebra) else self._apply(Constant(_number(x), ())) for x in (a, b)
        )
        return self._apply(Arithmetic(function), one, two)

    def where(self, condition: Self, other: Any) -> Self:
        """This where `condition` is not 0, else `other`, a tensor or a number.

        Args:
            condition: float32, such as `x.gt(0)`; it is repeated to fit, and has no gradient.
        """
        other = other if isinstance(other, Algebra) else self._apply(Constant(_number(other), ()))
        kept, dropped = self._with("keep", condition), Arithmetic("drop")
        return kept + self._apply(dropped, other, condition)

    @checked
    def masked_fill(self, mask: Self, value: float) -> Self:
        """`value` where `mask` is not 0."""
        kept = self._with("drop", mask)
        if not _number(value):
            return kept
        return kept + self._apply(
            Arithmetic("keep"), self._apply(Constant(_number(value), ())), mask
        )

    # Elements

    @checked
    def clamp(
        self,
        min: float | None = None,  # noqa: A002
        max: float | None = None,  # noqa: A002
    ) -> Self:
        """Each element, at least `min` and at most `max`; None: no such bound.

        Raises:
            ConfigError: neither is given, or one is a tensor.
        """
        if min is None and max is None:
            raise ConfigError("clamp takes min, max or both", code="OOC-106")
        result = self
        for bound, function in ((min, "at_least"), (max, "at_most")):
            if isinstance(bound, Algebra):
                raise ConfigError("clamp takes numbers as bounds, not tensors", code="OOC-106")
            if bound is not None:
                result = self._apply(Elementwise(function, float(bound)), result)
        return result

    clip = clamp

    def __add__(self, other: Any) -> Self:
        if isinstance(other, Algebra) and other.shape != self.shape:
            return self._with("add", other)
        if not isinstance(other, Algebra):
            other = self._apply(Constant(_number(other), self.shape))
        return self._apply(Add(), self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Self:
        if isinstance(other, Algebra):
            return self._with("multiply", other)
        return self._apply(Scale(_number(other)), self)

    __rmul__ = __mul__

    def __neg__(self) -> Self:
        return self * -1.0

    def __sub__(self, other: Any) -> Self:
        if isinstance(other, Algebra) and other.shape != self.shape:
            return self._with("subtract", other)
        return self + (-1.0) * (other if isinstance(other, Algebra) else _number(other))

    def __rsub__(self, other: Any) -> Self:
        return -self + other

    def __truediv__(self, other: Any) -> Self:
        if isinstance(other, Algebra):
            return self._with("divide", other)
        return self * (1.0 / _number(other))

    def __rtruediv__(self, other: Any) -> Self:
        return self._apply(Arithmetic("divide"), self._apply(Constant(_number(other), ())), self)

    def __pow__(self, exponent: Any) -> Self:
        """A power; squares, cubes, roots, and one divided by these, are computed as such.

        Raises:
            ConfigError: the exponent is a tensor, or no number from -64 to 64.
        """
        number = float(exponent) if isinstance(exponent, Real | np.generic) else math.nan
        if not abs(number) <= _MOST_POWER:
            raise ConfigError(
                f"a tensor can be raised to a number of at most 64, not to {_shown(exponent)}",
                code="OOC-106", fix="(y * x.log()).exp() is x ** y for x > 0",
            )  # fmt: skip
        if exponent in _POWERS:
            return _POWERS[exponent](self)
        return self._apply(Elementwise("power", number), self)

    @checked
    def pow(self, exponent: float) -> Self:
        """A power, as `x ** exponent`."""
        return self**exponent

    def square(self) -> Self:
        """The product with itself."""
        return self * self

    def reciprocal(self) -> Self:
        """1 / x."""
        return 1.0 / self

    def abs(self) -> Self:
        """Absolute values; the gradient at 0 is 0."""
        return self._apply(Elementwise("abs"), self)

    def __abs__(self) -> Self:
        return self.abs()

    def exp(self) -> Self:
        """Exponentials."""
        return self._apply(Elementwise("exp"), self)

    def log(self) -> Self:
        """Natural logarithms; minus infinity of 0, NaN of negative numbers."""
        return self._apply(Elementwise("log"), self)

    def sqrt(self) -> Self:
        """Square roots; NaN of negative numbers."""
        return self._apply(Elementwise("sqrt"), self)

    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return 1.0 / self.sqrt()

    def erf(self) -> Self:
        """The error function."""
        return self._apply(Elementwise("erf"), self)

    def __pos__(self) -> Self:
        return self

    # In place: the tensor itself is the result from now on, under each of its names.

    def _become(self, new: Any, symbol: str) -> Self:
        """Takes on a value, and how it was computed."""
        raise TypeError(f"{type(self).__name__} cannot be changed by {symbol}")

    def __iadd__(self, other: Any) -> Self:
        return self._become(self + other, "+=")

    def __isub__(self, other: Any) -> Self:
        return self._become(self - other, "-=")

    def __imul__(self, other: Any) -> Self:
        return self._become(self * other, "*=")

    def __itruediv__(self, other: Any) -> Self:
        return self._become(self / other, "/=")

    def __ipow__(self, exponent: Any) -> Self:
        return self._become(self**exponent, "**=")

    # What there is none of.

    __rpow__ = _refused("number ** x", _OWN_OP)
    __floordiv__ = __rfloordiv__ = _refused("//", f"np.floor_divide {_OF_VALUES}")
    __mod__ = __rmod__ = _refused("%", f"np.mod {_OF_VALUES}")
    __divmod__ = __rdivmod__ = _refused("divmod", f"np.divmod {_OF_VALUES}")
    __rmatmul__ = _refused("array @ x", "oc.tensor(array) @ x")
    __invert__ = _refused("~", f"np.logical_not {_OF_VALUES}")
    __and__ = __rand__ = _refused("&", f"np.logical_and {_OF_VALUES}")
    __or__ = __ror__ = _refused("|", f"np.logical_or {_OF_VALUES}")
    __xor__ = __rxor__ = _refused("^", f"np.logical_xor {_OF_VALUES}")
    __lshift__ = __rlshift__ = _refused("<<", f"np.left_shift {_OF_VALUES}")
    __rshift__ = __rrshift__ = _refused(">>", f"np.right_shift {_OF_VALUES}")
    __round__ = _refused("round", f"np.round {_OF_VALUES}; round(x.item()) of one number")
    __trunc__ = _refused("trunc", f"np.trunc {_OF_VALUES}; int(x) of one number")
    __setitem__ = _refused(
        "x[...] = y", "functional.cat of slices, or x * mask + y; x.copy_(array)"
    )
    __delitem__ = _refused("del x[...]", "functional.cat of the slices that stay")

    # As single numbers

    def tolist(self) -> Any:
        """The value as Python's numbers, in lists of lists; a number for a tensor without axes."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, how: str) -> str:
        """A tensor without axes as its number, `f"{loss:.3f}"`; others as `str`."""
        if self.shape == () and self.storage is not None:
            return format(self.item(), how)
        if how and self.storage is None:
            self.numpy()  # says that a traced tensor has no value
        if how:
            raise TypeError(f"a tensor of shape {self.shape} cannot be formatted as {how!r}")
        return str(self)

    # Of one element: `if loss < best`.

    def __lt__(self, other: Any) -> bool:
        return self._compared(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._compared(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._compared(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._compared(operator.ge, other)

    def __eq__(self, other: object) -> bool:
        if self is other and math.prod(self.shape) != 1:
            return True  # what a `WeakSet` requests
        return self._compared(operator.eq, other)

    def __ne__(self, other: object) -> bool:
        return self._compared(operator.ne, other)

    #: Sets and tables know a tensor as the object that it is.
    __hash__ = object.__hash__

    def _compared(self, how: Callable[[Any, Any], Any], other: Any) -> bool:
        """The comparison of two numbers; of anything but numbers, Python's own.

        Raises:
            ShapeError: one of the two is not a single number.
        """
        if not isinstance(other, Algebra | Real | np.generic | np.ndarray):
            return NotImplemented
        if math.prod(self.shape) != 1 or math.prod(getattr(other, "shape", ())) != 1:
            raise ShapeError(
                f"a comparison is of two numbers, not of shape {self.shape} and "
                f"{getattr(other, 'shape', ())}",
                fix="x.numpy() > 0 compares values, and no gradient passes through it; "
                "x is y says whether it is the same tensor; relu and clamp choose by sign",
            )
        value = other.item() if isinstance(other, Algebra) else np.asarray(other).item()
        return bool(how(self.item(), value))

    def __contains__(self, value: object) -> bool:
        """Whether an element has this value."""
        if not isinstance(value, Real | np.generic | Algebra):
            raise ConfigError(
                f"a tensor contains numbers, not {_shown(value)}", code="OOC-106",
                fix="x.numpy() has what NumPy can look for",
            )  # fmt: skip
        wanted = value.item() if isinstance(value, Algebra) else value
        return bool((self.numpy() == wanted).any())

    if not TYPE_CHECKING:  # else any attribute would be taken for one

        def __getattr__(self, name: str) -> NoReturn:
            # Not at the top: a table of words, read when a name is missing.
            from ooctrain.engine.torch_names import refusal

            raise refusal("a tensor", name, "tensor", dir(type(self)))

    def __getitem__(self, key: Key | tuple[Key, ...]) -> Self:
        """A block: slices, whole numbers, None and `...`, as in PyTorch.

        Raises:
            ShapeError: another key, an index beyond its axis, or more keys than axes.
        """
        keys = _each_axis(key if isinstance(key, tuple) else (key,), len(self.shape))
        found = [one for one in keys if one is not None]
        block = Slice.of(self.shape, [
            one if isinstance(one, slice) else _one_wide(one, extent)
            for one, extent in zip(found, self.shape, strict=True)
        ])  # fmt: skip
        if all(isinstance(one, slice) for one in keys):
            return self._apply(block, self)
        extents = iter(block.shape)
        full: list[int] = []
        for one in keys:
            extent = 1 if one is None else next(extents)
            full += [extent] if one is None or isinstance(one, slice) else []
        taken = self if block.shape == self.shape else self._apply(block, self)
        return taken.reshape(full)

    def __iter__(self) -> Iterator[Self]:
        return (self[place] for place in range(len(self)))

    def _with(self, function: Arithmetics, other: Any) -> Self:
        return self._apply(Arithmetic(function), self, other)


#: {exponent: what is computed}
_POWERS: Mapping[Any, Callable[[Any], Any]] = MappingProxyType(
    {1: lambda x: x * 1.0, 2: lambda x: x * x, 3: lambda x: x * x * x, -1: lambda x: 1.0 / x,
     -2: lambda x: 1.0 / (x * x), 0.5: lambda x: x.sqrt(), -0.5: lambda x: x.rsqrt()}
)  # fmt: skip


def axes_of(dim: Dims, count: int) -> tuple[int, ...]:
    """Axes as PyTorch names them, from 0 on, ascending; None or none: all of `count`.

    Raises:
        ShapeError: there is no such axis, or one is named twice.
    """
    named = (dim,) if isinstance(dim, int) else tuple(dim or range(count))
    if any(not -count <= axis < count for axis in named):
        raise ShapeError(f"a tensor of {count} axes has no axis {dim}")
    axes = tuple(sorted(axis % count for axis in named))
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{dim} names an axis twice")
    return axes


def _each_axis(keys: tuple[Any, ...], count: int) -> list[Any]:
    """A key for each of `count` axes, besides those that are None.

    Raises:
        ShapeError: there are more, or one is not a slice, whole number, None or `...`.
    """
    strange = [
        one for one in keys
        if not (one is None or one is ... or isinstance(one, slice | Integral))
        or isinstance(one, bool)
    ]  # fmt: skip
    places = [place for place, one in enumerate(keys) if one is ...]
    missing = count - sum(one is not None and one is not ... for one in keys)
    if strange or len(places) > 1 or missing < 0:
        what = f"{type(strange[0]).__name__} {strange[0]!r}" if strange else f"{len(keys)} keys"
        raise ShapeError(
            f"a tensor of {count} axes takes slices, whole numbers, None and one ..., not {what}",
            fix="x[0:8], x[:, 3], x[..., None]; else index x.numpy()",
        )
    place = places[0] if places else len(keys)
    return [*keys[:place], *[slice(None)] * missing, *keys[place + 1 :]]


def _one_wide(index: Any, extent: int) -> slice:
    """The slice that holds one index. Raises ShapeError: there is no such index."""
    if not -extent <= index < extent:
        raise ShapeError(f"an axis of extent {extent} has no index {index}")
    return slice(int(index) % extent, int(index) % extent + 1)


def _shown(value: object) -> str:
    """A number, or what else it is."""
    return repr(value) if isinstance(value, Real) else type(value).__name__


def _number(value: Any) -> float:
    """A number that a tensor is added to or multiplied by. Raises ShapeError: not a number."""
    if isinstance(value, Real | np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        with suppress(OverflowError):
            return float(value)
    raise ShapeError(
        f"a tensor can be combined with tensors and numbers, not with {type(value).__name__}",
        fix="wrap it: oc.tensor(array)",
    )
