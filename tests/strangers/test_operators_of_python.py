"""Every operator of Python on tensors: as in PyTorch, or one typed error that says what to write.

The table goes over the methods of Python's data model. Values that are computed are compared with
what PyTorch gives (recorded as NumPy's arithmetic of float32); in place, the tensor itself is the
result, under each of its names, and gradients are those of the values that were read.
"""

from __future__ import annotations

import math
import operator as op
from typing import Any

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.errors import AutogradError, ConfigError, OoctrainError, ShapeError

A = np.float32([[1, -2, 3], [4, 5, -6]])
B = np.float32([[2, 3, -1], [-4, 0.5, 2]])
#: {operator: (function, for tensors a, b and a number)}
BINARY = {name: getattr(op, name) for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor",
    "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne",
)} | {"divmod": divmod}  # fmt: skip
COMPUTED = ("add", "sub", "mul", "truediv", "matmul", "pow")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
#: other operands, each by a name
OTHERS: dict[str, Any] = {
    "a tensor": oc.tensor(B), "a number": 2, "a float": 2.5, "an array": B, "a list": [1, 2],
    "None": None, "text": "2", "one of many": oc.tensor(B[0]),
    "whole numbers": oc.tensor([1, 2, 3]), "a truth": True, "a scalar": np.float32(3),
    "a tensor of one": oc.tensor(np.float32(2)),
}  # fmt: skip


def value(found: Any) -> Any:
    return found.numpy() if isinstance(found, oc.Tensor) else found


def tried(use):
    """What comes out, or the error, which is one of ours or a TypeError of Python's own."""
    try:
        return use(), None
    except (OoctrainError, TypeError) as error:
        return None, error


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("reflected", [False, True])
def test_an_operator_of_two_is_right_or_says_what_to_write(name, other, reflected):
    x, y, how = oc.tensor(A), OTHERS[other], BINARY[name]
    found, error = tried(lambda: how(y, x) if reflected else how(x, y))
    arrays = value(x), np.asarray(value(y), np.float32) if other not in ("None", "text") else None
    if error is not None:
        if isinstance(error, OoctrainError):
            assert error.fix
        else:  # as PyTorch: what is no number is none of its business
            assert name in COMPARED
            assert other in ("None", "text", "a list")
        return
    if (name, other, reflected) == ("mod", "text", True):
        assert found == "2", "the text is formatted"
        return
    if name in ("eq", "ne") and other in ("None", "text", "a list"):
        assert found is (name == "ne")
        return
    assert name in COMPUTED, "of many numbers, a comparison is refused"
    a, b = reversed(arrays) if reflected else arrays
    with np.errstate(all="ignore"):
        assert np.allclose(value(found), how(a, b), 1e-6, 1e-6, equal_nan=True)
    assert isinstance(found, oc.Tensor)


@pytest.mark.parametrize("exponent", [1, 2, 3, -1, -2, 2.0, np.int64(3), True])
def test_powers_that_are_products(exponent):
    x = oc.tensor(A, requires_grad=True)
    y = x**exponent
    y.sum().backward()
    e = float(exponent)
    assert np.allclose(y.numpy(), A**e, 1e-6)
    assert np.allclose(x.grad.numpy(), e * A ** (e - 1), 1e-5)


@pytest.mark.parametrize("name", COMPARED)
def test_single_numbers_are_compared_by_value(name):
    how = BINARY[name]
    for a, b in ((1.5, 1.5), (1.0, 2.0), (3.0, -1.0)):
        left = oc.tensor(np.float32(a))
        for right in (oc.tensor(np.float32(b)), b, np.float32(b), np.array(b), oc.tensor([b])):
            assert how(left, right) is how(a, b)
            assert how(right, left) == how(b, a)


def test_a_tensor_is_known_as_the_object_that_it_is():
    """Sets and tables ask for no value; a list does, as in PyTorch, unless it is the same one."""
    x, y = oc.tensor(A), oc.tensor(A)
    assert {x: 1, y: 2} == {x: 1, y: 2}
    assert len({x, y, x}) == 2
    assert y in [y, x]
    with pytest.raises(ShapeError) as refused:
        assert y in [x, y]
    assert "is" in refused.value.fix
    one, same = nn.Parameter([0.25]), nn.Parameter([0.25])
    assert oc.optim.SGD([one], lr=0.1).updates(one)
    assert not oc.optim.SGD([one], lr=0.1).updates(same)


