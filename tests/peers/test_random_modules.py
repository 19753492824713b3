"""Random networks of PyTorch, imported: the same names, values and gradients, or a refusal by name.

A network is drawn as the text of its own `forward`, line by line, over the tensors that are there
so far: parts that are shared or called twice, operations in place, views, sums, products, slices,
outputs of several tensors. PyTorch runs that text, and `from_torch` reads it.
"""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain.errors import OoctrainError

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers
tnn, TF = torch.nn, torch.nn.functional
BATCH, SIDE = 3, 6
#: Smooth ones: where a kink is met, rounding decides on which side a value is.
ACTIVATIONS = (
    "TF.silu({x})", "TF.gelu({x})", "torch.sigmoid({x})", "torch.tanh({x})", "TF.softplus({x})",
    "TF.mish({x})", "torch.sigmoid_({x} * 1.0)", "TF.elu({x})", "TF.silu({x}, inplace=True)",
    "{x}.exp().add(1.0).log()", "{x} / (1 + {x} * {x})", "({x} ** 2 + 1).sqrt()",
    "{x}.max(1, keepdim=True)[0] - {x}",
    "TF.softmax({x}, 1)", "TF.softmax({x}, -1)", "{x}.mul_(0.5)", "{x}.add_(1.0)",
    "{x}.clone().tanh_()", "-{x}", "TF.selu({x})", "torch.rsqrt({x} * {x} + 0.5)", "2.0 - {x}",
)  # fmt: skip
SHAPES = (
    "{x}.flip(3)", "{x}.transpose(2, 3).contiguous()", "{x}.permute(0, 1, 3, 2)",
    "{x}.reshape({x}.shape[0], -1).view({x}.shape)", "TF.pad({x}, (1, 0, 0, 1))[:, :, :-1, 1:]",
    "{x} * {x}.mean((2, 3), keepdim=True)", "{x} - {x}.mean(1, keepdim=True)",
    "torch.stack([{x}, {x}.flip(2)], 1).sum(1)", "{x}.unsqueeze(1).squeeze(1)",
    "torch.cat(list({x}.unbind(2)), 2).reshape({x}.shape)", "{x}[:, :, ::1]",
    "{x} @ {x}.transpose(2, 3) * 0.1", "{x} * {x}.amax((2, 3), keepdim=True)",
    "{x}.roll(1, 2)", "torch.cat({x}.chunk(2, 3)[::-1], 3)", "{x} + {x}.var((2, 3), keepdim=True)",
    "TF.interpolate({x}, scale_factor=2.0)[:, :, ::2, ::2]", "TF.layer_norm({x}, {x}.shape[1:])",
    "torch.where({x} > 10.0, {x} * 2.0, {x})", "TF.normalize({x} + 3.0, dim=1)",
    "torch.einsum('nchw,nchv->ncwv', {x}, {x}) * 0.1", "{x}.tile(1, 1, 2, 1)[:, :, 3:-3]",
    "torch.lerp({x}, {x}.flip(3), 0.3)", "{x} + torch.ones_like({x})", "{x}.movedim(2, 3)",
)  # fmt: skip


class Drawn(tnn.Module):
    """Its parts under drawn names, and the text of its forward pass."""

    def __init__(self, parts, lines):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.text = "\n".join(["def forward(self, x0):", *(f"    {line}" for line in lines)])

    def forward(self, x0):
        names = {"torch": torch, "TF": TF}
        exec(self.text, names)
        return names["forward"](self, x0)

    def extra_repr(self):  # what Hypothesis shows of a falsifying one
        return self.text


