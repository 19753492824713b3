"""The position of a call in the step, and the names of the call and its outputs.

A name such as "layer1.0.conv1.fwd" is the path of the module that is being called, followed by the
operation's own word for what it does in this phase; so no call is named by hand. Read next:
`tensor.py`, whose tape keeps the site in force.
"""

from __future__ import annotations

from dataclasses import dataclass

from ooctrain.step.op import Op
from ooctrain.step.trace import Phase


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call stands: in which module, in which phase, of which forward call it is the
    gradient.

    Args:
        path: of the module, for example "layer1.0.conv1".
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
        return (
            self.path if self.leaf and self.path else ".".join(filter(None, (self.path, op.name)))
        )

    def call_name(self, op: Op) -> str:
        """Name of a call of `op`: "conv1.fwd", "conv1.grad_input"."""
        verb = "grad" if self.phase == "backward" and op.verb == "fwd" else op.verb
        return f"{self.prefix(op)}.{self.verb or verb}"
