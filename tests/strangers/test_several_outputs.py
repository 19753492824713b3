"""Models with several outputs and a loss of one's own: auxiliary heads, deep supervision, dicts.

Whatever the structure, training has the bits of the same network with its outputs joined by hand,
`evaluate` averages the loss, and `predict` returns the structure that the model does.
"""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.testing.thread_ranks import on_ranks

Pair = namedtuple("Pair", "main aux")


@dataclass
class Both:
    main: Any
    aux: Any
    note: str = "as it is"


class Two(nn.Module):
    """Two heads on one trunk, put together by `form`."""

    def __init__(self, form, dead=False):
        super().__init__()
        oc.manual_seed(0)
        self.trunk = nn.Conv2d(3, 4, 3, padding=1)
        self.a, self.b, self.form = nn.Linear(16, 5), nn.Linear(16, 5), form

    def forward(self, x):
        x = F.adaptive_avg_pool2d(F.relu(self.trunk(x)), 2).flatten(1)
        return self.form(self.a(x), self.b(x))


#: {name: (how outputs are put together, how a loss finds them)}
FORMS = {
    "tuple": (lambda a, b: (a, b), lambda o: (o[0], o[1])),
    "list": (lambda a, b: [a, b], lambda o: (o[0], o[1])),
    "dict": (lambda a, b: {"out": a, "aux": b}, lambda o: (o["out"], o["aux"])),
    "ordered": (lambda a, b: OrderedDict(out=a, aux=b), lambda o: (o["out"], o["aux"])),
    "namedtuple": (Pair, lambda o: (o.main, o.aux)),
    "dataclass": (Both, lambda o: (o.main, o.aux)),
    "nested": (lambda a, b: {"a": [a, {"b": (b, None)}], "n": 3},
               lambda o: (o["a"][0], o["a"][1]["b"][0])),
    "odd keys": (lambda a, b: {1: a, "1": b, "x.y": a}, lambda o: (o[1], o["1"])),
    "one twice": (lambda a, b: (a, b, a), lambda o: (o[0], o[1])),
}  # fmt: skip


def batch(rows=6):
    rng = np.random.default_rng(rows)
    return rng.standard_normal((rows, 3, 6, 6)).astype(np.float32), np.arange(rows) % 5


def loss_of(find):
    def loss(outputs, target):
        main, aux = find(outputs)
        return F.cross_entropy(main, target) + 0.4 * F.cross_entropy(aux, target)

    return loss


class Joined(Two):
    """The same as one output: (N, 10)."""

    def __init__(self):
        super().__init__(lambda a, b: F.concat([a, b], 1))


def trainer(model, loss, **options):
    sgd = oc.optim.SGD(model.parameters(), lr=0.1)
    return oc.Trainer(model, loss, sgd, threads=1, **options)


def joined(**options):
    return trainer(Joined(), loss_of(lambda o: (o[:, :5], o[:, 5:])), **options)


def leaves(value):
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, Both):
        return leaves([value.main, value.aux])
    parts = value.values() if isinstance(value, dict) else value
    return [one for part in parts if not isinstance(part, int | None) for one in leaves(part)]


@pytest.mark.parametrize("name", FORMS)
def test_any_structure_trains_evaluates_and_predicts(name):
    form, find = FORMS[name]
    x, y = batch()
    with trainer(Two(form), loss_of(find)) as t, joined() as one:
        for _ in range(3):
            assert np.isclose(t.step(x, y), one.step(x, y), rtol=1e-6)
        data = [batch(4), batch(3), batch(1)]
        assert np.isclose(t.evaluate(data).loss, one.evaluate(data).loss, rtol=1e-6)
        found, wanted = t.predict(x), one.predict(x)
    assert type(found) is type(form(0, 0))
    main, aux = find(found)
    assert np.allclose(np.concatenate([main, aux], 1), wanted, rtol=1e-5, atol=1e-6)
    if name == "nested":
        assert found["n"] == 3
        assert found["a"][1]["b"][1] is None
    if name == "dataclass":
        assert found.note == "as it is"


@pytest.mark.parametrize(
    "options",
    [{"budget": "0%", "planner": "belady"}, {"budget": "50%"}, {"accumulate": 3},
     {"accumulate": 4, "budget": "50%", "planner": "window"}],
)  # fmt: skip
def test_several_outputs_under_budgets_and_in_parts(options):
    form, find = FORMS["dict"]
    x, y = batch()
    with trainer(Two(form), loss_of(find), **options) as t, joined() as one:
        for _ in range(2):
            assert np.isclose(t.step(x, y), one.step(x, y), rtol=1e-5)
        # More images than a step has room for: they go through in parts.
        more = batch(64)
        assert np.isclose(t.evaluate([more]).loss, one.evaluate([more]).loss, rtol=1e-5)
        found = t.predict(more[0])
        assert found["aux"].shape == (64, 5)
        assert np.allclose(found["out"], one.predict(more[0])[:, :5], atol=1e-5)


