"""A model as an ONNX file: what it computes in evaluation, with its weights.

The forward pass is recorded twice, with one sample more the second time, so that each extent that
grows is known to depend on the batch; the file leaves these open. Each call becomes one node, or a
few, by the formula that its operation stands for: `WRITERS` is the table, {operation: what writes
it}. Weights are initializers under their names in `state_dict`. Opset 17 is what all runtimes take.
Read next: `onnx_graph.py`, the way in.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ooctrain.engine.incore import named_tensors
from ooctrain.engine.module import Module
from ooctrain.errors import ConfigError
from ooctrain.interop.onnx_file import imported_onnx
from ooctrain.interop.onnx_resize import Axis, matrix_of
from ooctrain.layers import (
    arithmetic,
    batch_norm,
    combine,
    conv2d,
    conv_transpose,
    extremes,
    function,
    instance_norm,
    layout,
    linear,
    losses,
    permute,
    pooling,
    reduction,
    regions,
    relu,
    resampling,
    softmax,
)
from ooctrain.layers.function import TANH_CUBE, TANH_SCALE
from ooctrain.step.op import Op
from ooctrain.step.trace import Call, Trace
from ooctrain.step.user_values import as_path
from ooctrain.tracing import trace

OPSET, IR_VERSION = 17, 8
#: A file of protobuf holds at most 2 GiB.
MOST_BYTES = (1 << 31) - (1 << 20)
_LOWEST = float(np.finfo(np.float32).min)
_FLOAT, _UINT8, _BOOL = 1, 2, 9  # ONNX's numbers of element types
#: Extents of a shape; None: it depends on the batch.
Open = tuple[int | None, ...]


def to_onnx(model: Module, shape: Sequence[int], file: str | os.PathLike[str]) -> None:
    """Writes what a model computes in evaluation as an ONNX file.

    Any batch size goes through it; the other extents are those of `shape`. The model is left as it
    was.

    Args:
        shape: of a batch, such as (1, 3, 224, 224).
        file: its path; a file of that name is replaced when the new one is whole.

    Raises:
        ConfigError: OOC-101: onnx is not installed; OOC-194: operations that cannot be written,
            each with how often it is there and where first, or more than 2 GiB of weights; OOC-106:
            the file cannot be written.

    Cost: O(calls + bytes of the weights).
    """
    if not isinstance(model, Module):
        raise ConfigError(
            f"{type(model).__name__} is not a model (oc.nn.Module)", code="OOC-106",
            fix="to_onnx(model, (1, 3, 224, 224), 'model.onnx')",
        )  # fmt: skip
    onnx, path = imported_onnx("to_onnx"), as_path(file)
    graph = GraphWriter(onnx, model, shape).model()
    onnx.checker.check_model(graph)
    whole = path.with_name(f".{path.name}.part")
    try:
        whole.write_bytes(graph.SerializeToString())
        whole.replace(path)
    except OSError as error:
        whole.unlink(missing_ok=True)
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}", code="OOC-106",
            fix="a folder that is there, with room",
        ) from None  # fmt: skip


class _Refused(Exception):
    """Why a call cannot be written."""


@dataclass(frozen=True, slots=True)
class GraphValue:
    """A value of the graph; arithmetic on it writes nodes.

    Args:
        shape: with None for extents that depend on the batch.
    """

    writer: GraphWriter
    name: str
    shape: Open = ()

    def op(self, operator: str, *others: Any, **attributes: Any) -> GraphValue:
        """The result of a node that reads this value first."""
        return self.writer.node(operator, (self, *others), attributes)

    def __add__(self, other: Any) -> GraphValue:
        return self.op("Add", other)

    def __sub__(self, other: Any) -> GraphValue:
        return self.op("Sub", other)

    def __mul__(self, other: Any) -> GraphValue:
        return self.op("Mul", other)

    def __truediv__(self, other: Any) -> GraphValue:
        return self.op("Div", other)


@dataclass(frozen=True, slots=True)
class Written:
    """A call that is to be written.

    Args:
        op, other: the operation, and the same for one sample more.
        shapes: of the inputs.
        out: shape of its first output.
    """

    op: Any
    other: Any
    shapes: tuple[Open, ...]
    out: Open


class GraphWriter:
    """Writes one graph.

    Args:
        onnx: the package.
        shape: of a batch.
    """

    def __init__(self, onnx: Any, model: Module, shape: Sequence[int]):
        self._onnx, self._model = onnx, model
        first = trace(model, shape, loss=None, training=False)
        more = trace(model, (shape[0] + 1, *tuple(shape)[1:]), loss=None, training=False)
        if [type(c.op) for c in first.calls] != [type(c.op) for c in more.calls]:
            raise ConfigError(
                "the forward pass is another one for another batch size", code="OOC-194",
                fix="a model that does the same for each sample",
            )  # fmt: skip
        self._trace: Trace = first
        self._more: Trace = more
        self._nodes: list[Any] = []
        self._constants: dict[str, np.ndarray] = {}
        self._names: set[str] = {variable.name for variable in first.variables}
        self._prefix = ""
        #: {name of 1 / sqrt(var + eps): var and eps}
        self.inverses: dict[str, tuple[GraphValue, float]] = {}

    def model(self) -> Any:
        """The whole file."""
        values = {v.id: GraphValue(self, v.name, self._open(v.id)) for v in self._trace.variables}
        refusals: list[tuple[Call, str]] = []
        for call, other in zip(self._trace.calls, self._more.calls, strict=True):
            try:
                self._write(call, other, values)
            except _Refused as error:
                refusals.append((call, str(error)))
        if refusals:
            raise _refusal(refusals)
        helper = self._onnx.helper
        outputs = [self._output(name, values[v]) for name, v in self._trace.outputs.items()]
        self._drop_unread()
        weights = self._weights()
        graph = helper.make_graph(
            [*self._constant_nodes(), *self._nodes], type(self._model).__name__, [self._input()],
            outputs, [self._onnx.numpy_helper.from_array(a, name) for name, a in weights.items()],
        )  # fmt: skip
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
            producer_name="ooctrain",
        )  # fmt: skip

    def _open(self, variable: int) -> Open:
        one, two = (t.variables[variable].shape for t in (self._trace, self._more))
        return tuple(n if n == m else None for n, m in zip(one, two, strict=True))

    def _write(self, call: Call, other: Call, values: dict[int, GraphValue]) -> None:
        write = WRITERS.get(type(call.op))
        if write is None:
            raise _Refused("there is no operator of ONNX for it here")
        self._prefix = call.name
        ins = tuple(values[v] for v in call.ins)
        what = Written(call.op, other.op, tuple(v.shape for v in ins), values[call.outs[0]].shape)
        found = write(what, *ins) if ins else write(what, self)
        results = found if isinstance(found, tuple) else (found,)
        for variable, result in zip(call.outs, results, strict=False):
            values[variable] = GraphValue(self, result.name, values[variable].shape)

    def _drop_unread(self) -> None:
        """Nodes and constants that no output needs: another formula took their place."""
        needed, kept = set(self._trace.outputs), []
        for node in reversed(self._nodes):
            if not needed.isdisjoint(node.output):
                needed.update(node.input)
                kept.append(node)
        self._nodes = kept[::-1]
        self._constants = {name: a for name, a in self._constants.items() if name in needed}

    def _constant_nodes(self) -> list[Any]:
        """Constants as nodes: an initializer would be taken for a weight."""
        from_array = self._onnx.numpy_helper.from_array
        return [
            self._onnx.helper.make_node("Constant", [], [name], name, value=from_array(array, name))
            for name, array in self._constants.items()
        ]

    def _weights(self) -> dict[str, np.ndarray]:
        """Those that a node reads, by name."""
        read = {name for node in self._nodes for name in node.input}
        arrays = {
            name: np.ascontiguousarray(tensor.numpy())
            for name, tensor in named_tensors(self._model, None).items() if name in read
        }  # fmt: skip
        size = sum(array.nbytes for array in arrays.values())
        if size > MOST_BYTES:
            raise ConfigError(
                f"{size} bytes of weights, where an ONNX file holds 2 GiB", code="OOC-194",
                fix="oc.save(model.state_dict(), file)",
            )  # fmt: skip
        return arrays

    def _input(self) -> Any:
        variable = next(v for v in self._trace.variables if v.kind == "input")
        kind = _UINT8 if variable.dtype == "uint8" else _FLOAT
        return self._declared(variable.name, kind, self._open(variable.id))

    def _output(self, name: str, value: GraphValue) -> Any:
        self._nodes.append(self._onnx.helper.make_node("Identity", [value.name], [name], name))
        return self._declared(name, _FLOAT, value.shape)

    def _declared(self, name: str, kind: int, shape: Open) -> Any:
        extents = [("N" if axis == 0 else None) if n is None else n for axis, n in enumerate(shape)]
        return self._onnx.helper.make_tensor_value_info(name, kind, extents)

    # What writers use

    def node(
        self, operator: str, inputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> GraphValue:
        """A node, named after the call that it is written for, and its result."""
        name = self._new(f"{self._prefix}.{operator}")
        given = ["" if x is None else self.value(x).name for x in inputs]
        plain = {key: value for key, value in attributes.items() if value is not None}
        made = self._onnx.helper.make_node(operator, given, [name], name, **plain)
        self._nodes.append(made)
        return GraphValue(self, name)

    def value(self, what: Any) -> GraphValue:
        """A value, or a constant: a float, whole numbers, an array."""
        if isinstance(what, GraphValue):
            return what
        array = np.asarray(what)
        whole = array.dtype.kind == "i" or (isinstance(what, list) and not what)  # a shape
        array = array.astype(np.int64 if whole else np.float32)
        short = array.size <= 8
        name = (
            f"constant {array.dtype} {array.tolist()}"
            if short
            else self._new(f"{self._prefix}.constant")
        )
        self._constants.setdefault(name, array)
        return GraphValue(self, name, array.shape)

    def extents(self, shape: Sequence[int], more: Sequence[int]) -> GraphValue:
        """A shape as numbers of the graph; what grows with the batch is a multiple of it.

        Args:
            more: the same shape for one sample more.
        """
        if tuple(shape) == tuple(more):
            return self.value(np.array(shape, np.int64))
        first = next(v for v in self._trace.variables if v.kind == "input")
        batch = GraphValue(self, first.name).op("Shape", start=0, end=1)
        parts: list[Any] = []
        for n, m in zip(shape, more, strict=True):
            if n != m and n * (first.shape[0] + 1) != m * first.shape[0]:
                raise _Refused("an extent is no multiple of the batch size")
            each = n // first.shape[0]
            parts.append(
                np.array([n]) if n == m else batch if each == 1 else batch * np.array([each])
            )
        return self.value(parts[0]).op("Concat", *parts[1:], axis=0)

    def _new(self, name: str) -> str:
        found, count = name, 1
        while found in self._names:
            count += 1
            found = f"{name}#{count}"
        self._names.add(found)
        return found


def _refusal(refusals: Sequence[tuple[Call, str]]) -> ConfigError:
    counts = Counter((call.op.name, why) for call, why in refusals)
    first = {(call.op.name, why): call.name for call, why in reversed(refusals)}
    lines = [f"{n} x {k}, first in {first[n, why]} ({why})" for (n, why), k in counts.most_common()]
    return ConfigError(
        f"{len({name for name, _ in counts})} operations cannot be written as ONNX",
        code="OOC-194", numbers="; ".join(lines),
        fix="the model without them; oc.save(model.state_dict(), file) writes the weights alone",
    )  # fmt: skip


def _known(shape: Sequence[int | None], what: str) -> list[int]:
    """A shape. Raises _Refused: it depends on the batch."""
    if any(n is None for n in shape):
        raise _Refused(f"{what} depends on the batch size")
    return [int(n) for n in shape]  # type: ignore[arg-type]


# Convolutions, products, pooling


def _four(sides: Sequence[int]) -> list[int]:
    """ONNX's order of sides: all before, then all behind."""
    top, bottom, left, right = sides
    return [top, left, bottom, right]


