"""The trainer: true values between steps, evaluation, checkpoints, failed steps, hard budgets."""

import numpy as np
import pytest
from support.quick import quick

import ooctrain as oc
from ooctrain.alloc.registry import choose_allocator
from ooctrain.data import DataLoader, synthetic
from ooctrain.errors import (
    CheckpointError,
    ConfigError,
    DoesNotFit,
    DriverError,
    Infeasible,
    OoctrainError,
    ShapeError,
    TrainingStopped,
)
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings

BATCH = (8, 1, 28, 28)


def batch(seed=0, samples=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, *BATCH[1:])).astype(np.float32)
    return x, rng.integers(0, 10, samples)


def network():
    """A convolution, batch statistics, dropout and a classifier: all kinds of state."""
    nn = oc.nn
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 14 * 14, 10),
    )  # fmt: skip


def make(budget="30%", **options):
    """A trainer whose planner does not search, unless it is to."""
    oc.manual_seed(3)
    options = {"planner": "window", **options}
    model = network()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return oc.Trainer(model, optimizer=optimizer, budget=budget, threads=1, seed=5, **options)


def states_equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=True) for k in a)


@pytest.mark.parametrize(
    "options",
    quick([{"planner": "auto"}, {"allocator": "va:chunk=16KiB"}, {"planner": "naive"}], 1, 2),
)
def test_the_budget_changes_no_bit(options):
    with make(budget=None) as full, make(**options) as small:
        for step in range(3):
            assert full.step(*batch(step)) == small.step(*batch(step))
        assert states_equal(full.state_arrays(), small.state_arrays())
        assert small.timeline.peak_bytes <= small.prepared.budget_bytes
        assert small.timeline.peak_bytes == small.plan.peak_bytes


def test_fit_is_its_steps_and_the_schedule_moves_after_each_epoch():
    batches, told, rates = [batch(0), batch(1)], [], []
    with make() as fitted, make() as stepped:
        schedule = oc.optim.StepLR(fitted.optimizer, 1, gamma=0.5)

        def on_step(steps, loss):
            told.append((steps, loss))
            rates.append(fitted.optimizer.param_groups[0]["lr"])

        losses = fitted.fit(batches, epochs=2, schedule=schedule, on_step=on_step)
        assert told == [*enumerate(losses, 1)]
        assert rates == [0.05, 0.05, 0.025, 0.025]
        for expected, rate, number in zip(losses, rates, (0, 1, 0, 1), strict=True):
            stepped.optimizer.param_groups[0]["lr"] = rate
            assert stepped.step(*batches[number]) == expected
        assert states_equal(fitted.state_arrays(), stepped.state_arrays())


def test_between_steps_the_model_shows_the_true_values():
    with make() as trainer:
        before = trainer.model.state_dict()["0.weight"].copy()
        trainer.step(*batch())
        after = trainer.model.state_dict()["0.weight"]
        assert not np.array_equal(before, after)
        counter = trainer.model.state_dict()["1.num_batches_tracked"]
        assert counter == 1
    assert np.array_equal(trainer.model.state_dict()["0.weight"], after)


def test_an_assignment_is_seen_by_the_next_step():
    with make() as assigned, make() as other:
        assigned.step(*batch())
        other.step(*batch())
        assigned.model.load_state_dict(other.model.state_dict())
        zero = {k: np.zeros_like(v) for k, v in assigned.model.state_dict().items()}
        assigned.model.load_state_dict(
            {**assigned.model.state_dict(), "6.weight": zero["6.weight"]}
        )
        losses = assigned.step(*batch(1)), other.step(*batch(1))
        assert losses[0] != losses[1]


def test_a_changed_learning_rate_needs_no_new_plan():
    with make() as trainer:
        trainer.step(*batch())
        plan = trainer.plan
        trainer.optimizer.param_groups[0]["lr"] = 0.0
        before = trainer.model.state_dict()["6.weight"]
        trainer.step(*batch(1))
        assert trainer.plan is plan
        assert np.array_equal(trainer.model.state_dict()["6.weight"], before)


def test_a_new_trainer_goes_on_where_the_optimizer_is():
    """Adam's bias correction depends on the number of steps, and dropout's masks do."""

    def model_and_optimizer():
        oc.manual_seed(3)
        model = network()
        return model, oc.optim.Adam(model.parameters(), lr=0.01)

    model, optimizer = model_and_optimizer()
    with oc.Trainer(model, optimizer=optimizer, threads=1, seed=5) as straight:
        losses = [straight.step(*batch(i)) for i in range(4)]
        final = straight.state_arrays()
    model, optimizer = model_and_optimizer()
    with oc.Trainer(model, optimizer=optimizer, threads=1, seed=5) as first:
        assert [first.step(*batch(i)) for i in range(2)] == losses[:2]
    saved = optimizer.state_dict()
    assert {state["step"] for state in saved["state"].values()} == {2}
    _, copy = model_and_optimizer()
    copy.param_groups[0]["params"] = list(model.parameters())
    copy.load_state_dict(saved)
    for loaded in (copy, optimizer):
        before = model.state_dict()
        with oc.Trainer(
            model, "cross_entropy", loaded, "40%", "window", threads=1, seed=5
        ) as second:
            assert second.steps_done == 2
            assert [second.step(*batch(i)) for i in (2, 3)] == losses[2:]
            assert states_equal(second.state_arrays(), final)
        model.load_state_dict(before)


