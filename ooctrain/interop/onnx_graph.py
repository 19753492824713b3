"""An ONNX graph as a module of this library.

Each value of the graph is one of four kinds. *Weights* are float32 initializers with at least one
axis: parameters under their names, or, where a batch norm keeps statistics in them, buffers.
*Numbers* are constants: whole numbers, `Constant` nodes, initializers without axes, bounds and
scales. *Sizes* are numbers that depend on a shape, and are computed for each batch. All else is
*tensors*. A node becomes a call of the function that `OPERATORS` has for it; one of numbers alone
is computed at once. Read next: `onnx_file.py`, which the graph comes from; `onnx_ops.py`.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from numbers import Integral
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ooctrain.engine.module import NOT_ATTRIBUTES
from ooctrain.engine.parameter import Parameter
from ooctrain.errors import OoctrainError
from ooctrain.interop.graph import (
    CallList,
    Extents,
    GraphCall,
    ImportedModule,
    ImportedPart,
    Mode,
    Ref,
    Registered,
    refuse,
)
from ooctrain.interop.onnx_file import OnnxGraph, OnnxNode, Open, broken, not_taken, read
from ooctrain.interop.onnx_numbers import NUMBERS, SIZES
from ooctrain.interop.onnx_ops import OPERATORS, Operator, constant, refused

_REGISTERED: ContextVar[Mapping[str, Operator]] = ContextVar(
    "registered", default=MappingProxyType({})
)
_OWN = "oc.interop.onnx.register('{}', function), where an oc.Op may do the work"
#: How the names of buffers begin that hold constants of a file.
_CONSTANT = "_constant_"
#: Arguments of a function that are no attributes.
_OURS = frozenset(("training", "opset", "outputs"))
#: Names of a step's own values.
_OF_A_STEP = frozenset(("input", "target"))
_EXAMPLE = 2  # the batch that shapes are looked at with, where any is taken


def _missing(reason: str, *_args: Any, **_options: Any) -> NoReturn:
    raise refused(reason)


class Images(NamedTuple):
    """What a file takes; None: it leaves that open, or does not say.

    Args:
        pixels: whether there is a class for each pixel.
    """

    channels: int
    height: int | None
    width: int | None
    classes: int | None
    pixels: bool


_NONE = Operator(_missing)  # what is known of an operator that is not here


def register(operator: str, function: Callable[..., Any], numbers: Sequence[int] = ()) -> None:
    """From now on `from_onnx` knows one more operator.

    Args:
        operator: as an error names it, such as "CumSum".
        function: computes it of tensors of this library; takes the operator's inputs in order, and
            its attributes by name.
        numbers: places of the inputs that it wants as arrays of numbers.
    """
    _REGISTERED.set({**_REGISTERED.get(), operator: Operator(function, tuple(numbers))})


def from_onnx(source: Any, example_shape: Sequence[int] | None = None) -> ImportedModule:
    """A module of this library that computes what an ONNX graph does, with its weights.

    Float32 initializers with an axis become parameters under their names; the statistics of batch
    norms become buffers, and a batch norm written for inference trains; dropout drops in training.
    A batch may have any size where the file leaves it open, or says 1 and nothing depends on it.

    Args:
        source: a path, or an `onnx.ModelProto`. Weights in other files lie in its folder.
        example_shape: of a batch, such as (32, 3, 224, 224), where the file leaves more open than
            the batch.

    Returns:
        A module with the graph's inputs and outputs: one tensor, or a tuple of them.

    Raises:
        ConfigError: OOC-190: operators that this library lacks, each with how often it is there and
            where first; OOC-192: the file is broken; OOC-193: it is not what this library takes;
            OOC-101: onnx is not installed.

    Cost: O(bytes of the file + calls). Nothing is computed.
    """
    graph = _apart(read(source), {**OPERATORS, **_REGISTERED.get()})
    shapes = _shapes(graph, example_shape)
    model = _module(graph, shapes)
    if all(shape[0] == 1 for shape in shapes.values()):
        opened = _module(graph, {name: (None, *s[1:]) for name, s in shapes.items()})
        model = opened if _batches_stay_apart(opened) else model
    _check(model, graph)
    batch = next(iter(model.input_shapes.values()))[0]
    if example_shape is not None and batch not in (None, example_shape[0]):
        raise not_taken(
            f"the batch size {batch} is a constant of the file, so {example_shape[0]} cannot be",
            fix=f"a batch of {batch}, or an export with an open batch",
        )
    return model


def images_of(source: Any) -> Images:
    """What a file says of the images that it takes, and of how many classes it tells apart.

    Raises:
        ConfigError: as `from_onnx`; or it does not take images.
    """
    graph = read(source)
    first = next(iter(graph.inputs.values()))
    channels = first[1] if len(first) == 4 else None
    if len(graph.inputs) > 1 or not isinstance(channels, int):
        raise not_taken(
            f"the file takes {', '.join(map(_as_text, graph.inputs.values()))}, no images",
            fix="a network of images (N, C, H, W)",
        )
    output = next(iter(graph.outputs.values())) or ()
    classes = output[1] if len(output) in (2, 4) else None
    height, width, classes = (n if isinstance(n, int) else None for n in (*first[2:], classes))
    return Images(channels, height, width, classes, len(output) == 4)


def _shapes(graph: OnnxGraph, example: Sequence[int] | None) -> dict[str, Extents]:
    """Those of the inputs; the batch is None where the file leaves it open."""
    sizes: dict[str, int] = {}
    first = next(iter(graph.inputs.values()))
    if example is not None:
        given = tuple(example) if isinstance(example, Sequence) else (example,)
        fits = len(given) == len(first) and all(isinstance(n, Integral) and n > 0 for n in given)
        pairs = list(zip(given, first, strict=False))[1:]  # the batch is looked at later
        if not fits or any(isinstance(w, int) and w != n for n, w in pairs):
            raise not_taken(
                f"the file's input has shape {_as_text(first)}, not {given}",
                fix="an example_shape with the file's own numbers",
            )
        sizes = {w: n for n, w in zip(given, first, strict=True) if isinstance(w, str) and w}
    found: dict[str, Extents] = {}
    for name, shape in graph.inputs.items():
        own = [n if isinstance(n, int) else sizes.get(n) for n in shape]
        if example is not None and shape is first:
            own[1:] = map(int, example[1:])
        if any(n is None for n in own[1:]):
            raise not_taken(
                f"input {name!r} has shape {_as_text(shape)}: more than the batch is open",
                fix="from_onnx(file, (32, 3, 224, 224)), the shape of a batch",
            )
        found[name] = (None if isinstance(shape[0], str) else own[0], *own[1:])
    return found


def _apart(graph: OnnxGraph, known: Mapping[str, Operator]) -> OnnxGraph:
    """The same graph with an initializer for each that training changes in its own way.

    Exporters write values that are equal once: as an Identity of an initializer, which has the name
    of the second one, or by reading one initializer as a bias here and as a running mean there.
    """
    arrays, nodes = dict(graph.initializers), []
    for node in graph.nodes:
        if (
            node.operator == "Identity"
            and not node.strange
            and node.inputs[:1]
            and (node.inputs[0] in arrays)
        ):
            arrays[node.outputs[0]] = arrays[node.inputs[0]]
        else:
            nodes.append(node)
    uses: dict[
        str, set[int | None]
    ] = {}  # {name: the places of statistics where it is; None: others}
    for node, place, name in _reads(nodes):
        own = place in known.get(node.operator, _NONE).states
        uses.setdefault(name, set()).add(place if own else None)
    for i, node in enumerate(nodes):
        inputs = list(node.inputs)
        for place in known.get(node.operator, _NONE).states:
            name = inputs[place] if place < len(inputs) else ""
            if name in arrays and len(uses[name]) > 1:
                inputs[place] = f"{name}_{place}"
                while inputs[place] in uses:
                    inputs[place] += "_"
                arrays[inputs[place]] = arrays[name]
        nodes[i] = replace(node, inputs=tuple(inputs))
    return replace(graph, initializers=arrays, nodes=nodes)


def _reads(nodes: Iterable[OnnxNode]) -> Iterator[tuple[OnnxNode, int, str]]:
    for node in nodes:
        for place, name in enumerate(node.inputs):
            yield node, place, name


def _as_text(shape: Open) -> str:
    return f"({', '.join(str(n) or '?' for n in shape)})"


def _module(graph: OnnxGraph, shapes: Mapping[str, Extents]) -> ImportedModule:
    reader = GraphReader(graph, {**OPERATORS, **_REGISTERED.get()}, shapes)
    program = reader.program()
    reader.model.set_programs(program, program)
    return reader.model


def _batch(model: ImportedModule) -> int:
    first = next(iter(model.input_shapes.values()))[0]
    return _EXAMPLE if first is None else first


def _batches_stay_apart(model: ImportedModule) -> bool:
    """Whether a second image only makes each result twice as long along its first axis: no size 1
    of the file stands for the batch."""
    if model.problems(1) or model.problems(2):
        return False
    one, two = model.shapes(1), model.shapes(2)
    return all(
        two[name] in (shape, (2 * shape[0], *shape[1:])) for name, shape in one.items() if shape
    )


def _check(model: ImportedModule, graph: OnnxGraph) -> None:
    """Raises ConfigError: what cannot be done here, or other shapes than the file says."""
    batch = _batch(model)
    if problems := model.problems(batch):
        refuse(problems, _OWN)
    shapes = model.shapes(batch)
    for name, declared in graph.outputs.items():
        found = shapes.get(name)
        if declared is None or found is None:
            continue
        open_axes = 1 if next(iter(model.input_shapes.values()))[0] is None else 0
        pairs = list(zip(found, declared, strict=False))[open_axes:]
        if len(found) != len(declared) or any(isinstance(w, int) and w != n for n, w in pairs):
            raise broken(f"output {name!r} has shape {found}, where the file says {declared}")


class GraphReader:
    """Reads one graph.

    Args:
        known: {operator: what computes it}.
        shapes: those of the inputs; None: any batch.
    """

    def __init__(
        self, graph: OnnxGraph, known: Mapping[str, Operator], shapes: Mapping[str, Extents]
    ):
        self._graph, self._known, self._shapes = graph, known, shapes
        self.model = ImportedModule(graph.name or "Network")
        self._numbers: dict[str, np.ndarray] = {}
        self._sizes: set[str] = set()
        self._same: dict[str, str] = {}  # {name: the value that it is another name of}
        self._registered: dict[str, Registered] = {}
        self._calls: list[GraphCall] = []
        self._read = {name for node in graph.nodes for name in node.inputs} | {*graph.outputs}

    def program(self) -> CallList:
        """What the graph computes."""
        for node in self._graph.nodes:
            if node.operator == "Identity" and not node.strange and len(node.inputs) == 1:
                self._same[node.outputs[0]] = self._name(node.inputs[0])
        self._register()
        for node in self._graph.nodes:
            if node.outputs[:1] and node.outputs[0] not in self._same:
                self._read_node(node)
        outputs = [self._output(name) for name in self._graph.outputs]
        output = outputs[0] if len(outputs) == 1 else tuple(outputs)
        return CallList(self._shapes, self._registered, self._calls, output)

    def _name(self, name: str) -> str:
        return self._same.get(name, name)

    def _output(self, name: str) -> Ref:
        value = self._name(name)
        if value in self._numbers or value in self._sizes:
            raise not_taken(f"output {name!r} is no tensor", fix="the graph without it")
        return Ref(value)

    # Weights

    def _register(self) -> None:
        """Each initializer that a node reads: as a parameter, a buffer or numbers."""
        tensors, states = self._uses()
        for name, array in self._graph.initializers.items():
            if array.dtype != np.float32 or not array.ndim or name not in tensors | states:
                self._numbers[name] = array
                continue
            if not array.size:
                raise broken(f"initializer {name!r} of shape {array.shape} has no elements")
            path, own = _place(name, self._graph.initializers)
            part = self._part(path, "Part")
            if name in states:
                part.register_buffer(own, array)
            else:
                part.register_parameter(own, Parameter(array))
            self._registered[name] = Registered(path, own)

    def _uses(self) -> tuple[set[str], set[str]]:
        """The names that nodes read as tensors, and as statistics."""
        tensors, states = {self._name(name) for name in self._graph.outputs}, set()
        for node, place, name in _reads(self._graph.nodes):
            known = self._known.get(node.operator, _NONE)
            if place in known.states:
                states.add(self._name(name))
            elif place not in known.numbers and node.operator not in SIZES:
                tensors.add(self._name(name))
        return tensors, states

    def _part(self, path: str, kind: str) -> ImportedPart:
        """The part with a dotted name, which is made if it is not there."""
        part: ImportedPart = self.model
        for name in path.split(".") if path else ():
            if name not in part._modules:
                part.add_module(name, ImportedPart(kind))
            part = part._modules[name]
        return part

    # Nodes

    def _read_node(self, node: OnnxNode) -> None:
        inputs = [self._name(name) for name in node.inputs]
        while inputs and not inputs[-1]:
            inputs.pop()
        if node.operator == "Constant" and not node.strange:
            self._numbers[node.outputs[0]] = _constant_of(node)
            return
        is_number = [n in self._numbers or n in self._sizes for n in inputs if n]
        numeric = node.operator in SIZES or (all(is_number) and node.operator in NUMBERS)
        path = self._path(node, inputs)
        if node.strange or not (numeric or node.operator in self._known):
            self._call(node, path, partial(_missing, node.strange or "it is not here"), (), {})
            return
        kind = Operator(NUMBERS[node.operator]) if numeric else self._known[node.operator]
        outputs = self._count(node, kind.function)
        options = self._options(node, kind.function, outputs)
        why = _unfit(kind.function, len(inputs), options)
        if outputs and "outputs" not in _parameters(kind.function):
            why = "more than its first output"
        if why:
            self._call(node, path, partial(_missing, why), (), {})
        elif numeric:
            self._count_sizes(node, inputs, kind.function, options, outputs)
        else:
            args = [
                self._argument(node, path, kind, place, name) for place, name in enumerate(inputs)
            ]
            self._call(node, path, kind.function, tuple(args), options, outputs)

    def _count(self, node: OnnxNode, function: Callable[..., Any]) -> int:
        """How many results are needed; 0: one that is not in a tuple."""
        if node.operator == "Split":
            return len(node.outputs)
        last = max((i for i, name in enumerate(node.outputs) if name in self._read), default=0)
        return last + 1 if last else 0

    def _options(
        self, node: OnnxNode, function: Callable[..., Any], outputs: int
    ) -> dict[str, Any]:
        """The attributes, and what else a function takes by name."""
        ours = {"training": Mode(), "opset": self._graph.opset, "outputs": max(outputs, 1)}
        asked = _parameters(function).keys() & _OURS
        return {**node.attributes, **{name: ours[name] for name in asked}}

    def _count_sizes(
        self, node: OnnxNode, inputs: list[str], function: Callable[..., Any],
        options: dict[str, Any], outputs: int,
    ) -> None:  # fmt: skip
        """A node of numbers: computed now if all are known, else when a batch is recorded."""
        if all(name in self._numbers for name in inputs if name):
            arrays = [self._numbers.get(name) for name in inputs]
            found = _computed(node, function, arrays, options)
            results = found if outputs else (found,)
            self._numbers.update(zip(node.outputs, map(np.asarray, results), strict=False))
            return
        args = [self._numbers[n] if n in self._numbers else Ref(n) if n else None for n in inputs]
        self._call(node, "", function, tuple(args), options, outputs)
        self._sizes.update(node.outputs)

    def _argument(self, node: OnnxNode, path: str, kind: Operator, place: int, name: str) -> Any:
        """An input as its function takes it."""
        if not name:
            return None
        if place in kind.numbers:
            if name in self._numbers:
                return self._numbers[name]
            if name in self._graph.initializers:
                return self._graph.initializers[name]
            return Ref(name) if name in self._sizes else _Unknown(place)
        if place in kind.states and name not in {*self._registered, *self._numbers}:
            return _Unknown(place, "is no initializer with an axis")
        if name in self._sizes:
            own = f"{name} as a tensor"
            if own not in {call.name for call in self._calls}:
                self._calls.append(GraphCall(own, node.operator, constant, (Ref(name),), path=path))
            return Ref(own)
        return self._constant(kind, place, name) if name in self._numbers else Ref(name)

    def _constant(self, kind: Operator, place: int, name: str) -> Any:
        """A constant where a tensor is read: a number, or a buffer that is not saved."""
        array = self._numbers[name]
        if array.dtype not in (np.float32, np.bool_):
            return _Unknown(place, f"is {array.dtype}, not float32")
        if kind.plain and not array.ndim:
            return float(array)
        if name not in self._registered:
            own = f"{_CONSTANT}{len(self.model._buffers)}"
            self.model.register_buffer(own, array.astype(np.float32), persistent=False)
            self._registered[name] = Registered("", own)
        return Ref(name)

    def _call(
        self, node: OnnxNode, path: str, function: Callable[..., Any], args: tuple[Any, ...],
        options: Mapping[str, Any], outputs: int = 0,
    ) -> None:  # fmt: skip
        for unknown in (arg for arg in args if isinstance(arg, _Unknown)):
            function, args, options = partial(_missing, unknown.why), (), {}
            break
        name = f"results of {node.outputs[0]}" if outputs else node.outputs[0]
        self._calls.append(GraphCall(name, node.operator, function, args, options, path))
        for i, each in enumerate(node.outputs[:outputs]):
            if each:
                call = GraphCall(each, node.operator, operator.getitem, (Ref(name), i), path=path)
                self._calls.append(call)

    def _path(self, node: OnnxNode, inputs: list[str]) -> str:
        """The part that a node is in: that of its weights, or one of the node's own name."""
        paths = [self._registered[name].path for name in inputs if name in self._registered]
        path = next(filter(None, paths), "") or _path_of(node.name or node.outputs[0])
        self._part(path, node.operator)
        return path


