"""A peer's tests: the backend node tests that come with onnx, of the operators of CNNs.

Each is a graph of one node with inputs and expected outputs. The first input stays one; the others,
which are weights, sizes and bounds in a real file, become initializers with the test's values. The
whole model goes through `from_onnx`. `data/known/onnx.csv` has every test that is refused with the
reason; all others have the right value. It is written anew as `support/known.py` says.
"""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache

import numpy as np
import pytest
from support import known

import ooctrain as oc
from ooctrain.errors import OoctrainError

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytestmark = pytest.mark.slow  # onnx takes seconds to make its tests

#: Fifty operators, named before there was an importer; and more that are known now.
OPERATORS = (
    "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose",
    "DepthToSpace", "Div", "Dropout", "Elu", "Flatten", "Gelu", "Gemm", "GlobalAveragePool",
    "GlobalMaxPool", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity",
    "InstanceNormalization", "LRN", "LayerNormalization", "LeakyRelu", "LogSoftmax", "MatMul",
    "MaxPool", "Mish", "Mul", "Neg", "PRelu", "Pad", "ReduceMean", "Relu", "Reshape", "Resize",
    "Selu", "Sigmoid", "Slice", "Softmax", "Softplus", "SpaceToDepth", "Split", "Squeeze",
    "Sub", "Sum", "Swish", "Tanh", "Transpose", "Unsqueeze",
)  # fmt: skip
MORE = (
    "Abs", "Celu", "Erf", "Exp", "Expand", "Gather", "Log", "LpNormalization", "Max", "Mean",
    "Min", "Pow", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceSum",
    "ReduceSumSquare", "Softsign", "Sqrt", "ThresholdedRelu", "Tile", "Upsample", "Where",
)  # fmt: skip
#: Tests of the fifty; of which at least so many have to pass.
COUNT, LEAST = 349, 284


@cache
def loaded():
    """{operator: its tests}"""
    from onnx.backend.test.loader import load_model_tests

    found = {name: [] for name in (*OPERATORS, *MORE)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for test in load_model_tests(kind="node"):
            nodes = test.model.graph.node if test.model is not None else ()
            if len(nodes) == 1 and nodes[0].op_type in found and not nodes[0].domain:
                found[nodes[0].op_type].append(test)
    return found


def in_a_file(test):
    """The test's model as a file has it: all inputs but the first are initializers."""
    model = onnx.ModelProto()
    model.CopyFrom(test.model)
    arrays, _ = test.data_sets[0]
    for value, array in list(zip(model.graph.input, arrays, strict=True))[1:]:
        if isinstance(array, np.ndarray | np.generic):
            given = onnx.numpy_helper.from_array(np.asarray(array), value.name)
            model.graph.initializer.append(given)
    return model


def outcome(test):
    """ "" where all is right, the reason where it is refused."""
    try:
        model = oc.from_onnx(in_a_file(test)).eval()
    except OoctrainError as error:
        return f"{error.code}: {error.numbers or error.what}"
    arrays, expected = test.data_sets[0]
    with oc.no_grad():
        found = model(oc.tensor(np.asarray(arrays[0])))
    found = found if isinstance(found, tuple) else (found,)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape, test.name
        np.testing.assert_allclose(
            mine.numpy(), theirs, rtol=test.rtol, atol=max(test.atol, 1e-6), err_msg=test.name
        )
    return ""


def refusals(names):
    """(operator, test, reason) of those that are refused, and how many pass."""
    rows, passed = [], 0
    for operator in names:
        for test in loaded()[operator]:
            why = outcome(test)
            passed += not why
            rows += [(operator, test.name, why)] if why else []
    return rows, passed


def test_node_tests_of_the_operators_of_cnns_pass_or_are_refused_with_a_reason():
    rows, passed = refusals(OPERATORS)
    assert (passed + len(rows), passed) == (COUNT, LEAST)
    known.check_rows("onnx", "the fifty", rows)
    refused = Counter(operator for operator, *_ in rows)
    assert not [name for name, count in refused.items() if count == len(loaded()[name])]


def test_node_tests_of_more_operators_pass_or_are_refused_with_a_reason():
    rows, passed = refusals(MORE)
    assert passed > len(rows)
    known.check_rows("onnx", "more", rows)