def freeze(trainer):
    trainer.model[0].requires_grad_(False)


def decay(trainer):
    trainer.optimizer.param_groups[0]["weight_decay"] = 0.5


def fix_statistics(trainer):
    trainer.model[1].eval()


@pytest.mark.parametrize("change", quick([freeze, decay, fix_statistics], 0, 1))
def test_a_change_of_how_it_trains_is_seen_by_the_next_step(change):
    """After a step that trains nothing (but batch statistics), as if it had been there before."""
    with make() as late, make() as early:
        late.optimizer.param_groups[0]["lr"] = 0.0
        late.step(*batch())
        plan = late.plan
        late.optimizer.param_groups[0]["lr"] = 0.05
        early.model.load_state_dict(late.model.state_dict())
        for slots in late.optimizer.state.values():
            slots["momentum"].copy_(np.zeros(slots["momentum"].shape))
        for trainer in (late, early):
            change(trainer)
            trainer.optimizer.steps.update(dict.fromkeys(trainer.optimizer.steps, 0))
            trainer.optimizer.steps_done = 0
        assert late.step(*batch(1)) == early.step(*batch(1))
        assert states_equal(late.state_arrays(), early.state_arrays())
        assert late.plan is not plan


def test_momentum_may_come_later():
    with make() as late:
        late.optimizer.param_groups[0]["momentum"] = 0.0
        late.step(*batch())
        late.optimizer.param_groups[0]["momentum"] = 0.9
        late.step(*batch(1))
        assert late.state_arrays()["0.weight.momentum"].any()


@pytest.mark.parametrize("open_between", quick([True, False], 0))
def test_trainers_of_one_model_take_turns_at_the_same_values(open_between):
    """Each step begins where the last one ended, whoever made it."""
    with make(budget=None) as alone:
        expected = [alone.step(*batch(i)) for i in range(5)]
        wanted = alone.state_arrays()
    oc.manual_seed(3)
    model = network()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    one, two = (
        oc.Trainer(model, "cross_entropy", optimizer, budget, "window", threads=1, seed=5)
        for budget in (None, "30%")
    )
    losses = []
    for i, trainer in enumerate((one, two, one, two, one)):
        losses.append(trainer.step(*batch(i)))
        if not open_between:
            trainer.close()
    assert losses == expected
    assert states_equal(one.state_arrays(), wanted)
    assert states_equal(two.state_arrays(), wanted)
    one.close()
    two.close()


def test_an_epoch_without_batches_is_refused():
    with make() as trainer:
        with pytest.raises(ConfigError, match="epoch 2 has no batch"):
            trainer.fit((batch(i) for i in range(2)), epochs=2)
        assert trainer.steps_done == 2


def test_evaluation_changes_nothing_and_stays_within_the_budget():
    data = DataLoader(synthetic(samples=20, channels=1, image_size=28), 8)
    with make() as evaluated, make() as plain:
        for trainer in (evaluated, plain):
            trainer.step(*batch())
        result = evaluated.evaluate(data)
        assert result.samples == 20
        assert 0 <= result.accuracy <= 1
        assert states_equal(evaluated.state_arrays(), plain.state_arrays())
        assert evaluated.step(*batch(1)) == plain.step(*batch(1))


@pytest.mark.parametrize("ignored", quick([-100, 3], 0))
def test_labels_that_the_loss_ignores_are_neither_hits_nor_misses(ignored):
    x, labels = batch()
    with make(loss=oc.nn.CrossEntropyLoss(ignore_index=ignored)) as trainer:
        right = trainer.predict(x).argmax(axis=1)
        right = np.where(right == ignored, right + 1, right)
        labels = right.copy()
        labels[:3] = ignored
        hits = (trainer.predict(x).argmax(axis=1) == labels)[3:]
        assert trainer.evaluate([(x, labels)]).accuracy == hits.mean()
        assert trainer.evaluate([(x, np.full_like(labels, ignored))]).accuracy is None


def test_predictions_are_those_of_the_model_itself():
    with make() as trainer:
        trainer.step(*batch())
        x, _ = batch(7)
        out_of_core = trainer.predict(x)
    trainer.model.eval()
    with oc.no_grad():
        eager = trainer.model(oc.tensor(x)).numpy()
    assert np.array_equal(out_of_core, eager)


