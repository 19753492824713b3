"""Tensors and the tape: what was computed from what, and the calls of the backward pass.

In: operations on tensors. Out: gradients, as further calls on the same tape. The one idea: `backward` is
not an interpreter of derivatives; it walks the recorded calls in reverse order and asks each operation to
record the calls that make up its gradient. A *runner* decides what recording a call does: compute it at
once (`eager.EagerRunner`) or note its shapes (`tracing.TraceRunner`); nothing else differs. There is no
list of calls here: a tensor knows the entry that made it, and an entry knows its inputs, so a result that
nobody holds is forgotten, as in PyTorch. Read next: `layers/relu.py`, then `tracing.py`.
"""

from __future__ import annotations

import contextvars
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ooctrain.eager import EagerRunner, HostStorage, Storage
from ooctrain.errors import AutogradError, ConfigError, ShapeError
from ooctrain.layers.base import Op, Scalars, Spec, to_physical
from ooctrain.layers.combine import Add, Constant, Scale
from ooctrain.layers.layout import Reshape, Slice
from ooctrain.trace import ITEM_BYTES, Kind, Phase

if TYPE_CHECKING:
    from ooctrain.module import Module


class Tensor:
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

    def __init__(self, spec: Spec, *, name: str = "", kind: Kind = "activation", requires_grad=False):
        self.shape, self.dtype, self.name, self.kind = spec.shape, spec.dtype, name, kind
        self.requires_grad: bool = requires_grad
        self.grad: Tensor | None = None
        self.storage: Storage | None = None
        self.variable: int | None = None  # its id in the trace, where there is one
        self.source: tuple[Entry, int] | None = None  # the entry that wrote it, and as which output
        self.stepped = False  # for a gradient: an optimizer has used it

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

    def numpy(self) -> np.ndarray:
        """The value as a logical, read-only view.

        Raises:
            AutogradError: a traced tensor, which has no value.
        """
        view = self._value().read().view()
        view.flags.writeable = False
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> float:
        """The value of a tensor of one element."""
        return self.numpy().item()

    def copy_(self, array: Any) -> Tensor:
        """Overwrites the value in place. If backward still needs the old one, it will say so."""
        self._value().write(np.asarray(array))
        return self

    def detach(self) -> Tensor:
        """The same value, without its history."""
        twin = Tensor(self.spec, name=self.name, kind=self.kind)
        twin.storage, twin.variable = self.storage, self.variable
        return twin

    def backward(self, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
        """Computes the gradients of all parameters that this tensor depends on, into their `.grad`.

        Args:
            gradient: of this tensor; None for a tensor of one element: 1.
            retain_graph: keep what backward needs, so that it can run again.
        """
        current_tape().backward(self, gradient, retain_graph=retain_graph)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in (N, C, H, W) order under another shape; one extent may be -1."""
        return reshape(self, _as_shape(shape))

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Joins the axes from `start_dim` to `end_dim`."""
        end = end_dim % self.ndim
        joined = math.prod(self.shape[start_dim : end + 1])
        return reshape(self, (*self.shape[:start_dim], joined, *self.shape[end + 1 :]))

    def __add__(self, other: Tensor | float) -> Tensor:
        if not isinstance(other, Tensor):
            other = call(Constant(float(other), self.shape))
        return call(Add(), self, other)

    __radd__ = __add__

    def __mul__(self, factor: float) -> Tensor:
        if isinstance(factor, Tensor):
            raise ShapeError("a tensor can be multiplied by a number only", fix="write an oc.Op for products")
        return call(Scale(float(factor)), self)

    __rmul__ = __mul__

    def __neg__(self) -> Tensor:
        return self * -1.0

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self + (-1.0) * other

    def __rsub__(self, other: float) -> Tensor:
        return -self + other

    def __truediv__(self, divisor: float) -> Tensor:
        return self * (1.0 / divisor)

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(k, slice) and k.step in (None, 1) for k in keys) or len(keys) > self.ndim:
            raise ShapeError("a tensor takes slices with step 1 only", fix="x[0:8] or x[:, :3]")
        bounds = [k.indices(extent)[:2] for k, extent in zip(keys, self.shape, strict=False)]
        bounds += [(0, extent) for extent in self.shape[len(keys) :]]
        start, stop = (tuple(b[i] for b in bounds) for i in (0, 1))
        return call(Slice(self.shape, start, tuple(b - a for a, b in zip(start, stop, strict=True))), self)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self) -> str:
        value = "traced" if self.storage is None else str(self.numpy())
        return f"Tensor({value}, shape={self.shape}, dtype={self.dtype}, name={self.name!r})"

    def _value(self) -> Storage:
        if self.storage is None:
            raise AutogradError(
                f"{self.name or 'this tensor'!r} is traced: it has a shape and no value",
                fix="call the model outside oc.trace, or run the plan with oc.execute",
            )
        return self.storage


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call stands: in which module, in which phase, of which forward call it is the gradient.

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
        return self.path if self.leaf and self.path else ".".join(filter(None, (self.path, op.name)))

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
        versions: of the inputs' storages when they were read.
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
    """What recording a call does. `eager.EagerRunner` computes it, `tracing.TraceRunner` notes it."""

    def run(
        self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor], site: Site, scalars: Scalars
    ) -> int | None:
        """Fills in `outs`; returns the call's id where there is one."""

    def assign(self, target: Tensor, new: Tensor) -> None:
        """Makes `new` the value of a parameter or state from now on."""


