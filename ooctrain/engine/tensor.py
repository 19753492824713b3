"""Tensors: a value with a name, a shape, and the memory of what computed it.

In: arrays, or shapes. Out: tensors with PyTorch's names for what can be done to them. The one idea:
a tensor does not compute; it hands an operation to the tape in force (`autograd.current_tape`),
which in eager mode computes it at once and in trace mode notes its shape. Read next: `tape.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ooctrain.engine.eager import HostStorage, Storage
from ooctrain.errors import AutogradError, ConfigError, ShapeError
from ooctrain.layers.combine import Add, Constant, Scale
from ooctrain.layers.layout import Reshape
from ooctrain.layers.regions import Slice
from ooctrain.step.op import Op, Spec, to_physical
from ooctrain.step.trace import ITEM_BYTES, Kind

if TYPE_CHECKING:
    from ooctrain.engine.tape import Entry


class Tensor:
    """A value: an array in eager mode, a name and a shape in trace mode.

    Attributes:
        shape, dtype: logical shape, (N, C, H, W) for images; NumPy's name of the element type.
        requires_grad: whether backward shall reach it.
        grad: its gradient after backward, for those that were not computed from others.
        name: as in messages and traces, for example "layer1.0.conv1.out".
        storage: its value; None in trace mode.
    """

    __slots__ = ("__weakref__", "dtype", "grad", "kind", "name", "requires_grad", "shape", "source",
                 "stepped", "storage", "variable")  # fmt: skip

    def __init__(
        self, spec: Spec, *, name: str = "", kind: Kind = "activation", requires_grad=False
    ):
        self.shape, self.dtype, self.name, self.kind = spec.shape, spec.dtype, name, kind
        self.requires_grad: bool = requires_grad
        self.grad: Tensor | None = None
        self.storage: Any = None  # a Storage, in eager mode
        self.variable: Any = None  # its id in the trace, in trace mode
        self.source: tuple[Entry, int] | None = None  # the entry that wrote it, and as which output
        self.stepped = False  # for a gradient: an optimizer has used it

    @property
    def spec(self) -> Spec:
        """Shape and element type."""
        return Spec(self.shape, self.dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def size(self, axis: int | None = None) -> tuple[int, ...] | int:
        """The shape, or the extent of one axis."""
        return self.shape if axis is None else self.shape[axis]

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def numpy(self) -> np.ndarray:
        """The value as a logical, read-only view.

        Raises:
            AutogradError: a traced tensor, which has no value.
        """
        view = self.value().read().view()
        view.flags.writeable = False
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> float:
        """The value of a tensor of one element."""
        return self.numpy().item()

    def copy_(self, array: Any) -> Tensor:
        """Overwrites the value in place. If backward still needs the old one, it will say so.

        Args:
            array: logical, of this shape; floats are cast to this tensor's element type.

        Raises:
            ShapeError: of another shape.
            TypeError: floats for a tensor of whole numbers.
        """
        self.value().write(np.asarray(array).astype(self.dtype, casting="same_kind", copy=False))
        return self

    def detach(self) -> Tensor:
        """The same value, without its history."""
        twin = Tensor(self.spec, name=self.name, kind=self.kind)
        twin.storage, twin.variable = self.storage, self.variable
        return twin

    def backward(self, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
        """Computes the gradients of all parameters that this tensor depends on, into their `.grad`.

        Args:
            gradient: of this tensor; None for a tensor of one element: 1.
            retain_graph: keep what backward needs, so that it can run again.
        """
        from ooctrain.engine.autograd import current_tape
        from ooctrain.engine.backward import record_backward

        record_backward(current_tape(), self, gradient, retain_graph=retain_graph)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in (N, C, H, W) order under another shape; one extent may be -1."""
        return reshape(self, _as_shape(shape))

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Joins the axes from `start_dim` to `end_dim`."""
        end = end_dim % self.ndim
        joined = math.prod(self.shape[start_dim : end + 1])
        return reshape(self, (*self.shape[:start_dim], joined, *self.shape[end + 1 :]))

    def __add__(self, other: Tensor | float) -> Tensor:
        if not isinstance(other, Tensor):
            other = call(Constant(float(other), self.shape))
        return call(Add(), self, other)

    __radd__ = __add__

    def __mul__(self, factor: float) -> Tensor:
        if isinstance(factor, Tensor):
            raise ShapeError(
                "a tensor can be multiplied by a number only", fix="write an oc.Op for products"
            )
        return call(Scale(float(factor)), self)

    __rmul__ = __mul__

    def __neg__(self) -> Tensor:
        return self * -1.0

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self + (-1.0) * other

    def __rsub__(self, other: float) -> Tensor:
        return -self + other

    def __truediv__(self, divisor: float) -> Tensor:
        return self * (1.0 / divisor)

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if (
            not all(isinstance(k, slice) and k.step in (None, 1) for k in keys)
            or len(keys) > self.ndim
        ):
            raise ShapeError("a tensor takes slices with step 1 only", fix="x[0:8] or x[:, :3]")
        bounds = [k.indices(extent)[:2] for k, extent in zip(keys, self.shape, strict=False)]
        bounds += [(0, extent) for extent in self.shape[len(keys) :]]
        start, stop = (tuple(b[i] for b in bounds) for i in (0, 1))
        return call(
            Slice(self.shape, start, tuple(b - a for a, b in zip(start, stop, strict=True))), self
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self) -> str:
        value = "traced" if self.storage is None else str(self.numpy())
        return f"Tensor({value}, shape={self.shape}, dtype={self.dtype}, name={self.name!r})"

    def value(self) -> Storage:
        """Where its value lies. Raises AutogradError for a traced tensor, which has none."""
        if self.storage is None:
            raise AutogradError(
                f"{self.name or 'this tensor'!r} is traced: it has a shape and no value",
                fix="call the model outside oc.trace, or run the plan with oc.execute",
            )
        return self.storage


def call(op: Op, *ins: Tensor) -> Tensor:
    """Records one call on the tape in force and returns its first output."""
    from ooctrain.engine.autograd import current_tape

    return current_tape().call(op, ins)[0]


def tensor(array: Any, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of `array`.

    Args:
        array: anything NumPy takes, in logical layout; floats become float32, whole numbers int64.
        requires_grad: whether backward shall reach it.

    Raises:
        ConfigError: something that no tensor can hold, such as text.
    """
    value = np.asarray(array)
    if value.dtype == np.float64 and isinstance(array, np.ndarray):
        warnings.warn("float64 data was cast to float32", stacklevel=2)
    if value.dtype.kind in "fiu" and str(value.dtype) != "uint8":
        value = value.astype("float32" if value.dtype.kind == "f" else "int64")
    if str(value.dtype) not in ITEM_BYTES:
        raise ConfigError(f"a tensor cannot hold {value.dtype}", code="OOC-110", fix="give numbers")
    return wrap(np.array(value), requires_grad=requires_grad)


def wrap(
    array: np.ndarray, *, requires_grad: bool = False, name: str = "", kind: Kind = "input"
) -> Tensor:
    """A tensor over a logical array of any element type; copies only what must be laid out anew."""
    result = Tensor(
        Spec(array.shape, str(array.dtype)), name=name, kind=kind, requires_grad=requires_grad
    )
    result.storage = HostStorage(to_physical(array))
    return result


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in logical order under another shape; one extent may be -1."""
    known = math.prod(extent for extent in shape if extent != -1)
    full = tuple(x.numel() // known if extent == -1 and known else extent for extent in shape)
    return call(Reshape(x.shape, full), x)


def _as_shape(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)
