"""What a trainer sees between steps, beyond the law of tests/properties/test_what_a_step_reads.py:
plans are kept, what is replaced is trained, what nobody trains is named."""

import gc
import sys
import warnings
import weakref

import numpy as np
import pytest
from support.layers_to_change import LAYERS

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn, optim
from ooctrain.engine.eager import EagerRunner
from ooctrain.engine.fingerprint import described
from ooctrain.engine.tensor import Tape, use_tape
from ooctrain.errors import ConfigError


def batch(number=0):
    rng = np.random.default_rng(number)
    return rng.standard_normal((4, 6), np.float32), rng.integers(0, 3, 4)


def network():
    oc.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(0.1), nn.Dropout(0.2), nn.Linear(5, 3))


def make(loss="cross_entropy", **options):
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return oc.Trainer(model, loss, optimizer, threads=1, seed=5, **options)


def test_whoever_goes_back_finds_the_plan_again():
    with make() as trainer:
        trainer.step(*batch())
        first = trainer.plan
        trainer.model[1].negative_slope = 0.3
        trainer.step(*batch(1))
        second = trainer.plan
        trainer.model[1].negative_slope = 0.1
        trainer.step(*batch(2))
        assert trainer.plan is first
        assert second is not first


def test_what_no_trace_reads_costs_no_plan():
    with make(budget="80%") as trainer:
        trainer.step(*batch())
        plan, device = trainer.plan, trainer._residence.open
        trainer.model.note = "nobody reads this"
        trainer.step(*batch(1))
        assert trainer.plan is plan
        assert trainer._residence.open is device


def test_evaluation_between_steps_costs_no_plan():
    with make() as trainer:
        trainer.step(*batch())
        plan = trainer.plan
        for mode in (False, True):
            trainer.evaluate([batch(1)])
            trainer.model.train(mode)
        trainer.step(*batch(2))
        assert trainer.plan is plan


def eager_step(model, optimizer, number):
    with use_tape(Tape(EagerRunner(threads=1))):
        optimizer.zero_grad()
        x, y = batch(number)
        F.cross_entropy(model(oc.tensor(x)), oc.tensor(y)).backward()
        optimizer.step()


def test_a_step_trains_the_model_in_the_mode_that_it_is_in():
    with make() as trainer, make() as twin:
        trainer.model.eval()
        with pytest.warns(UserWarning, match="evaluation mode"):
            trainer.step(*batch())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.step(*batch(1))  # it is said once
        twin.model.eval()
        for number in (0, 1):
            eager_step(twin.model, twin.optimizer, number)
        for name, value in trainer.model.state_dict().items():
            assert np.array_equal(value, twin.model.state_dict()[name])


def test_a_part_in_evaluation_mode_needs_no_warning():
    with make() as trainer, warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.model[2].eval()
        assert np.isfinite(trainer.step(*batch()))


def replaced(trainer):
    """Another last layer; returns what it was and is."""
    trainer.step(*batch())
    old = trainer.model[3]
    oc.manual_seed(7)
    trainer.model.add_module("3", nn.Linear(5, 3))
    return old, trainer.model[3]


def test_a_replaced_module_is_trained_if_the_optimizer_knows_it():
    with make() as trainer, warnings.catch_warnings():
        warnings.simplefilter("error")
        old, new = replaced(trainer)
        trainer.optimizer.add_param_group({"params": new.parameters()})
        kept, before = old.weight.numpy().copy(), new.weight.numpy().copy()
        trainer.step(*batch(1))
        assert np.array_equal(old.weight.numpy(), kept)
        assert not np.array_equal(new.weight.numpy(), before)
        assert trainer.optimizer.steps[new.weight] == 1
        assert "3.weight.momentum" in trainer.state_arrays()


def test_a_replaced_module_that_the_optimizer_does_not_know_is_named():
    with make() as trainer:
        old, new = replaced(trainer)
        kept, before = old.weight.numpy().copy(), new.weight.numpy().copy()
        with pytest.warns(UserWarning, match=r"3\.weight, 3\.bias: new in the model"):
            trainer.step(*batch(1))
        assert np.array_equal(old.weight.numpy(), kept)
        assert np.array_equal(new.weight.numpy(), before)


def test_a_layer_that_is_deleted_is_gone():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            y = self.first(x)
            return y + self.second(x) if "second" in self._modules else y

    model = Two()
    with oc.Trainer(model, threads=1) as trainer:
        trainer.step(*batch())
        weight = model.second.weight
        del model.second
        before = weight.numpy().copy()
        trainer.step(*batch(1))
        assert np.array_equal(weight.numpy(), before)
        assert set(model.state_dict()) == {"first.weight", "first.bias"}
    with pytest.raises(AttributeError):
        del model.second


def test_modules_that_a_loss_function_calls_are_seen():
    criterion = nn.CrossEntropyLoss()

    def losses():
        with make(lambda output, target: criterion(output, target)) as trainer:
            first = trainer.step(*batch())
            criterion.label_smoothing = 0.3
            return first, trainer.step(*batch())

    first, second = losses()
    assert losses()[0] != first
    criterion.label_smoothing = 0.0
    assert losses() == (first, second)


def through_a_view(tensor, values):
    """No method of the tensor is called; NumPy allows it, since the array below may be written."""
    view = tensor.numpy()
    view.flags.writeable = True
    view[:] = values


#: Ways to write to a tensor; the second one no counter sees.
WRITES = {"copy_": oc.Tensor.copy_, "a view": through_a_view}


