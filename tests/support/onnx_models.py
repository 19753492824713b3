"""Small ONNX graphs for tests, and what onnx's own reference makes of them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ooctrain as oc

OPSET = 17


def model(nodes, weights=(), shape=("N", 3, 8, 8), out=None, opset=OPSET, outputs=("y",)):
    """A graph from "x" to "y".

    Args:
        weights: {name: array}.
        out: declared shape of the output; None: not declared.
    """
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, out) for name in outputs
    ]  # fmt: skip
    graph = helper.make_graph(
        list(nodes), "Net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], values,
        [numpy_helper.from_array(np.asarray(a), name) for name, a in dict(weights).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(operator, inputs, outputs=("y",), **attributes):
    """One node, from names separated by spaces."""
    given = inputs.split(" ") if isinstance(inputs, str) else inputs
    made = outputs.split(" ") if isinstance(outputs, str) else outputs
    return helper.make_node(operator, given, made, **attributes)


def random(*shape, seed=0, scale=1.0):
    """Normal numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def small_network():
    """Convolution, batch norm, ReLU, pooling, a residual, a linear layer with a computed size."""
    weights = {
        "stem.weight": random(4, 3, 3, 3, scale=0.3), "stem.bias": random(4, seed=1),
        "norm.weight": np.float32([1.0, 2.0, 0.5, 1.5]), "norm.bias": random(4, seed=2),
        "norm.running_mean": random(4, seed=3), "norm.running_var": np.float32([1, 2, 3, 0.5]),
        "fc.weight": random(5, 64, seed=4, scale=0.2), "fc.bias": random(5, seed=5),
        "zero": np.int64(0), "first": np.int64([0]), "rest": np.int64([-1]),
    }  # fmt: skip
    nodes = [
        node("Conv", "x stem.weight stem.bias", "c", pads=[1, 1, 1, 1], name="/stem/Conv"),
        node("BatchNormalization", "c norm.weight norm.bias norm.running_mean norm.running_var",
             "b", name="/norm/BatchNormalization"),
        node("Relu", "b", "r", name="/relu/Relu"),
        node("Add", "r c", "a", name="/Add"),
        node("MaxPool", "a", "p", kernel_shape=[2, 2], strides=[2, 2], name="/pool/MaxPool"),
        node("Shape", "p", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n first", "n1"),
        node("Concat", "n1 rest", "to", axis=0),
        node("Reshape", "p to", "f", name="/Reshape"),
        node("Gemm", "f fc.weight fc.bias", "y", transB=1, name="/fc/Gemm"),
    ]  # fmt: skip
    return model(nodes, weights, out=("N", 5))


def reference(graph, x):
    """All outputs, by onnx."""
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(graph).run(None, {graph.graph.input[0].name: x})


def evaluated(net, x):
    """All outputs of a module, in evaluation."""
    with oc.no_grad():
        found = net.eval()(oc.tensor(x))
    return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]


def bytes_of(graph):
    """As in a file."""
    return graph.SerializeToString()


__all__ = ("TensorProto", "bytes_of", "evaluated", "helper", "model", "node", "numpy_helper",
           "onnx", "random", "reference", "small_network")  # fmt: skip
