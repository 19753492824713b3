"""Tensors, and the tape that records how each is computed; each is defined by the other.

Tensors are made from arrays or shapes, and have PyTorch's names for their methods. A tensor does
not compute: it hands an operation to the tape in force, and the tape's *runner* decides what
recording a call does: compute it at once (`eager.EagerRunner`) or note its shapes
(`trace_runner.TraceRunner`). There is no list of calls here. A tensor holds the entry that made it,
and an entry its inputs, so a result without references is freed, as in PyTorch. Read next:
`autograd.py`, `module.py`, then `trace_runner.py`, `tracing.py`.
"""

from __future__ import annotations

import contextvars
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from ooctrain.engine.algebra import Algebra
from ooctrain.engine.backward import Entry, record_backward
from ooctrain.engine.eager import EagerRunner, Storage
from ooctrain.engine.seeds import SEEDS, Seeds, generator_of
from ooctrain.errors import AutogradError, ShapeError
from ooctrain.step.arguments import checked
from ooctrain.step.op import Op, Scalars, Site, Spec
from ooctrain.step.trace import Kind
from ooctrain.units import format_bytes


class Tensor(Algebra):
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
        self.source: tuple[Entry[Tensor], int] | None = (
            None  # the entry that wrote it, as which output
        )
        self.stepped = False  # for a gradient: an optimizer has used it

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what comes out of a pickle, is its value and not how it was computed."""
        held = {name: getattr(self, name) for name in Tensor.__slots__ if name != "__weakref__"}
        computed = self.source is not None
        held |= {"source": None, "requires_grad": self.requires_grad and not computed}
        return _copied, (type(self),), (None, held)

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

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The value as a logical, read-only view; `force` is taken as in PyTorch, and changes
        nothing.

        Raises:
            AutogradError: a traced tensor, which has no value.
        """
        view = self.value().read().view()
        view.flags.writeable = False
        current_tape().look_at(self, view)
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> float:
        """The value of a tensor of one element. Raises ShapeError: it has more, or none."""
        if self.numel() != 1:
            raise ShapeError(
                f"a tensor of shape {self.shape} is not one number",
                fix="tensor.numpy(), or a sum or mean of it",
            )
        return self.numpy().item()

    def dim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def nelement(self) -> int:
        """Number of elements."""
        return self.numel()

    @property
    def is_leaf(self) -> bool:
        """Whether it was not computed from a tensor that backward shall reach."""
        return self.source is None

    @checked
    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Itself, from now on with or without a gradient.

        Raises:
            AutogradError: without, for a tensor that was computed.
        """
        if not requires_grad and not self.is_leaf:
            raise AutogradError(
                f"{self.name or 'this tensor'!r} was computed, so it has a history", fix="detach()"
            )
        self.requires_grad = requires_grad
        return self

    def copy_(self, array: Any) -> Tensor:
        """Overwrites the value in place. If backward still needs the old one, it will say so.

        Args:
            array: logical, of this shape; floats are cast to this tensor's element type.

        Raises:
            ShapeError: of another shape, or no real numbers.
            TypeError: floats for a tensor of whole numbers.
        """
        self.value().assign(array, self.dtype)
        return self

    def detach(self) -> Tensor:
        """The same value, without its history."""
        if self.kind in _KEPT and self.variable is None:
            return current_tape().runner.constant(self)
        return self.twin()

    def twin(self) -> Tensor:
        """Another tensor that stands for the same value."""
        twin = Tensor(self.spec, name=self.name, kind=self.kind)
        twin.storage, twin.variable = self.storage, self.variable
        return twin

    def _become(self, new: Tensor, symbol: str) -> Tensor:
        """`x += y`: what was computed from it before goes on with the value that it had then.

        Raises:
            ShapeError: the result has another shape.
            AutogradError: a parameter, or another tensor that backward ends at, while calls are
                recorded; a parameter or buffer in a step that is traced.
        """
        if new.shape != self.shape:
            raise ShapeError(
                f"{symbol} of shape {self.shape} cannot become {new.shape}",
                fix=f"x = x {symbol[:-1]} y",
            )
        if self.is_leaf and (self.requires_grad or self.kind in _KEPT):
            self._change(new, symbol)
            return self
        self.storage, self.variable, self.source = new.storage, new.variable, new.source
        self.requires_grad, self.name, self.dtype = new.requires_grad, new.name, new.dtype
        return self

    def _change(self, new: Tensor, symbol: str) -> None:
        """Writes a value where others look for it: a trainer, an optimizer, backward."""
        tape, what = current_tape(), self.name or f"this {self.kind}"
        if self.requires_grad and tape.recording:
            raise AutogradError(
                f"{what!r} requires a gradient, and is not computed, so {symbol} would change it "
                "under backward's feet",
                fix=f"within oc.no_grad(), or x = x {symbol[:-1]} y for a new tensor",
            )
        if not isinstance(tape.runner, EagerRunner):
            raise AutogradError(
                f"{what!r} cannot be changed by {symbol} in a step, which is traced once",
                fix="between steps; running statistics are updated by BatchNorm2d alone",
            )
        self.value().write(new.numpy())

    def as_it_is(self) -> Tensor:
        """A twin that stays what this is now, whatever it becomes later."""
        twin = object.__new__(Tensor)  # short: this is done for each input of a recorded call
        twin.shape, twin.dtype, twin.name, twin.kind = self.shape, self.dtype, self.name, self.kind
        twin.requires_grad, twin.grad, twin.stepped = self.requires_grad, self.grad, self.stepped
        twin.storage, twin.variable, twin.source = self.storage, self.variable, self.source
        return twin

    def backward(self, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
        """Computes the gradients of all parameters that this tensor depends on, into their `.grad`.

        Args:
            gradient: gradient of this tensor; None for a tensor of one element: 1.
            retain_graph: keep what backward needs, so that it can run again.
        """
        record_backward(current_tape(), self, gradient, retain_graph=retain_graph)

    def _outputs(self, op: Op, *ins: Tensor) -> tuple[Tensor, ...]:
        return current_tape().call(op, ins)

    def _apply(self, op: Op, *ins: Tensor) -> Tensor:
        return call(op, *ins)

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a tensor without axes has no length", fix="tensor.item()")
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


#: Kinds of tensors that are the same from step to step, whatever their value.
_KEPT = ("param", "state")
#: What an address of today's processors can reach.
_MOST_BYTES = 1 << 48


def _copied(kind: type[Tensor]) -> Tensor:
    """A tensor that a pickle fills in."""
    return kind.__new__(kind)


Tensors = Sequence[Tensor]


def call(op: Op, *ins: Tensor) -> Tensor:
    """Records one call on the tape in force and returns its first output."""
    return current_tape().call(op, ins)[0]


class Runner(Protocol):
    """What recording a call does: `EagerRunner` computes, `TraceRunner` notes."""

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

    Args: runner: computes or notes each call. conv_algorithm: of convolutions: "auto", "direct",
    "im2col", "winograd2", "winograd4". seed: of dropout masks and initial weights. looked_at: is
    filled with tensors whose value is read, {tensor: value}, and called modules: {module: None}.
    parts: the `parts.Parts` of a batch that goes through in several. seeds: gives it a seed when it
    first draws; None: `seed` is.
    """

    runner: Runner
    conv_algorithm: str = "auto"
    seed: int = 0
    recording: bool = True
    site: Site = field(default_factory=Site)
    looked_at: dict[Any, Any] | None = None
    parts: Any = None
    seeds: Seeds | None = None

    def __post_init__(self) -> None:
        self.warned: set[str] = set()
        self._seeded: object = None  # the round of seeds that its seed is of
        self._numbers = itertools.count()
        self._dropouts = itertools.count()
        self._streams = itertools.count()
        #: while a module is called: {it or a part of it: its path}, see `module.py`
        self.module_paths: Mapping[Any, str] = {}
        self._again: Entry[Tensor] | None = None
        self._twins: Mapping[Tensor, Tensor] = {}

    # Recording

    def call(
        self, op: Op, ins: Tensors, *, of: Tensors = (), scalars: Scalars | None = None
    ) -> tuple[Tensor, ...]:
        """Records one call and returns its outputs.

        Args:
            of: in a backward pass, the tensors whose gradients the outputs are.
            scalars: step scalars, where not the tape's own.

        Raises:
            ShapeError: the inputs do not fit the operation.
        """
        name = self.site.call_name(op)
        if self._twins:
            ins = [self._twins.get(tensor, tensor) for tensor in ins]
        for tensor in ins:
            if not isinstance(tensor, Tensor):
                raise _not_a_tensor(tensor, name)
            if self._again is not None:
                self._again.check_unchanged(tensor)
        try:
            specs = op.infer(*[Spec(tensor.shape, tensor.dtype) for tensor in ins])
            _check_sizes(specs)
        except ShapeError as error:
            error.where = error.where or name
            raise
        outs = self._outputs(op, specs, of)
        step = {"seed": self.seed, "step": 0} if scalars is None else scalars
        call_id = self.runner.run(op, ins, outs, self.site, step)
        if self.recording and op.has_gradient and any(t.requires_grad for t in ins):
            self._record(op, name, ins, outs, call_id)
        return outs

    def update(
        self, op: Op, ins: Sequence[Tensor], targets: Sequence[Tensor], scalars: Scalars
    ) -> None:
        """Records a call whose outputs are the next values of `targets` (parameters or states)."""
        if self.parts is not None and self.parts.puts_off(op, ins, targets, self.site):
            return
        for target, new in self.updated(op, ins, targets, scalars):
            self.runner.assign(target, new)

    def updated(
        self, op: Op, ins: Sequence[Tensor], targets: Sequence[Tensor], scalars: Scalars
    ) -> list[tuple[Tensor, Tensor]]:
        """Records the call of an update: what `targets` have then, in tensors of its own."""
        specs = op.infer(*(tensor.spec for tensor in ins))
        outs = [
            Tensor(spec, name=f"{target.name}'", kind=target.kind)
            for spec, target in zip(specs, targets, strict=True)
        ]
        self.runner.run(op, ins, outs, self.site, scalars)
        return list(zip(targets, outs, strict=True))

    def look_at(self, what: Any, value: np.ndarray | None = None) -> None:
        """Notes what the calls depend on besides shapes, where that is wanted."""
        if self.looked_at is not None:
            self.looked_at[what] = None if value is None else value.copy()

    def next_dropout(self) -> int:
        """A number for one call of dropout, part of the key of its mask."""
        self._take_seed()
        return next(self._dropouts)

    def begin_part(self, number: int) -> None:
        """From now on another part of the batch goes through: calls of dropout count anew, and draw
        what the whole batch would."""
        self._dropouts = itertools.count()
        self.parts.begin(number)

    def reseed(self, seed: int) -> None:
        """Begins all random numbers anew."""
        self.seed, self._dropouts, self._streams = seed, itertools.count(), itertools.count()

    def seed_everywhere(self, seed: int) -> None:
        """`manual_seed`: of this tape, and of those of other contexts, see `Seeds`."""
        if self.seeds is not None:
            self.seeds.set(seed)
            self._seeded = self.seeds.round
        self.reseed(seed)

    def _take_seed(self) -> None:
        """Takes a seed of its own, if it has none since all were seeded."""
        if self.seeds is not None and self._seeded != self.seeds.round:
            self.reseed(self.seeds.take())
            self._seeded = self.seeds.round

    def next_generator(self) -> Callable[[], np.random.Generator]:
        """A stream of random numbers of its own, for one parameter; it can be begun at any time."""
        self._take_seed()
        return partial(generator_of, self.seed, next(self._streams))

    @contextmanager
    def at(self, **changes: Any) -> Iterator[None]:
        """Records at another site for a while, such as `at(phase="loss")`."""
        before, self.site = self.site, replace(self.site, **changes)
        try:
            yield
        finally:
            self.site = before

    @contextmanager
    def reading(self, twins: Mapping[Tensor, Tensor]) -> Iterator[None]:
        """For a while, calls read {tensor: what stands for it} in place of the tensors."""
        before = self._twins
        self._twins = {**before, **twins}
        try:
            yield
        finally:
            self._twins = before

    # Backward

    def gradient(self, op: Op, ins: Sequence[Tensor], of: Tensor) -> Tensor | None:
        """Records the one call that gives the gradient of `of`; None where it is not needed."""
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
    def reading_again(self, entry: Entry[Tensor]) -> Iterator[None]:
        """For a while, what `entry` read or wrote must not be read if it was changed since."""
        self._again = entry
        try:
            yield
        finally:
            self._again = None

    def _outputs(self, op: Op, specs: Sequence[Spec], of: Sequence[Tensor]) -> tuple[Tensor, ...]:
        kinds: Sequence[Kind] = op.out_kinds
        names = [f"{self.site.prefix(op)}.{name}" for name in op.out_names]
        if of:
            kinds = ["wgrad" if tensor.kind == "param" else "grad" for tensor in of]
            names = [f"{tensor.name or 'leaf'}.grad" for tensor in of]
        outs = zip(specs, names, kinds, strict=True)
        return tuple([Tensor(spec, name=name, kind=kind) for spec, name, kind in outs])

    def _record(
        self, op: Op, name: str, ins: Sequence[Tensor], outs: Sequence[Tensor], call_id: int | None
    ) -> None:
        site = replace(self.site, forward_of=call_id)
        eager = call_id is None
        read = tuple(
            [t if _stays(t, eager) else t.as_it_is() for t in ins]  # some may become another value
        )
        twins = tuple([tensor.detach() for tensor in outs])
        storages = [tensor.storage for tensor in (*read, *twins)]
        versions = tuple([s.version if s is not None else 0 for s in storages])
        entry = Entry(next(self._numbers), op, name, site, read, twins, versions)
        for i, tensor in enumerate(outs):
            # Statistics are by-products: nothing is differentiated through them.
            if tensor.dtype.startswith("float") and tensor.kind != "stat":
                tensor.requires_grad, tensor.source = True, (entry, i)


