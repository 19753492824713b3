"""The tape: what was computed from what.

In: operations on tensors. Out: their results, each with the entry that made it. The one idea: a
*runner* decides what recording a call does, compute it at once (`eager.EagerRunner`) or note its
shapes (`tracing.TraceRunner`); nothing else differs. There is no list of calls here: a tensor knows
the entry that made it, and an entry its inputs, so a result that nobody holds is forgotten, as in
PyTorch. Read next: `backward.py`, then `tracing.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ooctrain.engine.tensor import Tensor
from ooctrain.errors import AutogradError, ShapeError
from ooctrain.step.op import Op, Scalars, Spec
from ooctrain.step.trace import Phase

if TYPE_CHECKING:
    from ooctrain.engine.module import Module


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


@dataclass(slots=True, eq=False)
class Entry:
    """One recorded call with what its gradient may need.

    Args:
        number: position in the order of recording.
        outs: twins of the outputs, without history, so that an entry never holds itself.
        versions: of the storages of inputs and outputs, in this order, right after the call.
        freed_by: the backward pass that used it up.
    """

    number: int
    op: Op
    name: str
    site: Site
    ins: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    versions: tuple[int, ...]
    freed_by: str = ""


class Runner(Protocol):
    """What recording a call does: `eager.EagerRunner` computes, `tracing.TraceRunner` notes."""

    def run(
        self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor], site: Site, scalars: Scalars
    ) -> int | None:
        """Fills in `outs`; returns the call's id where there is one."""

    def assign(self, target: Tensor, new: Tensor) -> None:
        """Makes `new` the value of a parameter or state from now on."""

    def constant(self, tensor: Tensor) -> Tensor:
        """The value that a parameter has now, as a tensor that no gradient reaches."""


