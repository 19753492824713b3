"""Functions that are made of several operations: their gradients, against finite differences, and
that what is repeated, summed or normalised comes out as NumPy says."""

from __future__ import annotations

import numpy as np
import pytest
from support.draws import labels, normal, positive

import ooctrain as oc
from ooctrain import functional as F
from ooctrain.testing.check_op import check_gradient

X = (2, 4, 3, 5)
ARITHMETIC = {
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / (y * y + 1.0),
    "difference": lambda x, y: x - y,
    "sum": lambda x, y: x + y,
    "the other way round": lambda x, y: (y - x) * (y + x),
    "one over": lambda x, y: 1.0 / (x * x + 1.0) - y,
}


@pytest.mark.parametrize("shape", [X, (4, 1, 1), (1, 4, 1, 5), (3, 5), (), (2, 1, 1, 1)])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_with_repeated_operands(name, shape):
    function = ARITHMETIC[name]
    x, y = normal(*X), np.asarray(normal(*shape, seed=1), np.float32)
    check_gradient(function, x, y)
    found = function(oc.tensor(x), oc.tensor(y)).numpy()
    wanted = function(x.astype(float), y.astype(float))
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_tensor_with_itself():
    check_gradient(lambda x: (x * x, x / (x * x + 1.0), x - x * 2.0), normal(*X))


AXES = [None, 0, 1, -1, (2, 3), (0, 2, 3), (0, 1), (1, 2), (0, 3), [0, 1, 2, 3]]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", AXES)
def test_sums_and_means(dim, keepdim):
    x = normal(*X)
    check_gradient(lambda x: (x.sum(dim, keepdim), x.mean(dim, keepdim=keepdim)), x)
    axis = tuple(dim) if isinstance(dim, list) else dim
    for name in ("sum", "mean"):
        found = getattr(oc.tensor(x), name)(dim, keepdim).numpy()
        wanted = getattr(x.astype(float), name)(axis=axis, keepdims=keepdim)
        assert found.shape == wanted.shape
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (3, 4, 2), (1, 1, 1, 1)])
def test_sums_of_other_shapes(shape):
    for dim in (None, 0, -1):
        check_gradient(lambda x, dim=dim: (x.sum(dim), x.mean(dim)), normal(*shape))


SHAPED = {
    "permute": lambda x: x.permute(0, 2, 3, 1) * 2.0,
    "transpose": lambda x: x.transpose(1, -1),
    "squeeze": lambda x: x.mean(2, keepdim=True).squeeze(2).unsqueeze(-1),
    "shuffle": lambda x: F.pixel_shuffle(x, 2),
    "unshuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2)[:, :, 1:5, ::2][..., :4], 2),
    "shuffled channels": lambda x: F.channel_shuffle(x * x, 2),
    "steps": lambda x: x[:, ::3, ::2, 1::2] * x[0, -1, ::2, :4:2],
    "parts": lambda x: F.stack([*x.split([3, 2], 3)[1].unbind(-1), x.select(3, -2)], 1),
    "chunks": lambda x: F.cat(list(x.chunk(3, 3)[::-1]), 3) * x.flip(0, -1) + x.narrow(3, 1, 1),
    "repeated": lambda x: x[:, :1].expand(-1, 4, 3, 5) * x + x.repeat(1, 1, 2, 1)[:, :, 2:5],
    "replicate": lambda x: F.pad(x, (2, 0, 1, 3), "replicate"),
    "circular": lambda x: F.pad(x, (2, 5, 1, 3), "circular"),
    "pad channels": lambda x: (
        F.pad(x, (0, -1, 1, 0, 2, 3)) * F.pad(x, (-1, 0, 0, 1, 3, 2), value=2.0)
    ),
    "largest": lambda x: x.amax((1, 3), True) * x + x.max(2).values.unsqueeze(2) - x.amin(),
    "over axes apart": lambda x: x.amax((0, 2), True) * x + x.amin((1, 2), keepdim=True),
    "smallest": lambda x: x.min(1, keepdim=True)[0] * x + F.maximum(x, x.flip(1)),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, (2, 3)) * F.adaptive_max_pool2d(x, 1),
    "deviation": lambda x: x.std((2, 3), keepdim=True) * x + x.var(1, False, True),
    "lengths": lambda x: F.normalize(x) + x.norm(1, (0, 2), True) * x.norm(3, 1, True),
    "log of a sum": lambda x: x.logsumexp((1, 2), keepdim=True) * x,
    "neighbouring channels": lambda x: F.local_response_norm(x, 3, 0.5, 0.6, 2.0),
    "chosen": lambda x: F.where(x.gt(0.1), x * x, x.exp()) * F.minimum(x, 0.3 * x.flip(3)),
    "filled": lambda x: x.masked_fill(x.le(0.0), 2.0) + F.where(x.ne(1.0), 1.0, x),
    "product": lambda x: x @ x.transpose(-1, -2) @ x.mean((0, 1)) + x @ x[0, 0, 0].unsqueeze(1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x * 2.0, x.flip(2)),
    "causal attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
    "softmax": lambda x: F.softmax(x, 1) * F.log_softmax(x, -1),
    "clamp": lambda x: x.clamp(-0.5, 1) + x.clamp(max=0.7) * x.clamp(min=-0.3),
    "gelu": lambda x: F.gelu(x) + F.gelu(x, "tanh") * F.silu(x),
    "hard": lambda x: F.hardswish(x * 3.0) + F.hardsigmoid(x * 3.0) * F.relu6(x * 3.0),
    "elu": lambda x: F.elu(x, 0.7) + F.celu(x, 1.5) * F.selu(x),
    "soft": lambda x: F.softplus(x, 2.0, 1.5) + F.logsigmoid(x) * F.softsign(x) - F.mish(x),
    "hardtanh": lambda x: F.hardtanh(x) * F.hardtanh(x, -0.3, 0.9) + F.tanhshrink(x),
    "glu": lambda x: F.glu(x, 1) * F.softmin(x, 1)[:, :2],
    "powers": lambda x: (x * x + 0.5).sqrt() + (x * x + 0.5) ** 1.7 - (x.exp() + 1.0).log() ** -2,
    "sizes": lambda x: abs(x) * x.erf() + (x.square() + 1.0).rsqrt() * x.reciprocal() + x**4,
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "stochastic_depth of rows": lambda x: F.stochastic_depth(x, 0.4, "row"),
    "stochastic_depth of batches": lambda x: F.stochastic_depth(x, 0.1, "batch"),
    "layer_norm": lambda x: F.layer_norm(x, (3, 5)) + F.layer_norm(x, 5),
    "group_norm": lambda x: F.group_norm(x, 2),
}