UNARY = {
    "neg": (op.neg, -A), "pos": (op.pos, A), "abs": (op.abs, np.abs(A)),
    "invert": (op.invert, None),
    "round": (round, None), "trunc": (math.trunc, None), "floor": (math.floor, None),
    "ceil": (math.ceil, None), "bool": (bool, None), "not": (op.not_, None), "int": (int, None),
    "float": (float, None), "complex": (complex, None), "index": (op.index, None),
    "an index": (lambda x: [1, 2][x], None), "range": (range, None), "len": (len, 2),
    "divmod": (lambda x: divmod(x, 2), None), "pow": (lambda x: pow(x, 2, 3), None),
    "format": (lambda x: f"{x:.2f}", None), "bytes": (bytes, None),
    "delete": (lambda x: op.delitem(x, 0), None), "set": (lambda x: op.setitem(x, 0, 1.0), None),
    "contains": (lambda x: -2.0 in x, True), "contains not": (lambda x: 7 in x, False),
    "contains a tensor": (lambda x: oc.tensor(np.float32(5)) in x, True),
    "contains text": (lambda x: "5" in x, None), "contains None": (lambda x: None in x, None),
    "reversed": (lambda x: [r.tolist() for r in reversed(x)], A[::-1].tolist()),
    "rows": (lambda x: [r.tolist() for r in x], A.tolist()),
    "unpacked": (lambda x: (lambda *r: len(r))(*x), 2),
    "a step": (lambda x: x[:, ::2], A[:, ::2]), "backwards": (lambda x: x[::-1], None),
    "a list of numbers": (lambda x: x[[0, 1]], None), "a mask": (lambda x: x[A > 0], None),
    "a tensor as index": (lambda x: x[oc.tensor([0, 1])], None),
    "a float": (lambda x: x[1.0], None),
    "...": (lambda x: x[..., 1], A[:, 1]), "a row": (lambda x: x[-1], A[-1]),
    "a new axis": (lambda x: x[:, None], A[:, None]), "a block": (lambda x: x[:1, 1:], A[:1, 1:]),
    "beyond": (lambda x: x[2], None),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_what_is_done_with_one_is_right_or_says_what_to_write(name):
    use, wanted = UNARY[name]
    found, error = tried(lambda: use(oc.tensor(A)))
    if wanted is None:
        assert error is not None
        assert isinstance(error, OoctrainError) or name in ("index", "an index", "range", "bytes",
                                                            "pow", "format")  # fmt: skip
        assert getattr(error, "fix", "as Python says it") or name == "beyond"
    else:
        assert error is None
        assert np.array_equal(value(found), wanted)


IN_PLACE = {name: getattr(op, name) for name in ("iadd", "isub", "imul", "itruediv")}
LEFT_OUT = ("ifloordiv", "imod", "iand", "ior", "ixor", "ilshift", "irshift")


@pytest.mark.parametrize("name", [*IN_PLACE, "ipow"])
@pytest.mark.parametrize("other", ["a tensor", "a number", "one of many"])
def test_in_place_every_name_of_the_tensor_has_the_result(name, other):
    y = 2 if name == "ipow" else OTHERS[other]
    w = oc.tensor(A, requires_grad=True)
    h = w * 3.0  # an activation, with a second name and a reader
    again, before = h, h * h
    h = getattr(op, name)(h, y)
    assert again is h
    (h + before).sum().backward()
    v = oc.tensor(A, requires_grad=True)  # the same without anything in place
    g = v * 3.0
    new = getattr(op, {"ipow": "pow"}.get(name, name[1:]))(g, y)
    (new + g * g).sum().backward()
    assert np.array_equal(h.numpy(), new.numpy())
    assert w.grad is not None
    assert np.allclose(w.grad.numpy(), v.grad.numpy(), 1e-6)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_in_place_what_there_is_not_is_not(name):
    x = oc.tensor(A)
    for other in (2, oc.tensor(B)):
        with pytest.raises(ConfigError) as refused:
            getattr(op, name)(x, other)
        assert refused.value.code == "OOC-106"
    assert np.array_equal(x.numpy(), A)


def test_a_sum_that_begins_with_no_gradient_has_one():
    w, total = oc.tensor(A, requires_grad=True), oc.tensor(np.float32(0))
    seen = total
    for _ in range(3):
        total += (w * w).sum()
    total.backward()
    assert seen is total
    assert np.allclose(w.grad.numpy(), 6 * A)


def test_a_result_of_another_shape_is_refused():
    x = oc.tensor(B[0])
    with pytest.raises(ShapeError):
        x += oc.tensor(A)
    assert np.array_equal(x.numpy(), B[0])


def test_a_parameter_is_changed_only_where_no_gradient_is_recorded():
    """The loop of every first tutorial: `with no_grad(): p -= lr * p.grad`."""
    model = nn.Linear(3, 2)
    before = {name: p.numpy().copy() for name, p in model.named_parameters()}
    (model(oc.tensor(A)) ** 2).sum().backward()
    for p in model.parameters():
        with pytest.raises(AutogradError) as refused:
            p -= 0.1 * p.grad
        assert "no_grad" in refused.value.fix
    with oc.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    for name, p in model.named_parameters():
        assert np.allclose(p.numpy(), before[name] - 0.1 * p.grad.numpy(), 1e-6), name
        assert isinstance(p, nn.Parameter)
    with oc.no_grad():
        model.weight *= 0.5
    assert isinstance(model.weight, nn.Parameter)
    assert "weight" in dict(model.named_parameters())


def test_a_value_that_backward_needs_is_not_lost_in_silence():
    w = nn.Parameter(A)
    y = (w * w).sum()
    with oc.no_grad():
        w += 1.0
    with pytest.raises(AutogradError):
        y.backward()


class Residual(nn.Module):
    """As ResNets are written; `alias` has a second name for what changes in place."""

    def __init__(self, in_place: bool):
        super().__init__()
        oc.manual_seed(0)
        self.a, self.b = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.head, self.in_place = nn.Linear(2 * 16, 3), in_place

    def forward(self, x):
        h = F.relu(self.a(x))
        g = self.b(h)
        if self.in_place:
            alias = g
            g += h
            g *= 0.5
        else:
            g = (g + h) * 0.5
            alias = g
        return self.head((g + alias).flatten(1))


def test_a_network_in_place_has_the_bits_of_one_without():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 2, 4, 4)).astype(np.float32), np.arange(4) % 3
    losses = []
    for in_place in (True, False):
        with oc.Trainer(Residual(in_place), optimizer="sgd", threads=1) as trainer:
            losses.append([trainer.step(x, y) for _ in range(3)])
        eager = Residual(in_place)
        F.cross_entropy(eager(oc.tensor(x)), oc.tensor(y)).backward()
        losses.append(eager.a.weight.grad.tolist())
    assert losses[0] == losses[2]
    assert losses[1] == losses[3]


