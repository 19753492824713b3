"""The tape: eager arithmetic, gradients, and errors that name what went wrong."""

import gc
import linecache
import random
import subprocess
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.autograd import manual_seed, no_grad, tensor
from ooctrain.engine.eager import EagerRunner
from ooctrain.engine.tensor import Tape, current_tape, use_tape
from ooctrain.engine.trace_runner import TraceRunner
from ooctrain.errors import AutogradError, ConfigError, ShapeError


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def fresh_tape():
    with use_tape(Tape(EagerRunner(threads=1))) as tape:
        yield tape


def test_arithmetic():
    x, y = tensor(values(2, 3)), tensor(values(2, 3, seed=1))
    expected = 3 - (2 * x.numpy() - y.numpy() / 4 + 1)
    np.testing.assert_allclose((3 - (2 * x - y / 4 + 1)).numpy(), expected, rtol=1e-6)


def test_gradients_accumulate_and_meet_at_forks():
    x = tensor(values(4), requires_grad=True)
    y = x * 2.0
    F.mse_loss(y + y + x, tensor(np.zeros(4, np.float32))).backward()
    first = x.grad.numpy().copy()
    np.testing.assert_allclose(first, 2 * 25 * x.numpy() / 4, rtol=1e-6)
    F.mse_loss(x * 5.0, tensor(np.zeros(4, np.float32))).backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * first, rtol=1e-6)


def test_reshape_slice_and_flatten_keep_logical_order():
    data = values(2, 3, 4, 5)
    x = tensor(data)
    np.testing.assert_array_equal(x.flatten(1).numpy(), data.reshape(2, -1))
    np.testing.assert_array_equal(x.reshape(2, -1, 10).numpy(), data.reshape(2, 6, 10))
    np.testing.assert_array_equal(x.reshape((3, 2, 5, 4)).numpy(), data.reshape(3, 2, 5, 4))
    np.testing.assert_array_equal(x[1:, :2, 1:3].numpy(), data[1:, :2, 1:3])
    np.testing.assert_array_equal(x[::2, 1:, ::3, 1::2].numpy(), data[::2, 1:, ::3, 1::2])
    with pytest.raises(ShapeError, match="steps of 1"):
        x[::-1]
    with pytest.raises(ShapeError, match="do not fit shape"):
        x.reshape(7, -1)


@pytest.mark.parametrize("seed", range(10))
def test_a_block_is_numpy_s_or_refused(seed):
    """Any bounds and steps; backward ones, indices beyond an axis and too many keys are refused."""
    rng, array, found = random.Random(seed), values(3, 4, 5), 0
    steps, odd = [None, 1, 1, 1, 1, 2, -1], [0, -1, 3, None, ...]
    for _ in range(40):
        keys = tuple(
            slice(rng.randint(-6, 6), rng.choice([None, *range(-6, 7)]), rng.choice(steps))
            if rng.random() < 0.6 else rng.choice(odd) for _ in range(rng.randint(1, 4))
        )  # fmt: skip
        forward = all(not isinstance(k, slice) or k.step in (None, 1, 2) for k in keys)
        try:
            block = array[keys] if forward else None
        except IndexError:
            block = None
        if block is None:
            with pytest.raises(ShapeError):
                tensor(array)[keys]
        elif block.size:
            found += 1
            np.testing.assert_array_equal(tensor(array)[keys].numpy(), block, strict=True)
    assert found > 2


def test_second_backward_names_the_call_and_who_freed_it():
    x = tensor(values(3), requires_grad=True)
    loss = F.mse_loss(F.tanh(x), tensor(values(3)))
    loss.backward()
    with pytest.raises(
        AutogradError, match=r"second backward.*tanh.fwd|second backward.*mean_error"
    ):
        loss.backward()


def test_retain_graph_allows_a_second_backward():
    x = tensor(values(3), requires_grad=True)
    loss = F.mse_loss(F.tanh(x), tensor(values(3)))
    loss.backward(retain_graph=True)
    once = x.grad.numpy().copy()
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * once)


def test_a_write_on_a_saved_value_is_found_and_located():
    layer = nn.Linear(3, 2)
    x = tensor(values(4, 3), requires_grad=True)
    loss = F.mse_loss(layer(x), tensor(values(4, 2)))
    layer.weight.copy_(np.zeros((2, 3)))
    with pytest.raises(AutogradError, match="changed in place") as caught:
        loss.backward()
    assert "test_autograd.py:" in str(caught.value)