@pytest.mark.parametrize("way", WRITES)
def test_values_that_a_trace_reads_are_seen(way):
    """Class weights are constants of a step; they may be written in place."""
    weight = oc.tensor(np.ones(3, np.float32))

    def loss(output, target):
        return F.cross_entropy(output, target, weight)

    def after(values):
        weight.copy_(np.ones(3, np.float32))
        with make(loss) as trainer:
            trainer.step(*batch())
            WRITES[way](weight, np.array(values, np.float32))
            trainer.step(*batch(1))
            return trainer.state_arrays()["0.weight"]

    assert np.array_equal(after([1, 1, 1]), after([1, 1, 1]))
    assert not np.array_equal(after([1, 1, 1]), after([5, 1, 0]))


def test_a_loss_of_ones_own_is_seen():
    class Scaled:
        def __init__(self):
            self.factor = 1.0

        def __call__(self, output, target):
            return F.cross_entropy(output, target) * self.factor

    loss = Scaled()
    with make(loss) as trainer:
        trainer.optimizer.param_groups[0]["lr"] = 0.0
        first = trainer.step(*batch())
        loss.factor, trainer.optimizer.steps_done = 2.0, 0
        assert trainer.step(*batch()) == pytest.approx(2 * first)


def test_a_slot_is_written_and_never_replaced():
    with make() as trainer:
        trainer.step(*batch())
        slots = trainer.optimizer.state[trainer.model[0].weight]
        with pytest.raises(ConfigError, match="copy_"):
            slots["momentum"] = oc.tensor(np.zeros((5, 6), np.float32))
        slots["momentum"].copy_(np.zeros((5, 6), np.float32))
        assert not trainer.state_arrays()["0.weight.momentum"].any()


def calls_of_a_look(model):
    """Functions in Python that run to find that nothing has changed."""
    calls = []
    with oc.Trainer(model, threads=1) as trainer:
        now = trainer._training()
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        try:
            assert trainer._seen.unchanged(now)
        finally:
            sys.setprofile(None)
    return calls.count("call")


@pytest.mark.parametrize("layer", sorted(set(LAYERS) - {"ModuleList"}))
def test_a_look_at_more_modules_calls_no_more_functions(layer):
    """So it stays a few microseconds: only what a module cannot count is compared by value."""

    def layers(count):
        classifier = nn.Linear(4, 3)
        return nn.Sequential(*(LAYERS[layer]() for _ in range(count)), classifier)

    assert calls_of_a_look(layers(9)) == calls_of_a_look(layers(1))


def test_lists_within_tuples_are_looked_at():
    """A tuple cannot change, but what it holds can."""
    model = network()
    model.settings = (1, [2.0])
    with oc.Trainer(model, threads=1) as trainer:
        assert trainer._seen.unchanged(trainer._training())
        model.settings[1][0] = 3.0
        assert not trainer._seen.unchanged(trainer._training())


def test_a_mode_that_a_model_is_in_already_is_no_change():
    """Some call `model.train()` before each step."""
    model = network()
    with oc.Trainer(model, threads=1) as trainer:
        model.train()
        assert trainer._seen.unchanged(trainer._training())
        model.eval()
        assert not trainer._seen.unchanged(trainer._training())


def test_a_part_that_is_replaced_is_not_kept():
    """Steps that are known by what they depended on keep nothing of it in memory."""
    with make() as trainer:
        trainer.step(*batch())
        old = weakref.ref(trainer.model[2])
        trainer.model.add_module("2", nn.Dropout(0.3))
        trainer.step(*batch(1))
        gc.collect()
        assert old() is None


class Told(nn.Linear):
    """A layer that wants to know which step begins."""

    def begin_step(self, number):
        self.told = [*getattr(self, "told", ()), number]


def test_parts_are_told_the_number_of_a_step_that_begins():
    """Also one that has come since; and one whose class, or that itself, has learnt it since."""
    with make() as trainer:
        trainer.step(*batch())
        late = nn.Sequential(Told(5, 5))
        trainer.model.add_module("1", late)
        trainer.optimizer.add_param_group({"params": late.parameters()})
        trainer.step(*batch(1))
        trainer.evaluate([batch(1)])
        late[0].begin_step = lambda number: seen.append(number)
        seen = []
        trainer.step(*batch(2))
        assert (getattr(late[0], "told", None), seen) == ([1], [2])


def test_a_class_that_learns_later_which_step_begins(monkeypatch):
    class Layer(nn.Tanh):
        pass

    model, seen = nn.Sequential(nn.Linear(6, 3), Layer()), []
    with oc.Trainer(model, threads=1) as trainer:
        trainer.step(*batch())
        monkeypatch.setattr(Layer, "begin_step", lambda self, number: seen.append(number), False)
        trainer.step(*batch())
    assert seen == [1]


def test_descriptions_tell_values_apart():
    values = [
        0.0, -0.0, 1, 1.0, True, "1", None, b"1", np.float32(1), (1,), [1], {1}, {1: 2}, {1: 3},
        np.zeros(2), np.zeros((2, 1)), np.zeros(2, np.float32), np.ones(2), F.relu, F.tanh,
        oc.tensor(np.ones(1, np.float32)), oc.tensor(np.ones(1, np.float32)), object(), object(),
    ]  # fmt: skip
    told = [described(value) for value in values]
    assert len(set(told)) == len(values)
    assert told == [described(value) for value in values]
    assert described([np.ones(2), {"a": (1, 2)}]) == described([np.ones(2), {"a": (1, 2)}])
