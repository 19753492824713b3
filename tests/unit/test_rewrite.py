"""Fusing and sharing storage: what is joined, what is protected, how much it saves."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ooctrain import functional as F
from ooctrain import models, nn
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.errors import ConfigError
from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.rewrite import REWRITES, apply_rewrites, fuse, share_storage
from ooctrain.tracing import trace

SCALARS = {"lr": 0.1, "step": 0, "seed": 0}


def operations(step):
    return Counter(type(call.op).__name__ for call in step.calls)


def reuse_names(step):
    return {
        step.variables[out].name: step.variables[source].name
        for call in step.calls
        if call.pure
        for out, source in call.reuse.items()
    }


def resnet_trace(**options):
    return trace(models.build("resnet18", stem="cifar"), (4, 3, 32, 32), **options)


def test_resnet_keeps_no_relu():
    before, after = resnet_trace(), fuse(resnet_trace())
    assert operations(before)["ReLU"] == 17
    assert operations(before)["ReLUGrad"] == 17
    left = operations(after)
    assert left["ReLU"] == left["ReLUGrad"] == 0
    assert left["BatchNormApply"] == 20
    # Of 8 block ends, 3 have a batch norm on the shortcut; the other 5 add a masked gradient.
    assert left["AddMasked"] == 5
    assert left["Add"] == 3
    applied = [call.op for call in after.calls if isinstance(call.op, BatchNormApply)]
    assert sum(op.relu for op in applied) == 17
    assert sum(op.residual for op in applied) == 8


def test_fused_calls_keep_names_and_forward_of():
    after = fuse(resnet_trace())
    by_name = {call.name: call for call in after.calls}
    fused = by_name["layer1.0.bn2.fwd"]
    assert [after.variables[v].name for v in fused.outs] == ["layer1.0.relu.out#2"]
    assert by_name["layer1.0.bn2.grad_reduce"].forward_of == fused.id
    assert all(
        c.forward_of is not None
        for c in after.calls
        if c.phase == "backward" and "add" not in c.name
    )


def test_relu_after_convolution_stays():
    step = fuse(trace(models.build("vgg11", stem="cifar"), (2, 3, 32, 32)))
    assert operations(step)["ReLU"] == operations(step)["ReLUGrad"] == 9


class Needed(nn.Module):
    """The output of the batch norm has a second reader, so the ReLU cannot join it."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.bn(self.conv(x))
        return F.relu(y) + F.tanh(y)


def test_what_others_read_is_not_fused_away():
    left = operations(fuse(trace(Needed(), (2, 3, 6, 6), loss="mse")))
    assert left["ReLU"] == 1
    assert not any(
        getattr(c.op, "relu", False) for c in fuse(trace(Needed(), (2, 3, 6, 6), loss="mse")).calls
    )


def test_a_sum_of_a_value_with_itself():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(3)
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            y = self.bn(self.conv(x))
            z = F.relu(y + y)
            return F.relu(z + z)

    left = operations(fuse(trace(Doubled(), (2, 3, 6, 6), loss="mse")))
    assert left["ReLU"] == 0
    assert left["Add"] == 4, "two sums forward, and backward gradients that meet themselves"
    assert left["ReLUGrad"] == 2


def test_what_is_handed_out_is_neither_fused_nor_overwritten():
    class Output(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            return self.bn(self.conv(x))

    step = trace(Output(), (2, 3, 6, 6), loss=None, training=False)
    shared = share_storage(step)
    assert reuse_names(shared) == {"bn.out": "conv.out"}
    outputs = set(resnet_trace().outputs.values())
    shared = share_storage(resnet_trace())
    overwritten = {source for call in shared.calls if call.pure for source in call.reuse.values()}
    assert not overwritten & outputs


def test_in_place_where_nobody_reads_later():
    names = reuse_names(share_storage(trace(models.build("vgg11", stem="cifar"), (2, 3, 32, 32))))
    assert names["features.1.out"] == "features.0.out"
    assert names["features.0.out.grad"] == "features.1.out.grad"
    # The last maps are 1 x 1 pixels, so that flattening moves nothing.
    assert names["reshape.out"] == "avgpool.out"
    assert "features.2.out" not in names.values(), "the gradient of a weight still reads it"


def test_error_terms_of_a_sum_are_one_variable():
    step = resnet_trace()
    (add,) = (call for call in step.calls if call.name == "layer1.0.add.fwd")
    terms = {step.variables[v].name for v in add.ins}
    gradients = {v.name for v in step.variables if v.name in {f"{term}.grad" for term in terms}}
    # The gradient of the sum serves both terms: none of them has one of its own from this call.
    assert not any(call.forward_of == add.id for call in step.calls)
    assert gradients <= {"relu.out.grad"}


def test_accumulated_gradients_share_one_storage():
    shared = share_storage(resnet_trace(accumulate=2))
    names = reuse_names(shared)
    added = [out for out in names if out.startswith("conv1.weight.grad")]
    assert len(added) == 1
    assert names[added[0]] == "conv1.weight.grad"


def test_rewrites_are_pure_and_registered():
    step = resnet_trace()
    before = step.fingerprint
    assert fuse(step).fingerprint == fuse(step).fingerprint
    assert step.fingerprint == before
    both = apply_rewrites(step, ["fuse", "share_storage"])
    assert both.fingerprint == share_storage(fuse(step)).fingerprint
    assert share_storage(both).fingerprint == both.fingerprint
    assert "tile:4x4" in REWRITES
    assert "shrink" not in REWRITES
    for name in ("shrink", None, ["fuse"]):
        with pytest.raises(ConfigError, match="rewrite"):
            apply_rewrites(step, [name])


def test_a_reordering_that_breaks_the_trace_is_refused():
    step = trace(models.build("lenet"), (2, 3, 32, 32))
    with pytest.raises(ConfigError, match="before it is written"):
        step.with_calls([*step.calls[1:], step.calls[0]])


@pytest.mark.slow
def test_fuse_then_share_keeps_the_bits_of_a_resnet():
    model = models.build("resnet18", stem="cifar")
    step = trace(model, (2, 3, 32, 32), threads=1, conv_algorithm="direct")
    rng = np.random.default_rng(0)
    inputs = {"input": rng.standard_normal((2, 3, 32, 32), np.float32), "target": np.array([3, 7])}
    values = initial_values(step, model) | inputs
    plain = run_trace(step, values, SCALARS)
    rewritten = run_trace(share_storage(fuse(step)), values, SCALARS)
    assert plain.keys() == rewritten.keys()
    for name, value in plain.items():
        assert value.tobytes() == rewritten[name].tobytes(), name


def test_what_has_a_new_number_has_all_else_as_before():
    """`Trace.with_calls` writes out each field of what it numbers anew."""
    step = resnet_trace()
    made, names = fuse(step), step.variable_by_name
    moved = [v for v in made.variables if v.id != names[v.name].id]
    assert moved == [replace(names[v.name], id=v.id) for v in moved]
    same = [call for call in made.calls if call.phase == "update"]
    calls = [replace(step.call_by_name[call.name], id=call.id) for call in same]
    fields = ("id", "name", "op", "workspace_bytes", "pure", "phase", "duration_ns")
    assert moved
    assert same
    for field in fields:
        assert [getattr(c, field) for c in same] == [getattr(c, field) for c in calls]