def _conv(call: Written, x: GraphValue, w: GraphValue, *bias: GraphValue) -> GraphValue:
    g = call.op.geometry
    return x.op(
        "Conv", w, *bias, kernel_shape=call.op.kernel, strides=g.stride, dilations=g.dilation,
        pads=_four(g.padding), group=g.groups,
    )  # fmt: skip


def _conv_transpose(call: Written, x: GraphValue, w: GraphValue, *bias: GraphValue) -> GraphValue:
    g, pads = call.op.geometry, _four(call.op.geometry.padding)
    sizes = zip(
        _known(call.shapes[0][2:], "the image"), call.op.kernel, call.op.size, g.stride,
        g.dilation, pads[:2], pads[2:], strict=True,
    )  # fmt: skip
    more = [
        out - ((n - 1) * s + d * (k - 1) + 1 - before - behind)
        for n, k, out, s, d, before, behind in sizes
    ]
    return x.op(
        "ConvTranspose", w, *bias, kernel_shape=call.op.kernel, strides=g.stride,
        dilations=g.dilation, pads=pads, output_padding=more, group=g.groups,
    )  # fmt: skip


def _linear(call: Written, x: GraphValue, w: GraphValue, *bias: GraphValue) -> GraphValue:
    return x.op("Gemm", w, *bias, transB=1)


