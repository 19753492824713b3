"""Files that are not ONNX, are broken, or are not for this library: one typed error each.

The code says which of the three it is (OOC-190: operators that are not here; OOC-192: broken;
OOC-193: right, and not taken), and nothing of protobuf or onnx reaches a user. The law at the end
is over any file: cut off anywhere or with other bits it gives such an error or the right network.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain.errors import OoctrainError

pytest.importorskip("onnx", reason="onnx is not installed")
from support import onnx_models as small
from support.onnx_models import TensorProto, helper, model, node, random

MISSING, BROKEN, NOT_TAKEN = "OOC-190", "OOC-192", "OOC-193"


def _conv(w=None, **changes):
    weights = {"w": random(4, 3, 3, 3) if w is None else w}
    return model([node("Conv", "x w")], weights, **changes)


def _with(change, graph=None):
    """A right graph after a change."""
    graph = small.small_network() if graph is None else graph
    change(graph)
    return graph


def _input(kind, shape=("N", 3, 8, 8)):
    def change(graph):
        graph.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, shape))

    return lambda: _with(change)


def _stored(kind):
    """The first weight in another element type."""

    def change(graph):
        tensor = graph.graph.initializer[0]
        array = small.numpy_helper.to_array(tensor)
        made = helper.make_tensor(tensor.name, kind, array.shape, np.zeros(array.size))
        tensor.CopyFrom(made)

    return lambda: _with(change)


def _twice(change):
    return lambda: _with(change)


def _if():
    then = helper.make_graph(
        [node("Relu", "x", "t")], "then", [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )  # fmt: skip
    branch = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=then)
    return model([branch], {"c": np.bool_(True)})


#: {what is wrong: (code, the graph)}
GRAPHS = {
    "a weight of 0 bytes": (BROKEN, lambda: _with(
        lambda g: g.graph.initializer[0].ClearField("raw_data"))),
    "a weight of too few bytes": (BROKEN, lambda: _with(
        lambda g: setattr(g.graph.initializer[0], "raw_data", b"1234"))),
    "a weight without elements": (BROKEN, lambda: _conv(np.zeros((0, 3, 3, 3), np.float32))),
    "a negative extent": (BROKEN, lambda: _with(
        lambda g: g.graph.initializer[0].dims.__setitem__(0, -4))),
    "two weights of one name": (BROKEN, lambda: _with(
        lambda g: g.graph.initializer.append(g.graph.initializer[0]))),
    "two inputs of one name": (BROKEN, lambda: _with(
        lambda g: g.graph.input.append(g.graph.input[0]))),
    "two outputs of one name": (BROKEN, lambda: _with(
        lambda g: g.graph.output.append(g.graph.output[0]))),
    "no outputs": (BROKEN, lambda: _with(lambda g: g.graph.ClearField("output"))),
    "no inputs": (BROKEN, lambda: _with(lambda g: g.graph.ClearField("input"))),
    "a value that is made twice": (BROKEN, lambda: model(
        [node("Relu", "x", "y"), node("Tanh", "x", "y")])),
    "a node that makes its input": (BROKEN, lambda: model([node("Relu", "x", "x")])),
    "a value that is not there": (BROKEN, lambda: model([node("Relu", "z")])),
    "an output that is not there": (BROKEN, lambda: model([node("Relu", "x", "z")])),
    "a cycle": (BROKEN, lambda: model([node("Add", "x b", "a"), node("Relu", "a", "b"),
                                       node("Relu", "b", "y")])),
    "nodes out of order": (BROKEN, lambda: model(
        [node("Relu", "a", "y"), node("Tanh", "x", "a")])),
    "an attribute twice": (BROKEN, lambda: _with(
        lambda g: g.graph.node[0].attribute.append(g.graph.node[0].attribute[0]), _conv_pads())),
    "no operators of any version": (BROKEN, lambda: _with(
        lambda g: g.ClearField("opset_import"))),
    "operators of two versions": (BROKEN, lambda: _with(
        lambda g: g.opset_import.append(helper.make_opsetid("", 18)))),
    "another shape than declared": (BROKEN, lambda: _conv(out=("N", 4, 6, 7))),
    "another rank than declared": (BROKEN, lambda: _conv(out=("N", 4))),
    "opset too new": (NOT_TAKEN, lambda: _conv(opset=99)),
    "opset too old": (NOT_TAKEN, lambda: _conv(opset=6)),
    "float16 input": (NOT_TAKEN, _input(TensorProto.FLOAT16)),
    "bfloat16 input": (NOT_TAKEN, _input(TensorProto.BFLOAT16)),
    "double input": (NOT_TAKEN, _input(TensorProto.DOUBLE)),
    "bytes as input": (NOT_TAKEN, _input(TensorProto.UINT8)),
    "float16 weights": (NOT_TAKEN, _stored(TensorProto.FLOAT16)),
    "int8 weights": (NOT_TAKEN, _stored(TensorProto.INT8)),
    "dynamic rank": (NOT_TAKEN, _input(TensorProto.FLOAT, None)),
    "a number as input": (NOT_TAKEN, _input(TensorProto.FLOAT, ())),
    "an extent of 0": (NOT_TAKEN, _input(TensorProto.FLOAT, ("N", 0, 8, 8))),
    "an endless extent": (NOT_TAKEN, _input(TensorProto.FLOAT, ("N", 3, 1 << 40, 8))),
    "more than the batch is open": (NOT_TAKEN, _input(TensorProto.FLOAT, ("N", 3, "H", "W"))),
    "a sequence as input": (NOT_TAKEN, lambda: _with(lambda g: g.graph.input[0].CopyFrom(
        helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, (1, 3))))),
    "whole numbers as output": (NOT_TAKEN, lambda: model([node("Shape", "x")])),
    "sparse weights": (NOT_TAKEN, lambda: _with(
        lambda g: g.graph.sparse_initializer.add())),
    "a branch": (MISSING, _if),
    "an operator of others": (MISSING, lambda: model(
        [node("FusedConv", "x w", domain="com.microsoft")], {"w": random(4, 3, 3, 3)})),
    "an unknown operator": (MISSING, lambda: model([node("NonMaxSuppression", "x x")])),
    "an unknown attribute": (MISSING, lambda: model([node("Relu", "x", alpha=1.0)])),
    "too few inputs": (MISSING, lambda: model([node("Conv", "x")])),
    "too many inputs": (MISSING, lambda: model([node("Sigmoid", "x x")])),
    "a size that depends on values": (MISSING, lambda: model([node("Reshape", "x x")])),
    "quantised": (MISSING, lambda: model(
        [node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q s")],
        {"s": np.float32(0.1)})),
    "a second output": (MISSING, lambda: model(
        [node("BatchNormalization", "x w w w v", "a m n"), node("Add", "a m", "y")],
        {"w": random(3), "v": np.float32([1, 2, 3])}, opset=14)),
    "operators of its own": (NOT_TAKEN, lambda: _with(lambda g: g.functions.append(
        helper.make_function("", "Relu", ["a"], ["b"], [node("Tanh", "a", "b")],
                             [helper.make_opsetid("", 17)])))),
    "volumes": (MISSING, lambda: model(
        [node("MaxPool", "x", kernel_shape=[2, 2, 2])], shape=("N", 3, 8, 8, 8))),
    "a window that is no window": (MISSING, lambda: model(
        [node("MaxPool", "x", kernel_shape=[0, 2])])),
    "endless padding": (MISSING, lambda: model(
        [node("Pad", "x p")], {"p": np.int64([0, 0, 1 << 40, 0, 0, 0, 0, 0])})),
    "statistics that are computed": (MISSING, lambda: model(
        [node("Relu", "w", "v"), node("BatchNormalization", "x w w w v")], {"w": random(3)})),
    "a division of sizes by 0": (BROKEN, lambda: model(
        [node("Div", "a b", "c"), node("Reshape", "x c")],
        {"a": np.int64([4]), "b": np.int64([0])})),
}  # fmt: skip


def _conv_pads():
    return model([node("Conv", "x w", pads=[1, 1, 1, 1])], {"w": random(4, 3, 3, 3)})


@pytest.mark.parametrize("what", GRAPHS)
def test_a_graph_that_is_wrong_or_not_taken_is_refused(what, tmp_path):
    code, make = GRAPHS[what]
    graph = make()
    path = tmp_path / "net.onnx"
    path.write_bytes(small.bytes_of(graph))
    for source in (graph, path):
        with pytest.raises(OoctrainError) as refusal:
            oc.from_onnx(source)
        assert refusal.value.code == code, str(refusal.value)
        assert refusal.value.fix
        assert refusal.value.__cause__ is None


BYTES = {
    "empty": b"", "text": b"not onnx at all", "zip": b"PK\x03\x04" + bytes(30), "zeros": bytes(99),
    "the beginning": small.bytes_of(small.small_network())[:200],
}  # fmt: skip


@pytest.mark.parametrize("what", BYTES)
def test_what_is_no_onnx_file_is_refused(what, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(BYTES[what])
    with pytest.raises(OoctrainError) as refusal:
        oc.from_onnx(path)
    assert refusal.value.code == BROKEN


def test_what_is_no_file_is_refused(tmp_path):
    for source, code in ((tmp_path / "none.onnx", BROKEN), (tmp_path, BROKEN), (7, "OOC-106")):
        with pytest.raises(OoctrainError) as refusal:
            oc.from_onnx(source)
        assert refusal.value.code == code


def test_all_that_is_missing_is_listed_at_once():
    nodes = [node("CumSum", "x i", "a"), node("CumSum", "x i", "b"), node("Det", "x", "c"),
             node("Add", "a b", "y")]  # fmt: skip
    with pytest.raises(OoctrainError) as refusal:
        oc.from_onnx(model(nodes, {"i": np.int64(1)}))
    assert "CumSum x 2" in refusal.value.numbers
    assert "Det x 1" in refusal.value.numbers


# Weights in other files


def _outside(folder, location, **entries):
    """A convolution whose weights lie in another file."""
    graph = _conv()
    tensor = graph.graph.initializer[0]
    (folder / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "net.onnx"
    path.write_bytes(small.bytes_of(graph))
    return path


def test_weights_beside_the_file_are_read(tmp_path):
    x = random(2, 3, 8, 8)
    expected = small.evaluated(oc.from_onnx(_conv()), x)[0]
    for entries in ({}, {"offset": 0, "length": 432}):
        found = small.evaluated(oc.from_onnx(_outside(tmp_path, "w.bin", **entries)), x)[0]
        np.testing.assert_array_equal(found, expected)
    (tmp_path / "more").mkdir()
    (tmp_path / "w.bin").rename(tmp_path / "more" / "w.bin")
    path = _outside(tmp_path, "more/w.bin")
    (tmp_path / "w.bin").unlink()
    np.testing.assert_array_equal(small.evaluated(oc.from_onnx(path), x)[0], expected)


PLACES = ("../w.bin", "/etc/passwd", "a/../../w.bin", "", ".", "no.bin", "w.bin/x", "link.bin",
          "C:\\w.bin", "..\\w.bin", "w\0.bin")  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_weights_that_are_elsewhere_are_refused(place, tmp_path):
    folder = tmp_path / "net"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(432))
    os.symlink(tmp_path / "w.bin", folder / "link.bin")
    with pytest.raises(OoctrainError) as refusal:
        oc.from_onnx(_outside(folder, place))
    assert refusal.value.code == BROKEN


@pytest.mark.parametrize(
    "entries",
    [{"offset": 1}, {"offset": -1}, {"length": 100}, {"length": 10**9}, {"offset": "x"},
     {"offset": 10**20}],
)  # fmt: skip
def test_weights_at_another_place_of_their_file_are_refused(entries, tmp_path):
    with pytest.raises(OoctrainError) as refusal:
        oc.from_onnx(_outside(tmp_path, "w.bin", **entries))
    assert refusal.value.code == BROKEN


def test_a_model_in_memory_has_no_folder(tmp_path):
    graph = small.onnx.load(str(_outside(tmp_path, "w.bin")), load_external_data=False)
    with pytest.raises(OoctrainError) as refusal:
        oc.from_onnx(graph)
    assert refusal.value.code == BROKEN


# Any file

WHOLE = small.bytes_of(small.small_network())
IMAGES = random(2, 3, 8, 8, seed=9)
CHANGES = st.lists(
    st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(1, 255)), max_size=4
)  # fmt: skip


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE)), CHANGES, st.booleans())
@example(len(WHOLE), [], False)
def test_a_file_that_is_cut_off_or_changed_is_refused_or_right(tmp_path_factory, end, bits, cut):
    data = bytearray(WHOLE[:end] if cut else WHOLE)
    for place, change in bits:
        if place < len(data):
            data[place] ^= change
    path = tmp_path_factory.getbasetemp() / "changed.onnx"
    path.write_bytes(data)
    try:
        net = oc.from_onnx(path)
        found = small.evaluated(net, IMAGES)
    except OoctrainError:
        return
    expected = small.reference(small.onnx.load_from_string(bytes(data)), IMAGES)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        largest = np.abs(theirs).max()
        if largest < 1e30:  # beyond it sums overflow, which depends on their order
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3 * max(1, largest))