def test_a_write_on_a_value_that_backward_does_not_need_is_fine():
    layer = nn.Linear(3, 2)
    loss = F.mse_loss(layer(tensor(values(4, 3))), tensor(values(4, 2)))
    layer.bias.copy_(np.zeros(2))
    loss.backward()
    assert layer.bias.grad is not None


def test_a_write_on_an_output_that_backward_needs_is_found():
    x = tensor(values(3), requires_grad=True)
    y = F.relu(x)
    y.copy_(np.ones(3))
    with pytest.raises(AutogradError, match="changed in place"):
        F.mse_loss(y, tensor(values(3))).backward()


def test_a_written_value_has_the_tensor_s_element_type():
    weight, count = nn.Linear(3, 2).weight, nn.BatchNorm2d(2).num_batches_tracked
    weight.copy_(np.full((2, 3), 0.1))  # float64, and nobody has read the first value yet
    assert weight.numpy().dtype == np.float32
    count.copy_(np.int32(4))
    assert count.numpy().dtype == np.int64
    with pytest.raises(TypeError, match="same_kind"):
        count.copy_(np.float32(0.5))


def test_a_given_gradient_must_fit():
    x = tensor(values(2, 3), requires_grad=True)
    for wrong in (tensor(values(3, 2)), tensor(np.ones((2, 3), int)), values(2, 3)):
        for y in (x * 2.0, x):
            with pytest.raises(ShapeError, match="does not fit"):
                y.backward(wrong)
    assert x.grad is None
    (x * 2.0).backward(tensor(np.ones((2, 3), np.float32)))
    np.testing.assert_array_equal(x.grad.numpy(), np.full((2, 3), 2))


def test_nothing_to_differentiate():
    with pytest.raises(AutogradError, match="requires a gradient"):
        tensor(values(3)).backward()
    x = tensor(values(3), requires_grad=True)
    with pytest.raises(AutogradError, match="only one number"):
        (x * 2.0).backward()
    with no_grad():
        assert not (x * 2.0).requires_grad
    assert (x * 2.0).requires_grad
    assert not (x * 2.0).detach().requires_grad


def test_missing_zero_grad_warns_once_and_names_the_line():
    from ooctrain.optim import SGD

    layer = nn.Linear(3, 2)
    optimizer = SGD(layer.parameters(), lr=0.1)

    def warnings_of_a_step() -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            F.mse_loss(layer(tensor(values(4, 3))), tensor(values(4, 2))).backward()
            optimizer.step()
        return caught

    assert warnings_of_a_step() == []
    (warning,) = warnings_of_a_step()
    assert "zero_grad" in str(warning.message)
    assert "backward()" in linecache.getline(warning.filename, warning.lineno)
    assert warnings_of_a_step() == []
    optimizer.zero_grad()
    assert warnings_of_a_step() == []


@pytest.mark.filterwarnings("error")
def test_accumulation_on_purpose_does_not_warn():
    layer = nn.Linear(3, 2)
    for _ in range(3):
        F.mse_loss(layer(tensor(values(4, 3))), tensor(values(4, 2))).backward()
    assert layer.weight.grad is not None


def test_shape_errors_say_where_what_and_how():
    conv = nn.Conv2d(3, 4, 3)
    with pytest.raises(ShapeError, match="has 1 channels, the weight wants 3") as caught:
        conv(tensor(values(2, 1, 5, 5)))
    assert "conv2d.fwd" in str(caught.value)
    with pytest.raises(ShapeError, match=r"must be \(N, C\)"):
        nn.Linear(3, 2)(tensor(values(2, 3, 1, 1)))
    with pytest.raises(ShapeError, match="larger than the"):
        conv(tensor(values(2, 3, 2, 2)))
    with pytest.raises(ShapeError, match="do not fit"):
        tensor(values(2, 3)) + tensor(values(2))
    with pytest.raises(ConfigError, match=r"input is an array \(2, 3, 5, 5\)"):
        conv(values(2, 3, 5, 5))
    with pytest.raises(ShapeError, match="wants float32, got int64"):
        F.relu(tensor(np.arange(3)))


