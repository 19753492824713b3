"""The backward pass: recorded calls in reverse order, each replaced by the calls of its gradient.

It starts at a tensor that was computed on a tape, and leaves gradients in the `.grad` of the
leaves. It does not interpret derivatives: each operation records the calls that make up its
gradient (`Op.vjp`) on the same tape, so the backward pass is a list of ordinary calls, and a
planner can move its values. Where a value has several readers, a call of its own adds their
gradients. A leaf's gradient is complete, and its update may follow, once the last entry that reads
the leaf has been passed. This file knows nothing of tensors but what it asks of one (`Node`) and of
the tape. Read next: `tensor.py`, then `tracing.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ooctrain.errors import AutogradError, ShapeError, warn
from ooctrain.layers.combine import Add, Constant
from ooctrain.step.op import Op, Site, TapeLike, TensorLike


class Node(TensorLike, Protocol):
    """A tensor as the backward pass sees it.

    Attributes:
        name: as in messages.
        requires_grad: whether backward shall reach it.
        storage: its value; None in trace mode.
        source: the entry that wrote it, and as which output; None for a leaf.
        grad: for a leaf, the sum of its gradients up to now, or None.
        stepped: for a gradient, whether an optimizer has used it.
    """

    name: str
    requires_grad: bool
    storage: Any
    source: tuple[Entry[Any], int] | None
    grad: Any
    stepped: bool


T = TypeVar("T", bound=Node)
Hook = Callable[[T], None]


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One recorded call with what its gradient may need; made right after the call.

    Args:
        number: position in the order of recording.
        outs: twins of the outputs, without history, so that an entry never holds itself.
        versions: versions of the storages of inputs and outputs, in this order, at that time.
        freed_by: the backward pass that used it up.
    """

    number: int
    op: Op
    name: str
    site: Site
    ins: tuple[T, ...]
    outs: tuple[T, ...]
    versions: tuple[int, ...]
    freed_by: str = ""

    def check_unchanged(self, tensor: T) -> None:
        """Raises AutogradError for what this call read or wrote and was changed since."""
        for kept, version in zip((*self.ins, *self.outs), self.versions, strict=True):
            same = kept.storage is tensor.storage is not None
            if same and tensor.storage.version != version:
                raise AutogradError(
                    f"{tensor.name or 'a tensor'!r} was changed in place after {self.name!r} "
                    "used it, and its gradient needs the old value",
                    where=f"written at {tensor.storage.written_at}",
                    fix="write after backward(), or into a new tensor",
                )


class BackwardTape(TapeLike[T], Protocol[T]):
    """What the backward pass asks of a tape (`tensor.py` has it)."""

    #: what the user was warned of already
    warned: set[str]

    def at(self, **changes: Any) -> AbstractContextManager[None]:
        """Records at another site for a while."""

    def paused(self) -> AbstractContextManager[None]:
        """For a while, no call is kept for backward."""

    def reading_again(self, entry: Entry[T]) -> AbstractContextManager[None]:
        """For a while, what `entry` read or wrote must not be read if it was changed since."""


def record_backward(
    tape: BackwardTape[T], root: T, gradient: T | None = None, *, retain_graph: bool = False,
    on_gradient: Hook[T] | None = None,
) -> None:  # fmt: skip
    """Records the backward pass of `root`, and adds each leaf's gradient to its `.grad`.

    Args:
        gradient: gradient of `root`, in its shape and type; None: 1, for a root of one element.
        retain_graph: keep the entries' inputs for another backward pass.
        on_gradient: called with each leaf (a parameter, or another tensor that requires a
            gradient) as soon as its gradient is complete.

    Raises:
        AutogradError: nothing to differentiate, a second pass, or a value changed in place.
        ShapeError: the gradient does not fit `root`.
    """
    if not root.requires_grad:
        raise AutogradError(
            f"{root.name or 'this tensor'!r} depends on nothing that requires a gradient",
            fix="was it computed under no_grad(), or from detached tensors?",
        )
    if gradient is not None:
        _check_gradient(gradient, root)
    entries = _entries_before(root)
    with tape.paused():
        seed = _ones(tape, root) if gradient is None else gradient
        _Pass(tape, on_gradient).walk(entries, root, seed)
    if not retain_graph:
        for entry in entries:
            entry.ins = entry.outs = ()
            entry.freed_by = f"the backward pass of {root.name!r}"


