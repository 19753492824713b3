"""Each function and tensor method beside torch, on random shapes and options: values and gradients.

The same line of code runs on our functions and on torch's in float64: names, argument orders and
defaults are the same. 60 calls of each.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers
CALLS = 60
#: Of the largest value.
ROUNDING = 3e-5
#: Of our functional, what torch has at its top.
OF_TORCH = (
    "cat", "flatten", "stack", "split", "chunk", "channel_shuffle", "matmul", "bmm", "maximum",
    "minimum",
)  # fmt: skip
OURS = SimpleNamespace(
    **{name: getattr(functional, name) for name in functional.__all__}, tensor=oc.tensor
)
THEIRS = SimpleNamespace(
    **{**vars(torch.nn.functional), **{name: getattr(torch, name) for name in OF_TORCH}},
    tensor=lambda a: torch.tensor(a.astype(np.float64) if a.dtype == np.float32 else a),
)


class Draw:
    """Random arguments: arrays are handed to both, numbers and shapes stand in the call."""

    def __init__(self, *seed):
        self._rng = np.random.default_rng(seed)
        self.n, self.c = self.whole(1, 3), self.whole(1, 6)
        self.h, self.w = self.whole(2, 9), self.whole(2, 9)
        self.image = (self.n, self.c, self.h, self.w)

    def whole(self, low, high):
        return int(self._rng.integers(low, high + 1))

    def one_of(self, *values):
        return values[self.whole(0, len(values) - 1)]

    def array(self, *shape):
        return self._rng.standard_normal(shape, dtype=np.float32)

    def positive(self, *shape):
        return np.abs(self.array(*shape)) + np.float32(0.5)

    def share(self, *shape):
        return self._rng.random(shape, dtype=np.float32)

    def labels(self, *shape, classes):
        found = self._rng.integers(0, classes, shape)
        found.reshape(-1)[1::5] = -100
        return found

    def repeated(self, shape):
        """A shape that is repeated to `shape`."""
        cut = self.whole(0, len(shape))
        return tuple(self.one_of(1, extent) for extent in shape[cut:])

    def axes(self):
        return self.one_of(None, 0, 1, -1, (2, 3), (0, 2, 3), (0, -1), (1, 2))


def flat(function):
    """A function of one image without options."""
    return lambda d: (lambda t, x: function(t, x), [3 * d.array(*d.image)])


def above_0(function):
    """A function of one image of positive numbers."""
    return lambda d: (lambda t, x: function(t, x), [d.positive(*d.image)])


def at_kinks(function):
    """A function of one image of whole numbers and halves, some of which are its kinks."""
    return lambda d: (lambda t, x: function(t, x), [np.round(4 * d.array(*d.image)) / 2])


def numbered(name, **numbers):
    """A function of one image and numbers."""

    def draw(d):
        options = {key: d.one_of(*values) for key, values in numbers.items()}
        return (lambda t, x: getattr(t, name)(x, **options)), [np.round(6 * d.array(*d.image)) / 2]

    return draw


def pair(function):
    """A function of two tensors, one of which may be repeated."""

    def draw(d):
        shapes = [d.image, d.repeated(d.image)]
        shapes = shapes[::-1] if d.whole(0, 1) else shapes
        return function, [d.positive(*shape) * d.one_of(1, -1) for shape in shapes]

    return draw


def reduced(name):
    def draw(d):
        dim, keep = d.axes(), bool(d.whole(0, 1))
        return (lambda t, x: getattr(x, name)(dim, keep)), [d.array(*d.image)]

    def whole(d):
        return draw(d) if d.whole(0, 5) else (lambda t, x: getattr(x, name)(), [d.array(*d.image)])

    return whole


def conv(d):
    g = d.one_of(1, 2)
    k, c, r, s = g * d.whole(1, 4), g * d.whole(1, 4), d.whole(1, 3), d.whole(1, 3)
    stride, dilation, padding = (d.whole(1, 2), d.whole(1, 3)), d.whole(1, 2), d.whole(2, 3)
    return (
        lambda t, x, w, b: t.conv2d(x, w, b, stride, padding, dilation, g),
        [d.array(d.n, c, d.h, d.w), d.array(k, c // g, r, s), d.array(k)],
    )


def conv_transpose(d):
    c, k, stride = d.whole(1, 4), d.whole(1, 4), d.whole(1, 3)
    more = d.whole(0, stride - 1)
    return (
        lambda t, x, w, b: t.conv_transpose2d(x, w, b, stride, 1, more),
        [d.array(d.n, c, d.h, d.w), d.array(c, k, 3, 2), d.array(k)],
    )


def pool(name):
    def draw(d):
        k = d.whole(1, 3)
        options = k, d.whole(1, 3), d.whole(0, k // 2)
        ceil = bool(d.whole(0, 1))
        return (lambda t, x: getattr(t, name)(x, *options, ceil_mode=ceil)), [
            d.array(d.n, d.c, d.h + 2, d.w + 2)
        ]

    return draw


def adaptive(d):
    size = d.whole(1, 9), d.whole(1, 9)
    return (lambda t, x: t.adaptive_avg_pool2d(x, size)), [d.array(*d.image)]


def resized(mode):
    def draw(d):
        size = d.whole(1, 12), d.whole(1, 12)
        corners = bool(d.whole(0, 1)) if mode == "bilinear" else None
        return (lambda t, x: t.interpolate(x, size, mode=mode, align_corners=corners)), [
            d.array(*d.image)
        ]

    return draw


def padded(mode, most):
    def draw(d):
        sides = tuple(d.whole(0, most) for _ in range(4))
        value = d.one_of(None, 0.0, -1.25) if mode == "constant" else None
        return (lambda t, x: t.pad(x, sides, mode, value)), [d.array(*d.image)]

    return draw


def joined(d):
    axis = d.whole(0, 3)
    shapes = [[*d.image] for _ in range(d.whole(1, 3))]
    for shape in shapes:
        shape[axis] = d.whole(1, 4)
    return (lambda t, *xs: t.cat(list(xs), axis)), [d.array(*shape) for shape in shapes]


def batch_norm(d):
    tail = d.one_of((), (d.h,), (d.h, d.w))
    return (
        lambda t, x, g, b: t.batch_norm(x, None, None, g, b, True, eps=1e-3),
        [d.array(d.n + 2, d.c, *tail), d.array(d.c), d.array(d.c)],
    )


def instance_norm(d):
    return (
        lambda t, x, g, b: t.instance_norm(x, weight=g, bias=b, eps=1e-3),
        [d.array(*d.image), d.array(d.c), d.array(d.c)],
    )


def group_norm(d):
    g, tail = d.whole(1, 3), d.one_of((), (d.h,), (d.h, d.w))
    c = g * d.whole(2, 4)
    return (
        lambda t, x, w, b: t.group_norm(x, g, w, b, 1e-3),
        [d.array(d.n, c, *tail), d.array(c), d.array(c)],
    )


def layer_norm(d):
    shape = d.one_of((d.w,), (d.h, d.w), (d.c, d.h, d.w))
    return (
        lambda t, x, w, b: t.layer_norm(x, shape, w, b, 1e-3),
        [d.array(*d.image), d.array(*shape), d.array(*shape)],
    )


def linear(d):
    k = d.whole(1, 9)
    return t_linear, [d.array(d.n, d.h), d.array(k, d.h), d.array(k)]


def t_linear(t, x, w, b):
    return t.linear(x, w, b)


def of_classes(name):
    def draw(d):
        k, tail = d.whole(2, 6), d.one_of((), (d.h, d.w))
        classes = d.labels(d.n, *tail, classes=k)
        classes.reshape(-1)[0] = 0
        weight, weighted = d.positive(k), d.whole(0, 1)
        reduction = d.one_of("mean", "sum", "none")

        def function(t, x):
            own = t.tensor(weight) if weighted else None
            logits = t.log_softmax(x, 1) if name == "nll_loss" else x
            return getattr(t, name)(logits, t.tensor(classes), own, reduction=reduction)

        return function, [3 * d.array(d.n, k, *tail)]

    return draw


def of_values(name, **numbers):
    def draw(d):
        options = {key: d.one_of(*values) for key, values in numbers.items()}
        options["reduction"] = d.one_of("mean", "sum", "none")
        return (
            lambda t, x, y: getattr(t, name)(x, y, **options),
            [3 * d.array(*d.image), d.share(*d.image)],
        )

    return draw


def binary(d):
    weight, factor = d.one_of(None, d.share(d.w)), d.one_of(None, d.positive(d.h, 1))
    reduction = d.one_of("mean", "sum", "none")

    def function(t, x, y):
        own, of_hits = (None if w is None else t.tensor(w) for w in (weight, factor))
        return t.binary_cross_entropy_with_logits(
            x, y, own, reduction=reduction, pos_weight=of_hits
        )

    return function, [8 * d.array(*d.image), d.share(*d.image)]


def prelu(d):
    slopes = d.one_of(1, d.c)
    return (lambda t, x, w: t.prelu(x, w)), [d.array(*d.image), d.array(slopes)]


def permuted(d):
    order = tuple(int(axis) for axis in np.argsort(d.array(4)))
    return (lambda t, x: x.permute(*order) * 1.5), [d.array(*d.image)]


def clamped(d):
    low, high = d.one_of(None, -0.5), d.one_of(0.75, -1.0)
    return (lambda t, x: x.clamp(low, high)), [d.array(*d.image)]


def shuffled(d):
    r = d.whole(1, 3)
    return (lambda t, x: t.pixel_shuffle(x, r)), [d.array(d.n, d.c * r * r, d.h, d.w)]


def unshuffled(d):
    r = d.whole(1, 3)
    return (lambda t, x: t.pixel_unshuffle(x, r)), [d.array(d.n, d.c, d.h * r, d.w * r)]


def channels_shuffled(d):
    g = d.whole(1, 4)
    return (lambda t, x: t.channel_shuffle(x, g)), [d.array(d.n, d.c * g, d.h, d.w)]


def in_steps(d, *shape):
    """Few different numbers, so that some are equal."""
    return np.round(d.array(*shape) * 2) / 2


def compared(name):
    def draw(d):
        shapes = [d.image, d.repeated(d.image)]
        shapes = shapes[::-1] if d.whole(0, 1) else shapes
        return (lambda t, x, y: getattr(t, name)(x, y)), [in_steps(d, *shape) for shape in shapes]

    return draw


def chosen(d):
    how, number = d.one_of("gt", "ge", "lt", "le", "eq", "ne"), d.one_of(0, 0.5)

    def function(t, x, y, z):
        mask = getattr(z, how)(number)
        mask = mask if t is OURS else mask.double()
        if t is OURS:
            return t.where(mask, x, y) * x.where(mask, 2.0) + y.masked_fill(mask, -1.0) + z
        on = mask > 0
        two = torch.tensor(2.0).double()
        return torch.where(on, x, y) * x.where(on, two) + y.masked_fill(on, -1.0) + z

    return function, [d.array(*d.image), d.array(*d.image), in_steps(d, *d.repeated(d.image))]


def extreme(name):
    def draw(d):
        dim, keep = d.one_of(0, 1, -1, (2, 3), (0, 2, 3), (0, -1), (1, 2)), bool(d.whole(0, 1))
        return (lambda t, x: getattr(x, name)(dim, keep)), [in_steps(d, *d.image)]

    return draw


def extreme_along(name):
    def draw(d):
        dim, keep = d.whole(-4, 3), bool(d.whole(0, 1))

        def function(t, x):
            values, indices = getattr(x, name)(dim, keep)
            weight = indices.numpy() if t is OURS else indices.detach().numpy()
            return values * t.tensor(weight.astype(np.float32)) + getattr(x, name)()

        return function, [d.array(*d.image)]

    return draw


def spread_of(name):
    def draw(d):
        dim, keep = d.one_of(1, -1, (2, 3), (0, 2, 3), (0, -1), (1, 2)), bool(d.whole(0, 1))
        correction, image = d.one_of(0, 0.5), (d.n + 1, d.c + 1, d.h, d.w)
        return (lambda t, x: getattr(x, name)(dim, correction=correction, keepdim=keep)
                + getattr(x, name)(unbiased=False)), [d.array(*image)]  # fmt: skip

    return draw


def length(d):
    p, dim = d.one_of(1, 2, 3, "fro", float("inf")), d.one_of(1, -1, (2, 3), (0, 2))
    if p == "fro":
        return (lambda t, x: x.norm("fro", dim, True)), [d.array(*d.image) * d.whole(0, 3)]
    return (lambda t, x: t.normalize(x, p, dim)), [d.array(*d.image)]


def log_of_sum(d):
    dim, keep = d.one_of(1, -1, (2, 3), (0, 2, 3)), bool(d.whole(0, 1))
    return (lambda t, x: x.logsumexp(dim, keep)), [30 * d.array(*d.image)]


def adaptive_max(d):
    size = d.one_of(d.whole(1, 9), (d.whole(1, 9), d.whole(1, 9)), (None, 1), (d.h, 1))
    return (lambda t, x: t.adaptive_max_pool2d(x, size)), [d.array(*d.image)]


def channels_beside(d):
    size, numbers = d.whole(1, 5), d.one_of((), (0.5, 0.75, 2.0), (0.1, 1.3))
    return (lambda t, x: t.local_response_norm(x, size, *numbers)), [3 * d.array(*d.image)]


def product(d):
    m, k, n = d.whole(1, 9), d.whole(1, 9), d.whole(1, 9)
    outer = d.one_of((), (d.n,), (d.n, d.c))
    left = d.one_of((*outer, m, k), (*d.repeated(outer), m, k), (m, k), (k,))
    right = d.one_of((*outer, k, n), (*d.repeated(outer), k, n), (k, n), (k,))
    return (lambda t, x, y: x @ y + t.matmul(x, y)), [d.array(*left), d.array(*right)]


def products(d):
    b, m, k, n = (d.whole(1, 9) for _ in range(4))
    return (lambda t, x, y: t.bmm(x, y) + x.bmm(y)), [d.array(b, m, k), d.array(b, k, n)]


def attention(d):
    outer, a, b, e = d.one_of((), (d.n,), (d.n, d.c)), d.whole(1, 9), d.whole(1, 9), d.whole(1, 9)
    causal, scale = bool(d.whole(0, 1)), d.one_of(None, 0.7)
    mask = None if causal else d.one_of(None, d.array(a, b))

    def function(t, q, k, v):
        own = None if mask is None else t.tensor(mask)
        return t.scaled_dot_product_attention(q, k, v, own, is_causal=causal, scale=scale)

    return function, [d.array(*outer, a, e), d.array(*outer, b, e), d.array(*outer, b, 3)]


def linear_of_many(d):
    k, x = d.whole(1, 9), d.one_of(d.array(d.n, d.c, d.w), d.array(*d.image), d.array(d.w))
    return (lambda t, x, w, b: t.linear(x, w, b)), [x, d.array(k, d.w), d.array(k)]


def stacked(d):
    axis, shape = d.whole(-4, 3), (d.n, d.c, d.h)
    return (lambda t, *xs: t.stack(xs, axis)), [d.array(*shape) for _ in range(d.whole(1, 3))]


def parted(d):
    axis, size, count = d.whole(-4, 3), d.whole(1, 4), d.whole(1, 5)

    def function(t, x):
        parts = [*t.split(x, size, axis)[::-1], *x.chunk(count, axis), *x.unbind(axis)[:0]]
        last = [x.split([x.shape[axis] - 1, 1], axis)[1], x.narrow(axis, 0, 1)]
        rows = x.select(axis, -1).unsqueeze(axis)
        return t.cat([*parts, *last, rows, *(r.unsqueeze(axis) for r in x.unbind(axis))], axis)

    return function, [d.array(*d.image)]


def stepped(d):
    keys = [slice(d.one_of(None, 0, 1), d.one_of(None, 4, -1), d.whole(1, 3)) for _ in range(4)]
    keys = [key if range(n)[key] else slice(None) for key, n in zip(keys, d.image, strict=True)]
    keys[d.whole(0, 3)] = d.one_of(slice(None, None, 2), 0, -1)
    return (lambda t, x: x[tuple(keys)] * 2), [d.array(*d.image)]


def flipped(d):
    dims = d.one_of((0,), (1,), (2, 3), (-1, 0), (0, 1, 2, 3))
    shifts = [d.whole(-9, 9) for _ in dims]
    return (lambda t, x: x.flip(dims) * x.roll(shifts, dims) + x.roll(2, 1)), [d.array(*d.image)]


def expanded(d):
    shape = d.repeated(d.image)
    sizes = [
        n if m == 1 else d.one_of(-1, n)
        for n, m in zip(d.image[4 - len(shape) :], shape, strict=True)
    ]
    sizes = [*d.image[: 4 - len(shape)], *sizes]
    return (lambda t, x, y: x.expand(*sizes) * 2 + x.expand_as(y) * y), [
        d.array(*shape),
        d.array(*d.image),
    ]


def repeated_often(d):
    times = [d.whole(1, 2) for _ in range(d.whole(4, 5))]
    return (lambda t, x: x.repeat(*times) * 2), [d.array(*d.image)]


def framed(d):
    pads = [d.whole(-1, 2) for _ in range(2 * d.whole(1, 4))]
    value = d.one_of(0.0, 1.5)
    return (lambda t, x: t.pad(x, pads, value=value)), [d.array(d.n + 2, d.c + 2, d.h + 1, d.w + 1)]


def along(name):
    def draw(d):
        dim = d.whole(-4, 3)
        return (lambda t, x: getattr(t, name)(x, dim)), [5 * d.array(*d.image)]

    return draw


FUNCTIONS = {
    # The 21 of the first comparison.
    "relu": flat(lambda t, x: t.relu(x)),
    "leaky_relu": flat(lambda t, x: t.leaky_relu(x, 0.2)),
    "tanh": flat(lambda t, x: t.tanh(x)),
    "sigmoid": flat(lambda t, x: t.sigmoid(x)),
    "linear": linear,
    "conv2d": conv,
    "conv_transpose2d": conv_transpose,
    "max_pool2d": pool("max_pool2d"),
    "avg_pool2d": pool("avg_pool2d"),
    "adaptive_avg_pool2d": adaptive,
    "interpolate nearest": resized("nearest"),
    "interpolate bilinear": resized("bilinear"),
    "pad": padded("constant", 3),
    "pad reflect": padded("reflect", 1),
    "cat": joined,
    "flatten": flat(lambda t, x: t.flatten(x, 1)),
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "cross_entropy": of_classes("cross_entropy"),
    "mse_loss": of_values("mse_loss"),
    "l1_loss": of_values("l1_loss"),
    # What came later.
    "add": pair(lambda t, x, y: x + y),
    "subtract": pair(lambda t, x, y: x - y),
    "multiply": pair(lambda t, x, y: x * y),
    "divide": pair(lambda t, x, y: x / y),
    "with numbers": flat(lambda t, x: 2.0 / (x * x + 1.5) - (1 - x) / 3 + 2 * x),
    "sum": reduced("sum"),
    "mean": reduced("mean"),
    "permute": permuted,
    "transpose": flat(lambda t, x: x.transpose(1, -1).unsqueeze(2).squeeze(2)),
    "clamp": clamped,
    "gelu": flat(lambda t, x: t.gelu(x)),
    "gelu tanh": flat(lambda t, x: t.gelu(x, approximate="tanh")),
    "silu": flat(lambda t, x: t.silu(x)),
    "hardswish": flat(lambda t, x: t.hardswish(x)),
    "hardsigmoid": flat(lambda t, x: t.hardsigmoid(x)),
    "relu6": flat(lambda t, x: t.relu6(3 * x)),
    "elu": numbered("elu", alpha=(1.0, 0.3, 2.5)),
    "celu": numbered("celu", alpha=(1.0, 0.3, 2.5)),
    "selu": numbered("selu"),
    "mish": numbered("mish"),
    "softplus": numbered("softplus", beta=(1, 0.5, 3.0), threshold=(20, 2.0)),
    "logsigmoid": numbered("logsigmoid"),
    "hardtanh": numbered("hardtanh", min_val=(-1.0, -2.5), max_val=(1.0, 0.5)),
    "softsign": numbered("softsign"),
    "tanhshrink": numbered("tanhshrink"),
    "softmin": numbered("softmin", dim=(1, -1)),
    "glu": flat(lambda t, x: t.glu(t.cat([x, x * 2], 1), 1)),
    "exp": flat(lambda t, x: x.exp()),
    "erf": flat(lambda t, x: x.erf()),
    "abs": at_kinks(lambda t, x: x.abs() + abs(x) * 2),
    "log": above_0(lambda t, x: x.log()),
    "roots": above_0(lambda t, x: x.sqrt() + x.rsqrt() + x**0.5 + x**-0.5),
    "powers": above_0(lambda t, x: x**1.7 + x.pow(-0.3) + x**4 + x**-3),
    "powers of any": flat(lambda t, x: x**4 - x.pow(5) * 0.1 + x.square() + x**0),
    "reciprocal": above_0(lambda t, x: x.reciprocal()),
    "prelu": prelu,
    "softmax": along("softmax"),
    "log_softmax": along("log_softmax"),
    "pixel_shuffle": shuffled,
    "pixel_unshuffle": unshuffled,
    "channel_shuffle": channels_shuffled,
    "stack": stacked,
    "parts": parted,
    "slices with steps": stepped,
    "flip": flipped,
    "expand": expanded,
    "repeat": repeated_often,
    "pad replicate": padded("replicate", 3),
    "pad circular": padded("circular", 2),
    "pad of any axes": framed,
    "maximum": compared("maximum"),
    "minimum": compared("minimum"),
    "where": chosen,
    "amax": extreme("amax"),
    "amin": extreme("amin"),
    "max": extreme_along("max"),
    "min": extreme_along("min"),
    "var": spread_of("var"),
    "std": spread_of("std"),
    "norm": length,
    "logsumexp": log_of_sum,
    "adaptive_max_pool2d": adaptive_max,
    "local_response_norm": channels_beside,
    "matmul": product,
    "bmm": products,
    "scaled_dot_product_attention": attention,
    "linear of many rows": linear_of_many,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "nll_loss": of_classes("nll_loss"),
    "binary_cross_entropy_with_logits": binary,
    "smooth_l1_loss": of_values("smooth_l1_loss", beta=(0.0, 0.5, 1.0, 2.5)),
}


def both(function, arrays, cotangent):
    """(value and gradients of ours, of theirs)."""
    mine = [oc.tensor(a, requires_grad=True) for a in arrays]
    peer = [THEIRS.tensor(a).requires_grad_() for a in arrays]
    y, z = function(OURS, *mine), function(THEIRS, *peer)
    assert tuple(y.shape) == tuple(z.shape)
    direction = cotangent(*z.shape)
    y.backward(oc.tensor(direction))
    z.backward(THEIRS.tensor(direction))
    return [y, *(t.grad for t in mine)], [z.detach(), *(t.grad for t in peer)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_random_calls(name):
    for call in range(CALLS):
        draw = Draw(list(FUNCTIONS).index(name), call)
        function, arrays = FUNCTIONS[name](draw)
        found, wanted = both(function, arrays, lambda *shape, d=draw: np.asarray(d.array(*shape)))
        for place, (mine, peer) in enumerate(zip(found, wanted, strict=True)):
            scale = 1 + float(peer.abs().max())
            error = float(np.abs(mine.numpy() - peer.numpy()).max()) / scale
            assert error < ROUNDING, (call, place, [a.shape for a in arrays])


def test_how_many_calls_there_are():
    assert CALLS * len(FUNCTIONS) >= 1260 + 24 * 60