def test_labels_are_checked():
    logits = tensor(values(4, 3))
    with pytest.raises(ConfigError, match="label 3 is not one of the 3 classes"):
        F.cross_entropy(logits, tensor(np.array([0, 1, 3, 2])))
    with pytest.raises(ShapeError, match="must be int64"):
        F.cross_entropy(logits, tensor(np.zeros(4, np.float32)))
    with pytest.raises(ShapeError, match="must have shape"):
        F.cross_entropy(logits, tensor(np.zeros((4, 3), np.int64)))
    assert np.isfinite(F.cross_entropy(logits, tensor(np.array([0, 1, -100, 2]))).numpy())


def test_softmax_before_cross_entropy_is_noticed_once():
    p = np.exp(values(4, 3))
    p /= p.sum(axis=1, keepdims=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            F.cross_entropy(tensor(p), tensor(np.zeros(4, int)))
    (warning,) = caught
    assert "remove the softmax" in str(warning.message)


def test_float64_is_cast_with_a_warning():
    with pytest.warns(UserWarning, match="float64"):
        assert tensor(np.zeros(3)).dtype == "float32"
    assert tensor([0.5, 1.0]).dtype == "float32"
    assert tensor([1, 2]).dtype == "int64"
    with pytest.raises(ConfigError, match="cannot hold"):
        tensor(np.array(["a"]))


def test_numpy_views_are_read_only_and_logical():
    x = tensor(values(2, 3, 4, 5))
    assert x.numpy().shape == (2, 3, 4, 5)
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 0
    assert np.asarray(x).shape == (2, 3, 4, 5)


def test_the_package_s_functions_are_not_hidden_by_its_rooms():
    code = (
        "import ooctrain as oc; oc.nn.Linear(2, 2); import ooctrain.tracing;"
        "names = (oc.tensor, oc.trace, oc.no_grad, oc.manual_seed, oc.plan, oc.tile, oc.chain);"
        "assert all(callable(name) for name in names);"
        "oc.tensor([1.0])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, timeout=60).returncode == 0


def test_a_traced_tensor_has_no_value():
    with use_tape(Tape(TraceRunner(1, {}))) as tape:
        x = tape.runner.input("input", tensor(values(2, 3)).spec)
        y = F.relu(x)
    with pytest.raises(AutogradError, match=r"'relu\.out' is traced"):
        y.numpy()
    with pytest.raises(AutogradError, match=r"oc\.execute"):
        F.tanh(y)


def test_what_nobody_holds_is_forgotten_without_the_garbage_collector():
    F.relu(F.tanh(tensor(values(3))))  # a kernel's first call compiles it, and leaves cycles
    gc.disable()
    try:
        x = tensor(values(3), requires_grad=True)
        y = F.relu(F.tanh(x))
        kept = weakref.ref(y.source[0].ins[0])
        y = None
        assert kept() is None
    finally:
        gc.enable()


def test_backward_frees_saved_values():
    x = tensor(values(3), requires_grad=True)
    middle = F.tanh(x)
    kept = weakref.ref(middle.storage.physical)
    loss = F.mse_loss(middle, tensor(values(3)))
    middle = None
    assert kept() is not None
    loss.backward()
    gc.collect()
    assert kept() is None


def test_each_thread_has_its_own_tape():
    tapes = [current_tape()]
    thread = threading.Thread(target=lambda: tapes.append(current_tape()))
    thread.start()
    thread.join()
    assert tapes[0] is not tapes[1]


def test_manual_seed_repeats_weights_whatever_is_read_first():
    manual_seed(3)
    a, b = nn.Linear(5, 4), nn.Linear(4, 3)
    first = a.weight.numpy().copy(), b.weight.numpy().copy()
    manual_seed(3)
    a, b = nn.Linear(5, 4), nn.Linear(4, 3)
    second_b = b.weight.numpy().copy()
    np.testing.assert_array_equal(first[0], a.weight.numpy())
    np.testing.assert_array_equal(first[1], second_b)
    assert not np.array_equal(first[0][:3, :4], second_b)


def test_threads_give_the_same_bits():
    def run(threads):
        with use_tape(Tape(EagerRunner(threads=threads), seed=4)):
            net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            y = net(tensor(values(4, 3, 24, 24)))
            F.mse_loss(y, tensor(values(*y.shape, seed=1))).backward()
            return [p.grad.numpy().tobytes() for p in net.parameters()]

    assert run(1) == run(2) == run(3)
