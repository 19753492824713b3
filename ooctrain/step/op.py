"""What an operation is: shape rule, definition in NumPy, gradient rule, cost.

An `Op` is a frozen value without state that describes ONE pure call on shapes (`Spec`) and arrays.
The calls of its backward pass are Ops of their own, recorded on the same tape by `vjp`. So it is
visible what the backward pass needs: the variables that those calls read. An operation knows no
device: each device has a table that names its kernels (`layers/kernels/kernel_table.py`). Layouts:
shapes are logical, (N, C, H, W) and (K, C, R, S); `reference` works on logical arrays of any float
type; kernels get physical arrays, C-contiguous float32, where every 4-d variable lies channels-last
(`physical_shape`): activations NHWC, weights KRSC. Read next: `layers/relu.py`, the smallest op,
then `layers/conv2d.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, cast

import numpy as np

from ooctrain.errors import ShapeError
from ooctrain.step.rows import PIXEL, SAME, RowPlace, RowRule, RowsRead, TilePlace, Window
from ooctrain.step.trace import ITEM_BYTES, Kind, Phase

if TYPE_CHECKING:
    from ooctrain.step.network import Message


Scalars = Mapping[str, float | int]
Shape = tuple[int, ...]
Pair = tuple[int, int]  # (rows, columns)
Sides = tuple[int, int, int, int]  # (top, bottom, left, right)
FLOAT_BYTES = ITEM_BYTES["float32"]
#: Parts of a workspace begin at whole cache lines.
LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and element type of an array that may not exist yet."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * ITEM_BYTES[self.dtype]


class TensorLike(Protocol):
    """What `Op.vjp` sees of a tensor: what it looks like, never its value."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    @property
    def spec(self) -> Spec:
        """Shape and element type."""


T = TypeVar("T", bound=TensorLike)


class TapeLike(Protocol[T]):
    """What `Op.vjp` asks of the tape that it records on (`engine/tensor.py` has one).

    Attributes:
        conv_algorithm: what convolutions shall use, "auto" or one by name.
    """

    conv_algorithm: str

    def call(self, op: Op, ins: Sequence[T], *, of: Sequence[T] = ()) -> tuple[T, ...]:
        """Records one call; returns its outputs, the gradients of the tensors `of`."""

    def gradient(self, op: Op, ins: Sequence[T], of: T) -> T | None:
        """Records the one call that gives the gradient of `of`; None where it is not needed."""


