"""A module whose forward pass is a list of calls, as an importer has found them.

A file or a program of another library names its parameters by a tree of modules and computes with
a straight-line list of calls. `ImportedModule` is both: a tree of `ImportedPart`s with the same
names, and for each mode (training, evaluation) a `CallList`, whose calls are functions of this
library. Calling it walks the list, inside the part that each call came from, so that traces, plans
and reports have the names of the user's own code. Read next: `importing.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from ooctrain.engine.autograd import no_grad
from ooctrain.engine.incore import named_tensors
from ooctrain.engine.module import Module, inside
from ooctrain.engine.tensor import Tape, Tensor, use_tape
from ooctrain.engine.trace_runner import TraceRunner
from ooctrain.errors import ConfigError, OoctrainError, ShapeError
from ooctrain.step.op import Spec

#: Extents of a shape; None: that of the batch.
Extents = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a tensor: an input, a registered value, or what a call of this name has made."""

    name: str


@dataclass(frozen=True, slots=True)
class Mode:
    """Stands for whether the part that a call is in is in training."""


@dataclass(frozen=True, slots=True)
class GraphCall:
    """One call of a program.

    Args:
        name: of its result.
        operation: what the other library calls it, such as "conv2d.default".
        function: what computes it here; its arguments are those of `operation`.
        args, options: its arguments, with a `Ref` or `Mode` where they are not plain values.
        path: the part that it is in.
        shape: shape of its result for the example's batch; None: several results, or no tensor.
        last_read: names that no later call reads.
    """

    name: str
    operation: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    shape: tuple[int, ...] | None = None
    last_read: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """As in messages."""
        return f"{self.operation} in {self.path or 'the network itself'}"

    def result(self, values: Mapping[str, Any], part: Module) -> Any:
        """Records the call inside its part, with these values in place of the `Ref`s."""

        def given(leaf: Any) -> Any:
            if isinstance(leaf, Mode):
                return part.training
            return values[leaf.name] if isinstance(leaf, Ref) else leaf

        args, options = changed((self.args, dict(self.options)), given)
        with inside(part):
            return self.function(*args, **options)


#: A call that cannot be done here, and why.
Problem = tuple[GraphCall, str]


class Registered(NamedTuple):
    """Where a parameter or buffer is: the path of its part, and its name there."""

    path: str
    name: str


class CallList:
    """What a network computes in one mode. It never changes, so it is compared by identity.

    Args:
        inputs: {name of an input: its shape}.
        registered: {name: the parameter or buffer that it stands for}.
        calls: in order.
        output: a structure with a `Ref` for each tensor.
    """

    __slots__ = ("calls", "inputs", "output", "registered")

    def __init__(
        self, inputs: Mapping[str, Extents], registered: Mapping[str, Registered],
        calls: Sequence[GraphCall], output: Any,
    ):  # fmt: skip
        self.inputs, self.registered, self.output = dict(inputs), dict(registered), output
        needed = set(references(output))
        backwards = []
        for call in reversed(calls):
            reads = {call.name, *references((call.args, dict(call.options)))}
            backwards.append(replace(call, last_read=tuple(sorted(reads - needed))))
            needed |= reads
        self.calls = tuple(reversed(backwards))


class ImportedPart(Module):
    """One part of an imported network: its parameters, buffers and parts.

    Args:
        kind: name of its class in the other library, for `repr`.
    """

    def __init__(self, kind: str):
        super().__init__()
        self._kind = kind  # with "_", since a part of the network may have any other name

    def forward(self, *_inputs: Any) -> NoReturn:
        raise ConfigError(
            f"a part of an imported network ({self._kind}) cannot be called by itself",
            code="OOC-106", fix="import this part as a network of its own",
        )  # fmt: skip

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, self._kind, 1)