class _Pass(Generic[T]):
    """One walk from the root back to the leaves.

    `_grads` holds the gradients that are known so far and not yet used: {output of an entry, or
    leaf: the sum of its gradients up to now}.
    """

    def __init__(self, tape: BackwardTape[T], on_gradient: Hook[T] | None):
        self._tape, self._on_gradient = tape, on_gradient
        self._grads: dict[Any, T] = {}

    def walk(self, entries: list[Entry[T]], root: T, seed: T) -> None:
        self._grads[_key(root)] = seed
        pending = Counter(leaf for entry in entries for leaf in _leaves(entry))
        if root.source is None:
            self._finish(root, seed)
        for entry in entries:
            cotangents = [self._grads.pop((entry, i), None) for i in range(len(entry.outs))]
            if any(cotangent is not None for cotangent in cotangents):
                self._differentiate(entry, cotangents)
            for leaf in _leaves(entry):
                pending[leaf] -= 1
                if not pending[leaf] and leaf in self._grads:
                    site = entry.site
                    with self._tape.at(path=site.path, leaf=site.leaf, phase="backward"):
                        self._finish(leaf, self._grads.pop(leaf))

    def _differentiate(self, entry: Entry[T], cotangents: list[T | None]) -> None:
        """Records the calls of an entry's gradient, which are named after its own call."""
        path, forward_of = entry.site.prefix(entry.op), entry.site.forward_of
        with self._tape.at(path=path, leaf=True, phase="backward", forward_of=forward_of):
            with self._tape.reading_again(entry):
                found = entry.op.vjp(self._tape, entry.ins, entry.outs, cotangents)
            for tensor, grad in zip(entry.ins, found, strict=True):
                if grad is not None and tensor.requires_grad:
                    before = self._grads.get(_key(tensor))
                    self._grads[_key(tensor)] = (
                        grad if before is None else self._sum(before, grad, tensor)
                    )

    def _finish(self, leaf: T, grad: T) -> None:
        """A leaf's gradient is complete: adds it to what is in `.grad` already."""
        warned = self._tape.warned
        if leaf.grad is not None and leaf.grad.stepped and "zero_grad" not in warned:
            warned.add("zero_grad")
            warn(
                f"the gradient of {leaf.name or 'a parameter'!r} is added to that of an earlier "
                "step: call optimizer.zero_grad() before backward()"
            )
        leaf.grad = grad if leaf.grad is None else self._sum(leaf.grad, grad, leaf)
        if self._on_gradient is not None:
            self._on_gradient(leaf)

    def _sum(self, a: T, b: T, of: T) -> T:
        """Adds gradients that meet at a fork, as a call of its own: "conv1.out.grad.add"."""
        path = f"{of.name or 'leaf'}.grad"
        with self._tape.at(path=path, leaf=True, forward_of=None, verb="add"):
            return self._tape.call(Add(), (a, b), of=(of,))[0]


def _check_gradient(gradient: Node, root: Node) -> None:
    """Raises ShapeError unless a given gradient has the shape and element type of `root`."""
    found = getattr(gradient, "spec", type(gradient).__name__)
    if found != root.spec:
        raise ShapeError(
            f"the gradient given for {root.name or 'this tensor'!r} does not fit it",
            numbers=f"wanted {root.spec}, got {found}",
            fix="y.backward(oc.tensor(array)), array in the shape of y",
        )


def _ones(tape: BackwardTape[T], root: T) -> T:
    """The gradient of the root itself."""
    if root.spec.size != 1:
        raise AutogradError(
            f"{root.name or 'this tensor'!r} has shape {root.shape}; "
            "only one number has a gradient of 1",
            fix="reduce it to a loss, or pass backward(gradient)",
        )
    with tape.at(path=f"{root.name or 'loss'}.grad", leaf=True, phase="loss"):
        return tape.call(Constant(1.0, root.shape), (), of=(root,))[0]


def _key(tensor: Node) -> Any:
    """What gradients are collected by: the output that a tensor is, or the leaf itself."""
    return tensor if tensor.source is None else tensor.source


def _leaves(entry: Entry[T]) -> list[T]:
    return list(dict.fromkeys(t for t in entry.ins if t.source is None and t.requires_grad))


def _entries_before(root: T) -> list[Entry[T]]:
    """All entries that `root` was computed by, latest first."""
    found: dict[Entry[T], None] = {}
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
