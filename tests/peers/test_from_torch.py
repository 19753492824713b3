"""Networks of PyTorch as modules of this library: what is kept, what is refused, and both ways.

Small networks, each with one thing that an importer may get wrong. `test_own_networks.py` has the
networks that people use. Expected values are PyTorch's own.
"""

import contextvars
import copy
import pickle

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.errors import OoctrainError

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers
tnn, TF = torch.nn, torch.nn.functional
BATCH = 4


def images(shape=(BATCH, 3, 8, 8), seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_same(net, model, x, bound=1e-5):
    """Both give the same, in the mode that they are in."""
    with torch.no_grad():
        expected = net(torch.from_numpy(x)).numpy()
    with oc.no_grad():
        found = model(oc.tensor(x)).numpy()
    assert found.shape == expected.shape
    largest = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=bound, atol=bound * largest)


def assert_gradients(net, model, x, bound=1e-5):
    """Gradients of the sum of squares, those of PyTorch in float64."""
    big = copy.deepcopy(net).double()
    torch.set_default_dtype(torch.float64)  # of constants that the network makes
    try:
        (big(torch.from_numpy(x).double()) ** 2).sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    output = model(oc.tensor(x))
    (output * output).sum().backward()
    mine = dict(model.named_parameters())
    largest = max(float(p.grad.abs().max()) for p in big.parameters() if p.grad is not None)
    for name, parameter in big.named_parameters():
        if parameter.grad is None:
            assert mine[name].grad is None, name
        else:
            error = np.abs(mine[name].grad.numpy() - parameter.grad.numpy()).max()
            assert error <= bound * largest, name