class ImportedModule(ImportedPart):
    """A network of another library, with that library's names.

    Args:
        kind: as of `ImportedPart`.
    """

    def __init__(self, kind: str):
        super().__init__(kind)
        self._programs: tuple[CallList, ...] = ()
        self._own_functions: tuple[Callable[..., Any], ...] = ()

    def set_programs(self, evaluate: CallList, train: CallList) -> None:
        """What it computes in evaluation, and in training."""
        self._programs = evaluate, train
        # A trainer looks into functions that it finds here: they may be the user's own.
        self._own_functions = tuple({call.function for p in self._programs for call in p.calls})

    @property
    def input_shapes(self) -> Mapping[str, Extents]:
        """{name: shape} of what it takes; None: the batch, where it may have any size."""
        return MappingProxyType(self._programs[self.training].inputs)

    def forward(self, *inputs: Tensor) -> Any:
        """What the network computes for a batch of any size.

        Raises:
            ShapeError: images of another size than those that it was imported with.
        """
        program = self._programs[self.training]
        values, parts = self._values(program, inputs), dict(self.named_modules())
        for call in program.calls:
            values[call.name] = call.result(values, parts[call.path])
            for name in call.last_read:
                del values[name]
        return changed(program.output, lambda leaf: _value(leaf, values))

    def _values(self, program: CallList, inputs: Sequence[Tensor]) -> dict[str, Any]:
        """{name: tensor} of inputs and of all that is registered."""
        if len(inputs) != len(program.inputs):
            raise ConfigError(
                f"{self._kind} takes {len(program.inputs)} inputs, not {len(inputs)}",
                code="OOC-106", fix="the network's own inputs",
            )  # fmt: skip
        values: dict[str, Any] = {}
        for tensor, (name, shape) in zip(inputs, program.inputs.items(), strict=True):
            if not _fits(tensor.shape, shape):
                raise ShapeError(
                    f"{self._kind} was imported with images of another size",
                    numbers=f"got {tensor.shape}, imported with {_shown(shape)}",
                    fix="import it again with this shape: sizes are constants of its program",
                )
            values[name] = tensor
        for name, (path, own) in program.registered.items():
            part = self.get_submodule(path)
            values[name] = part._parameters.get(own, part._buffers.get(own))
        return values

    def problems(self, batch: int) -> list[Problem]:
        """Calls that this library refuses, or that give another shape here, each with the reason.

        Those in training, and of those in evaluation the kinds that are not among them. The
        programs are recorded to their ends, without computing anything: all are found at once.

        Args:
            batch: that of the example.
        """
        modes = {part: part.training for part in self.modules()}
        found: list[Problem] = []
        try:
            for training in (True, False):
                self.train(training)
                known = {(call.operation, why) for call, why in found}
                found += [
                    (call, why) for call, why in self._problems_of(self._programs[training], batch)
                    if (call.operation, why) not in known
                ]  # fmt: skip
        finally:
            for part, mode in modes.items():
                part.training = mode
        return found

    def _problems_of(self, program: CallList, batch: int) -> Iterator[Problem]:
        for call, made in self._recorded(program, batch):
            if isinstance(made, Exception):
                own = made.what if isinstance(made, OoctrainError) else None
                yield call, own or f"{type(made).__name__}: {made}"

    def variable_names(self, batch: int) -> dict[str, str]:
        """{name of a call: the variable that its result is in a trace of this network}, in the mode
        that it is in."""
        found = self._recorded(self._programs[self.training], batch)
        return {call.name: made.name for call, made in found if isinstance(made, Tensor)}

    def shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        """{name of a call: shape of its result} for a batch, in the mode that it is in."""
        found = self._recorded(self._programs[self.training], batch)
        return {call.name: made.shape for call, made in found if isinstance(made, Tensor)}

    def _recorded(self, program: CallList, batch: int) -> Iterator[tuple[GraphCall, Any]]:
        """Each call with its result in a trace, or with the exception that it raised. After one the
        walk goes on with a tensor of the shape that the result should have; where that is not
        known, without the calls that depend on it."""
        runner = TraceRunner(1, {t: name for name, t in named_tensors(self, None).items()})
        parts = dict(self.named_modules())
        with use_tape(Tape(runner)), no_grad(), inside(self):
            inputs = [
                runner.input(name, Spec(tuple(batch if n is None else n for n in shape)))
                for name, shape in program.inputs.items()
            ]
            values, lost = self._values(program, inputs), set[str]()
            for call in program.calls:
                made: Any
                if not lost.isdisjoint(references((call.args, dict(call.options)))):
                    lost.add(call.name)
                    continue
                try:
                    made = call.result(values, parts[call.path])
                    shape = getattr(made, "shape", ())  # a tensor of one number may be one here
                    if call.shape is not None and shape != call.shape:
                        raise ShapeError(
                            f"gives {shape}, where {call.shape} was expected",
                            fix="please report it: the two libraries differ",
                        )
                except Exception as error:  # also what the arguments of an operation lead to
                    yield call, error
                    if call.shape is None:
                        lost.add(call.name)
                        continue
                    made = runner.input(f"{call.name}?", Spec(call.shape))
                else:
                    yield call, made
                values[call.name] = made


def refuse(problems: Iterable[Problem], fix: str) -> NoReturn:
    """Raises ConfigError: all operations that are not here, with counts and first places.

    Args:
        fix: what mends it, with "{}" for the name of the most frequent one.
    """
    listed = list(problems)
    counts = Counter((call.operation, why) for call, why in listed)
    first = {(call.operation, why): call for call, why in reversed(listed)}
    lines = [
        f"{name} x {count}, first in {first[name, why].path or 'its own forward'} ({why})"
        for (name, why), count in counts.most_common()
    ]
    name = counts.most_common(1)[0][0][0]
    raise ConfigError(
        f"{len({name for name, _ in counts})} operations of this network cannot be done here",
        code="OOC-190", numbers="; ".join(lines), fix=fix.format(name),
    )  # fmt: skip


def _value(leaf: Any, values: Mapping[str, Any]) -> Any:
    return values[leaf.name] if isinstance(leaf, Ref) else leaf


def _fits(shape: Sequence[int], wanted: Extents) -> bool:
    return len(shape) == len(wanted) and all(
        w is None or w == n for n, w in zip(shape, wanted, strict=True)
    )


def _shown(shape: Extents) -> str:
    return f"({', '.join('N' if n is None else str(n) for n in shape)})"


def changed(form: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure of tuples, lists and dictionaries with another value at each leaf."""
    if isinstance(form, Mapping):
        items = {key: changed(part, change) for key, part in form.items()}
        return items if type(form) is dict else type(form)(items)  # type: ignore[call-arg]
    if isinstance(form, tuple) and hasattr(form, "_fields"):
        return type(form)(*(changed(part, change) for part in form))
    if isinstance(form, list | tuple):
        return type(form)(changed(part, change) for part in form)
    return change(form)


def references(form: Any) -> Iterator[str]:
    """The names that a structure refers to."""
    found: list[str] = []
    changed(form, lambda leaf: found.append(leaf.name) if isinstance(leaf, Ref) else None)
    yield from found
