"""A plan in PyTorch's own loop changes no bit, moves what it says, and leaves nothing behind."""

import copy
import gc
import random
import warnings
import weakref
from contextlib import nullcontext
from typing import ClassVar

import pytest
from peers.own_networks import NETWORKS, build

import ooctrain as oc
from ooctrain.errors import Infeasible, OoctrainError
from ooctrain.interop import applied, saved_tensors

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers
tnn, TF = torch.nn, torch.nn.functional
BATCH, SIDE = 4, 16
PLANS = [("belady", "0%"), ("window", "0%"), ("dtr", "20%"), ("combined", "10%"), ("rotor", "30%"),
         ("lru", "30%"), ("prefix", "0%"), ("keep-all", "100%")]  # fmt: skip


class Block(tnn.Module):
    """In place, a dropout that is drawn, a view, a tensor that is read three times."""

    def __init__(self, channels):
        super().__init__()
        self.conv = tnn.Conv2d(channels, channels, 3, padding=1)
        self.norm = tnn.BatchNorm2d(channels)
        self.more = tnn.Conv2d(channels, channels, 1)

    def forward(self, x):
        out = TF.relu_(self.norm(self.conv(x)))
        out = TF.dropout(out, 0.3, self.training) * torch.sigmoid(self.more(out))
        out += x
        return out


class Net(tnn.Module):
    def __init__(self):
        super().__init__()
        self.stem = tnn.Conv2d(3, 8, 3, padding=1)
        self.blocks = tnn.Sequential(*(Block(8) for _ in range(4)))
        self.head = tnn.Linear(8 * SIDE * SIDE, 5)
        self.tail = tnn.Conv2d(8, 5, 1)

    def forward(self, x):
        y = TF.silu(self.blocks(self.stem(x)))
        flat = y.flatten(1)  # both are saved: a tensor, and a view of it
        return self.tail(y).mean((2, 3)) + self.head(flat)


def net():
    torch.manual_seed(0)
    return Net()