class Net(tnn.Module):
    """Parts of given names, and a forward pass of its own."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.own = forward

    def forward(self, x):
        return self.own(self, x)


def conv(channels=3, out=3):
    return tnn.Conv2d(channels, out, 3, padding=1)


def _relu_written_into_what_is_read(net, x):
    x = net.conv(x)
    y = TF.relu_(x)
    return x + y


def _added_into(net, x):
    x = net.conv(x)
    y = net.more(x)
    y += x
    z = y.mul_(2.0)
    return y - z * 0.25


def _view_of_a_changed_tensor(net, x):
    x = TF.relu_(net.conv(x))
    flat = x.flatten(1)
    return flat * 2.0


def _changed_after_its_view_was_read(net, x):
    x = net.conv(x)
    small = x[:, :1].sum((2, 3))
    x.mul_(2.0)
    return x.sum((2, 3)) + small


IN_PLACE = (
    _relu_written_into_what_is_read, _added_into, _view_of_a_changed_tensor,
    _changed_after_its_view_was_read,
)  # fmt: skip


@pytest.mark.parametrize("forward", IN_PLACE)
def test_operations_in_place_are_read_as_pytorch_reads_them(forward):
    net = Net(forward, conv=conv(), more=conv())
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    assert_same(net, model, images())
    assert_gradients(net, model, images())


def _view_read_later(net, x):
    x = net.conv(x)
    half = x[:, :1]
    x.mul_(2.0)
    return x + half


def _base_read_later(net, x):
    x = net.conv(x)
    x[:, :1].mul_(2.0)
    return x


def _flat_changed_base_read(net, x):
    x = net.conv(x)
    x.flatten(1).add_(1.0)
    return x


@pytest.mark.parametrize("forward", [_view_read_later, _base_read_later, _flat_changed_base_read])
def test_a_change_that_a_view_would_see_is_refused(forward):
    with pytest.raises(OoctrainError) as refusal:
        oc.from_torch(Net(forward, conv=conv()), (BATCH, 3, 8, 8))
    assert refusal.value.code == "OOC-190"
    assert "view" in refusal.value.numbers


OPERATIONS = {
    "conv, two numbers each": lambda x: TF.conv2d(
        x, W(4, 3, 3, 2), W(4), (2, 1), (1, 0), (1, 2)
    ),
    "conv, words": lambda x: TF.conv2d(x, W(4, 3, 3, 3), padding="same", dilation=(1, 2)),
    "conv, groups": lambda x: TF.conv2d(x, W(6, 1, 3, 3), groups=3, padding=1),
    "conv1d": lambda x: TF.conv1d(x.flatten(2), W(4, 3, 5), W(4), 2, 1, 2),
    "transposed": lambda x: TF.conv_transpose2d(
        x, W(3, 2, 3, 2), W(2), (2, 1), (1, 0), (1, 0), 1, (1, 2)
    ),
    "linear of images": lambda x: TF.linear(x, W(5, 10), W(5)),
    "layer norm": lambda x: TF.layer_norm(x, (8, 10), W(8, 10), W(8, 10)),
    "layer norm, bare": lambda x: TF.layer_norm(x, (10,), eps=0.1),
    "group norm": lambda x: TF.group_norm(torch.cat([x, x * 2], 1), 2, W(6), W(6)),
    "instance norm": lambda x: TF.instance_norm(x, weight=W(3), bias=W(3), eps=0.1),
    "batch norm of weights": lambda x: TF.conv2d(
        x, TF.batch_norm(W(1, 4, 27), None, None, training=True).view(4, 3, 3, 3)
    ),
    "max pool": lambda x: TF.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2), ceil_mode=True),
    "max pool, as wide as its step": lambda x: TF.max_pool2d(x, 3),
    "mean pool": lambda x: TF.avg_pool2d(
        x, 3, 2, 1, ceil_mode=True, count_include_pad=False
    ),
    "adaptive pool": lambda x: TF.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive pool, one extent": lambda x: TF.adaptive_avg_pool2d(x, (None, 4)),
    "nearest": lambda x: TF.interpolate(x, scale_factor=2),
    "nearest to a size": lambda x: TF.interpolate(x, (13, 7)),
    "bilinear": lambda x: TF.interpolate(x, (5, 17), mode="bilinear"),
    "bilinear, corners": lambda x: TF.interpolate(
        x, scale_factor=1.5, mode="bilinear", align_corners=True
    ),
    "pad": lambda x: TF.pad(x, (1, 2, 3, 0)),
    "pad, cut off": lambda x: TF.pad(x, (-1, 2, 0, -3)),
    "pad, one axis": lambda x: TF.pad(x, (1, 2), value=0.5),
    "pad, mirrored": lambda x: TF.pad(x, (1, 2, 3, 0), mode="reflect"),
    "pixel shuffle": lambda x: TF.pixel_shuffle(torch.cat([x] * 4, 1), 2),
    "activations": lambda x: TF.silu(TF.gelu(x)) + TF.hardswish(x) * TF.hardsigmoid(x),
    "more activations": lambda x: TF.relu6(x * 4) + TF.leaky_relu(x, 0.2) + TF.tanh(x).sigmoid(),
    "gelu by tanh": lambda x: TF.gelu(x, approximate="tanh"),
    "bounds": lambda x: TF.hardtanh(x, -0.5, 0.25) + x.clamp(min=0.1) + x.clamp(max=0.3),
    "prelu": lambda x: TF.prelu(x, W(3)),
    "softmax": lambda x: TF.softmax(x, 1) + TF.log_softmax(x, -1),
    "products": lambda x: x * x.mean((2, 3), keepdim=True) / (1 + x.square()) - 2 * x,
    "alpha": lambda x: torch.add(x, x.sum(1, keepdim=True), alpha=0.5) - torch.rsub(x, 2.0),
    "means": lambda x: x.mean() + x.sum((0, 2)) + x.sum() + x.mean(2).mean(1, keepdim=True).sum(0),
    "powers": lambda x: (x**2 + 1) ** -1 - (x**3).neg(),
    "slices": lambda x: x[:, 1:, 2:-1, -3:] * x[:, :1, -5:, :3],
    "an axis taken": lambda x: (
        x[:, 1] + x[..., 2].unsqueeze(3).squeeze(-1).sum() + x.select(2, -1).sum()
    ),
    "parts": lambda x: torch.cat([p.sum(3, keepdim=True) for p in x.split(4, 3)], 3),
    "parts of sizes": lambda x: torch.cat(list(reversed(x.split([3, 2, 5], 3))), 3),
    "chunks": lambda x: torch.cat(list(x.chunk(4, 3))[::-1], 3),
    "unbound and stacked": lambda x: torch.stack(list(x.unbind(1))[::-1], 2),
    "axes in another order": lambda x: x.permute(0, 2, 3, 1).transpose(1, -1).contiguous(),
    "shapes": lambda x: x.view(x.shape[0], 3, -1).unflatten(2, (2, 40)).reshape(-1, 6, 40),
    "as another": lambda x: x.flatten(1).view_as(x).reshape_as(x).expand(-1, -1, 8, 10),
    "repeated by expand": lambda x: x[:, :1].expand(x.shape[0], 5, 8, 10) + x[:, :1],
    "matrices": lambda x: x @ x.transpose(2, 3) @ x + torch.bmm(x[:, 0], x[:, 1].mT).sum(),
    "attention": lambda x: TF.scaled_dot_product_attention(x, x * 2, x - 1, scale=0.3),
    "attention by hand": lambda x: torch.softmax(x @ x.mT / 3, -1) @ x,
    "functions": lambda x: (x.exp() + (x * x + 1).log() + (x * x + 0.1).sqrt() + x.abs() + x.erf()
        + (x * x + 1).rsqrt() + (x.abs() + 1) ** 1.5),
    "more functions": lambda x: TF.elu(x, 0.5) + TF.selu(x) + TF.celu(x, 2.0) + TF.mish(x),
    "and more": lambda x: TF.softplus(x, 2.0, 5.0) + TF.logsigmoid(x) + TF.glu(x, 3).sum(),
    "two tensors": lambda x: torch.maximum(x, x.flip(2)) - torch.minimum(x, x.flip((2, 3))),
    "conditions": lambda x: torch.where(x > 0.1, x * x, -x) + x.masked_fill(x <= x.mean(), 0.0),
    "a mask of numbers": lambda x: x * (x < x.flip(2)).float() + (x >= 0).to(x.dtype).sum(),
    "extremes": lambda x: x.amax((2, 3)) + x.amin((2, 3)) + x.logsumexp((2, 3)),
    "deviations": lambda x: x.var((2, 3)) + x.std((2, 3), correction=0) + x.norm(dim=(2, 3)),
    "steps": lambda x: x[:, :, ::2, 1::3].repeat(1, 2, 1, 1),
    "narrowed": lambda x: x.narrow(2, 1, 4) * TF.pixel_unshuffle(x, 2).sum(1, keepdim=True).sum(),
    "shuffled": lambda x: TF.channel_shuffle(torch.cat([x, x], 1), 3),
    "replicated": lambda x: TF.pad(x, (1, 2, 0, 1), mode="replicate"),
    "circular": lambda x: TF.pad(x, (1, 2, 0, 1), mode="circular"),
    "adaptive maxima": lambda x: TF.adaptive_max_pool2d(x, (2, 5)) * TF.adaptive_max_pool2d(x, 1),
    "maxima along an axis": lambda x: x.max(1)[0].sum(1) * x.min(3, keepdim=True).values.sum(),
    "maxima of all": lambda x: x / x.max() - torch.max(x, -x) * x.min(),
    "rolled": lambda x: x.roll((1, -2), (2, 3)) + torch.roll(x, 3),
    "equal": lambda x: torch.where(x == x.flip(2), x, 2 * x) * (x != 0).float(),
    "taken": lambda x: x[:, [2, 0, 0]] + x[:, torch.tensor([-1, 1, 0])],
    "one value": lambda x: torch.ones_like(x) * x + torch.zeros(x.shape[0], 3, 8, 10)
        + torch.full_like(x, 2.0) * x.new_full((10,), 0.5) - x.new_ones(3, 1, 1),
    "bounds that are tensors": lambda x: torch.clamp(x, x.mean(1, True) - 1, x.detach() + 1),
    "minus infinity around": lambda x: TF.max_pool2d(TF.pad(x, (1, 2, 0, 1), value=-np.inf), 3, 1),
    "responses": lambda x: TF.local_response_norm(x, 3, alpha=0.5),
    # written out by PyTorch's own definitions
    "sums of products": lambda x: torch.einsum("nchw,nkhw->nck", x, x * x),
    "cut into parts": lambda x: torch.cat(torch.tensor_split(x, 3, 2)[::-1], 2),
    "in one dimension": lambda x: (TF.max_pool1d(x.flatten(2), 2) + TF.avg_pool1d(x.flatten(2), 2)
        + TF.adaptive_avg_pool1d(x.flatten(2), 1)),
    "similar": lambda x: TF.cosine_similarity(x, x * x + 1, dim=1),
    "axes moved": lambda x: x.swapaxes(1, 2) + x.movedim(1, 2) * x.flatten(1).T.sum(),
    "repeated": lambda x: x.repeat_interleave(2, 1) + x.tile(1, 2, 1, 1),
    "between": lambda x: torch.lerp(x, x * x, 0.3) + torch.addcdiv(x, x, x * x + 1, value=0.5),
    "more products": lambda x: torch.baddbmm(x[:, 0], x[:, 1], x[:, 2].mT @ x[:, 2])
        + torch.addmm(x[:, 0, 0], x[:, 0, 1], W(10, 10)).unsqueeze(1),
    "shrunk": lambda x: TF.hardshrink(x) + TF.threshold(x, 0.1, 0.5) + TF.rms_norm(x, (10,)),
    "mean and deviation": lambda x: torch.std_mean(x, (2, 3))[0] + torch.var_mean(x, (2, 3))[1],
    # lists in the list
    "without gradients": lambda x: x * _no_grad(torch.exp, x) + _no_grad(TF.silu, x).sum(),
    "in an autocast that is off": lambda x: _autocast(x) + x,
    "expanded as": lambda x: torch.addcmul(x, x, x.mean(1, keepdim=True).expand_as(x), value=0.5),
    "shuffled channels": lambda x: (
        torch.cat([x, x], 1).unflatten(1, (2, 3)).transpose(1, 2).reshape(-1, 6, 8, 10)
    ),
}  # fmt: skip


def _autocast(x, enabled=False):
    with torch.autocast("cpu", enabled=enabled):
        return x.sigmoid() * x


def W(*shape):
    """A tensor of fixed numbers, a constant of the network, of the default type."""
    return torch.linspace(-0.7, 0.9, int(np.prod(shape))).reshape(shape).sin()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_pytorch_s_value_and_gradient(name):
    """The first convolution's gradients pass through the operation."""
    net = Net(lambda net, x: OPERATIONS[name](net.conv(x)), conv=conv())
    model = oc.from_torch(net, (BATCH, 3, 8, 10))
    x = images((BATCH, 3, 8, 10))
    assert_same(net, model, x)
    assert_gradients(net, model, x, 3e-5)