class _Unknown:
    """An input that would have to be known."""

    def __init__(self, place: int, why: str = "must be a constant of the file"):
        self.why = f"its input {place + 1} {why}"


def _place(name: str, others: Iterable[str]) -> tuple[str, str]:
    """(path of a part, name there) of an initializer: its name at its dots, as far as that does."""
    names = name.split(".")
    if all(names):
        names = [f"{each}_" if each in NOT_ATTRIBUTES | _OF_A_STEP else each for each in names]
        return ".".join(names[:-1]), names[-1]
    own = name.replace(".", "_")
    while own in others:
        own += "_"
    return "", own


def _path_of(name: str) -> str:
    """The part of a node without weights: exporters write "/layer1/layer1.0/relu/Relu", where each
    scope may repeat those around it."""
    scopes = [scope for scope in name.split("/") if scope]
    path = last = ""
    for scope in scopes[:-1] if len(scopes) > 1 else [name.replace("/", "").replace(".", "_")]:
        repeated = bool(last) and scope.startswith(f"{last}.")
        path = f"{path.removesuffix(last)}{scope}" if repeated else f"{path}.{scope}"
        last = scope
    return ".".join(filter(None, path.split(".")))


def _constant_of(node: OnnxNode) -> np.ndarray:
    """The value of a Constant node, which has one of several attributes."""
    if len(node.attributes) != 1:
        raise broken(f"{node.where} has {len(node.attributes)} values")
    ((name, value),) = node.attributes.items()
    if not name.startswith("value") or isinstance(value, str):
        raise not_taken(f"{node.where} is {name}", fix="numbers")
    kind = {"value_float": np.float32, "value_floats": np.float32}.get(name)
    return np.asarray(value) if kind is None else np.asarray(value, kind)


