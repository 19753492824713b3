"""What a module registers: parameters, which training changes, and buffers, which it keeps.

Both are tensors with a value of their own, behind `storage`, not one that a call of the tape made.
A parameter is trained, and backward leaves its gradient in `grad`; a buffer, such as a running
mean, is changed by calls of its own. Read next: `module.py`, which holds them; `eager.py` for
`Storage`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ooctrain.engine.autograd import wrap
from ooctrain.engine.eager import Storage
from ooctrain.engine.tensor import Tensor
from ooctrain.step.arguments import checked
from ooctrain.step.op import Spec, to_physical
from ooctrain.step.user_values import as_numbers


@checked
class Parameter(Tensor):
    """A tensor that training changes. Its value lies behind `storage`, on the host or on a device.

    Args:
        data: logical array, cast to float32; or the shape, with `initial`.
        requires_grad: whether it is trained.
        initial: makes the first value when it is first read.

    Raises:
        ShapeError: no array of real numbers.
    """

    __slots__ = ()

    def __init__(
        self,
        data: Any,
        requires_grad: bool = True,
        *,
        initial: Callable[[], np.ndarray] | None = None,
    ):
        if initial is None:
            value = data.numpy() if isinstance(data, Tensor) else as_numbers(data, "a parameter")
            storage = Storage(to_physical(np.array(value, np.float32)))
        else:
            storage = Storage(shape=tuple(data), initial=initial)
        super().__init__(Spec(storage.shape), kind="param", requires_grad=requires_grad)
        self.storage: Storage = storage


def as_buffer(value: Any) -> Tensor:
    """A buffer with a copy of a value, float32 or int64. Raises ShapeError: no numbers."""
    array = np.array(value.numpy() if isinstance(value, Tensor) else as_numbers(value, "a buffer"))
    wanted = "int64" if array.dtype.kind in "iu" else "float32"
    buffer = Tensor(Spec(array.shape, wanted), kind="state")
    buffer.storage = wrap(array.astype(wanted)).storage
    return buffer


def clear_grad(parameter: Tensor, set_to_none: bool = True) -> None:
    """Forgets one gradient, or sets it to zero."""
    if set_to_none or parameter.grad is None:
        parameter.grad = None
    else:
        zeros = wrap(np.zeros(parameter.shape, np.float32), name=parameter.grad.name, kind="wgrad")
        parameter.grad = zeros