def test_names_order_types_and_shapes_of_the_state_are_pytorch_s():
    net = tnn.Sequential(
        tnn.Conv2d(3, 4, 3, bias=False), tnn.BatchNorm2d(4), tnn.PReLU(4), tnn.Flatten(),
        tnn.Linear(144, 5),
    )  # fmt: skip
    state = oc.from_torch(net, (2, 3, 8, 8)).state_dict()
    expected = {k: v.numpy() for k, v in net.state_dict().items()}
    assert list(state) == list(expected)
    for name, value in expected.items():
        assert (state[name].dtype, state[name].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(state[name], value)


def test_what_is_shared_stays_shared_and_what_is_frozen_frozen():
    net = tnn.Sequential(conv(), tnn.ReLU(), conv(), tnn.Conv2d(3, 3, 1))
    net[2].weight = net[0].weight
    net[3].requires_grad_(False)
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    parts = dict(model.named_modules())
    assert parts["0"].weight is parts["2"].weight
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert trained == [n for n, p in net.named_parameters() if p.requires_grad]
    assert_gradients(net, model, images())
    before = model.state_dict()
    trainer = oc.Trainer(model, "mse", oc.optim.SGD(model.parameters(), lr=0.1))
    trainer.step(images(), images(seed=1))
    after = model.state_dict()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_part_that_is_called_twice_is_one_part():
    block = tnn.Sequential(conv(), tnn.BatchNorm2d(3))
    net = Net(lambda net, x: net.again(net.block(x)), block=block, again=block)
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    assert list(model.state_dict()) == list(net.state_dict())
    for _ in range(2):
        assert_same(net, model, images())
    assert model.get_buffer("block.1.num_batches_tracked").item() == 4


class Modes(tnn.Module):
    """Its output, its dropout and its branch depend on the mode."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = conv(), tnn.BatchNorm2d(3)
        self.drop = tnn.Dropout(0.5)

    def forward(self, x):
        x = TF.dropout(self.drop(self.norm(self.conv(x))), 0.5, self.training)
        return x * 3.0 if self.training else x


def test_one_import_trains_and_evaluates():
    net = Modes()
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    x = oc.tensor(images())
    trained = model(x).numpy()
    assert 0.55 < (trained == 0).mean() < 0.95
    state = model.state_dict()
    assert state["norm.num_batches_tracked"] == 1
    net.train()
    net(torch.from_numpy(images()))
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-5, atol=1e-6)
    assert_same(net.eval(), model.eval(), images())


def test_parts_keep_their_mode():
    net = Modes()
    net.norm.eval()
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    assert [model.training, model.norm.training] == [True, False]
    assert [net.training, net.norm.training] == [True, False]
    model(oc.tensor(images()))
    assert model.norm.num_batches_tracked.item() == 0
    later = oc.from_torch(Modes(), (BATCH, 3, 8, 8))
    later.norm.eval()
    later(oc.tensor(images()))
    assert later.norm.num_batches_tracked.item() == 0
    evaluated = oc.from_torch(net.eval(), (BATCH, 3, 8, 8))
    assert not any(part.training for part in evaluated.modules())


def test_buffers_that_are_not_saved_are_constants():
    def forward(net, x):
        more = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1) * torch.tensor(0.5)
        return net.conv(x) * net.scale + more

    net = Net(forward, conv=conv())
    net.register_buffer("scale", torch.tensor([1.0, -1.0, 2.0]).view(1, 3, 1, 1), persistent=False)
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    assert list(model.state_dict()) == ["conv.weight", "conv.bias"]
    assert_same(net, model, images())
    assert_gradients(net, model, images())


def test_outputs_keep_their_structure():
    net = Net(lambda net, x: {"a": net.conv(x), "b": (x * 2.0, [net.conv(x)])}, conv=conv())
    found = oc.from_torch(net, (BATCH, 3, 8, 8))(oc.tensor(images()))
    assert list(found) == ["a", "b"]
    assert [len(found["b"]), len(found["b"][1])] == [2, 1]
    np.testing.assert_array_equal(found["b"][0].numpy(), images() * 2)


def _many_missing(net, x):
    x = torch.cumsum(net.conv(x), 1) + torch.cumsum(x, 2)
    return torch.fft.fft(x.flatten(1)).real + torch.sort(x.flatten(1), 1)[0]


def test_all_that_is_missing_is_listed_at_once():
    with pytest.raises(OoctrainError) as refusal:
        oc.from_torch(Net(_many_missing, conv=conv()), (BATCH, 3, 8, 8))
    error = refusal.value
    assert error.code == "OOC-190"
    assert "cumsum.default x 2" in error.numbers
    assert "fft_fft.default x 1" in error.numbers
    assert "sort.default x 1" in error.numbers


def test_a_refusal_names_the_user_s_operation():
    """Not one of its definition's, be it unknown or refused."""

    def forward(net, x):
        x = TF.interpolate(net.conv(x), (9, 9), mode="bicubic")
        return torch.logaddexp(x, -x)

    with pytest.raises(OoctrainError) as refusal:
        oc.from_torch(Net(forward, conv=conv()), (BATCH, 3, 8, 8))
    named = {line.split(" x ")[0] for line in refusal.value.numbers.split("; ")}
    assert named == {"upsample_bicubic2d.vec", "logaddexp.default"}
    assert "logaddexp.default x 1," in refusal.value.numbers


def test_an_operation_of_ones_own_is_registered():
    net = Net(lambda net, x: torch.cumsum(net.conv(x), 1), conv=conv())

    class Cumsum(oc.Op):
        def shape(self, x):
            return x

        def forward(self, x):
            return np.cumsum(x, 1)

        def backward(self, dy):
            return np.flip(np.cumsum(np.flip(dy, 1), 1), 1)

    def registered():
        oc.interop.torch.register("aten.cumsum.default", lambda x, dim: Cumsum()(x))
        return oc.from_torch(net, (BATCH, 3, 8, 8))

    model = contextvars.copy_context().run(registered)  # in other tests it is not known
    assert_same(net, model, images())
    assert_gradients(net, model, images())


class Double(tnn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv().double()

    def forward(self, x):
        return self.conv(x.double())


def _no_grad(part, x):
    with torch.no_grad():
        return part(x)


#: {what is wrong: (network, code)}
REFUSED = {
    "depends on values": (
        Net(lambda net, x: net.conv(x) if x.sum() > 0 else x, conv=conv()), "OOC-191",
    ),
    "a constant batch": (Net(lambda net, x: net.conv(x).view(BATCH, -1), conv=conv()), "OOC-191"),
    "float64": (Double(), "OOC-191"),
    "half": (conv().half(), "OOC-191"),
    "no device": (tnn.Conv2d(3, 3, 1, device="meta"), "OOC-191"),
    "random numbers": (
        Net(lambda net, x: net.conv(x) + torch.randn_like(x), conv=conv()), "OOC-190",
    ),
    "an autocast": (Net(lambda net, x: _autocast(net.conv(x), True), conv=conv()), "OOC-190"),
    "a network that is none": (lambda x: x, "OOC-106"),
    "an average of all batches": (
        tnn.Sequential(conv(), tnn.BatchNorm2d(3, momentum=None)), "OOC-191",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_imported_is_one_error(what):
    net, code = REFUSED[what]
    with pytest.raises(OoctrainError) as refusal:
        oc.from_torch(net, (BATCH, 3, 8, 8))
    assert refusal.value.code == code
    assert refusal.value.__context__ is None or refusal.value.__suppress_context__


def _asserts(net, x):
    if x.shape[1] != 99:
        raise AssertionError
    return net.conv(x)


def test_an_error_without_words_says_where_it_was_raised():
    with pytest.raises(OoctrainError) as refusal:
        oc.from_torch(Net(_asserts, conv=conv()), (BATCH, 3, 8, 8))
    assert refusal.value.code == "OOC-191"
    assert "test_from_torch.py" in str(refusal.value)
    assert "raise AssertionError" in str(refusal.value)


class Reversed(torch.autograd.Function):
    """A gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def _hooked(net, x):
    x = net.conv(x)
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 0)
    return x * 2.0


def _with_a_backward_hook():
    net = tnn.Sequential(conv(), conv())
    net[0].register_full_backward_hook(lambda part, ins, outs: tuple(g * 0 for g in ins))
    return net


def _with_a_hook_on_a_weight():
    net = conv()
    net.weight.register_hook(lambda gradient: gradient * 0)
    return net


#: {a gradient that no list of calls has: (network, what the error names)}
OWN_GRADIENTS = {
    "a function": (
        lambda: Net(lambda net, x: Reversed.apply(net.conv(x)), conv=conv()),
        "Reversed",
    ),
    "a hook": (lambda: Net(_hooked, conv=conv()), "register_hook"),
    "a hook of a module": (_with_a_backward_hook, "BackwardHookFunction"),
    "a hook of a weight": (_with_a_hook_on_a_weight, "weight"),
}


@pytest.mark.parametrize("what", OWN_GRADIENTS)
def test_a_gradient_of_its_own_is_refused(what):
    """A list of calls does not have it: it was trained with another gradient without a word."""
    make, name = OWN_GRADIENTS[what]
    before = vars(torch.autograd.Function)["apply"], torch.Tensor.register_hook
    with pytest.raises(OoctrainError) as refusal:
        oc.from_torch(make(), (BATCH, 3, 8, 8))
    assert refusal.value.code == "OOC-190"
    assert name in str(refusal.value)
    assert (vars(torch.autograd.Function)["apply"], torch.Tensor.register_hook) == before
    x = torch.ones(2, requires_grad=True)
    Reversed.apply(x).sum().backward()  # PyTorch is as it was
    assert x.grad.tolist() == [-1, -1]


def test_a_checkpoint_changes_nothing():
    def forward(net, x):
        return torch.utils.checkpoint.checkpoint(net.conv, x, use_reentrant=False)

    net = Net(forward, conv=conv())
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    assert_same(net, model, images())
    assert_gradients(net, model, images())


def test_a_hook_of_the_forward_pass_is_part_of_it():
    net = tnn.Sequential(conv())
    net[0].register_forward_hook(lambda part, ins, out: out * 2)
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    assert_same(net, model, images())
    assert_gradients(net, model, images())


@pytest.mark.parametrize("shape", [3, "images", (), (0, 3, 8, 8), (2.5, 3, 8, 8)])
def test_an_example_is_the_shape_of_a_batch(shape):
    with pytest.raises(OoctrainError) as refusal:
        oc.from_torch(conv(), shape)
    assert refusal.value.code == "OOC-106"


def test_any_batch_and_no_other_size():
    net = tnn.Sequential(conv(), tnn.Flatten(), tnn.Linear(192, 2))
    model = oc.from_torch(net, (1, 3, 8, 8))
    for batch in (1, 2, 7):
        assert_same(net, model, images((batch, 3, 8, 8)))
    with pytest.raises(OoctrainError) as refusal:
        model(oc.tensor(images((2, 3, 9, 9))))
    assert refusal.value.code == "OOC-110"


def test_copies_and_pickles_compute_the_same():
    net = tnn.Sequential(conv(), tnn.BatchNorm2d(3), tnn.ReLU())
    model = oc.from_torch(net, (BATCH, 3, 8, 8)).eval()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(net.eval(), twin, images())


def test_the_network_is_left_as_it_was():
    net = tnn.Sequential(conv(), tnn.BatchNorm2d(3), tnn.Dropout(0.5))
    net[1].eval()
    before, modes = copy.deepcopy(net.state_dict()), [m.training for m in net.modules()]
    oc.from_torch(net, (BATCH, 3, 8, 8))
    assert modes == [m.training for m in net.modules()]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("empty", [lambda x, size: torch.empty(size), torch.Tensor.new_empty])
def test_stochastic_depth_draws_for_each_sample(empty):
    def forward(net, x):
        noise = empty(x, (x.shape[0], 1, 1, 1)).bernoulli_(0.75).div_(0.75)
        return net.conv(x) * noise

    model = oc.from_torch(Net(forward, conv=conv()), (BATCH, 3, 8, 8))
    model.load_state_dict({"conv.weight": np.zeros((3, 3, 3, 3)), "conv.bias": np.ones(3)})
    found = model(oc.tensor(images((4000, 3, 8, 8)))).numpy()
    kept = found[:, 0, 0, 0] != 0
    assert (found == found[:, :1, :1, :1]).all()
    np.testing.assert_allclose(found[kept], 1 / 0.75, rtol=1e-6)
    assert 0.7 < kept.mean() < 0.8


# Weights and optimizers, both ways

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, 0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}  # fmt: skip


def _torch_steps(net, optimizer, count, seed):
    losses = []
    for step in range(count):
        x, y = images(seed=seed + step), np.arange(BATCH) % 2
        optimizer.zero_grad()
        loss = TF.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _own_steps(model, optimizer, count, seed):
    with oc.Trainer(model, optimizer=optimizer) as trainer:
        return [
            float(trainer.step(images(seed=seed + step), np.arange(BATCH) % 2))
            for step in range(count)
        ]


def _classifier():
    torch.manual_seed(0)
    return tnn.Sequential(
        tnn.Conv2d(3, 3, 3, padding=1, bias=False), tnn.BatchNorm2d(3), tnn.ReLU(), tnn.Flatten(),
        tnn.Linear(192, 2),
    )  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_begun_in_pytorch_goes_on_here_and_back(name):
    whole, net = _classifier(), _classifier()
    all_of_it = OPTIMIZERS[name](whole.parameters())
    expected = [_torch_steps(whole, all_of_it, 3, seed) for seed in (0, 10, 20)]
    theirs = OPTIMIZERS[name]([
        {"params": [net[0].weight]}, {"params": list(net.parameters())[1:]},
    ])  # fmt: skip
    found = [_torch_steps(net, theirs, 3, 0)]
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    mine = oc.interop.torch.optimizer_from_torch(theirs, net, model)
    found.append(_own_steps(model, mine, 3, 10))
    oc.to_torch(model, net)
    oc.interop.torch.optimizer_to_torch(mine, model, theirs, net)
    found.append(_torch_steps(net, theirs, 3, 20))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)
    for name_, value in whole.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name_], value, rtol=2e-3, atol=2e-4)


def test_groups_keep_their_settings():
    net = _classifier()
    theirs = torch.optim.SGD([
        {"params": [net[0].weight], "lr": 0.5, "momentum": 0.9},
        {"params": list(net.parameters())[1:], "weight_decay": 0.25},
    ], lr=0.125)  # fmt: skip
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    mine = oc.interop.torch.optimizer_from_torch(theirs, net, model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group, other in zip(mine.param_groups, theirs.param_groups, strict=True):
        assert len(group["params"]) == len(other["params"])
        for setting in ("lr", "momentum", "weight_decay", "dampening", "nesterov"):
            assert group[setting] == other[setting]
    assert [names[p] for p in mine.param_groups[0]["params"]] == ["0.weight"]
    mine.param_groups[1]["lr"] = 0.0625
    oc.interop.torch.optimizer_to_torch(mine, model, theirs, net)
    assert [group["lr"] for group in theirs.param_groups] == [0.5, 0.0625]


def test_optimizers_that_are_not_here_are_refused():
    net = _classifier()
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    for optimizer in (
        torch.optim.Adagrad(net.parameters()), torch.optim.Adam(net.parameters(), amsgrad=True),
        torch.optim.SGD(net.parameters(), maximize=True),
    ):  # fmt: skip
        with pytest.raises(OoctrainError) as refusal:
            oc.interop.torch.optimizer_from_torch(optimizer, net, model)
        assert refusal.value.code == "OOC-190"
    other = torch.optim.SGD(_classifier().parameters())
    with pytest.raises(OoctrainError):
        oc.interop.torch.optimizer_from_torch(other, net, model)


def test_files_of_weights_are_pytorch_s(tmp_path):
    """In half precision, too, which NumPy has not."""
    files = pytest.importorskip("safetensors.torch")
    net, path = _classifier(), tmp_path / "w.safetensors"
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    oc.save(model.state_dict(), path)
    other = tnn.Sequential(*_classifier())
    for parameter in other.parameters():
        tnn.init.zeros_(parameter)
    other.load_state_dict(files.load_file(path))
    assert all(torch.equal(v, other.state_dict()[n]) for n, v in net.state_dict().items())
    files.save_file({n: v.bfloat16() for n, v in net.state_dict().items()}, path)
    for name, array in oc.load(path).items():
        np.testing.assert_array_equal(array, net.state_dict()[name].bfloat16().float().numpy())


def test_a_network_that_asks_for_the_version_of_its_weights_gets_it():
    """As torchvision's MNASNet does."""
    net, seen = _classifier(), []

    def asked(state, prefix, metadata, *_):
        seen.append(metadata.get("version"))

    net[1].register_load_state_dict_pre_hook(lambda part, *given: asked(*given))
    model = oc.from_torch(net, (BATCH, 3, 8, 8))
    oc.to_torch(model, net)
    assert seen == [2]


def test_weights_of_another_network_are_refused():
    model = oc.from_torch(_classifier(), (BATCH, 3, 8, 8))
    with pytest.raises(OoctrainError) as refusal:
        oc.to_torch(model, conv())
    assert refusal.value.code == "OOC-112"


def test_a_plan_names_the_parts_of_the_user_s_own_code():
    model = oc.from_torch(Modes(), (BATCH, 3, 8, 8))
    names = {call.name for call in oc.trace(model, (BATCH, 3, 8, 8), loss="mse").calls}
    assert {"conv.fwd", "norm.stats", "drop.fwd"} <= names


@pytest.mark.parametrize("budget", ["0%", "40%"])
def test_training_within_a_budget_has_the_bits_of_in_core(budget):
    def run(limit):
        oc.manual_seed(3)
        net = tnn.Sequential(
            conv(3, 8), tnn.BatchNorm2d(8), tnn.ReLU(inplace=True), tnn.Dropout(0.3), conv(8, 8),
            tnn.GELU(), tnn.Flatten(), tnn.Linear(512, 2),
        )  # fmt: skip
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.1, generator=torch.Generator().manual_seed(0))
        model = oc.from_torch(net, (BATCH, 3, 8, 8))
        optimizer = oc.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with oc.Trainer(model, optimizer=optimizer, budget=limit) as trainer:
            losses = [trainer.step(images(seed=s), np.arange(BATCH) % 2) for s in range(4)]
        return list(map(float, losses)), model.state_dict()

    (expected, values), (found, within) = run(None), run(budget)
    assert found == expected
    assert all(np.array_equal(values[name], within[name]) for name in values)