def test_a_loss_of_ones_own_takes_any_target():
    """Class numbers, or what has the shape of the output; the target itself says which."""

    def mean_square(output, target):
        return oc.functional.mse_loss(output, target)

    x, labels = batch()
    wanted = np.eye(10, dtype=np.float32)[labels]
    with make(loss=mean_square) as own, make(loss="mse") as named:
        for _ in range(2):
            assert own.step(x, wanted) == named.step(x, wanted)
        assert states_equal(own.state_arrays(), named.state_arrays())
        assert own.evaluate([(x, wanted)]) == named.evaluate([(x, wanted)])
    with make(loss=oc.functional.cross_entropy) as own, make() as named:
        assert own.step(x, labels) == named.step(x, labels)


def test_a_shorter_last_batch_gets_a_plan_of_its_own():
    with make() as small, make(budget=None) as full:
        for samples in (8, 8, 3, 8):
            assert small.step(*batch(samples, samples)) == full.step(*batch(samples, samples))
        assert small.steps_done == 4


def test_a_resumed_run_goes_on_with_the_same_bits(tmp_path):
    path = str(tmp_path / "run.safetensors")
    with make() as straight:
        losses = [straight.step(*batch(i)) for i in range(4)]
        final = straight.state_arrays()
    with make() as first:
        assert [first.step(*batch(i)) for i in range(2)] == losses[:2]
        first.save(path)
    with make(planner="naive") as second:
        assert second.resume(path).step == 2
        assert [second.step(*batch(i)) for i in (2, 3)] == losses[2:]
        assert states_equal(second.state_arrays(), final)


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_lost(tmp_path):
    path = str(tmp_path / "run.safetensors")
    with make() as trainer:
        trainer.save(path)
    with oc.Trainer(oc.models.build("lenet", 10, "cifar", 1), threads=1) as other:
        before = other.state_arrays()
        with pytest.raises(CheckpointError):
            other.resume(path)
        assert states_equal(other.state_arrays(), before)


def test_a_loss_that_is_no_number_stops_the_run():
    with make() as trainer:
        x, y = batch()
        with pytest.raises(TrainingStopped) as stopped:
            trainer.step(np.full_like(x, np.inf), y)
        assert stopped.value.step == 1


def test_wrong_batches_are_refused_before_anything_happens():
    with make() as trainer:
        trainer.step(*batch())
        state = trainer.state_arrays()
        x, y = batch()
        for bad in (y + 9, y.astype(np.float32), y[:3]):
            with pytest.raises(OoctrainError):
                trainer.step(x, bad)
        with pytest.raises(ShapeError):
            trainer.step(x[:, :, 0], y)
        assert states_equal(trainer.state_arrays(), state)
        assert np.isfinite(trainer.step(x, y))


def test_after_a_failed_device_values_are_lost_until_a_checkpoint_brings_them_back(
    tmp_path, monkeypatch
):
    path = str(tmp_path / "run.safetensors")
    with make() as trainer:
        trainer.step(*batch())
        trainer.save(path)
        saved = trainer.state_arrays()
        monkeypatch.setattr(
            "ooctrain.devices.cpu.launches.BoundOperation.__call__",
            lambda *_: (_ for _ in ()).throw(DriverError("it fell off the bus", call="launch")),
        )
        with pytest.raises(DriverError):
            trainer.step(*batch(1))
        monkeypatch.undo()
        with pytest.raises(OoctrainError, match="lost"):
            trainer.model.state_dict()
        trainer.resume(path)
        assert states_equal(trainer.state_arrays(), saved)
        assert np.isfinite(trainer.step(*batch(1)))


def test_a_budget_too_small_says_how_much_it_takes():
    with make(budget="1KiB", planner="window") as trainer, pytest.raises(Infeasible) as refused:
        trainer.step(*batch())
    least = refused.value.minimum_bytes
    with make(budget=least, planner="window") as trainer:
        trainer.step(*batch())
        assert trainer.timeline.peak_bytes <= least


def test_fragmentation_is_answered_by_a_smaller_ledger_limit():
    oc.manual_seed(0)
    model = oc.models.build("resnet18", 10, "cifar")
    trace = oc.trace(model, (16, 3, 32, 32), threads=1)
    settings = Settings(budget="60%", allocator="best-fit", planner="window", threads=1)
    prepared = prepare(trace, settings)
    assert prepared.reserved_bytes <= prepared.budget_bytes
    exact = choose_allocator("best-fit", prepared.budget_bytes)
    assert exact.granule == prepared.plan.schedule.granule
    if "ledger_limit_bytes" in prepared.plan.notes:
        assert prepared.plan.peak_bytes <= prepared.plan.notes["ledger_limit_bytes"]
        assert prepared.plan.notes["reserved_at_budget"] > prepared.budget_bytes


def test_what_no_limit_can_place_is_named_fragmentation(monkeypatch):
    monkeypatch.setattr("ooctrain.execution.fit.reserved_peak", lambda *_: 1 << 40)
    trace = oc.trace(network(), BATCH, threads=1)
    with pytest.raises(DoesNotFit, match="fragmentation"):
        prepare(trace, Settings(budget="60%", planner="window", threads=1))