@dataclass
class Tape:
    """Records calls and their gradients.

    Args:
        runner: computes or notes each call.
        conv_algorithm: what convolutions ask for: "auto", "direct", "im2col", "winograd2",
            "winograd4".
        seed: of dropout masks and initial weights.
    """

    runner: Runner
    conv_algorithm: str = "auto"
    seed: int = 0
    recording: bool = True
    site: Site = field(default_factory=Site)

    def __post_init__(self) -> None:
        self.warned: set[str] = set()
        self._numbers = itertools.count()
        self._dropouts = itertools.count()
        self._streams = itertools.count()
        self._module_paths: Mapping[Module, str] = {}
        self._versions: dict[int, tuple[Entry, int]] = {}
        self._frozen: Mapping[Tensor, Tensor] = {}

    # Recording

    def call(
        self,
        op: Op,
        ins: Sequence[Tensor],
        *,
        of: Sequence[Tensor] = (),
        scalars: Scalars | None = None,
    ) -> tuple[Tensor, ...]:
        """Records one call and returns its outputs.

        Args:
            of: in a backward pass, the tensors whose gradients the outputs are.
            scalars: step scalars, where not the tape's own.

        Raises:
            ShapeError: the inputs do not fit the operation.
        """
        name = self.site.call_name(op)
        if self._frozen:
            ins = [self._frozen.get(tensor, tensor) for tensor in ins]
        for tensor in ins:
            self._check_usable(tensor, name)
        try:
            specs = op.infer(*(tensor.spec for tensor in ins))
        except ShapeError as error:
            error.where = error.where or name
            raise
        outs = self._outputs(op, specs, of)
        step = {"seed": self.seed, "step": 0} if scalars is None else scalars
        call_id = self.runner.run(op, ins, outs, self.site, step)
        if self.recording and any(tensor.requires_grad for tensor in ins) and _has_gradient(op):
            self._record(op, name, ins, outs, call_id)
        return outs

    def update(
        self, op: Op, ins: Sequence[Tensor], targets: Sequence[Tensor], scalars: Scalars
    ) -> None:
        """Records a call whose outputs are the next values of `targets` (parameters or states)."""
        specs = op.infer(*(tensor.spec for tensor in ins))
        outs = [
            Tensor(spec, name=f"{target.name}'", kind=target.kind)
            for spec, target in zip(specs, targets, strict=True)
        ]
        self.runner.run(op, ins, outs, self.site, scalars)
        for target, new in zip(targets, outs, strict=True):
            self.runner.assign(target, new)

    def next_dropout(self) -> int:
        """A number for one call of dropout, part of the key of its mask."""
        return next(self._dropouts)

    def reseed(self, seed: int) -> None:
        """Begins all random numbers anew."""
        self.seed, self._dropouts, self._streams = seed, itertools.count(), itertools.count()

    def next_generator(self) -> Callable[[], np.random.Generator]:
        """A stream of random numbers of its own, for one parameter; it can be begun at any time."""
        key = (self.seed, next(self._streams))
        return lambda: np.random.default_rng(key)

    @contextmanager
    def at(self, **changes: Any) -> Iterator[None]:
        """Records at another site for a while, such as `at(phase="loss")`."""
        before, self.site = self.site, replace(self.site, **changes)
        try:
            yield
        finally:
            self.site = before

    @contextmanager
    def module(self, module: Module) -> Iterator[None]:
        """Records inside `module`; the outermost one names all its parts."""
        outermost = module not in self._module_paths
        if outermost:
            before = self._module_paths
            self._module_paths = {part: path for path, part in module.named_modules()}
        try:
            with self.at(path=self._module_paths[module], leaf=not module.has_parts):
                yield
        finally:
            if outermost:
                self._module_paths = before

    @contextmanager
    def frozen(self, module: Module) -> Iterator[None]:
        """Records calls for which the module's parameters are constants, for a while."""
        before = self._frozen
        twins: dict[Tensor, Tensor] = {p: self.runner.constant(p) for p in module.parameters()}
        self._frozen = {**before, **twins}
        try:
            yield
        finally:
            self._frozen = before

    # Backward

    def gradient(self, op: Op, ins: Sequence[Tensor], of: Tensor) -> Tensor | None:
        """Records the one call that gives the gradient of `of`; None where nobody asks for it."""
        return self.call(op, ins, of=(of,))[0] if of.requires_grad else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For a while, calls are computed or noted as ever, but none is kept for backward."""
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    @contextmanager
    def reading_again(self, entry: Entry) -> Iterator[None]:
        """For a while, what `entry` read or wrote must not be read if it was changed since."""
        kept = (*entry.ins, *entry.outs)
        self._versions = {
            id(t.storage): (entry, v) for t, v in zip(kept, entry.versions, strict=True)
        }
        try:
            yield
        finally:
            self._versions = {}

    def _check_usable(self, tensor: Tensor, name: str) -> None:
        """Raises ShapeError for what is no tensor, AutogradError for one that was changed since
        the forward call whose gradient reads it now.
        """
        if not isinstance(tensor, Tensor):
            raise ShapeError(
                f"{name} wants tensors, got {type(tensor).__name__}",
                fix="wrap it: oc.tensor(array)",
            )
        seen = self._versions.get(id(tensor.storage)) if tensor.storage is not None else None
        if seen and tensor.storage.version != seen[1]:
            raise AutogradError(
                f"{tensor.name or 'a tensor'!r} was changed in place after {seen[0].name!r} "
                "used it, and its gradient needs the old value",
                where=f"written at {tensor.storage.written_at}",
                fix="write after backward(), or into a new tensor",
            )

    def _outputs(self, op: Op, specs: Sequence[Spec], of: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if of:
            return tuple(
                Tensor(
                    s,
                    name=f"{t.name or 'leaf'}.grad",
                    kind="wgrad" if t.kind == "param" else "grad",
                )
                for s, t in zip(specs, of, strict=True)
            )
        prefix = self.site.prefix(op)
        return tuple(
            Tensor(spec, name=f"{prefix}.{name}", kind=kind)
            for spec, name, kind in zip(specs, op.out_names, op.out_kinds, strict=True)
        )

    def _record(
        self, op: Op, name: str, ins: Sequence[Tensor], outs: Sequence[Tensor], call_id: int | None
    ) -> None:
        kept = (*ins, *outs)
        versions = tuple(t.storage.version if t.storage is not None else 0 for t in kept)
        twins = tuple(tensor.detach() for tensor in outs)
        site = replace(self.site, forward_of=call_id)
        entry = Entry(next(self._numbers), op, name, site, tuple(ins), twins, versions)
        for i, tensor in enumerate(outs):
            # Statistics are by-products: nothing is differentiated through them.
            if tensor.dtype.startswith("float") and tensor.kind != "stat":
                tensor.requires_grad, tensor.source = True, (entry, i)


def _has_gradient(op: Op) -> bool:
    return type(op).vjp is not Op.vjp