def batch(side=SIDE):
    x = torch.randn(BATCH, 3, side, side, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(BATCH) % 5


def planned(network, planner, budget, side=SIDE, rewrites=()):
    model = oc.from_torch(network, (BATCH, 3, side, side))
    step = oc.trace(model, (BATCH, 3, side, side), optimizer=None)
    return oc.plan(step, budget, planner=planner, rewrites=rewrites)


def steps(network, x, y, count=2):
    """Losses, gradients, buffers and the generator's state after some steps."""
    torch.manual_seed(7)
    losses = []
    for _ in range(count):
        loss = TF.cross_entropy(network(x), y)
        loss.backward()
        losses.append(loss.item())
    grads = {name: p.grad for name, p in network.named_parameters()}
    return losses, grads, dict(network.named_buffers()), torch.get_rng_state()


def assert_same(found, expected):
    assert found[0] == expected[0]
    for mine, theirs in zip(found[1:3], expected[1:3], strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            assert value is mine[name] is None or torch.equal(value, mine[name]), name
    assert torch.equal(found[3], expected[3])


def assert_no_bit_changes(network, plan, side=SIDE):
    twin, (x, y) = copy.deepcopy(network), batch(side)
    expected = steps(twin, x, y)
    with oc.interop.torch.applied(plan, network) as report:
        found = steps(network, x, y)
    assert_same(found, expected)
    return report


@pytest.mark.parametrize(("planner", "budget"), PLANS)
def test_a_plan_changes_no_bit(planner, budget):
    network = net()
    assert_no_bit_changes(network, planned(network, planner, budget))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_swapped_and_computed_again_no_bit_changes(seed):
    """Also what no planner would choose, such as calls whose result is changed in place later."""
    network = net()
    plan = planned(network, "keep-all", "100%")
    names = [v.name for v in plan.trace.variables if v.kind == "activation"]
    draw = random.Random(seed)
    weights = [draw.random() for _ in range(3)]
    drawn = dict(zip(names, draw.choices(range(3), weights, k=len(names)), strict=True))
    chosen = tuple({name for name in names if drawn[name] == what} for what in (1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applied, "moved_and_again", lambda _: chosen)
        report = assert_no_bit_changes(network, plan)
    assert report.runs_again > 0 or report.moved_bytes > 0


def test_with_rewrites_there_are_fewer_names_and_the_same_bits():
    network = net()
    plan = planned(network, "window", "0%", rewrites=("fuse", "share_storage"))
    assert_no_bit_changes(network, plan)


def test_in_evaluation_too():
    network = net().eval()
    assert_no_bit_changes(network, planned(network, "window", "0%"))


@pytest.mark.parametrize(("planner", "budget"), PLANS[:5])
def test_under_autocast_a_plan_changes_no_bit(planner, budget):
    """What is computed again in backward, outside of the block, is computed as it was within it."""
    network, grads = net(), []
    plan = planned(network, planner, budget)
    for one in (copy.deepcopy(network), network):
        x, y = batch()
        torch.manual_seed(7)
        within = oc.interop.torch.applied(plan, one) if one is network else nullcontext()
        with within as report:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = TF.cross_entropy(one(x), y)
            loss.backward()
        grads.append([loss, *(p.grad for p in one.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert report.runs_again + report.moved_bytes > 0


def test_what_is_swapped_is_moved_once_and_no_more_than_planned():
    """The window planner moves most activations; each is copied once, however often it is saved."""
    network = net()
    report = assert_no_bit_changes(network, planned(network, "window", "0%"))
    assert 0.5 * report.planned_bytes < report.moved_bytes <= report.planned_bytes
    assert report.runs_again == 0
    assert f"moved {oc.units.format_bytes(report.moved_bytes)}" in str(report)


class Noted(saved_tensors.Saved):
    """All that stand for a saved tensor, while autograd keeps them."""

    __slots__ = ("__weakref__",)
    alive: ClassVar = weakref.WeakSet()

    def __init__(self, tensor):
        super().__init__(tensor)
        Noted.alive.add(self)


def kept_bytes(parameters):
    """Of storages on the device that autograd keeps, directly or for regions; no parameters."""
    tensors = [saved.tensor for saved in Noted.alive if saved.tensor is not None]
    regions = {s._source._region for s in Noted.alive if hasattr(s._source, "_region")}
    tensors += [t for r in regions for t in r.inputs.values() if isinstance(t, torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    own = {p.untyped_storage().data_ptr() for p in parameters}
    return sum(size for address, size in storages.items() if address not in own)


@pytest.mark.parametrize(("planner", "budget"), [("combined", "0%"), ("window", "0%")])
def test_autograd_keeps_less(planner, budget, monkeypatch):
    """By its own count, after the forward pass."""
    monkeypatch.setattr(saved_tensors, "Saved", Noted)
    network, (x, y) = net(), batch()
    own, kept = [*network.parameters(), *network.buffers(), x], []
    for settings in (("keep-all", "100%"), (planner, budget)):
        plan = planned(network, *settings)
        with oc.interop.torch.applied(plan, network):
            loss = TF.cross_entropy(network(x), y)
            kept.append(kept_bytes(own))
            loss.backward()
        del loss
        gc.collect()
        assert len(Noted.alive) == 0
    assert kept[1] < 0.7 * kept[0], kept


def test_nothing_is_left_behind(monkeypatch):
    """After a step, after an exception in the loss, after a second backward that is refused."""
    copies = weakref.WeakSet()

    class Counted(saved_tensors.HostCopy):
        def __init__(self, *given):
            super().__init__(*given)
            copies.add(self)

    monkeypatch.setattr(saved_tensors, "HostCopy", Counted)
    network, (x, y) = net(), batch()
    plan = planned(network, "window", "0%")
    with oc.interop.torch.applied(plan, network):
        loss = TF.cross_entropy(network(x), y)
        assert len(copies) > 0
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        del loss
    gc.collect()
    assert len(copies) == 0

    def broken():
        with oc.interop.torch.applied(plan, network):
            output = network(x)
            raise KeyError(output.shape)

    with pytest.raises(KeyError):
        broken()
    gc.collect()
    assert len(copies) == 0
    assert "forward" not in vars(network)


def test_the_block_ends():
    network = net()
    with oc.interop.torch.applied(planned(network, "window", "0%"), network):
        assert "forward" in vars(network)
    assert "forward" not in vars(network)


def test_a_graph_that_is_kept_can_be_read_twice():
    network, (x, y) = net(), batch()
    twin, grads = copy.deepcopy(network), []
    plan = planned(network, "combined", "10%")
    for one in (twin, network):
        torch.manual_seed(7)
        if one is network:
            with oc.interop.torch.applied(plan, one):
                loss = TF.cross_entropy(one(x), y)
        else:
            loss = TF.cross_entropy(one(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        grads.append([p.grad for p in one.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_another_network_and_another_batch_are_refused():
    network, (x, _) = net(), batch()
    plan = planned(network, "window", "0%")
    with oc.interop.torch.applied(plan, network), pytest.raises(OoctrainError) as refusal:
        network(x[:2])
    assert refusal.value.code == "OOC-106"
    other = tnn.Sequential(tnn.Conv2d(3, 3, 1), tnn.Flatten(), tnn.Linear(3 * SIDE * SIDE, 2))
    with pytest.raises(OoctrainError) as refusal, oc.interop.torch.applied(plan, other):
        pass
    assert refusal.value.code == "OOC-210"


TEN = ("resnet18", "densenet121", "squeezenet1_0", "mobilenet_v3_small", "shufflenet_v2_x1_0",
       "efficientnet_b0", "convnext_tiny", "seresnet50", "repvgg_a0", "ghostnet_100")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TEN)
@pytest.mark.parametrize(("planner", "budget"), PLANS[:5])
def test_ten_networks_keep_their_bits(name, planner, budget):
    (network,) = (network for network in NETWORKS if network.name == name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = build(network, 5).train()
    except ImportError as error:
        pytest.skip(str(error))
    try:
        plan = planned(made, planner, budget, network.side)
    except Infeasible as refusal:  # then in the least memory that does
        plan = planned(made, planner, refusal.minimum_bytes, network.side)
    assert_no_bit_changes(made, plan, network.side)
