"""Settings that make no sense are refused by name before a step, and never train a model into
something that is not a number: at construction, and when they are changed between steps."""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import Parameter, signature

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.engine.clip import ClipEach, ClipNorm
from ooctrain.errors import OoctrainError
from ooctrain.execution.checkpoint import RunState

NAN, INF = float("nan"), float("inf")
NO_RATES = [NAN, INF, -1.0, "fast", None]
#: As in PyTorch: a negative dampening, and a learning rate that becomes negative.
ALLOWED = {("dampening", -1.0)}
ALLOWED_LATER = {*ALLOWED, ("lr", -1.0)}


def network():
    oc.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def batch():
    rng = np.random.default_rng(2)
    return rng.standard_normal((4, 5), np.float32), rng.integers(0, 3, 4)


def refused(call) -> OoctrainError:
    with pytest.raises(OoctrainError) as caught:
        call()
    assert caught.value.fix
    return caught.value


def trained(**options):
    with oc.Trainer(network(), threads=1, **options) as trainer:
        trainer.step(*batch())


WRONG = [
    ("accumulate", 2.0), ("accumulate", "2"), ("optimizer", 3), ("optimizer", optim.SGD),
    ("seed", "x"), ("seed", 1.5), ("time_limit_s", NAN), ("time_limit_s", -1.0),
    ("time_limit_s", 0), ("time_limit_s", "x"), ("clip", NAN), ("clip", -1.0), ("clip", "1"),
    ("budget", True), ("seed", 1 << 63), ("evaluations", "5"), ("evaluations", -1),
    ("rewrites", None), ("rewrites", "fuse"), ("rewrites", 3), ("machine", 3),
    ("link_bandwidth", "1GB"), ("debug", True), ("debug", 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_a_trainer_refuses_what_makes_no_sense(name, value):
    refused(lambda: trained(**{name: value}))


@pytest.mark.parametrize(("name", "near"), [("budgit", "budget"), ("thread", "threads")])
def test_a_trainer_says_which_word_is_near(name, near):
    with pytest.raises(TypeError, match=rf"Trainer\(\).*'{name}'.*'{near}'"):
        oc.Trainer(network(), **{name: 1})


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_options_refuse_it_too(name, value):
    if name != "optimizer":  # which is what is trained, and not how
        refused(lambda: trained(options=oc.Options(**{name: value})))


def test_options_are_what_a_trainer_has_and_what_is_named_counts_before_them():
    options = oc.Options(
        "50%", planner="window", device="cpu", threads=1, seed=3, accumulate=2, clip=1.5,
        evaluations=None, conv_algorithm="im2col", spill="/tmp",
    )  # fmt: skip
    with oc.Trainer(network(), options=options) as made:
        assert made.settings == options.settings
        assert (made.accumulate, made.clip, made.conv_algorithm) == (2, 1.5, "im2col")
    with oc.Trainer(
        network(), "cross_entropy", "adam", "60%", accumulate=1, threads=2, rewrites=["fuse"],
        debug=None, options=options,
    ) as made:  # fmt: skip
        wanted = replace(options, budget="60%", threads=2, rewrites=("fuse",))
        assert (made.settings, made.accumulate) == (wanted.settings, 1)
    for unknown in ({"bugdet": "50%"}, {"options": options, "spill_rate": "1GB"}):
        with pytest.raises(TypeError, match=r"unexpected keyword argument"):
            oc.Trainer(network(), **unknown)
    for wrong in ("50%", {"budget": "50%"}, oc.Options):
        refused(lambda wrong=wrong: oc.Trainer(network(), options=wrong))


def test_what_a_trainer_takes_shows_all_options_with_their_defaults():
    shown = signature(oc.Trainer).parameters
    assert [*shown][:9] == [
        "model", "loss", "optimizer", "budget", "planner", "allocator", "device", "accumulate",
        "ranks",
    ]  # fmt: skip
    for field in fields(oc.Options):
        assert field.name in shown
        if shown[field.name].kind == Parameter.KEYWORD_ONLY:
            assert shown[field.name].default == field.default


def test_a_trainer_trains_the_same_however_its_options_are_given():
    losses = []
    for given in (
        {"budget": "90%", "seed": 5, "accumulate": 2},
        {"options": oc.Options(budget="90%", seed=5, accumulate=2)},
        {"budget": "90%", "options": oc.Options(seed=5, accumulate=2)},
    ):
        with oc.Trainer(network(), threads=1, **given) as trainer:
            losses.append([trainer.step(*batch()) for _ in range(2)])
    assert losses[0] == losses[1] == losses[2]


PLANNED = ("seed", "time_limit_s", "evaluations", "rewrites", "machine")


@pytest.mark.parametrize(("name", "value"), [pair for pair in WRONG if pair[0] in PLANNED], ids=str)
def test_a_plan_refuses_them_too(name, value):
    """A time limit that is no number never ended, and one below 0 ended the search at once."""
    trace = oc.trace(network(), (4, 5), threads=1)
    refused(lambda: oc.plan(trace, "50%", **{name: value}))


def test_no_bound_of_gradients_is_below_0_or_no_number():
    for bound in (NAN, -1.0, "1", None):
        refused(lambda bound=bound: ClipNorm(bound))
        refused(lambda bound=bound: ClipEach(bound))
    assert ClipNorm(INF).max_norm == INF  # what measures the norm, and clips nothing


def test_what_is_no_model_or_knows_no_thread_is_refused():
    refused(lambda: oc.Trainer("resnet18"))
    refused(lambda: oc.Trainer(network(), threads=1.5).step(*batch()))
    refused(lambda: oc.Trainer(network(), threads=1).evaluate([batch()[0]]))


def test_an_optimizer_of_another_model_is_refused():
    """It would train nothing, without a word."""
    other = optim.SGD(network().parameters(), lr=0.1)
    assert "no parameter" in str(refused(lambda: trained(optimizer=other)))


SETTINGS = {
    "SGD": (optim.SGD, {"momentum": 0.9}, ("lr", "momentum", "dampening", "weight_decay")),
    "Adam": (optim.Adam, {}, ("lr", "eps", "weight_decay", "betas")),
    "RMSprop": (optim.RMSprop, {"momentum": 0.5}, ("lr", "alpha", "eps", "weight_decay")),
}
CASES = [(kind, name, wrong) for kind, (_, _, names) in SETTINGS.items()
         for name in names for wrong in NO_RATES]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "wrong"), CASES)
