"""Every operation: shapes, kernel against definition, guards, threads, in place, gradient.

The table of samples is `tests/support/op_samples.py`; what is checked is `oc.testing.check_op`'s
list of laws. The gradients are central finite differences in float64 along random cotangents.
"""

import importlib
import pkgutil
from collections import Counter

import numpy as np
import pytest
from support.op_samples import SAMPLES, normal
from support.quick import quick

import ooctrain.layers
from ooctrain import functional as F
from ooctrain.engine.own_op import UserGrad
from ooctrain.layers.instance_norm import InstanceNormApply
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.relu import ReLU
from ooctrain.step.op import Op
from ooctrain.testing.check_op import check_gradient, check_op


def quick_ones():
    """Of each operation with each algorithm the first samples; then every second one."""
    seen = Counter()
    for number, (op, _) in enumerate(SAMPLES):
        kind = type(op), getattr(op, "algorithm", "")
        if seen[kind] < 2 or seen[kind] % 2 == 0:
            yield number
        seen[kind] += 1


@pytest.mark.parametrize(
    ("op", "arrays"),
    quick(SAMPLES, *quick_ones(), names=2),
    ids=lambda v: repr(v) if isinstance(v, Op) else "",
)
def test_laws_of_an_operation(op, arrays):
    # Winograd enlarges rounding errors; its gradient is the definition that im2col is checked on.
    winograd = getattr(op, "algorithm", "").startswith("winograd")
    # The gradient of an instance norm is that of x with its own statistics: see below.
    gradient = not winograd and not isinstance(op, InstanceNormApply)
    check_op(op, *arrays, tolerance=2e-4 if winograd else 1e-5, gradient=gradient)


def test_the_table_has_every_operation():
    defined = {UserGrad}
    for module in pkgutil.iter_modules(ooctrain.layers.__path__, "ooctrain.layers."):
        if module.name.count(".") == 2 and not module.ispkg:
            values = vars(importlib.import_module(module.name)).values()
            defined |= {v for v in values if isinstance(v, type) and issubclass(v, Op)}
    shared = {base for op in defined for base in op.__bases__}  # what others are made from
    defined = {op for op in defined - shared if op.__name__ != "Op"}
    assert {type(op) for op, _ in SAMPLES} == defined - {UserGrad}


# Batch norm's gradient passes through its own statistics: check the composition.
@pytest.mark.parametrize("shape", [(4, 3, 3, 2), (7, 3)])
def test_gradient_of_batch_norm_in_training(shape):
    def norm(x, gamma, beta):
        return F.batch_norm(x, None, None, gamma, beta, training=True)

    check_gradient(norm, normal(*shape), normal(3), normal(3, seed=1))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_gradient_of_instance_norm(affine, relu):
    def norm(x, *vectors):
        y = F.instance_norm(x, None, None, *vectors)
        return F.relu(y) if relu else y

    check_gradient(norm, normal(2, 3, 3, 4), *(normal(3), normal(3, seed=1)) * affine)


def test_gradient_without_affine():
    check_gradient(lambda x: F.batch_norm(x, None, None, training=True), normal(4, 3, 3, 2))


@pytest.mark.parametrize("stride", [1, 2])
def test_gradient_of_a_block_with_a_shortcut(stride):
    def block(x, w1, w2, w3, gamma, beta):
        y = F.relu(F.conv2d(x, w1, stride=stride, padding=1))
        y = F.batch_norm(F.conv2d(y, w2, padding="same"), None, None, gamma, beta, training=True)
        return F.tanh(y + F.conv2d(x, w3, stride=stride))

    weights = normal(3, 2, 3, 3), normal(3, 3, 3, 3, seed=1), normal(3, 2, 1, 1)
    check_gradient(block, normal(2, 2, 5, 5), *weights, normal(3), normal(3, seed=2))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 2, 1), (2, 3, 1), ((4, 3), 3, (2, 1))]
)
def test_gradient_of_rounded_up_means_with_padding_that_counts(kernel, stride, padding):
    def pooled(x):
        return F.avg_pool2d(x, kernel, stride, padding, ceil_mode=True)

    check_gradient(pooled, normal(2, 3, 7, 6))


def test_gradient_of_a_transposed_convolution_with_more_output_padding_than_stride():
    def enlarged(x, w, b):
        return F.conv_transpose2d(x, w, b, (2, 1), (1, 0), (3, 2), 2, (4, 3))

    check_gradient(enlarged, normal(2, 4, 3, 4), normal(4, 3, 3, 2), normal(6))


def test_gradients_of_arithmetic_slices_and_forks():
    def function(x, y):
        z = 2 * x - y / 4 + 1
        joined = F.concat([z[:, :1], x, y], dim=1)
        return joined, (-z).flatten(1), 3 - x.reshape(-1, 4)

    check_gradient(function, normal(2, 3, 2, 2), normal(2, 3, 2, 2, seed=1))


def test_gradient_of_both_sides_of_a_loss():
    check_gradient(
        lambda x, t: (F.mse_loss(x, t), F.l1_loss(x, t)), normal(3, 4), normal(3, 4, seed=1)
    )


def test_a_wrong_gradient_is_caught():
    class Wrong(ReLU):
        __slots__ = ()

        def vjp(self, tape, ins, outs, grads):
            return grads

    with pytest.raises(AssertionError, match="gradient of input 0"):
        check_op(Wrong(), normal(3, 4))


class Overrun(ReLU):
    __slots__ = ()

    def cpu(self, pool, ins, outs, workspace, scalars):
        CPU.run(ReLU(), pool, ins, outs, workspace, scalars)
        beyond = np.lib.stride_tricks.as_strided(outs[0].reshape(-1), (outs[0].size + 1,), (4,))
        beyond[-1] = 0


class Greedy(ReLU):
    __slots__ = ()

    def cpu(self, pool, ins, outs, workspace, scalars):
        CPU.run(ReLU(), pool, ins, outs, workspace, scalars)
        ins[0][...] = 0


@pytest.mark.parametrize(
    ("op", "law"), [(Overrun(), "wrote outside"), (Greedy(), "changed its input")]
)
def test_a_wrong_kernel_is_caught(op, law):
    with pytest.raises(AssertionError, match=law):
        check_op(op, normal(3, 4))
