"""The two calls of a trace through which ranks exchange arrays: one sends, one receives.

A rank sends its arrays and receives sums over all ranks, or the arrays of all. To the list, the
verifier, planners and the executor these are ordinary calls that run once. Between the two the
arrays lie in the exchange's own buffers on the host, so their device memory is free meanwhile.
Because each call runs once, in its place, a forward pass that is computed again sends nothing
twice. Calls of two exchanges are never equal, so no rank is given a step that is kept for another.
Read next: `recording.py`, which puts them into a step; `exchange.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ooctrain.distributed.exchange import Exchange
from ooctrain.step.network import Message
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Kind


@dataclass(frozen=True, slots=True)
class SendMessage(Op):
    """Sends its inputs. Writes one byte, which the call that receives the message reads."""

    message: Message
    exchange: Exchange = field(repr=False)
    name: ClassVar[str] = "message"
    verb: ClassVar[str] = "start"
    pure: ClassVar[bool] = False
    out_names: ClassVar[tuple[str, ...]] = ("sent",)
    out_kinds: ClassVar[tuple[Kind, ...]] = ("aux",)

    @property
    def sends(self) -> Message:
        return self.message

    def infer(self, *ins: Spec) -> tuple[Spec, ...]:
        return (Spec((1,), "uint8"),)

    def cpu(self, pool, ins, outs, workspace, scalars):
        """Copies physical arrays into the message."""
        self.exchange.start(self.message, ins)
        outs[0][...] = 1

    def flops(self, ins, outs):
        return 0


@dataclass(frozen=True, slots=True)
class TakeMessage(Op):
    """Takes the result of a message: its bytes, cut into arrays.

    Args:
        specs: shapes and types of the arrays: the sums; or of those of all ranks, rank 0's first.
        kinds: kinds of the variables that they are.
    """

    message: Message
    specs: tuple[Spec, ...]
    kinds: tuple[Kind, ...]
    exchange: Exchange = field(repr=False)
    name: ClassVar[str] = "message"
    verb: ClassVar[str] = "finish"
    pure: ClassVar[bool] = False

    @property
    def awaits(self) -> int:
        return self.message.number

    @property
    def out_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """One for each array."""
        return tuple(f"part{number}" for number in range(len(self.specs)))

    @property
    def out_kinds(self) -> tuple[Kind, ...]:  # type: ignore[override]
        """As given."""
        return self.kinds

    def infer(self, *sent: Spec) -> tuple[Spec, ...]:
        return self.specs

    def cpu(self, pool, ins, outs, workspace, scalars):
        """Copies the result into physical arrays."""
        found, at = self.exchange.finish(self.message.number), 0
        for out in outs:
            flat = out.reshape(-1).view(np.uint8)
            flat[:] = found[at : at + flat.size]
            at += flat.size

    def flops(self, ins, outs):
        return 0