class Counting(nn.Module):
    """Changes a buffer in its forward pass, which a step that is traced once cannot do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", np.zeros((), np.float32))

    def forward(self, x):
        self.calls += 1.0
        return self.linear(x)


def test_a_buffer_counts_in_eager_mode_and_is_refused_in_a_step():
    model = Counting()
    for _ in range(3):
        model(oc.tensor(A))
    assert model.calls.item() == 3
    assert "calls" in model.state_dict()
    with oc.Trainer(model, threads=1) as trainer, pytest.raises(AutogradError) as refused:
        trainer.step(A, np.array([0, 1]))
    assert "calls" in refused.value.what
    assert model.calls.item() == 3


def test_an_input_that_wants_a_gradient_has_one_and_is_not_changed_in_place():
    """In a step that is traced, too, where it is a variable."""
    x = oc.tensor(A, requires_grad=True)
    with pytest.raises(AutogradError):
        x += 1.0
    (x * x).sum().backward()
    assert np.array_equal(x.grad.numpy(), 2 * A)


class Shifted(nn.Module):
    """Changes its input in place after it has read it."""

    def __init__(self, in_place: bool):
        super().__init__()
        oc.manual_seed(0)
        self.linear, self.in_place = nn.Linear(3, 3), in_place

    def forward(self, x):
        y = self.linear(x)
        if self.in_place:
            x += 1.0
        else:
            x = x + 1.0
        return y * x


def test_an_input_of_a_step_may_be_changed_in_place():
    losses = []
    for in_place in (True, False):
        with oc.Trainer(Shifted(in_place), optimizer="sgd", threads=1) as trainer:
            losses.append([trainer.step(A, np.array([0, 2])) for _ in range(3)])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("left", [(3,), (2, 3), (4, 2, 3)])
@pytest.mark.parametrize("right", [(3,), (3, 2), (3, 1), (4, 3, 2), (4, 3, 1)])
def test_a_product_of_any_ranks_is_numpys(left, right):
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (left, right))
    found = (oc.tensor(x) @ oc.tensor(y)).numpy()
    assert found.shape == np.shape(x @ y)
    assert np.allclose(found, x @ y, atol=1e-5)