def _matmul(call: Written, a: GraphValue, b: GraphValue) -> GraphValue:
    order = [0, 2, 1] if len(call.shapes[0]) == 3 else [1, 0]
    if call.op.form == "tn":
        a = a.op("Transpose", perm=order)
    if call.op.form == "nt":
        b = b.op("Transpose", perm=order)
    return a.op("MatMul", b)


def _windows(geometry: pooling.PoolGeometry) -> dict[str, Any]:
    return {
        "kernel_shape": geometry.kernel, "strides": geometry.stride, "pads": _four(geometry.padding)
    }  # fmt: skip


def _max_pool(call: Written, x: GraphValue) -> GraphValue:
    """A border whose sides are not all equal is a Pad: onnx's own reference takes such sides of a
    MaxPool in another order."""
    g = call.op.geometry
    top, bottom, left, right = g.padding
    if len(set(g.padding)) > 1:
        x = x.op("Pad", [0, 0, top, left, 0, 0, bottom, right], _LOWEST)
        g = replace(g, padding=(0, 0, 0, 0))
    return x.op("MaxPool", **_windows(g), dilations=g.dilation)


def _average_pool(call: Written, x: GraphValue) -> GraphValue:
    counts = int(call.op.count_include_pad)
    return x.op("AveragePool", **_windows(call.op.geometry), count_include_pad=counts)