@st.composite
def networks(draw):
    """All tensors are images of one size; channels differ."""
    channels = {"x0": 3}
    parts, lines = {}, []

    def part(module):
        parts[f"part{len(parts)}"] = module
        return f"self.part{len(parts) - 1}"

    def line(text, count):
        name = f"x{len(channels)}"
        channels[name] = count
        lines.append(f"{name} = {text}")

    def one():
        return draw(st.sampled_from(sorted(channels)))

    def same_channels(x):
        return draw(st.sampled_from(sorted(n for n, c in channels.items() if c == channels[x])))

    def convolution(x):
        count, groups = channels[x], draw(st.sampled_from([1, 1, channels[x]]))
        out = groups * draw(st.integers(1, 2)) if groups > 1 else draw(st.integers(1, 6))
        kernel, mode = draw(st.sampled_from([(1, 0, 1), (3, 1, 1), (3, 2, 2), (5, 2, 1)])), "zeros"
        if kernel[1]:
            mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]))
        size, padding, dilation = kernel
        biased = draw(st.booleans())
        made = tnn.Conv2d(count, out, size, 1, padding, dilation, groups, biased, mode)
        line(f"{part(made)}({x})", out)

    def twice(x):
        """One part that is called on two tensors."""
        shared = part(tnn.Conv2d(channels[x], channels[x], 3, padding=1))
        line(f"{shared}({shared}({x}))", channels[x])

    def norm(x):
        count = channels[x]
        made = draw(st.sampled_from([
            tnn.BatchNorm2d(count), tnn.BatchNorm2d(count, affine=False),
            tnn.BatchNorm2d(count, momentum=0.3, eps=1e-3), tnn.GroupNorm(1, count),
            tnn.InstanceNorm2d(count, affine=True),
            tnn.BatchNorm2d(count, track_running_stats=False),
        ]))  # fmt: skip
        line(f"{part(made)}({x})", count)

    def nested(x):
        count = channels[x]
        made = tnn.Sequential(
            tnn.BatchNorm2d(count), tnn.Sequential(tnn.SiLU(inplace=draw(st.booleans()))),
            tnn.Conv2d(count, 4, 1),
        )  # fmt: skip
        line(f"{part(made)}({x})", 4)

    def squeeze_and_excite(x):
        fewer, more = tnn.Conv2d(channels[x], 2, 1), tnn.Conv2d(2, channels[x], 1)
        gate = f"TF.adaptive_avg_pool2d({x}, 1)"
        line(f"{x} * torch.sigmoid({part(more)}(TF.silu({part(fewer)}({gate}))))", channels[x])

    def pool(x):
        kind = draw(st.sampled_from([
            "TF.avg_pool2d({x}, 3, 1, 1)", "TF.max_pool2d({x}, 3, 1, 1)",
            "TF.avg_pool2d({x}, 3, 1, 1, count_include_pad=False)",
            "TF.interpolate(TF.avg_pool2d({x}, 2), size={x}.shape[2:], mode='bilinear')",
        ]))  # fmt: skip
        line(kind.format(x=x), channels[x])

    def alone(x):
        line(draw(st.sampled_from(ACTIVATIONS)).format(x=x), channels[x])

    def shape(x):
        line(draw(st.sampled_from(SHAPES)).format(x=x), channels[x])

    def two(x):
        symbol, other = (
            draw(st.sampled_from(["{} + {}", "{} * {}", "{} - 0.5 * {}", "torch.maximum({}, {})"])),
            same_channels(x),
        )
        line(symbol.format(x, other), channels[x])

    def into(x):
        """In place, of what is read again."""
        other = same_channels(x)
        lines.append(f"{x} += {other}" if draw(st.booleans()) else f"{x}.mul_(0.9)")

    def joined(x):
        other = one()
        line(f"torch.cat([{x}, {other}], 1)", channels[x] + channels[other])

    def part_of(x):
        if channels[x] > 1:
            take = draw(st.integers(1, channels[x] - 1))
            text = [f"{x}[:, :{take}]", f"torch.split({x}, [{take}, {channels[x] - take}], 1)[0]"]
            line(draw(st.sampled_from(text)), take)

    kinds = (convolution, twice, norm, nested, squeeze_and_excite, pool, alone, shape, two, into,
             joined, part_of)  # fmt: skip
    convolution("x0")
    for _ in range(draw(st.integers(1, 7))):
        draw(st.sampled_from(kinds))(one())
    last = f"x{len(channels) - 1}"
    head = part(tnn.Linear(channels[last], 2))
    lines.append(f"y = {head}({last}.mean((2, 3)))")
    forms = [
        "y",
        f"(y, {one()}.mean((1, 2, 3)))",
        f"{{'out': y, 'aux': {one()}.flatten(1).sum(1)}}",
    ]
    lines.append(f"return {draw(st.sampled_from(forms))}")
    net = Drawn(parts, lines)
    if draw(st.booleans()):
        next(net.parameters()).requires_grad_(False)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    for value in net.parameters():
        torch.nn.init.normal_(value, 0.0, 0.3, generator=generator)
    return net


def leaves(found):
    found = list(found.values()) if isinstance(found, dict) else found
    return list(found) if isinstance(found, tuple | list) else [found]