class Op:
    """One pure operation. Subclasses are frozen, slotted dataclasses; their fields are the
    attributes.

    A subclass defines `infer` and `reference`; `vjp` if it is differentiable; `flops` and
    `bytes_moved` if the defaults (one operation for each element written; all inputs read and all
    outputs written once) are not what it costs. Whatever else is true of an operation stands with
    it, too, and tilers, evaluation in parts and split networks read it here: the rows that a row
    reads (`window`, `row_rule`), how a sum over rows goes on from band to band (`carries`), and
    whether samples are independent (`samples_apart`).
    """

    __slots__ = ()
    name: ClassVar[str] = "op"
    pure: ClassVar[bool] = True
    #: how its calls and outputs are named, and their kinds: "conv1.fwd" writes "conv1.out"
    verb: ClassVar[str] = "fwd"
    out_names: ClassVar[tuple[str, ...]] = ("out",)
    out_kinds: ClassVar[tuple[Kind, ...]] = ("activation",)
    #: what `reusable` answers, where that is the same for all attributes
    reuses: ClassVar[Mapping[int, int]] = MappingProxyType({})
    #: axes of an image that it has rows of: (N, C, H, W), or (N, H, W) without channels
    image_axes: ClassVar[int] = 4
    #: each image of its first input gives one of its output, and no other input is one of images
    by_image: ClassVar[bool] = False
    #: works on a patch as on a whole image: what it finds out, as statistics, is of the patch
    patchwise: ClassVar[bool] = False
    #: whether a sum over all pixels can go on from band to band, for the batch or for each image
    carries: ClassVar[Literal["", "batch", "image"]] = ""
    #: why no tile of an image can be computed by itself, for messages; "": it has no `window`
    untiled: ClassVar[str] = ""

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Step scalars that it reads ("lr", "step", "seed"); never attributes of a call."""
        return ()

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient passes through it: whether it has a `vjp`."""
        return type(self).vjp is not Op.vjp

    @property
    def computes(self) -> Op:
        """Its identity among operations: itself, unless it runs another one on parts
        of its inputs.
        """
        return self

    @property
    def sends(self) -> Message | None:
        """What it gives to the network, on its way when the call is done."""
        return None

    @property
    def awaits(self) -> int | None:
        """Number of the message that must have come before it can be done."""
        return None

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        """Shapes of the outputs. Raises ShapeError in words that name the op and the shapes."""
        raise TypeError(f"{type(self).__name__} has no infer()")

    def reference(self, *arrays: np.ndarray, scalars: Scalars) -> tuple[np.ndarray, ...]:
        """The definition in NumPy, on logical arrays; keeps the float type it is given."""
        raise TypeError(f"{type(self).__name__} has no reference()")

    def vjp(
        self,
        tape: TapeLike[T],
        ins: Sequence[T],
        outs: Sequence[T],
        grads: Sequence[T | None],
    ) -> Sequence[T | None]:
        """Records the backward calls; returns for each input its gradient, or None."""
        raise TypeError(f"{type(self).__name__} has no gradient")

    def flops(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
        """Floating point operations, a multiply-add counted as two."""
        return sum(spec.size for spec in outs)

    def bytes_moved(self, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
        """Bytes read and written."""
        return sum(spec.nbytes for spec in ins) + sum(spec.nbytes for spec in outs)

    def reusable(self) -> Mapping[int, int]:
        """{output index: input index} where the output may overwrite that input in place."""
        return self.reuses

    @property
    def may_fail(self) -> bool:
        """Whether it can raise, or give what is not finite, for values that are."""
        return False

    def window(self) -> tuple[Window, Window] | None:
        """What an output reads of rows and of columns, for ops that work on local windows; None
        where a tile is not computed as the whole is. With windows of more than a pixel it needs a
        method `with_padding((top, bottom, left, right))`.
        """
        return None

    def on_tile(self, place: TilePlace) -> Op:
        """The operation of a tile."""
        own: Any = self
        return own.with_padding(place.padding) if hasattr(self, "with_padding") else self

    def row_rule(self, ins: Sequence[Spec]) -> RowRule | None:
        """How it is cut into bands of rows, over inputs of these shapes; None where it cannot be.

        By default what `window` says. Call it by `row_rule_of`, which looks at the axes first.
        """
        windows = self.window()
        if windows is None or not can_be_tiled(self):
            return None
        if is_pointwise(self):
            return RowRule((SAME,) * len(ins), lambda place: self)
        (rows, columns), own = windows, cast(Any, self)
        sides = columns.pad_lo, columns.pad_hi
        return RowRule(
            (RowsRead(rows), *(None,) * (len(ins) - 1)),
            lambda place: own.with_padding((place.above, place.below, *sides)),
        )

    def sums(self, *arrays: np.ndarray, scalars: Scalars) -> np.ndarray:
        """Of what `carries`: the sums of some rows, float64, (one or two, channels)."""
        found = self.reference(*arrays, scalars=scalars)
        return np.stack([np.asarray(one, np.float64).reshape(-1) for one in found])

    def from_sums(
        self, sums: np.ndarray, pixels: int, others: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        """Of what `carries`: the outputs, from the sums over `pixels` of each channel, and from
        the inputs that have no rows.
        """
        return tuple(sums.copy())

    def samples_apart(
        self, read: Sequence[int], ins: Sequence[Shape], outs: Sequence[Shape], count: int
    ) -> bool:
        """Whether what belongs to a sample in the outputs follows from what belongs to it in the
        inputs, in the same place along the first axis.

        Args:
            read: positions of the inputs that have samples.
            ins, outs: shapes of all inputs and outputs.
            count: samples of the batch.
        """
        return list(read) == [0] and (self.by_image or self.window() is not None)


class OverWindows(Op):
    """An operation over windows, or the gradient of one: its `geometry` has padding of four sides.

    A band has the padding that lies outside the image above and below it; a tile that of all sides.
    """

    __slots__ = ()
    geometry: Any

    def with_padding(self, padding: Sides) -> Any:
        """The same operation over an image, or a part of one, with other padding."""
        own: Any = self
        return replace(own, geometry=replace(self.geometry, padding=padding))

    def on_rows(self, place: RowPlace) -> Any:
        """The operation of a band of rows."""
        return self.with_padding((place.above, place.below, *self.geometry.padding[2:]))

    def giving_rows(self, place: RowPlace) -> Any:
        """The operation of a band, of one that has the size of its result as `size`."""
        found = self.on_rows(place)
        return replace(found, size=(place.rows.extent, found.size[1]))


def row_rule_of(op: Any, ins: Sequence[Spec]) -> RowRule | None:
    """The row rule of an operation over inputs of these shapes; None where it has none, or where
    these are not images, or where a trace has no kernels.
    """
    if not isinstance(op, Op) or not ins or len(ins[0].shape) != op.image_axes:
        return None
    return op.row_rule(ins)


def is_pointwise(op: Op) -> bool:
    """Whether it works pixel by pixel on all of its inputs."""
    return op.window() == PIXEL and not hasattr(op, "with_padding")


def can_be_tiled(op: Any) -> bool:
    """Whether a tile of its output is computed as the whole is, from a tile of its input."""
    return isinstance(op, Op) and (
        is_pointwise(op) or (op.window() is not None and hasattr(op, "with_padding"))
    )


def why_untiled(op: Any) -> str:
    """Why an operation cannot be tiled, in words."""
    return getattr(op, "untiled", "") or (
        "it has no tile rule (`window`, and `with_padding` if it has windows)"
    )


def elements_apart(read: Sequence[int], ins: Sequence[Shape]) -> bool:
    """`Op.samples_apart` of an operation on single elements: inputs of samples have the axes of the
    output, and others are repeated along its first one.
    """
    rank = max(map(len, ins))
    return all(
        len(shape) == rank if position in read else len(shape) < rank or shape[0] == 1
        for position, shape in enumerate(ins)
    )


def computed_by(op: Any) -> Any:
    """What an operation of a call computes; of a trace without kernels its operation as it is."""
    return op.computes if isinstance(op, Op) else op


def whole_lines(size_bytes: int) -> int:
    """Bytes rounded up to whole cache lines."""
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES


def require(fits: bool, what: str, *specs: Spec, fix: str = "") -> None:
    """Raises ShapeError(what), with the shapes, unless `fits`. The tape adds which call it was."""
    if not fits:
        shapes = ", ".join(f"{spec.shape} {spec.dtype}" for spec in specs)
        otherwise = "the shapes and element types that its docstring in oc.functional names"
        raise ShapeError(what, numbers=shapes and f"got {shapes}", fix=fix or otherwise)


def require_float(op: Op, *specs: Spec) -> None:
    """Raises ShapeError unless all are float32 (or float64, in checks)."""
    for spec in specs:
        if not spec.dtype.startswith("float"):
            what = f"{op.name} wants float32, got {spec.dtype}"
            require(False, what, spec, fix="astype(np.float32)")


def physical_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Shape in memory: 4-d variables lie channels-last."""
    if len(shape) == 4:
        n, c, h, w = shape
        return (n, h, w, c)
    return tuple(shape)


def to_physical(array: np.ndarray) -> np.ndarray:
    """Logical to physical layout, contiguous (a copy unless it already lies so)."""
    return np.asarray(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array, order="C")


def to_logical(array: np.ndarray) -> np.ndarray:
    """Physical array as a logical view (no copy)."""
    return array.transpose(0, 3, 1, 2) if array.ndim == 4 else array


# Where a call stands names the call and its outputs. A name such as "layer1.0.conv1.fwd" is the
# path of the module that is being called, followed by the operation's own word for what it does in
# this phase; so no call is named by hand.


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call stands: in which module, in which phase, of which forward call it is the
    gradient.

    Args:
        path: path of the module, for example "layer1.0.conv1".
        leaf: whether that module has no parts, so that its path alone names its calls.
        verb: what the call does, where the operation's own word will not do.
    """

    path: str = ""
    leaf: bool = False
    phase: Phase = "forward"
    forward_of: int | None = None
    verb: str = ""

    def prefix(self, op: Op) -> str:
        """How the names of a call of `op` and of its outputs begin."""
        if not self.path:
            return op.name
        return self.path if self.leaf else f"{self.path}.{op.name}"

    def call_name(self, op: Op) -> str:
        """Name of a call of `op`: "conv1.fwd", "conv1.grad_input"."""
        verb = "grad" if self.phase == "backward" and op.verb == "fwd" else op.verb
        return f"{self.prefix(op)}.{self.verb or verb}"
