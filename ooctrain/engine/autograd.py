"""Making tensors from arrays, switching recording off for a while, and setting seeds.

All of these act on the tape in force. It is a context variable, not a global
(`tensor.current_tape`), so each thread has its own. Read next: `module.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ooctrain.engine.eager import Storage
from ooctrain.engine.tensor import Tensor, current_tape
from ooctrain.errors import ConfigError, warn
from ooctrain.step.arguments import checked
from ooctrain.step.op import Spec, to_physical
from ooctrain.step.trace import ITEM_BYTES, Kind
from ooctrain.step.user_values import as_numbers


@checked
def tensor(array: Any, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of `array`.

    Args:
        array: anything NumPy takes, in logical layout; floats become float32, whole numbers int64.
        requires_grad: whether backward shall reach it.

    Raises:
        ConfigError: something that no tensor can hold, such as text; masked or complex numbers.
    """
    value = as_numbers(array, "the array")
    if value.dtype == np.float64 and isinstance(array, np.ndarray):
        warn("float64 data was cast to float32")
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
    result.storage = Storage(to_physical(array))
    return result


@contextmanager
def no_grad() -> Iterator[None]:
    """Records nothing for backward within the `with` block."""
    with current_tape().paused():
        yield


@checked
def manual_seed(seed: int) -> None:
    """Seeds initial weights and dropout, here and in other threads.

    The main thread's numbers follow from the seed alone. Another thread, or task, draws others:
    they follow from the seed and from how many threads have drawn before it did, so the members of
    an ensemble that is made in a pool differ, and which task has which is up to the pool. Where
    each task shall have its own, it calls `manual_seed` itself: in a thread other than the main one
    this is the seed of that thread, and of threads that have drawn nothing yet. A forked process
    goes on from where its parent was.

    Raises:
        ConfigError: no whole number.
    """
    current_tape().seed_everywhere(int(seed))