Hook = Callable[["Tensor"], None]


@dataclass
class Tape:
    """Records calls and their gradients.

    Args:
        runner: computes or notes each call.
        conv_algorithm: what convolutions ask for: "auto", "direct", "im2col", "winograd2", "winograd4".
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

    # Recording

    def call(
        self, op: Op, ins: Sequence[Tensor], *, of: Sequence[Tensor] = (), scalars: Scalars | None = None
    ) -> tuple[Tensor, ...]:
        """Records one call and returns its outputs.

        Args:
            of: in a backward pass, the tensors whose gradients the outputs are.
            scalars: step scalars, where not the tape's own.

        Raises:
            ShapeError: the inputs do not fit the operation.
        """
        name = self.site.call_name(op)
        for tensor in ins:
            self._check_unchanged(tensor)
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

    def update(self, op: Op, ins: Sequence[Tensor], targets: Sequence[Tensor], scalars: Scalars) -> None:
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

    # Backward

    def backward(
        self, root: Tensor, gradient: Tensor | None = None, *, retain_graph: bool = False,
        on_gradient: Hook | None = None,
    ) -> None:  # fmt: skip
        """Records the backward pass of `root`.

        Args:
            gradient: of `root`; None: 1, for a root of one element.
            retain_graph: keep the entries' inputs for another backward pass.
            on_gradient: called with each parameter as soon as its gradient is complete.

        Raises:
            AutogradError: nothing to differentiate, a second pass, or a value changed in place.
        """
        if not root.requires_grad:
            raise AutogradError(
                f"{root.name or 'this tensor'!r} depends on nothing that requires a gradient",
                fix="was it computed under no_grad(), or from detached tensors?",
            )
        entries = _entries_before(root)
        recording, self.recording = self.recording, False
        try:
            seed = self._ones(root) if gradient is None else gradient
            self._walk(entries, root, seed, on_gradient)
        finally:
            self.recording = recording
            self._versions = {}
        if not retain_graph:
            for entry in entries:
                entry.ins = entry.outs = ()
                entry.freed_by = f"the backward pass of {root.name!r}"

    def _walk(self, entries: list[Entry], root: Tensor, seed: Tensor, on_gradient: Hook | None) -> None:
        grads: dict[Any, Tensor] = {_key(root): seed}
        pending = Counter(leaf for entry in entries for leaf in _leaves(entry))
        if root.source is None:
            self._finish(root, seed, on_gradient)
        for entry in entries:
            cotangents = [grads.pop((entry, i), None) for i in range(len(entry.outs))]
            if any(cotangent is not None for cotangent in cotangents):
                self._differentiate(entry, cotangents, grads)
            for leaf in _leaves(entry):
                pending[leaf] -= 1
                if not pending[leaf] and leaf in grads:
                    with self.at(path=entry.site.path, leaf=entry.site.leaf, phase="backward"):
                        self._finish(leaf, grads.pop(leaf), on_gradient)

    def _differentiate(
        self, entry: Entry, cotangents: list[Tensor | None], grads: dict[Any, Tensor]
    ) -> None:
        self._versions = {
            id(t.storage): (entry, v) for t, v in zip(entry.ins, entry.versions, strict=True)
        }
        with self.at(**_backward_site(entry)):
            in_grads = entry.op.vjp(self, entry.ins, entry.outs, cotangents)
            self._versions = {}
            for tensor, grad in zip(entry.ins, in_grads, strict=True):
                if grad is not None and tensor.requires_grad:
                    key = _key(tensor)
                    grads[key] = self._sum(grads[key], grad, tensor) if key in grads else grad

    def _finish(self, leaf: Tensor, grad: Tensor, on_gradient: Hook | None) -> None:
        """A leaf's gradient is complete: adds it to what is in `.grad` already."""
        if leaf.grad is not None and leaf.grad.stepped and "zero_grad" not in self.warned:
            self.warned.add("zero_grad")
            warnings.warn(
                f"the gradient of {leaf.name or 'a parameter'!r} is added to that of an earlier step: "
                "call optimizer.zero_grad() before backward()",
                stacklevel=6,
            )
        leaf.grad = grad if leaf.grad is None else self._sum(leaf.grad, grad, leaf)
        if on_gradient is not None:
            on_gradient(leaf)

    def _sum(self, a: Tensor, b: Tensor, of: Tensor) -> Tensor:
        """Adds gradients that meet at a fork, as a call of its own: "conv1.out.grad.add"."""
        with self.at(path=f"{of.name or 'leaf'}.grad", leaf=True, forward_of=None, verb="add"):
            return self.call(Add(), (a, b), of=(of,))[0]

    def _ones(self, root: Tensor) -> Tensor:
        if root.numel() != 1:
            raise AutogradError(
                f"{root.name or 'this tensor'!r} has shape {root.shape}; only one number has a gradient of 1",
                fix="reduce it to a loss, or pass backward(gradient)",
            )
        with self.at(path=f"{root.name or 'loss'}.grad", leaf=True, phase="loss"):
            return self.call(Constant(1.0, root.shape), (), of=(root,))[0]

    def _check_unchanged(self, tensor: Tensor) -> None:
        seen = self._versions.get(id(tensor.storage)) if tensor.storage is not None else None
        if seen and tensor.storage.version != seen[1]:
            raise AutogradError(
                f"{tensor.name or 'a tensor'!r} was changed in place after {seen[0].name!r} read it, "
                "and its gradient needs the old value",
                where=f"written at {tensor.storage.written_at}",
                fix="write after backward(), or into a new tensor",
            )

    def _outputs(self, op: Op, specs: Sequence[Spec], of: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if of:
            return tuple(
                Tensor(s, name=f"{t.name or 'leaf'}.grad", kind="wgrad" if t.kind == "param" else "grad")
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
        versions = tuple(t.storage.version if t.storage is not None else 0 for t in ins)
        twins = tuple(tensor.detach() for tensor in outs)
        site = replace(self.site, forward_of=call_id)
        entry = Entry(next(self._numbers), op, name, site, tuple(ins), twins, versions)
        for i, tensor in enumerate(outs):
            # Statistics are by-products: nothing is differentiated through them.
            if tensor.dtype.startswith("float") and tensor.kind != "stat":
                tensor.requires_grad, tensor.source = True, (entry, i)


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
    tape = current_tape()
    before, tape.recording = tape.recording, False
    try:
        yield
    finally:
        tape.recording = before


def manual_seed(seed: int) -> None:
    """Seeds initial weights and dropout of this context."""
    current_tape().reseed(seed)


def call(op: Op, *ins: Tensor) -> Tensor:
    """Records one call on the tape in force and returns its first output."""
    return current_tape().call(op, ins)[0]


def tensor(array: Any, requires_grad: bool = False, *, name: str = "", kind: Kind = "input") -> Tensor:
    """A tensor with a copy of `array`.

    Args:
        array: anything NumPy takes, in logical layout; floats become float32, whole numbers int64.
        requires_grad: whether backward shall reach it.
    """
    value = np.asarray(array)
    if value.dtype == np.float64 and isinstance(array, np.ndarray):
        warnings.warn("float64 data was cast to float32", stacklevel=2)
    if value.dtype.kind in "fiu" and str(value.dtype) != "uint8":
        value = value.astype("float32" if value.dtype.kind == "f" else "int64")
    if str(value.dtype) not in ITEM_BYTES:
        raise ConfigError(f"a tensor cannot hold {value.dtype}", code="OOC-110", fix="give numbers")
    return wrap(np.array(value), requires_grad=requires_grad, name=name, kind=kind)


def wrap(array: np.ndarray, *, requires_grad: bool = False, name: str = "", kind: Kind = "input") -> Tensor:
    """A tensor over a logical array, of any element type, without a check or (if it can be) a copy."""
    result = Tensor(Spec(array.shape, str(array.dtype)), name=name, kind=kind, requires_grad=requires_grad)
    result.storage = HostStorage(to_physical(array))
    return result


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in logical order under another shape; one extent may be -1."""
    known = math.prod(extent for extent in shape if extent != -1)
    full = tuple(x.numel() // known if extent == -1 and known else extent for extent in shape)
    return call(Reshape(x.shape, full), x)


def _as_shape(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else tuple(shape)


def _has_gradient(op: Op) -> bool:
    return type(op).vjp is not Op.vjp


def _key(tensor: Tensor) -> Any:
    """What gradients are collected by: the output that a tensor is, or the tensor itself if a leaf."""
    return tensor if tensor.source is None else tensor.source


def _leaves(entry: Entry) -> list[Tensor]:
    return list(dict.fromkeys(t for t in entry.ins if t.source is None and t.requires_grad))


def _entries_before(root: Tensor) -> list[Entry]:
    """All entries that `root` was computed by, latest first."""
    found: dict[Entry, None] = {}
    stack = [root]
    while stack:
        source = stack.pop().source
        if source is None or source[0] in found:
            continue
        entry = source[0]
        if entry.freed_by:
            raise AutogradError(
                f"second backward through {entry.name!r}: {entry.freed_by} has freed what it needs",
                fix="call backward(retain_graph=True) the first time, or compute the loss again",
            )
        found[entry] = None
        stack.extend(entry.ins)
    return sorted(found, key=lambda entry: -entry.number)


def _backward_site(entry: Entry) -> dict[str, Any]:
    """The gradient of a call is named after that call."""
    path = entry.site.prefix(entry.op)
    return {"path": path, "leaf": True, "phase": "backward", "forward_of": entry.site.forward_of}
