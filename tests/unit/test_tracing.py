"""Traces of training steps: names, order, updates, accumulation, clipping; and running them."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from ooctrain import functional as F
from ooctrain import models, nn
from ooctrain.engine.autograd import manual_seed, no_grad, tensor
from ooctrain.engine.clip import ClipEach, clip_grad_norm_, clip_grad_value_
from ooctrain.engine.eager import EagerRunner
from ooctrain.engine.incore import initial_values, run_trace, storages
from ooctrain.engine.tensor import Tape, use_tape
from ooctrain.errors import ConfigError
from ooctrain.optim import SGD, Adam
from ooctrain.tracing import trace

SCALARS = {"lr": 0.1, "step": 0, "seed": 0}


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Small(nn.Module):
    """A shortcut, batch norm, pooling, dropout, a layer used twice."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)) + x)
        x = F.adaptive_avg_pool2d(self.pool(x), 1).flatten(1)
        return self.head(self.drop(F.tanh(self.fc(F.tanh(self.fc(x))))))


def small(seed=0):
    manual_seed(seed)
    return Small()


def batch(n=6):
    return values(n, 3, 8, 8, seed=1), np.random.default_rng(2).integers(0, 5, n)


def run(step, model, optimizer=None, scalars=SCALARS, **options):
    x, t = batch()
    inputs = {"input": x, "target": t}
    return run_trace(step, initial_values(step, model, optimizer) | inputs, scalars, **options)


def call_named(step, name):
    (call,) = (c for c in step.calls if c.name == name)
    return call


def eager_steps(model, optimizer, steps=1, clip=None, parts=1):
    """The same training by hand; returns losses and the gradients of the last step."""
    x, t = batch()
    losses = []
    with use_tape(Tape(EagerRunner(threads=1))) as tape:
        for _ in range(steps):
            optimizer.zero_grad()
            tape.reseed(0)  # a trace numbers its dropout calls from 0 in every step
            total = 0.0
            for part in np.split(np.arange(len(x)), parts):
                loss = F.cross_entropy(model(tensor(x[part])), tensor(t[part])) * (1 / parts)
                loss.backward()
                total += loss.item()
            if clip:
                clip(model.parameters())
            grads = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
            optimizer.step()
            losses.append(total)
    return losses, grads


def assert_same_bits(results, losses, grads, model):
    assert np.float32(losses[-1]) == results["loss"]
    for name, grad in grads.items():
        assert grad.tobytes() == np.ascontiguousarray(results[f"grad:{name}"]).tobytes(), name
    for name, value in model.state_dict().items():
        assert value.tobytes() == np.ascontiguousarray(results[name]).tobytes(), name