def _stays(tensor: Tensor, eager: bool) -> bool:
    """Whether a tensor is never another one than it is: `x += y` writes to it, or is refused."""
    if tensor.source is not None:
        return False
    if tensor.requires_grad or tensor.kind in _KEPT:
        return True
    return tensor.variable is None and not eager


def _check_sizes(specs: Iterable[Spec]) -> None:
    """Raises ShapeError: no address space holds an array of this size."""
    for spec in specs:
        if spec.nbytes > _MOST_BYTES:
            raise ShapeError(
                f"the result has extents {spec.shape}", numbers=format_bytes(spec.nbytes),
                fix="smaller sizes: no computer holds such an array",
            )  # fmt: skip


def _not_a_tensor(what: object, name: str) -> ShapeError:
    return ShapeError(
        f"{name} wants tensors, got {type(what).__name__}", fix="wrap it: oc.tensor(array)"
    )


_TAPE: contextvars.ContextVar[Tape] = contextvars.ContextVar("ooctrain_tape")


def current_tape() -> Tape:
    """The tape in force: the one set by `use_tape`, else this context's own eager tape.

    It is a context variable, not a global: threads and tasks each have their own. Their random
    numbers have one source, `Seeds`.
    """
    tape = _TAPE.get(None)
    if tape is None:
        tape = Tape(EagerRunner(), seeds=SEEDS.get())
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
