"""What an importer makes: calls that change nothing, and a module of them, without PyTorch.

Memory that is shared is judged by NumPy's own views: random calls run once as they are, in place,
and once as `Storages` has them, where nothing is changed. `tests/peers/test_from_torch.py` asks
the same of PyTorch's networks.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain import functional as F
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.interop.graph import (
    CallList,
    GraphCall,
    ImportedModule,
    ImportedPart,
    Mode,
    Ref,
    Registered,
)
from ooctrain.interop.storages import Storages

# Memory

CALLS = st.lists(
    st.tuples(st.sampled_from(["new", "view", "change"]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1, max_size=12,
)  # fmt: skip


def in_place(calls):
    """What every result is at the end, and what each call read: with arrays that change."""
    arrays, read = [np.arange(4.0)], []
    for number, (kind, a, b) in enumerate(calls):
        first, second = arrays[a % len(arrays)], arrays[b % len(arrays)]
        read.append((first.copy(), second.copy()))
        if kind == "view":
            arrays.append(first[: len(first) - (b % 2) * (len(first) > 1)])
        elif kind == "new":
            arrays.append(first * 2 + second.sum())
        else:
            first += second.sum() + number
            arrays.append(first)
    return read


def changing_nothing(calls):
    """The same with `Storages`; None: a call reads what cannot be known."""
    reads = {}
    for number, (_, a, b) in enumerate(calls):
        reads[a % (number + 1)] = reads[b % (number + 1)] = number
    storages, arrays, read = Storages(reads), [np.arange(4.0)], []
    storages.add(0)
    for number, (kind, a, b) in enumerate(calls):
        first, second = (storages.now(n % (number + 1)) for n in (a, b))
        read.append((arrays[first].copy(), arrays[second].copy()))
        result = number + 1
        if kind == "view":
            storages.add(result, view_of=a % (number + 1))
            arrays.append(arrays[first][: len(arrays[first]) - (b % 2) * (len(arrays[first]) > 1)])
        elif kind == "new":
            storages.add(result)
            arrays.append(arrays[first] * 2 + arrays[second].sum())
        else:
            if storages.others_are_read(a % (number + 1), number):
                return None
            storages.change(result, a % (number + 1))
            arrays.append(arrays[first] + arrays[second].sum() + number)
    return read


@given(CALLS)
def test_what_is_not_refused_reads_as_in_place(calls):
    found = changing_nothing(calls)
    if found is not None:
        for mine, numpy in zip(found, in_place(calls), strict=True):
            for one, other in zip(mine, numpy, strict=True):
                np.testing.assert_array_equal(one, other)


def test_only_what_would_be_wrong_is_refused():
    """Without a view, and with one that nothing reads any more."""
    assert changing_nothing([("change", 0, 0), ("new", 0, 0), ("change", 1, 2)]) is not None
    assert changing_nothing([("view", 0, 0), ("new", 1, 1), ("change", 0, 0)]) is not None
    assert changing_nothing([("view", 0, 0), ("change", 0, 0), ("new", 1, 1)]) is None
    assert changing_nothing([("view", 0, 0), ("change", 1, 1), ("new", 0, 0)]) is None


def test_the_memory_of_a_view_was_made_for_its_base():
    storages = Storages({})
    storages.add("a")
    storages.add("b", view_of="a")
    storages.add("c", view_of="b")
    storages.change("d", "c")
    assert [storages.made_first(name) for name in "abcd"] == ["a"] * 4
    assert storages.now("c") == "d"


# The module


def scaled(x, weight, training):
    return x * weight if training else x + weight


def network():
    """y = relu(conv(x)), then times a weight in training and plus it in evaluation."""
    model = ImportedModule("Net")
    model.register_parameter("weight", oc.nn.Parameter(np.float32([2.0])))
    block = ImportedPart("Block")
    block.register_parameter("filters", oc.nn.Parameter(np.ones((1, 1, 1, 1), np.float32)))
    model.add_module("block", block)
    registered = {"w": Registered("", "weight"), "f": Registered("block", "filters")}
    calls = [
        GraphCall("a", "conv", F.conv2d, (Ref("x"), Ref("f")), path="block", shape=(2, 1, 3, 3)),
        GraphCall("b", "relu", F.relu, (Ref("a"),), path="block", shape=(2, 1, 3, 3)),
        GraphCall("c", "scaled", scaled, (Ref("b"), Ref("w")), {"training": Mode()}, "block"),
    ]
    each = CallList(
        {"x": (None, 1, 3, 3)}, registered, calls, {"out": Ref("c"), "less": (Ref("b"),)}
    )
    model.set_programs(each, each)
    return model


def image(shape=(2, 1, 3, 3)):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_calls_are_computed_in_the_mode_of_their_part():
    model, x = network(), image()
    found = model(oc.tensor(x))
    np.testing.assert_array_equal(found["out"].numpy(), np.maximum(x, 0) * 2)
    np.testing.assert_array_equal(found["less"][0].numpy(), np.maximum(x, 0))
    model.block.eval()
    np.testing.assert_array_equal(model(oc.tensor(x))["out"].numpy(), np.maximum(x, 0) + 2)


def test_what_no_later_call_reads_is_let_go():
    first, second, last = network()._programs[0].calls
    assert first.last_read == ("f", "x")
    assert second.last_read == ("a",)
    assert last.last_read == ("w",)  # the outputs stay


def test_names_are_those_of_the_parts():
    model = network()
    step = oc.trace(model, (2, 1, 3, 3), loss=lambda found, y: F.mse_loss(found["out"], y),
                    target_shape=(2, 1, 3, 3))  # fmt: skip
    forward = [call.name for call in step.calls if call.phase == "forward"]
    assert forward == ["block.fwd", "block.fwd#2", "block.fwd#3"]
    assert list(model.state_dict()) == ["weight", "block.filters"]
    assert repr(model).startswith("Net(\n  (block): Block(")


def test_another_size_and_another_number_of_inputs_are_refused():
    model = network()
    with pytest.raises(ShapeError):
        model(oc.tensor(image((2, 1, 4, 3))))
    with pytest.raises(ConfigError):
        model(oc.tensor(image()), oc.tensor(image()))
    with pytest.raises(ConfigError):
        model.block(oc.tensor(image()))
    assert model(oc.tensor(image((5, 1, 3, 3))))["out"].shape == (5, 1, 3, 3)


def test_problems_are_all_found_at_once():
    """A refused call, and one whose result has another shape; the walk goes on after each."""
    model = network()
    calls = [
        GraphCall("a", "pad", F.pad, (Ref("x"), (1, 1, 1)), path="block", shape=(2, 1, 5, 5)),
        GraphCall("b", "relu", F.relu, (Ref("a"),), path="block", shape=(2, 1, 4, 4)),
        GraphCall("c", "relu", F.relu, (Ref("b"),), shape=(2, 1, 4, 4)),
    ]
    wrong = CallList({"x": (None, 1, 3, 3)}, {}, calls, Ref("c"))
    model.block.eval()
    right = model._programs[0]
    model.set_programs(right, wrong)
    assert [(call.name, call.operation) for call, _ in model.problems(2)] == [
        ("a", "pad"), ("b", "relu"),
    ]  # fmt: skip
    assert model.training
    assert not model.block.training
    model.set_programs(right, right)
    assert model.problems(2) == []


def test_twins_are_independent():
    model, x = network(), oc.tensor(image())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.load_state_dict({"weight": [3.0], "block.filters": np.ones((1, 1, 1, 1))})
        np.testing.assert_array_equal(twin(x)["out"].numpy(), np.maximum(image(), 0) * 3)
    np.testing.assert_array_equal(model(x)["out"].numpy(), np.maximum(image(), 0) * 2)