@pytest.mark.parametrize("name", SHAPED)
def test_gradients(name):
    check_gradient(SHAPED[name], normal(*X))


@pytest.mark.parametrize("slopes", [1, 4])
def test_gradient_of_prelu(slopes):
    check_gradient(F.prelu, normal(*X), normal(slopes))
    check_gradient(F.prelu, normal(6, 4), normal(slopes))


@pytest.mark.parametrize("shape", [X, (3, 4), (3, 4, 6), (2, 4, 2, 3, 2)])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradient_of_group_norm(groups, shape):
    check_gradient(lambda x, *v: F.group_norm(x, groups, *v), normal(*shape), normal(4), normal(4))


def test_gradient_of_layer_norm():
    check_gradient(
        lambda x, *v: F.layer_norm(x, (3, 5), *v), normal(*X), normal(3, 5), normal(3, 5)
    )
    check_gradient(lambda x, *v: F.layer_norm(x, 7, *v), normal(5, 7), normal(7), normal(7))


def test_gradient_of_batch_norm_over_sequences():
    check_gradient(
        lambda x, *v: F.batch_norm(x, None, None, *v, training=True), normal(3, 4, 5), normal(4),
        normal(4),
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_losses(reduction):
    x, target, classes = normal(6, 4), positive(6, 4) / 4, labels(6, classes=4, ignored=(2,))
    weight = oc.tensor(positive(4, seed=3))

    def losses(x, t):
        smooth = F.smooth_l1_loss(x, t, reduction=reduction, beta=0.8)
        plain = F.binary_cross_entropy_with_logits(x, t, reduction=reduction)
        options = {"reduction": reduction, "pos_weight": weight}
        weighted = F.binary_cross_entropy_with_logits(x, t, weight, **options)
        return smooth, plain, weighted

    check_gradient(losses, x, target)

    def likelihoods(x, t):
        logs = F.log_softmax(x, 1)
        return F.nll_loss(logs, t, reduction=reduction), F.nll_loss(
            logs, t, weight, reduction=reduction
        )

    check_gradient(likelihoods, x, classes)
    wanted = F.cross_entropy(oc.tensor(x), oc.tensor(classes), weight, reduction=reduction)
    found = F.nll_loss(
        F.log_softmax(oc.tensor(x), 1), oc.tensor(classes), weight, reduction=reduction
    )
    assert np.allclose(found.numpy(), wanted.numpy(), rtol=1e-5)