def theirs(net, dtype, x):
    twin = copy.deepcopy(net).to(dtype)
    out = leaves(twin(torch.from_numpy(x.copy()).to(dtype)))
    sum((one * one).mean() for one in out).backward()
    grads = {n: p.grad.double().numpy() for n, p in twin.named_parameters() if p.grad is not None}
    return [one.detach().double().numpy() for one in out], grads, twin.state_dict()


def ours(model, x):
    out = leaves(model(oc.tensor(x)))
    losses = [(one * one).mean() for one in out]
    sum(losses[1:], losses[0]).backward()
    grads = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    return [one.numpy() for one in out], grads, model.state_dict()


def assert_near(found, other, exact, what):
    """Of the largest value, at most four times PyTorch's own error in float32, or 1e-4."""
    largest = max(np.abs(exact).max(initial=0.0), 1e-6)
    bound = max(4 * np.abs(other - exact).max(initial=0.0), 1e-4 * largest)
    assert found.shape == exact.shape, what
    assert np.abs(found - exact).max(initial=0.0) <= bound, what


@settings(max_examples=60)
@given(networks(), st.booleans())
def test_a_random_network_has_pytorch_s_values_or_is_refused(net, training):
    net.train(training)
    x = np.random.default_rng(0).standard_normal((BATCH, 3, SIDE, SIDE)).astype(np.float32)
    try:
        model = oc.from_torch(net, x.shape)
    except OoctrainError as error:
        assert error.code in ("OOC-190", "OOC-191")  # noqa: PT017 (most are not refused)
        return
    assert list(model.state_dict()) == list(net.state_dict())
    try:
        exact, single = theirs(net, torch.float64, x), theirs(net, torch.float32, x)
    except RuntimeError:  # autograd refuses what was changed in place
        return
    mine = ours(model, x)
    for i, value in enumerate(mine[0]):
        assert_near(value, single[0][i], exact[0][i], f"output {i}")
    largest = max(np.abs(g).max() for g in exact[1].values())
    for name, value in exact[1].items():
        bound = max(4 * np.abs(single[1][name] - value).max(), 1e-3 * largest)
        assert np.abs(mine[1][name] - value).max() <= bound, name
    for name, value in exact[2].items():
        assert_near(mine[2][name], single[2][name].numpy(), value.numpy(), name)


def own_loss(found, target):
    """The target is read, and does not count: what is trained is each output's mean square."""
    losses = [(one * one).mean() for one in leaves(found)]
    return sum(losses[1:], losses[0]) + 0.0 * (target * target).mean()


@settings(max_examples=25)
@given(networks(), st.sampled_from(["belady", "lru", "prefix"]), st.sampled_from([0, 40]))
def test_within_a_budget_no_bit_changes_here_or_there(net, planner, percent):
    """Neither in a trainer of this library nor, by the same kind of plan, in PyTorch's own loop."""
    x = np.random.default_rng(0).standard_normal((BATCH, 3, SIDE, SIDE)).astype(np.float32)
    target = np.zeros((BATCH, 1), np.float32)
    try:
        model = oc.from_torch(net, x.shape)
    except OoctrainError:
        return
    start, seen = model.state_dict(), []
    for limit in ({}, {"budget": f"{percent}%", "planner": planner, "evaluations": 50}):
        model.load_state_dict(start)
        with oc.Trainer(model, own_loss, "sgd", **limit) as trainer:
            losses = [float(trainer.step(x, target)) for _ in range(2)]
        seen.append((losses, model.state_dict()))
    assert seen[0][0] == seen[1][0]
    assert all(np.array_equal(seen[0][1][n], seen[1][1][n], equal_nan=True) for n in start)
    step = oc.trace(oc.from_torch(net, x.shape), x.shape, own_loss, target_shape=target.shape,
                    target_dtype="float32", optimizer=None)  # fmt: skip
    plan = oc.plan(step, f"{percent}%", planner=planner, rewrites=())
    expected = two_steps(copy.deepcopy(net), x)
    if expected is not None:
        with oc.interop.torch.applied(plan, net):
            found = two_steps(net, x)
        assert all(map(torch.equal, found, expected))


def two_steps(net, x):
    """All gradients and buffers; None where autograd refuses what was changed in place."""
    try:
        for _ in range(2):
            sum((one * one).mean() for one in leaves(net(torch.from_numpy(x.copy())))).backward()
    except RuntimeError:
        return None
    grads = [torch.zeros(()) if p.grad is None else p.grad for p in net.parameters()]
    return [value.nan_to_num(7.0) for value in (*grads, *net.buffers())]