def test_a_traced_step_is_the_eager_step_bit_for_bit():
    model = small()
    step = trace(
        model, (6, 3, 8, 8), optimizer=SGD(model.parameters(), 0.1, momentum=0.9), threads=1
    )
    results = run(step, model)
    losses, grads = eager_steps(model, SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert_same_bits(results, losses, grads, model)


def test_accumulation_is_the_eager_loop_over_parts():
    model = small()
    model.drop = nn.Identity()  # a part has the masks of the whole batch; eager parts know of none
    optimizer = Adam(model.parameters(), lr=0.01)
    step = trace(model, (6, 3, 8, 8), optimizer=optimizer, threads=1, accumulate=3)
    results = run(step, model, scalars=SCALARS | {"lr": 0.01})
    losses, grads = eager_steps(model, Adam(model.parameters(), lr=0.01), parts=3)
    np.testing.assert_allclose(results["loss"], losses[-1], rtol=1e-6)
    losses = [float(results["loss"])]
    assert_same_bits(results, losses, grads, model)
    updates = [call.name for call in step.calls if call.phase == "update"]
    assert len(updates) == len(set(updates)) == len(list(model.parameters()))
    counts = [name for name in results if name.endswith("num_batches_tracked")]
    assert all(results[name] == 3 for name in counts)


@pytest.mark.parametrize(
    ("clip", "by_hand"),
    [
        (0.05, lambda p: clip_grad_norm_(p, 0.05)),
        (ClipEach(0.01), lambda p: clip_grad_value_(p, 0.01)),
    ],
)
def test_clipping_is_the_eager_clipping(clip, by_hand):
    model = small()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = trace(model, (6, 3, 8, 8), optimizer=optimizer, threads=1, clip=clip)
    kept = trace(
        model, (6, 3, 8, 8), optimizer=optimizer, threads=1, clip=clip, keep_gradients=True
    )
    results, raw = run(step, model), run(kept, model)
    losses, grads = eager_steps(model, SGD(model.parameters(), 0.1, momentum=0.9), clip=by_hand)
    assert_same_bits(results, losses, grads, model)
    name = "conv1.weight"
    assert np.abs(raw[f"grad:{name}"]).max() > 2 * np.abs(results[f"grad:{name}"]).max()
    assert raw[name].tobytes() == results[name].tobytes()


def test_updates_follow_their_gradients_except_when_the_norm_is_needed():
    model = small()
    step = trace(model, (6, 3, 8, 8))
    for name, _ in model.named_parameters():
        update = call_named(step, f"sgd.{name}")
        readers = step.readers[step.variable_by_name[name].id]
        assert update.id == readers[-1]
        gradient = step.producer[step.outputs[f"grad:{name}"]]
        between = step.calls[gradient + 1 : update.id]
        layer = name.split(".")[0]
        own = [c for c in between if c.phase != "update" and not c.name.endswith(".grad.add")]
        assert all(c.name.startswith(layer) for c in own)
    late = trace(model, (6, 3, 8, 8), clip=1.0)
    phases = [call.phase for call in late.calls]
    assert phases.index("update") > max(i for i, p in enumerate(phases) if p == "backward")


def test_carries_reuse_and_kinds():
    model = small()
    step = trace(model, (6, 3, 8, 8))
    step.check()
    names = {v.id: v.name for v in step.variables}
    carried = {names[old]: names[new] for new, old in step.carries.items()}
    assert carried["conv1.weight"] == "conv1.weight'"
    assert carried["conv1.weight.momentum"] == "conv1.weight.momentum'"
    assert carried["bn1.running_mean"] == "bn1.running_mean'"
    assert set(carried) == {v.name for v in step.variables if v.persistent and v.id in step.initial}
    for call in step.calls:
        assert call.pure == (not call.reuse)
    kinds = {v.name: v.kind for v in step.variables}
    assert kinds["input"] == kinds["target"] == "input"
    assert kinds["bn1.mean"] == "stat"
    assert kinds["pool.index"] == "aux"
    assert kinds["conv1.weight.grad"] == "wgrad"
    assert kinds["conv1.out.grad"] == "grad"
    assert kinds["conv1.weight.momentum"] == kinds["bn1.running_var"] == "state"
    backward = call_named(step, "conv1.grad_weight")
    assert step.calls[backward.forward_of].name == "conv1.fwd"


def test_the_input_gets_no_gradient_and_frozen_parts_neither():
    model = small()
    assert not any(c.name == "conv1.grad_input" for c in trace(model, (6, 3, 8, 8)).calls)
    model.conv1.requires_grad_(False)
    model.bn1.requires_grad_(False)
    step = trace(model, (6, 3, 8, 8))
    assert not any(c.name.startswith("conv1.grad") for c in step.calls)
    assert "grad:conv1.weight" not in step.outputs


def test_tracing_leaves_the_model_as_it_was():
    model = small().eval()
    model.bn1.train()
    x, t = batch()
    F.cross_entropy(model(tensor(x)), tensor(t)).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    state = model.state_dict()
    trace(model, (6, 3, 8, 8))
    assert [m.training for m in model.modules()].count(True) == 1
    assert all(p.grad is grads[name] for name, p in model.named_parameters())
    for key, value in model.state_dict().items():
        assert value.tobytes() == state[key].tobytes()


def test_the_evaluation_trace_is_the_eager_evaluation():
    model = small().eval()
    step = trace(model, (6, 3, 8, 8), training=False, threads=1)
    assert {call.phase for call in step.calls} == {"forward", "loss"}
    assert not step.carries
    results = run(step, model)
    x, t = batch()
    with no_grad():
        output = model(tensor(x))
        loss = F.cross_entropy(output, tensor(t))
    assert results["output"].tobytes() == output.numpy().tobytes()
    assert results["loss"] == loss.numpy()
    bare = trace(model, (6, 3, 8, 8), training=False, loss=None)
    assert set(bare.outputs) == {"output"}
    assert "target" not in bare.variable_by_name


def test_losses_and_their_targets():
    net = nn.Conv2d(3, 4, 1)
    shapes = {}
    for loss in ("cross_entropy", "mse", "l1", nn.CrossEntropyLoss(), nn.MSELoss()):
        target = trace(net, (2, 3, 5, 5), loss=loss).variable_by_name["target"]
        shapes[str(loss)] = target.shape, target.dtype
    assert list(shapes.values()) == [
        ((2, 5, 5), "int64"), ((2, 4, 5, 5), "float32"), ((2, 4, 5, 5), "float32"),
        ((2, 5, 5), "int64"), ((2, 4, 5, 5), "float32"),
    ]  # fmt: skip

    def both(output, target):
        return F.mse_loss(output, target) + 0.5 * F.l1_loss(output, target)

    step = trace(net, (2, 3, 5, 5), loss=both, target_shape=(2, 4, 5, 5), optimizer=None)
    x, target = values(2, 3, 5, 5), values(2, 4, 5, 5)
    results = run_trace(step, initial_values(step, net) | {"input": x, "target": target}, {})
    assert results["loss"] == both(net(tensor(x)), tensor(target)).item()
    assert not any(call.phase == "update" for call in step.calls)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "hinge"}, {"optimizer": "lion"}, {"device": "tpu"}, {"accumulate": -1},
        {"accumulate": 0}, {"conv_algorithm": "magic"}, {"loss": None},
        {"loss": lambda output, target: 1.0}, {"loss": lambda output, target: (output, target)},
        {"loss": lambda output, target: None, "training": False},
    ],
)  # fmt: skip
def test_wrong_options(options):
    with pytest.raises(ConfigError):
        trace(small(), (6, 3, 8, 8), **options)


