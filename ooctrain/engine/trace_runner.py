"""The runner that computes nothing: each recorded call becomes one of a trace.

A `Tape` hands every call to a runner. `eager.EagerRunner` computes it; `TraceRunner` writes it into
a `TraceBuilder`, with its shapes and the workspace that its kernel needs. A parameter or a state
stands for another variable after each call that changes it, so the runner keeps which one it is
now. Read next: `eager.py`, the other runner; `../step/builder.py`; `../tracing.py`, which records a
whole step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ooctrain.engine.parts import Parts
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.op import Op, Scalars, Site, Spec


@dataclass
class TraceRunner:
    """Writes each call into a `TraceBuilder`; computes nothing.

    Args:
        threads: threads of the device, which some workspaces depend on.
        names: names of parameters, buffers and optimizer slots.
        device: "cpu" or "cuda".
        parts: parts of a batch that goes through in several.
    """

    threads: int
    names: Mapping[Tensor, str]
    device: str = "cpu"
    parts: Parts | None = None
    builder: TraceBuilder = field(default_factory=TraceBuilder)
    #: the variable that a parameter or state stands for at this point of the step
    bound: dict[Tensor, int] = field(default_factory=dict)
    taken: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = frozenset(self.names.values())
        self.builder.threads, self.builder.device = self.threads, self.device

    def variable(self, tensor: Tensor) -> int:
        """The variable that a tensor is now; parameters and states become one when first read."""
        if tensor.variable is not None:
            return tensor.variable
        if tensor not in self.bound:
            if tensor not in self.names:
                raise ConfigError(
                    f"a tensor of shape {tensor.shape} is neither a parameter nor a buffer of the "
                    "model, nor computed from its input",
                    fix="register it with register_buffer, or compute it from the input; noise "
                    "that differs from step to step: nn.Dropout",
                )
            name, kind = self.names[tensor], tensor.kind
            self.bound[tensor] = self.builder.variable(name, tensor.shape, tensor.dtype, kind)
        return self.bound[tensor]

    def input(self, name: str, spec: Spec) -> Tensor:
        """A value that comes from the host in each step."""
        tensor = Tensor(spec, name=name, kind="input")
        tensor.variable = self.builder.variable(name, spec.shape, spec.dtype, "input")
        return tensor

    def run(
        self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor], site: Site, scalars: Scalars
    ) -> int:
        """Notes a call and its outputs; returns its id."""
        in_ids = tuple(self.variable(tensor) for tensor in ins)
        for tensor in outs:
            # What persists keeps its name: values find it by that.
            name = f"{tensor.name}#2" if tensor.name in self.taken else tensor.name
            tensor.variable = self.builder.variable(name, tensor.shape, tensor.dtype, tensor.kind)
            tensor.name = self.builder.variables[tensor.variable].name
        out_ids = tuple(tensor.variable for tensor in outs)
        workspace = TABLES[self.device].workspace_bytes(
            op, [t.spec for t in ins], [t.spec for t in outs], self.threads
        )
        if self.parts is not None and ins:
            self.parts.follow(op, ins, outs)
        # What changes state does so in place: the new value takes the old one's storage.
        reuse = None if op.pure else {out_ids[o]: in_ids[i] for o, i in op.reusable().items()}
        name = site.path if site.phase == "update" and not op.pure else site.call_name(op)
        return self.builder.call(
            name, op, in_ids, out_ids, workspace_bytes=workspace, reuse=reuse, pure=op.pure,
            phase=site.phase, forward_of=site.forward_of,
        )  # fmt: skip

    def makes(self, tensor: Tensor) -> bool:
        """Whether a call has written the tensor; else it is there before."""
        return self.builder.variables[self.variable(tensor)].kind not in ("input", "param", "state")

    def assign(self, target: Tensor, new: Tensor) -> None:
        """From now on `target` is `new`, and in the next step `new` is the old one."""
        before, self.bound[target] = self.bound[target], new.variable
        self.builder.carries[new.variable] = self.builder.carries.pop(before, before)

    def constant(self, tensor: Tensor) -> Tensor:
        """The variable that a parameter is at this point of the step."""
        twin = tensor.twin()
        twin.variable = self.variable(tensor)
        return twin