def _adaptive_pool(call: Written, x: GraphValue) -> GraphValue:
    """Windows of equal size are a pooling; others two products with shares."""
    size, image = call.op.size, _known(call.shapes[0][2:], "the image")
    if size == (1, 1):
        return x.op("GlobalAveragePool")
    if all(n % out == 0 for n, out in zip(image, size, strict=True)):
        each = [n // out for n, out in zip(image, size, strict=True)]
        return x.op("AveragePool", kernel_shape=each, strides=each)
    return _by_matrices(x, *(_shares(n, out) for n, out in zip(image, size, strict=True)))


def _shares(extent: int, out: int) -> np.ndarray:
    matrix = np.zeros((out, extent))
    for o in range(out):
        first, end = o * extent // out, -(-(o + 1) * extent // out)
        matrix[o, first:end] = 1 / (end - first)
    return matrix


def _by_matrices(x: GraphValue, rows: np.ndarray, columns: np.ndarray) -> GraphValue:
    """rows x columns^T, of each channel."""
    return x.writer.value(rows).op("MatMul", x.op("MatMul", columns.T))


def _upsample(call: Written, x: GraphValue) -> GraphValue:
    """Whole factors are a Resize. Others would be rounded by each runtime in its own way: nearest
    pixels are gathered, and bilinear ones weighted by two products."""
    op, image = call.op, _known(call.shapes[0][2:], "the image")
    if op.place:
        raise _Refused("it is a part of an image")
    factors = [out / n for n, out in zip(image, op.size, strict=True)]
    nearest = op.mode == "nearest"
    if all(f.is_integer() for f in factors):
        way = "asymmetric" if nearest else "align_corners" if op.corners else "half_pixel"
        return x.op(
            "Resize", None, [1.0, 1.0, *factors], mode="nearest" if nearest else "linear",
            coordinate_transformation_mode=way, nearest_mode="floor",
        )  # fmt: skip
    if nearest:
        for axis, (n, out) in enumerate(zip(image, op.size, strict=True)):
            x = x.op("Gather", np.arange(out) * n // out, axis=axis + 2)
        return x
    how = Axis("linear", "align_corners" if op.corners else "half_pixel", "floor", 0, False, False)
    sizes = zip(image, op.size, factors, strict=True)
    return _by_matrices(x, *(matrix_of(how, *each) for each in sizes))


# Normalisations


def _inverse_std(call: Written, var: GraphValue) -> GraphValue:
    """1 / sqrt(var + eps), which a batch norm that reads it computes itself."""
    found = (var + call.op.eps).op("Sqrt").op("Reciprocal")
    var.writer.inverses[found.name] = var, call.op.eps
    return found


def _batch_norm(
    call: Written,
    x: GraphValue,
    mean: GraphValue,
    inv_std: GraphValue,
    gamma: GraphValue,
    beta: GraphValue,
) -> GraphValue:
    if call.op.batch_stats or call.op.relu or call.op.residual:
        raise _Refused("it is not in evaluation")
    if inv_std.name in x.writer.inverses:
        var, eps = x.writer.inverses[inv_std.name]
        return x.op("BatchNormalization", gamma, beta, mean, var, epsilon=eps)
    axes = list(range(1, len(call.shapes[0]) - 1))
    mean, scale, beta = (
        v.op("Unsqueeze", axes) if axes else v for v in (mean, inv_std * gamma, beta)
    )
    return (x - mean) * scale + beta


def _instance_stats(call: Written, x: GraphValue) -> tuple[GraphValue, GraphValue]:
    mean = x.op("ReduceMean", axes=[2, 3], keepdims=1)
    away = x - mean
    var = (away * away).op("ReduceMean", axes=[2, 3], keepdims=0)
    return mean.op("Squeeze", [2, 3]), (var + call.op.eps).op("Sqrt").op("Reciprocal")


def _instance_norm(
    call: Written, x: GraphValue, mean: GraphValue, inv_std: GraphValue, *affine: GraphValue
) -> GraphValue:
    if call.op.relu or call.op.residual:
        raise _Refused("it is not in evaluation")
    y = (x - mean.op("Unsqueeze", [2, 3])) * inv_std.op("Unsqueeze", [2, 3])
    if not affine:
        return y
    gamma, beta = (v.op("Unsqueeze", [1, 2]) for v in affine)
    return y * gamma + beta


# Elements


def _gelu_tanh(x: GraphValue, p: float) -> GraphValue:
    inner = (x + x * x * x * TANH_CUBE) * TANH_SCALE
    return x * 0.5 * (inner.op("Tanh") + 1.0)


#: {function: (x, parameter) -> its formula}, as `layers.function.FUNCTIONS` has them.
FORMULAS: Mapping[str, Callable[[GraphValue, float], GraphValue]] = MappingProxyType({
    "gelu": lambda x, p: x * 0.5 * ((x * math.sqrt(0.5)).op("Erf") + 1.0),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x, p: x * x.op("Sigmoid"),
    "hardswish": lambda x, p: x.op("HardSwish"),
    "hardsigmoid": lambda x, p: x.op("HardSigmoid", alpha=1 / 6, beta=0.5),
    "relu6": lambda x, p: x.op("Clip", 0.0, 6.0),
    "softplus": lambda x, p: x.op("Softplus"),
    "softplus_until": lambda x, p: x.op("Greater", p).op("Where", x, x.op("Softplus")),
    "log_sigmoid": lambda x, p: x.op("Neg").op("Softplus").op("Neg"),
    "mish": lambda x, p: x * x.op("Softplus").op("Tanh"),
    "elu": lambda x, p: x.op("Elu", alpha=p),
    "celu": lambda x, p: x.op("Celu", alpha=p),
    "selu": lambda x, p: x.op("Selu"),
    "exp": lambda x, p: x.op("Exp"), "log": lambda x, p: x.op("Log"),
    "erf": lambda x, p: x.op("Erf"), "abs": lambda x, p: x.op("Abs"),
    "sqrt": lambda x, p: x.op("Sqrt"), "length": lambda x, p: x.op("Sqrt"),
    "power": lambda x, p: x.op("Pow", p),
    "at_least": lambda x, p: x.op("Max", p), "above": lambda x, p: x.op("Max", p),
    "at_most": lambda x, p: x.op("Min", p), "below": lambda x, p: x.op("Min", p),
})  # fmt: skip
#: {function of two tensors: its formula}; conditions are 1.0 and 0.0 here.
PAIRS: Mapping[str, Callable[[GraphValue, GraphValue], GraphValue]] = MappingProxyType({
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b, "maximum": lambda a, b: a.op("Max", b),
    "minimum": lambda a, b: a.op("Min", b),
    "keep": lambda a, b: b.op("Cast", to=_BOOL).op("Where", a, 0.0),
    "drop": lambda a, b: b.op("Cast", to=_BOOL).op("Where", 0.0, a),
    "greater": lambda a, b: a.op("Greater", b).op("Cast", to=_FLOAT),
    "greater_equal": lambda a, b: a.op("GreaterOrEqual", b).op("Cast", to=_FLOAT),
    "equal": lambda a, b: a.op("Equal", b).op("Cast", to=_FLOAT),
})  # fmt: skip


def _elementwise(call: Written, x: GraphValue) -> GraphValue:
    return FORMULAS[call.op.function](x, call.op.parameter)


def _arithmetic(call: Written, a: GraphValue, b: GraphValue) -> GraphValue:
    return PAIRS[call.op.function](a, b)


def _from_bytes(call: Written, x: GraphValue) -> GraphValue:
    mean, std = (
        np.reshape(v, (-1, *(1,) * (len(call.shapes[0]) - 2))) if isinstance(v, tuple) else v
        for v in (call.op.mean, call.op.std)
    )
    return (x.op("Cast", to=_FLOAT) - mean) / std


def _leaky_relu(call: Written, x: GraphValue) -> GraphValue:
    return x.op("LeakyRelu", alpha=call.op.slope)


def _softmax(call: Written, x: GraphValue) -> GraphValue:
    return x.op("LogSoftmax" if call.op.log else "Softmax", axis=call.op.axis)


# Shapes


def _sum(call: Written, x: GraphValue) -> GraphValue:
    axes = list(call.op.axes)
    extents = [call.shapes[0][axis] for axis in axes]
    if call.op.factor != call.other.factor or (call.op.factor != 1.0 and None in extents):
        raise _Refused("its factor depends on the batch size")
    total = x.op("ReduceSum", axes, keepdims=1)
    return total if call.op.factor == 1.0 else total * call.op.factor


def _largest(call: Written, x: GraphValue) -> GraphValue:
    return x.op("ReduceMax", axes=list(call.op.axes), keepdims=1)


def _spread(call: Written, x: GraphValue) -> GraphValue:
    y = x.op("Expand", x.writer.extents(call.op.shape, call.other.shape))
    return y if call.op.factor == 1.0 else y * call.op.factor


def _reshape(call: Written, x: GraphValue) -> GraphValue:
    if sum(n is None for n in call.out) > 1:
        raise _Refused("two extents depend on the batch size")
    return x.op("Reshape", [-1 if n is None else n for n in call.out])


def _permute(call: Written, x: GraphValue) -> GraphValue:
    return x.op("Transpose", perm=call.op.axes)


def _slice(call: Written, x: GraphValue) -> GraphValue:
    """Along the axes of which something is left out."""
    op = call.op
    steps = getattr(op, "steps", (1,) * len(op.full))
    starts, ends, by, axes = [], [], [], []
    for axis, (start, step, n) in enumerate(zip(op.start, steps, op.shape, strict=True)):
        whole = (start, step, n) == (0, 1, op.full[axis])
        if whole:
            continue
        if None in (call.shapes[0][axis], call.out[axis]):
            raise _Refused("it takes samples apart")
        end = start + step * n
        starts.append(start)
        ends.append(end if end >= 0 else -op.full[axis] - 1)
        by.append(step)
        axes.append(axis)
    return x.op("Slice", starts, ends, axes, by) if axes else x


def _concat(call: Written, *parts: GraphValue) -> GraphValue:
    return parts[0].op("Concat", *parts[1:], axis=call.op.axis)


def _pad(call: Written, x: GraphValue) -> GraphValue:
    top, bottom, left, right = call.op.padding
    sides = [0, 0, top, left, 0, 0, bottom, right]
    if isinstance(call.op, resampling.ReflectionPad2d):
        return x.op("Pad", sides, mode="reflect")
    return x.op("Pad", sides, float(getattr(call.op, "value", 0.0)))


def _embed(call: Written, x: GraphValue) -> GraphValue:
    """Zeros around a block."""
    before, behind = [], []
    for axis, (start, full) in enumerate(zip(call.op.start, call.op.full, strict=True)):
        extent = call.shapes[0][axis]
        whole = start == 0 and (extent is None) == (call.out[axis] is None)
        if extent is None and not whole:
            raise _Refused("it puts samples among others")
        before.append(start)
        behind.append(0 if extent is None else full - start - extent)
    return x.op("Pad", [*before, *behind], 0.0)


def _constant(call: Written, writer: GraphWriter) -> GraphValue:
    if None not in call.out:
        return writer.value(np.full(call.op.shape, call.op.value, np.float32))
    return writer.value(call.op.value).op("Expand", writer.extents(call.op.shape, call.other.shape))


def _numbers(call: Written, writer: GraphWriter) -> GraphValue:
    return writer.value(np.asarray(call.op.values, np.float32))


def _plain(operator: str) -> Callable[..., GraphValue]:
    """An operation that is one operator without attributes."""
    return lambda _call, *ins: ins[0].op(operator, *ins[1:])


#: {operation of this library: what writes a call of it}
WRITERS: Mapping[type[Op], Callable[..., Any]] = MappingProxyType({
    conv2d.Conv2d: _conv, conv_transpose.ConvTranspose2d: _conv_transpose,
    linear.Linear: _linear, linear.MatMul: _matmul,
    pooling.MaxPool2d: _max_pool, pooling.AvgPool2d: _average_pool,
    pooling.AdaptiveAvgPool2d: _adaptive_pool, resampling.Upsample: _upsample,
    batch_norm.InverseStd: _inverse_std, batch_norm.BatchNormApply: _batch_norm,
    instance_norm.InstanceNormStats: _instance_stats,
    instance_norm.InstanceNormApply: _instance_norm,
    relu.ReLU: _plain("Relu"), relu.LeakyReLU: _leaky_relu, function.Sigmoid: _plain("Sigmoid"),
    function.Tanh: _plain("Tanh"), function.Elementwise: _elementwise,
    softmax.SoftmaxAlong: _softmax, arithmetic.Arithmetic: _arithmetic,
    arithmetic.BytesToFloat: _from_bytes, combine.Add: _plain("Add"),
    combine.Scale: lambda call, x: x * call.op.factor,
    reduction.Sum: _sum, reduction.Spread: _spread, extremes.MaxAlong: _largest,
    layout.Reshape: _reshape, permute.Permute: _permute, combine.Concat: _concat,
    regions.Slice: _slice, regions.StridedSlice: _slice, regions.Embed: _embed,
    layout.Pad: _pad, layout.ConstantPad: _pad, resampling.ReflectionPad2d: _pad,
    combine.Constant: _constant, losses.ClassWeights: _numbers,
})  # fmt: skip