def _computed(
    node: OnnxNode, function: Callable[..., Any], arrays: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    try:
        with np.errstate(all="ignore"):
            return function(*arrays, **options)
    except OoctrainError as error:
        raise broken(f"{node.where}: {error.what}") from None
    except Exception as error:  # whatever NumPy says of numbers from outside
        raise broken(f"{node.where}: {type(error).__name__}: {error}") from None


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # some of NumPy's do not say
        return inspect.signature(lambda *_: None).parameters


def _unfit(function: Callable[..., Any], inputs: int, options: Mapping[str, Any]) -> str:
    """Why a function does not take this number of inputs with these attributes; "": it does."""
    found = _parameters(function).values()
    several = any(p.kind is p.VAR_POSITIONAL for p in found)
    any_name = any(p.kind is p.VAR_KEYWORD for p in found)
    places = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {p.name for p in found if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    strange = set() if any_name else options.keys() - named
    if strange:
        return f"with {', '.join(sorted(strange))}"
    twice = {p.name for p in places[:inputs]} & options.keys()
    lacking = [p.name for p in places[inputs:] if p.default is p.empty and p.name not in options]
    lacking += [
        p.name for p in found
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in options
    ]  # fmt: skip
    if twice or lacking or (inputs > len(places) and not several) or (several and not inputs):
        more = f", without {', '.join(lacking)}" if lacking else ""
        return f"with {inputs} inputs{more}"
    return ""
