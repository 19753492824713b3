"""Automatic differentiation from outside: the tape in force, `no_grad`, `manual_seed`.

In: nothing. Out: the tape that operations are recorded on. The one idea: which tape is in force is
a context variable, not a global: each thread has its own, and `oc.trace` puts another one in its
place for the length of a call. Read next: `tensor.py`, `tape.py`, `backward.py`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from ooctrain.engine.eager import EagerRunner
from ooctrain.engine.tape import Site, Tape
from ooctrain.engine.tensor import Tensor, call, reshape, tensor, wrap

if TYPE_CHECKING:
    from ooctrain.engine.module import Module

__all__ = [
    "Site", "Tape", "Tensor", "call", "current_tape", "frozen", "manual_seed", "no_grad", "reshape",
    "tensor", "use_tape", "wrap",
]  # fmt: skip

_TAPE: contextvars.ContextVar[Tape] = contextvars.ContextVar("ooctrain_tape")


def current_tape() -> Tape:
    """The tape in force: the one set by `use_tape`, else this context's own eager tape.

    It is a context variable, not a global: threads and tasks each have their own.
    """
    tape = _TAPE.get(None)
    if tape is None:
        tape = Tape(EagerRunner())
        _TAPE.set(tape)
    return tape


@contextmanager
def use_tape(tape: Tape) -> Iterator[Tape]:
    """Records on `tape` within the `with` block."""
    token = _TAPE.set(tape)
    try:
        yield tape
    finally:
        _TAPE.reset(token)


@contextmanager
def no_grad() -> Iterator[None]:
    """Records nothing for backward within the `with` block."""
    with current_tape().paused():
        yield


def frozen(module: Module) -> AbstractContextManager[None]:
    """Within the `with` block the module's parameters are constants; gradients pass through it.

    So one player of a game learns from the other: the discriminator judges what the generator made,
    and only the generator is changed. Where the same step trains both, record the loss of the
    frozen module's own training *before* this block: backward then comes to it last, when nobody
    needs the old parameters any more.
    """
    return current_tape().frozen(module)


def manual_seed(seed: int) -> None:
    """Seeds initial weights and dropout of this context."""
    current_tape().reseed(seed)