def test_an_optimizer_refuses_a_setting_that_is_no_finite_number(kind, name, wrong):
    make, others, _ = SETTINGS[kind]
    if (name, wrong) in ALLOWED:
        return
    refused(lambda: make(network().parameters(), **{**others, "lr": 0.1, name: wrong}))


AT_ONCE = [("SGD", "lr", NAN), ("SGD", "dampening", NAN), ("Adam", "betas", "fast"),
           ("RMSprop", "eps", INF)]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [case if case in AT_ONCE else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_a_setting_that_becomes_no_finite_number_is_refused_by_the_next_step(kind, name, wrong):
    make, others, _ = SETTINGS[kind]
    model = network()
    optimizer = make(model.parameters(), **{"lr": 0.01, **others})
    with oc.Trainer(model, optimizer=optimizer, threads=1) as trainer:
        trainer.step(*batch())
        before = trainer.state_arrays()
        right, optimizer.param_groups[0][name] = optimizer.param_groups[0][name], wrong
        if (name, wrong) not in ALLOWED_LATER:
            refused(lambda: trainer.step(*batch()))
            optimizer.param_groups[0][name] = right
            after = trainer.state_arrays()
            assert all(np.array_equal(after[key], value) for key, value in before.items())
        optimizer.param_groups[0][name] = right
        trainer.step(*batch())
        assert all(np.isfinite(value).all() for value in trainer.state_arrays().values())


def test_eager_steps_refuse_it_too():
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = batch()
    oc.functional.cross_entropy(model(oc.tensor(x)), oc.tensor(y)).backward()
    before = model.state_dict()
    optimizer.param_groups[0]["lr"] = NAN
    refused(optimizer.step)
    assert all(np.array_equal(model.state_dict()[k], v) for k, v in before.items())


@pytest.mark.parametrize("seed", [-(1 << 62), (1 << 63) - 1, np.int64(5), np.uint64(7)])
def test_a_run_of_any_seed_is_planned_saved_and_taken_up_again(seed, tmp_path):
    """Seeds of more than 64 bits were written to checkpoints that nobody could read, those of NumPy
    ended in a TypeError, and the search of `combined` in an OverflowError."""
    path = str(tmp_path / "run.safetensors")
    with oc.Trainer(network(), threads=1, seed=seed, planner="combined", budget="50%") as trainer:
        trainer.step(*batch())
        trainer.save(path)
        assert trainer.resume(path).seed == seed


@pytest.mark.parametrize("seed", [1.5, "1", None])
def test_a_seed_of_weights_is_a_whole_number(seed):
    """It was taken, and the next random number ended in a TypeError."""
    assert refused(lambda: oc.manual_seed(seed)).code == "OOC-106"


@pytest.mark.parametrize("history", [{"loss": NAN}, {"loss": object()}, {"loss": {1, 2}}])
def test_a_state_that_nobody_could_read_is_refused_before_anything_is_written(history, tmp_path):
    path = tmp_path / "run.safetensors"
    with oc.Trainer(network(), threads=1) as trainer:
        trainer.step(*batch())
        trainer.save(str(path))
        before = path.read_bytes()
        for run in (RunState(step=1, history=history), RunState(step=1 << 64), RunState(step=-1)):
            assert refused(lambda run=run: trainer.save(str(path), run)).code == "OOC-106"
        trainer.save(str(path), RunState(step=np.int64(1), history={"loss": np.float32(0.5)}))
        assert trainer.resume(str(path)).history == {"loss": 0.5}
    assert path.with_name("run.safetensors.1").read_bytes() == before


@pytest.mark.parametrize(("value", "told"), [(NAN, True), (1e300, True), (1e30, False)])
def test_a_loss_that_is_no_number_because_of_the_data_says_so(value, told):
    """The hint was a smaller learning rate, whatever the batch held."""
    x = batch()[0].astype(np.float64)
    x[1, 2] = value
    net = nn.Sequential(nn.Linear(5, 3))
    with oc.Trainer(net, loss=lambda out, target: (out * out).mean() * 1e38, threads=1) as trainer:
        error = refused(lambda: trainer.step(x, np.zeros((4, 3), np.float32)))
    assert error.code == "OOC-320"
    assert ("look at the data" in error.fix) is told
    assert ("1 values of the batch" in str(error)) is told


def test_labels_beyond_64_bits_are_no_labels_to_be_ignored():
    """2**64 - 100 became -100, which cross entropy ignores."""
    x, _ = batch()
    labels = np.full(4, 2**64 - 100, np.uint64)
    with oc.Trainer(network(), loss=oc.nn.CrossEntropyLoss(), threads=1) as trainer:
        assert "int64" in str(refused(lambda: trainer.step(x, labels)))