def test_an_unknown_tensor_inside_a_model_is_refused():
    class Sneaky(nn.Module):
        def forward(self, x):
            return x + tensor(np.zeros((2, 3), np.float32))

    with pytest.raises(ConfigError, match="register_buffer"):
        trace(Sneaky(), (2, 3), optimizer=None)


def test_storages_are_the_model_s_own():
    model = small()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = trace(model, (6, 3, 8, 8), optimizer=optimizer)
    found = storages(step, model, optimizer)
    assert set(found) == {v for v in step.initial if step.variables[v].persistent}
    weight = step.variable_by_name["conv1.weight"].id
    assert found[weight] is model.conv1.weight.storage


def test_reference_and_kernels_agree_on_a_whole_step():
    model = small()
    step = trace(model, (6, 3, 8, 8), threads=1)
    fast, exact = run(step, model), run(step, model, mode="reference")
    for name, value in exact.items():
        scale = max(np.abs(value).max(), 1e-2)  # a bias before batch norm has gradient 0
        np.testing.assert_allclose(fast[name] / scale, value / scale, atol=2e-4, err_msg=name)


def test_workspaces_are_those_of_the_threads():
    model = small()
    one = trace(model, (6, 3, 8, 8), threads=1)
    with pytest.raises(ConfigError, match="fewer than 3 threads"):
        run(one, model, threads=3)
    many = trace(model, (6, 3, 8, 8), threads=3)
    first, again = run(many, model), run(many, model, threads=3)
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)


@pytest.mark.parametrize(
    ("name", "shape"), [("resnet50", (1440, 3, 224, 224)), ("vgg16", (1, 3, 20480, 20480))]
)
def test_large_steps_trace_in_no_time(name, shape):
    model = models.build(name, 1000, "imagenet")
    start = time.thread_time()  # what else runs on the machine does not count
    step = trace(model, shape)
    assert time.thread_time() - start < 1.0
    assert sum(v.nbytes for v in step.variables) > 100e9
    weights = model.conv1 if name == "resnet50" else model.features[0]
    assert weights.weight.storage._physical is None, "no weight was drawn"


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc on this system")
def test_tracing_needs_neither_kernels_nor_much_memory():
    code = (
        "import re, sys; from ooctrain import models; from ooctrain.tracing import trace;"
        "trace(models.build('vgg16', 1000, 'imagenet'), (1, 3, 20480, 20480));"
        "trace(models.build('resnet50', 1000, 'imagenet'), (1440, 3, 224, 224));"
        "assert 'numba' not in sys.modules;"
        # Not ru_maxrss, which begins with the size of the process that started this one.
        "peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read());"
        "assert int(peak[1]) < 500 * 1024"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
