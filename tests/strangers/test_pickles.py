"""Models, optimizers, traces and plans go to other processes and come back the same; trainers say
by name why they cannot."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn
from ooctrain.devices.interface import Debug
from ooctrain.errors import ConfigError
from ooctrain.execution.settings import Settings

SHAPE = 4, 1, 6, 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(48, 3)
        self.prelu = nn.PReLU(3)
        self.register_buffer("table", np.arange(3))

    def forward(self, x):
        return self.head(self.drop(self.prelu(self.norm(self.conv(x)))).flatten(1))


def batch(number=0):
    rng = np.random.default_rng(number)
    return rng.standard_normal(SHAPE).astype(np.float32), rng.integers(0, 3, 4)


def network():
    oc.manual_seed(3)
    return Net()


def trainer(model, optimizer=None, **options):
    optimizer = optimizer or oc.optim.Adam(model.parameters(), lr=0.01)
    return oc.Trainer(model, optimizer=optimizer, threads=1, seed=2, **options)


def through_a_pickle(value):
    return pickle.loads(pickle.dumps(value))


WAYS = {"pickle": through_a_pickle, "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("read", [False, True])
def test_a_model_has_the_same_values(way, read):
    model = network()
    if read:
        model.state_dict()
    twin = WAYS[way](model)
    for name, value in model.state_dict().items():
        assert np.array_equal(twin.state_dict()[name], value)
    twin.head.weight.copy_(np.zeros((3, 48)))
    assert model.head.weight.numpy().any()


def test_weights_that_nobody_has_read_take_no_room():
    assert len(pickle.dumps(nn.Linear(2000, 2000))) < 5000


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("budget", [None, "0%"])
def test_a_model_in_an_open_session_has_its_true_values_and_goes_on(way, budget):
    """With its optimizer: the copy takes the steps that the first would."""
    with trainer(network(), budget=budget, planner="belady") as t:
        for number in range(3):
            t.step(*batch(number))
        model, optimizer = WAYS[way]((t.model, t.optimizer))
        wanted = [t.step(*batch(number)) for number in (3, 4)]
    with trainer(model, optimizer) as twin:
        assert twin.steps_done == 3
        assert [twin.step(*batch(number)) for number in (3, 4)] == wanted


def steps():
    model = network()
    yield oc.trace(model, SHAPE)
    yield oc.trace(model, SHAPE, None, training=False)
    yield oc.trace(model, SHAPE, optimizer="adam", accumulate=3)
    yield oc.equal_stages(4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", range(4))
def test_traces_plans_and_schedules_are_the_same(way, place):
    step = list(steps())[place]
    again = WAYS[way](step)
    assert again == step
    assert again.fingerprint == step.fingerprint
    with pytest.raises(TypeError):
        again.outputs["more"] = 1  # as read-only as before
    plan = oc.plan(step, "50%", planner="belady")
    twin = WAYS[way](plan)
    assert twin.schedule == plan.schedule
    assert twin.trace == plan.trace
    oc.verify(twin, again, "50%")
    assert twin.makespan_us == plan.makespan_us


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_runs_where_it_comes_out(way):
    model = network()
    step = oc.trace(model, SHAPE, threads=1)
    plan = oc.plan(step, "50%", planner="belady", allocator="va")
    plan_again, model_again = WAYS[way]((plan, model))
    first, again = oc.execute(plan, model, batch()), oc.execute(plan_again, model_again, batch())
    assert first.loss == again.loss
    assert again.timeline.peak_bytes == first.timeline.peak_bytes
    WAYS[way](first)


@pytest.mark.parametrize("way", WAYS)
def test_tensors_leave_their_history_behind(way):
    """And their tape: a thousand calls are no thousand levels."""
    leaf = oc.tensor(np.ones(3, np.float32), requires_grad=True)
    x = leaf
    for _ in range(2000):
        x = x + 1.0
    twin = WAYS[way](x)
    assert np.array_equal(twin.numpy(), x.numpy())
    assert not twin.requires_grad
    assert WAYS[way](leaf).requires_grad
    x.sum().backward()
    assert np.array_equal(WAYS[way](leaf).grad.numpy(), np.ones(3))


@pytest.mark.parametrize("way", WAYS)
def test_tied_weights_stay_tied(way):
    model = network()
    model.second = nn.Linear(48, 3)
    model.second.weight = model.head.weight
    twin = WAYS[way](model)
    assert twin.second.weight is twin.head.weight


@pytest.mark.parametrize("way", [*WAYS.values(), copy.copy])
def test_trainers_are_refused_by_name(way):
    with trainer(network()) as t:
        t.step(*batch())
        with pytest.raises(ConfigError) as caught:
            way(t)
        assert caught.value.code == "OOC-106"
        assert "trainer.model" in caught.value.fix
        t.step(*batch(1))  # nothing has happened to it


def trained(model, optimizer, plan):
    """In another process."""
    oc.verify(plan, oc.trace(model, SHAPE, threads=1), "50%")
    with trainer(model, optimizer) as t:
        return t.step(*batch(1)), model


@pytest.mark.parametrize("start", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_other_processes_train_what_they_are_given(start):
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {start} on this system")
    model = network()
    plan = oc.plan(oc.trace(model, SHAPE, threads=1), "50%", planner="belady")
    with trainer(model) as t:
        t.step(*batch())
        with multiprocessing.get_context(start).Pool(1) as pool:
            loss, there = pool.apply(trained, (model, t.optimizer, plan))
        assert t.step(*batch(1)) == loss
        for name, value in model.state_dict().items():
            assert np.array_equal(there.state_dict()[name], value)


@pytest.mark.parametrize(
    "name",
    ["kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_", "normal_",
     "uniform_", "trunc_normal_", "orthogonal_", "zeros_", "ones_", "eye_"],
)  # fmt: skip
def test_weights_that_have_not_been_drawn_yet_go_along(name):
    layer = nn.Linear(6, 4)
    getattr(nn.init, name)(layer.weight)
    copied = pickle.loads(pickle.dumps(layer))
    assert np.array_equal(copied.weight.numpy(), layer.weight.numpy())


#: Settings as 0.1.0 pickled them at first: by their places, one of them called link_bytes_per_us.
SETTINGS_OF_BEFORE = (
    "800495c7000000000000008c1b6f6f63747261696e2e657865637574696f6e2e73657474696e6773948c0853"
    "657474696e67739493942981945d94288c03353025948c0677696e646f77948c027661948c03637075944b02"
    "8c0b6370752d67656e657269639447407f4000000000008c0431476942944b03473ff80000000000004b648c"
    "1a6f6f63747261696e2e646576696365732e696e74657266616365948c0544656275679493942981945d9428"
    "4bff894700000000000000004b00894e65628c04667573659485944e4e898965622e"
)


def test_settings_of_before_are_what_they_were():
    found = pickle.loads(bytes.fromhex(SETTINGS_OF_BEFORE))
    assert found == Settings(
        "50%", "window", "va", "cpu", 2, "cpu-generic", 500.0, "1GiB", seed=3, time_limit_s=1.5,
        evaluations=100, debug=Debug(poison=255), rewrites=("fuse",),
    )  # fmt: skip
    assert found.link_bandwidth == 500.0


@pytest.mark.parametrize("way", WAYS)
def test_options_are_equal_on_the_other_side(way):
    options = oc.Options("25%", threads=2, accumulate=3, clip=0.5, spill="/tmp")
    assert WAYS[way](options) == options
