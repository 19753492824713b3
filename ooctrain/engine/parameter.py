"""Parameters: tensors that training changes, with a gradient that is forgotten between steps.

A parameter lives longer than any tape, so its value lies behind a `Storage`: on the host, or on a
device while a trainer holds it. It may be told by its shape alone, and gets its first value when
that is first read. Read next: `module.py`, which gives parameters their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ooctrain.engine.autograd import wrap
from ooctrain.engine.eager import Storage
from ooctrain.engine.tensor import Tensor
from ooctrain.step.foreign import as_numbers
from ooctrain.step.op import Spec, to_physical


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


def clear_grad(parameter: Tensor, set_to_none: bool = True) -> None:
    """Forgets one gradient, or sets it to zero."""
    if set_to_none or parameter.grad is None:
        parameter.grad = None
    else:
        zeros = wrap(np.zeros(parameter.shape, np.float32), name=parameter.grad.name, kind="wgrad")
        parameter.grad = zeros
