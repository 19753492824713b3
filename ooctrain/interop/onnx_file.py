"""An ONNX file as plain data, checked before anything is made of it.

A file comes from somewhere else, so nothing in it is believed: that it is ONNX at all, that a
weight has as many bytes as its shape says, that weights in files beside it lie in its own folder,
that each value is computed once and before it is read. What is left is a list of `OnnxNode`s in
order, with arrays and Python's numbers, and nothing that depends on the package onnx. Read next:
`onnx_graph.py`, what becomes of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.step.user_values import as_path

#: Versions of ONNX's operators that are known here.
OLDEST_OPSET, NEWEST_OPSET = 7, 28
#: {ONNX's number of an element type: NumPy's name}; others are refused.
ELEMENTS: Mapping[int, str] = MappingProxyType(
    {1: "float32", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}
)
#: {element type: where a tensor without raw bytes has its values}
_FIELDS: Mapping[int, str] = MappingProxyType(
    {1: "float_data", 6: "int32_data", 7: "int64_data", 9: "int32_data", 11: "double_data"}
)
FLOAT, MOST_EXTENT = 1, 1 << 24
_NAMES = ("undefined", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string",
          "bool", "float16", "float64", "uint32", "uint64", "complex64", "complex128", "bfloat16",
          "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4", "int4",
          "float4e2m1")  # fmt: skip
_DOMAIN = ("", "ai.onnx")
_EXTERNAL = 1  # data_location of a tensor whose bytes are in another file
#: Extents of a shape: a number, or the name of what the file leaves open.
Open = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operation of a file.

    Args:
        operator: such as "Conv".
        name: as the file has it; "" for none.
        inputs, outputs: names of values; "" where one is left out.
        attributes: numbers, words, tuples of them, and arrays.
        strange: why nothing here can compute it; "" otherwise.
    """

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    strange: str = ""

    @property
    def where(self) -> str:
        """As in messages."""
        return f"{self.operator} {self.name or next(filter(None, self.outputs), '')!r}"


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A whole file.

    Args:
        inputs: {name: shape} of those that are not in the file.
        outputs: {name: shape, as far as it is declared}.
        initializers: {name: array}.
        nodes: in an order in which they can be computed.
    """

    name: str
    opset: int
    inputs: Mapping[str, Open]
    outputs: Mapping[str, Open | None]
    initializers: Mapping[str, np.ndarray]
    nodes: Sequence[OnnxNode]


def broken(
    what: str, where: str = "", fix: str = "the file as its exporter wrote it"
) -> ConfigError:
    """The error for a file that is no right ONNX file."""
    return ConfigError(what, code="OOC-192", where=where, fix=fix)


def not_taken(what: str, where: str = "", fix: str = "") -> ConfigError:
    """The error for a file that is right, and not for this library."""
    return ConfigError(what, code="OOC-193", where=where, fix=fix)


def read(source: Any) -> OnnxGraph:
    """Reads and checks a file.

    Args:
        source: a path, or an `onnx.ModelProto`.

    Raises:
        ConfigError: OOC-101: onnx is not installed; OOC-192: the file is broken; OOC-193: it is not
            what this library takes.
    """
    onnx = imported_onnx("from_onnx")
    folder: Path | None = None
    if isinstance(source, onnx.ModelProto):
        model, where = source, "the ModelProto"
    elif isinstance(source, str | PathLike):
        path = as_path(source)
        model, folder, where = _parsed(onnx, path), path.parent, str(path)
    else:
        raise ConfigError(
            f"{type(source).__name__} is neither a file nor a ModelProto", code="OOC-106",
            fix='from_onnx("network.onnx")',
        )  # fmt: skip
    return FileReader(model, folder, where).graph()


def imported_onnx(caller: str) -> Any:
    """The package onnx. Raises ConfigError: it is not installed."""
    try:
        import onnx  # an extra, and slow to import
    except ImportError as error:
        raise ConfigError(
            f"{caller} needs the package onnx: {error}", code="OOC-101",
            fix="pip install 'ooctrain[onnx]'",
        ) from None  # fmt: skip
    return onnx


def _parsed(onnx: Any, path: Path) -> Any:
    if path.exists() and not path.is_file():
        raise broken(f"{path} is no file", fix="the path of a file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise broken(
            f"{path} cannot be read: {error.strerror or error}", fix="another path"
        ) from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own, whose class depends on how it was built
        raise broken(
            f"{path} is not an ONNX file, or not all of it: {type(error).__name__}"
        ) from None
    if not data or not model.ir_version or not model.HasField("graph"):
        raise broken(f"{path} is not an ONNX file, or only its beginning")
    return model


class FileReader:
    """Reads one model.

    Args:
        model: a `ModelProto`.
        folder: where files of weights lie; None: nowhere.
        where: as in messages.
    """

    def __init__(self, model: Any, folder: Path | None, where: str):
        self._model, self._folder, self._where = model, folder, where

    def graph(self) -> OnnxGraph:
        """The whole file."""
        graph = self._model.graph
        opset = self._opset()
        if graph.sparse_initializer:
            raise not_taken("sparse weights", self._where, "the same weights as plain tensors")
        if graph.quantization_annotation:
            raise not_taken(
                "a quantised graph", self._where, "the float32 graph that it was made of"
            )
        if any(function.domain in _DOMAIN for function in self._model.functions):
            raise not_taken("operators of its own under ONNX's names", self._where, "other names")
        initializers: dict[str, np.ndarray] = {}
        for tensor in graph.initializer:
            name = self._text(tensor.name)
            if not name or name in initializers:
                raise broken(f"two initializers have the name {name!r}", self._where)
            initializers[name] = self._array(tensor, f"initializer {name!r}")
        self._once("inputs", [self._text(value.name) for value in graph.input])
        self._once("outputs", [self._text(value.name) for value in graph.output])
        given = [value for value in graph.input if value.name not in initializers]
        inputs = {value.name: self._input(value) for value in given}
        nodes = [self._node(node) for node in graph.node]
        self._in_order(nodes, {*inputs, *initializers}, [v.name for v in graph.output])
        if not inputs:
            raise not_taken("a graph without inputs", self._where, "a network of images")
        outputs = {value.name: self._output(value) for value in graph.output}
        return OnnxGraph(self._text(graph.name), opset, inputs, outputs, initializers, nodes)

    def _text(self, word: str | bytes) -> str:
        """A name. Raises ConfigError: not UTF-8, which protobuf then gives as bytes."""
        if isinstance(word, bytes):
            raise broken(f"the name {word!r} is not UTF-8", self._where)
        return word

    def _opset(self) -> int:
        versions = [
            int(each.version) for each in self._model.opset_import if each.domain in _DOMAIN
        ]
        if len(versions) != 1:
            raise broken(f"it names {len(versions)} versions of ONNX's operators", self._where)
        if versions[0] > NEWEST_OPSET or versions[0] < OLDEST_OPSET:
            raise not_taken(
                f"opset {versions[0]}: from {OLDEST_OPSET} to {NEWEST_OPSET} are known here",
                self._where, "onnx.version_converter.convert_version(model, 17)",
            )  # fmt: skip
        return versions[0]

    def _once(self, what: str, names: Sequence[str]) -> None:
        if "" in names or len(set(names)) < len(names):
            twice = next((n for n in names if names.count(n) > 1), "")
            raise broken(f"{what} without a name, or two of one name: {twice!r}", self._where)
        if what == "outputs" and not names:
            raise broken("a graph without outputs", self._where)

    def _input(self, value: Any) -> Open:
        what = f"input {value.name!r}"
        element, shape = self._declared(value, what)
        if element != FLOAT:
            raise not_taken(
                f"{what} is {_name_of(element)}: tensors are float32 here", self._where,
                "the float32 graph; what is always the same as an initializer",
            )  # fmt: skip
        if shape is None:
            raise not_taken(f"{what} has a dynamic rank", self._where, "a declared shape")
        if not shape:
            raise not_taken(f"{what} is a number", self._where, "an initializer")
        if any(isinstance(n, int) and not 0 < n <= MOST_EXTENT for n in shape):
            few = "no elements" if 0 in shape else "such extents"
            raise not_taken(f"{what} has {few}: {shape}", self._where, "another extent")
        return shape

    def _output(self, value: Any) -> Open | None:
        what = f"output {value.name!r}"
        element, shape = self._declared(value, what)
        if element not in (FLOAT, 0):
            raise not_taken(
                f"{what} is {_name_of(element)}: results are float32 here", self._where,
                "the graph that ends before it",
            )  # fmt: skip
        return shape

    def _declared(self, value: Any, what: str) -> tuple[int, Open | None]:
        kind = value.type.WhichOneof("value")
        if kind not in ("tensor_type", None):
            raise not_taken(f"{what} is a {kind.removesuffix('_type')}", self._where, "tensors")
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            return tensor.elem_type, None
        extents = [
            int(n.dim_value) if n.HasField("dim_value") else self._text(n.dim_param)
            for n in tensor.shape.dim
        ]
        return tensor.elem_type, tuple(extents)

    def _node(self, node: Any) -> OnnxNode:
        attributes: dict[str, Any] = {}
        operator, name, domain = map(self._text, (node.op_type, node.name, node.domain))
        strange = "" if domain in _DOMAIN else f"of the domain {domain}"
        for attribute in node.attribute:
            word = self._text(attribute.name)
            if word in attributes:
                raise broken(f"{operator} {name!r} has {word} twice", self._where)
            attributes[word] = self._attribute(attribute, f"{operator} {name!r}")
            if attributes[word] is None:
                kinds = "a graph of its own" if attribute.type in (5, 10) else "no plain value"
                strange = strange or f"its {word} is {kinds}"
        inputs, outputs = (tuple(map(self._text, each)) for each in (node.input, node.output))
        return OnnxNode(operator, name, inputs, outputs, attributes, strange)

    def _attribute(self, attribute: Any, where: str) -> Any:
        """A value of Python's; None: graphs, types, sparse tensors, references."""
        kind = attribute.type
        if attribute.ref_attr_name:
            return None
        if kind == 4:
            return self._array(attribute.t, f"{attribute.name} of {where}")
        if kind == 3:
            return attribute.s.decode("utf-8", "replace")
        if kind == 8:
            return tuple(word.decode("utf-8", "replace") for word in attribute.strings)
        plain = {1: ("f", float), 2: ("i", int)}.get(kind)
        if plain:
            return plain[1](getattr(attribute, plain[0]))
        several = {6: "floats", 7: "ints"}.get(kind)
        return tuple(getattr(attribute, several)) if several else None

    def _in_order(self, nodes: Iterable[OnnxNode], given: set[str], outputs: Iterable[str]) -> None:
        """Each value is made once, and before it is read."""
        nodes = list(nodes)
        made = [name for node in nodes for name in node.outputs if name]
        there, later = set(given), set(made)
        for node in nodes:
            for name in node.inputs:
                if name and name not in there:
                    why = (
                        "is computed after it, or from it"
                        if name in later
                        else "is not in the file"
                    )
                    raise broken(f"{node.where} reads {name!r}, which {why}", self._where)
            for name in filter(None, node.outputs):
                if name in there:
                    raise broken(f"{name!r} is made twice, by {node.where}, too", self._where)
                there.add(name)
        for name in outputs:
            if name not in there:
                raise broken(f"output {name!r} is not in the file", self._where)

    # Arrays

    def _array(self, tensor: Any, what: str) -> np.ndarray:
        """Its values. Raises ConfigError: not as many as its shape says, or of another type."""
        kind = ELEMENTS.get(tensor.data_type)
        if kind is None:
            raise not_taken(
                f"{what} is {_name_of(tensor.data_type)}: tensors are float32 here", self._where,
                "the float32 graph that it was made of",
            )  # fmt: skip
        if tensor.HasField("segment"):
            raise not_taken(f"{what} is one segment of a tensor", self._where, "whole tensors")
        shape, dtype = tuple(tensor.dims), np.dtype(kind).newbyteorder("<")
        if any(n < 0 for n in shape):
            raise broken(f"{what} has shape {shape}", self._where)
        count = math.prod(shape)
        raw = tensor.raw_data
        if tensor.data_location == _EXTERNAL:
            raw = self._outside(tensor, what, count * dtype.itemsize)
        elif not raw:
            values = getattr(tensor, _FIELDS[tensor.data_type])
            self._as_many(what, shape, dtype.itemsize * len(values), dtype.itemsize * count)
            return np.array(values, kind).reshape(shape)
        self._as_many(what, shape, len(raw), dtype.itemsize * count)
        if kind == "bool":
            return (np.frombuffer(raw, np.uint8) != 0).reshape(shape)
        return np.frombuffer(raw, dtype).astype(kind).reshape(shape)

    def _as_many(self, what: str, shape: tuple[int, ...], found: int, wanted: int) -> None:
        if found != wanted:
            raise broken(f"{what} of shape {shape} has {found} bytes, not {wanted}", self._where)

    def _outside(self, tensor: Any, what: str, wanted: int) -> bytes:
        """Bytes of a file in the folder of this one."""
        entries = {self._text(e.key): self._text(e.value) for e in tensor.external_data}
        location = entries.get("location", "")
        path = self._beside(location, what)
        try:
            offset, length = int(entries.get("offset") or 0), int(entries.get("length") or wanted)
        except ValueError:
            raise broken(
                f"{what} lies in {location!r}, at no number of bytes", self._where
            ) from None
        size = path.stat().st_size
        if offset < 0 or length != wanted or offset + length > size:
            raise broken(
                f"{what} takes {wanted} bytes; it has {length} from byte {offset} on of "
                f"{location!r}, which has {size}", self._where,
            )  # fmt: skip
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except OSError as error:
            raise broken(f"{location!r} cannot be read: {error.strerror}", self._where) from None

    def _beside(self, location: str, what: str) -> Path:
        """A file of weights. Raises ConfigError: there is none, or it is not in the folder."""
        if self._folder is None:
            raise broken(
                f"{what} is in another file, {location!r}", self._where,
                'from_onnx("network.onnx"), which knows the folder',
            )  # fmt: skip
        plain = PurePosixPath(location)
        path = self._folder / location if "\0" not in location else self._folder
        if (
            not location or plain.is_absolute() or Path(location).is_absolute() or "\\" in location
            or ".." in plain.parts or not path.resolve().is_relative_to(self._folder.resolve())
        ):  # fmt: skip
            raise broken(
                f"{what} is in {location!r}, outside the folder of the file", self._where,
                "weights beside the file, as its exporter wrote them",
            )  # fmt: skip
        if not path.is_file():
            raise broken(
                f"{what} is in {location!r}, which is not there", self._where,
                "the files of weights beside the file",
            )  # fmt: skip
        return path


def _name_of(element: int) -> str:
    return _NAMES[element] if 0 <= element < len(_NAMES) else f"of type {element}"
