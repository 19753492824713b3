"""A network's forward pass as a list of calls, before anything is recorded.

A module is code, and code cannot be split. So the module is called once, with its input, on a tape
that computes nothing and writes down the operations in order and the values that each reads and
makes. This list, a `Sketch`, is then split. Read next: `joints.py`, which looks for places in it;
`patches.py`, which records it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ooctrain.engine.site import Site
from ooctrain.engine.tensor import Tape, Tensor, use_tape
from ooctrain.step.op import Op, Scalars, Spec


@dataclass(frozen=True, slots=True)
class SketchedCall:
    """One call of the forward pass.

    Args:
        op, ins, outs, site: as it was recorded.
        recorded: whether gradients pass through it; not within `oc.no_grad()`.
        targets: the states whose next values the outputs are; none for other calls.
    """

    op: Any
    ins: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    site: Site
    recorded: bool = True
    targets: tuple[Tensor, ...] = ()


@dataclass
class Sketch:
    """Writes down calls: the runner of a tape, and what it has written.

    Attributes:
        calls: in order.
        values: by number, the tensors that calls have made; the input is number 0.
        output: what the network returned.
        constants: {what stands for a parameter's present value: the parameter}.
    """

    tape: Any = None
    calls: list[SketchedCall] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    output: Any = None
    constants: dict[Tensor, Tensor] = field(default_factory=dict)

    @property
    def input(self) -> Tensor:
        """What the network reads."""
        return self.values[0]

    def number(self, tensor: Tensor) -> Tensor:
        """Gives a tensor a number, by which its detached twins are known."""
        tensor.variable = len(self.values)
        self.values.append(tensor)
        return tensor

    def run(
        self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor], site: Site, scalars: Scalars
    ) -> None:
        """Notes a call."""
        for tensor in outs:
            self.number(tensor)
        recorded = self.tape.recording
        self.calls.append(SketchedCall(op, tuple(ins), tuple(outs), site, recorded))

    def assign(self, target: Tensor, new: Tensor) -> None:
        """Notes that an output of the last call is the next value of a state."""
        last = self.calls[-1]
        self.calls[-1] = replace(last, targets=(*last.targets, target))

    def constant(self, tensor: Tensor) -> Tensor:
        """Something that stands for a parameter's present value."""
        twin = tensor.detach()
        self.constants[twin] = tensor
        return twin


def sketch_of(network: Callable[[Tensor], Any], spec: Spec, under: Tape) -> Sketch:
    """The forward pass of a network.

    Args:
        network: called with one input.
        spec: the input's shape and element type.
        under: the tape that it will be recorded on; its settings hold here too.
    """
    found = Sketch()
    settings = under.conv_algorithm, under.seed, under.recording
    found.tape = Tape(found, *settings, looked_at=under.looked_at)
    with use_tape(found.tape):
        found.output = network(found.number(Tensor(spec, name="input", kind="input")))
    return found