def test_an_output_that_no_loss_reads_is_predicted():
    form, _ = FORMS["dict"]
    model = Two(form)
    before = model.b.weight.numpy().copy()
    with trainer(model, lambda o, y: F.cross_entropy(o["out"], y)) as t:
        t.step(*batch())
        assert t.predict(batch()[0])["aux"].shape == (6, 5)
    assert np.array_equal(model.b.weight.numpy(), before)


class AuxInTraining(Two):
    def forward(self, x):
        outputs = super().forward(x)
        return outputs if self.training else outputs[0]


def test_outputs_in_training_alone():
    def loss(outputs, target):
        if isinstance(outputs, tuple):
            return loss(outputs[0], target) + 0.4 * loss(outputs[1], target)
        return F.cross_entropy(outputs, target)

    with trainer(AuxInTraining(FORMS["tuple"][0]), loss) as t:
        t.step(*batch())
        assert t.predict(batch()[0]).shape == (6, 5)
        assert t.evaluate([batch()]).accuracy is not None


def test_inputs_and_parameters_may_be_outputs():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.scale = nn.Linear(4, 2), nn.Parameter(np.ones(3))

        def forward(self, x):
            return {"x": x, "scale": self.scale, "y": self.fc(x)}

    x = np.ones((2, 4), np.float32)
    with trainer(Returns(), lambda o, y: F.cross_entropy(o["y"], y)) as t:
        found = t.predict(x)
        assert np.array_equal(found["x"], x)
        assert np.array_equal(found["scale"], np.ones(3))
        t.step(x, np.arange(2))


def test_float_targets_of_another_shape():
    """Two regressions of one target."""

    def loss(outputs, target):
        return F.mse_loss(outputs[0], target[:, :5]) + F.mse_loss(outputs[1], target[:, 5:])

    with trainer(Two(FORMS["tuple"][0]), loss) as t:
        y = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
        losses = [t.step(batch()[0], y) for _ in range(20)]
        assert losses[-1] < losses[0]
        t.evaluate([(batch()[0], y)])


def test_traces_name_the_outputs():
    step = oc.trace(Two(FORMS["nested"][0]), (2, 3, 6, 6), None, training=False)
    assert list(step.outputs) == ["output.a.0", "output.a.1.b.0"]
    form, find = FORMS["tuple"]
    model = Two(form)
    step = oc.trace(model, (2, 3, 6, 6), loss_of(find), target_shape=(2,))
    done = oc.execute(oc.plan(step, "50%"), model, batch(2))
    assert np.isfinite(done.loss)
    assert "b.weight" in done.gradients


def test_what_is_no_output_is_refused_by_name():
    with trainer(Two(lambda a, b: {a, b}), loss_of(lambda o: tuple(o))) as t:
        for use in (lambda: t.predict(batch()[0]), lambda: t.step(*batch())):
            with pytest.raises(ConfigError) as caught:
                use()
            assert caught.value.code == "OOC-106"
    with trainer(Two(FORMS["tuple"][0]), "cross_entropy") as t, pytest.raises(OoctrainError):
        t.step(*batch())
    with trainer(Two(lambda a, b: None), loss_of(lambda o: o)) as t, pytest.raises(ConfigError):
        t.step(*batch())


class Maps(nn.Module):
    """Deep supervision of a segmentation: two maps of one size."""

    def __init__(self):
        super().__init__()
        oc.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1)

    def forward(self, x):
        first = self.a(x)
        return {"aux": first, "out": self.b(F.relu(first))}


def of_maps(outputs, target):
    return F.cross_entropy(outputs["out"], target) + F.cross_entropy(outputs["aux"], target)


@pytest.mark.parametrize("tiling", ["bands:2", "bands:8"])
def test_maps_in_bands(tiling):
    """Outputs that a step writes in blocks are whole again."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    y = rng.integers(0, 5, (2, 8, 8))
    with trainer(Maps(), of_maps) as one, trainer(Maps(), of_maps, rewrites=(tiling,)) as banded:
        assert np.isclose(one.step(x, y), banded.step(x, y), rtol=1e-5)
        for name, value in one.predict(x).items():
            assert np.allclose(banded.predict(x)[name], value, atol=1e-5)
        assert np.isclose(one.evaluate([(x, y)]).loss, banded.evaluate([(x, y)]).loss, rtol=1e-5)


def test_several_ranks():
    form, find = FORMS["tuple"]
    x, y = batch(4)

    def run(ranks):
        part = slice(2 * ranks.rank, 2 * ranks.rank + 2)
        with trainer(Two(form), loss_of(find), ranks=ranks) as t:
            return t.step(x[part], y[part])

    with trainer(Two(form), loss_of(find), accumulate=2) as t:
        assert on_ranks(2, run) == [t.step(x, y)] * 2
