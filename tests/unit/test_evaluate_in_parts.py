"""A batch that does not fit is evaluated in parts, with the answer of the whole one."""

from __future__ import annotations

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.execution.evaluation import InParts, samples_apart
from ooctrain.execution.promise import parts_of

nn = oc.nn
CLASSES, SIDE = 5, 16


def batch(samples, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, 3, SIDE, SIDE)).astype(np.float32)
    return x, rng.integers(0, CLASSES, samples)


def network(**norm):
    oc.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, **norm), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(8, CLASSES),
    )  # fmt: skip


def make(model=None, loss="cross_entropy", **settings):
    model = model or network()
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return oc.Trainer(model, loss, optimizer, planner="window", threads=1, **settings)


def tight(model=None, loss="cross_entropy"):
    """A trainer in whose memory four samples train, and at most some eight are evaluated."""
    trainer = make(model, loss, budget="0%")
    trainer.step(*batch(4))
    return trainer


def roomy(model=None, loss="cross_entropy"):
    """The same trainer, after the same step, with all the memory there is."""
    trainer = make(model, loss)
    trainer.step(*batch(4))
    return trainer


def shapes_of(trainer):
    """Shapes of the evaluations that a trainer has prepared."""
    return {step.input[0] for step in trainer._seen.ready if not step.training}


@pytest.mark.parametrize("samples", [33, 40])
def test_a_batch_that_does_not_fit_is_evaluated_in_parts(samples):
    """Unequal parts count by their samples."""
    given = [batch(samples, 1), batch(7, 2)]
    with tight() as small, roomy() as whole:
        expected, found = whole.evaluate(given), small.evaluate(given)
        assert max(shapes_of(small)) < samples
        assert found.samples == expected.samples == samples + 7
        assert found.accuracy == expected.accuracy
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)


def test_labels_that_are_ignored_do_not_count():
    x, y = batch(40, 1)
    y[3:22] = 1
    loss = nn.CrossEntropyLoss(ignore_index=1)
    with tight(loss=loss) as small, roomy(loss=loss) as whole:
        expected, found = whole.evaluate([(x, y)]), small.evaluate([(x, y)])
        assert found.accuracy == expected.accuracy
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)


def test_outputs_are_those_of_the_whole_batch():
    x = batch(33, 1)[0]
    with tight() as small, roomy() as whole:
        assert np.array_equal(small.predict(x), whole.predict(x))


@pytest.mark.parametrize("most", range(1, 7))
def test_an_output_is_whole_in_any_number_of_parts(most):
    """Of six samples at most so many fit."""
    x = batch(6)[0]
    trace = oc.trace(network(), x.shape, training=False, threads=1)

    def forward(part, target, whole, bands):
        if len(part) > most:
            raise Infeasible("too large", minimum_bytes=0)
        return trace, {"output": 2 * part}

    assert np.array_equal(InParts(forward, lambda *_: trace).output(x), 2 * x)


#: Samples of six and whether in bands, as they are asked for.
BANDS_LAST = [(6, False), (3, False), (2, False), (1, False), *[(1, True)] * 6]
BANDS_FIRST = [(6, True), (3, True), *[(2, True)] * 3]


@pytest.mark.parametrize(
    ("bands_last", "expected"), [(True, BANDS_LAST), (False, BANDS_FIRST)]
)  # fmt: skip
def test_bands_are_tried_where_no_part_fits_without(bands_last, expected):
    """Without bands not even one sample fits, in bands two do. A list in bands has thousands of
    calls, and Python's objects of it are memory, too."""
    x = batch(6)[0]
    trace, asked = oc.trace(network(), x.shape, training=False, threads=1), []

    def forward(part, target, whole, bands):
        asked.append((len(part), bands))
        if len(part) > 2 or not bands:
            raise Infeasible("too large", minimum_bytes=0)
        return trace, {"output": 2 * part}

    in_parts = InParts(forward, lambda *_: trace, bands_last=bands_last)
    assert np.array_equal(in_parts.output(x), 2 * x)
    assert asked == expected


def test_a_batch_whose_samples_are_mixed_is_tried_whole_in_bands():
    x, asked = batch(6)[0], []
    mixed = network(track_running_stats=False)
    trace = oc.trace(mixed, x.shape, training=False, threads=1)

    def forward(part, target, whole, bands):
        asked.append((len(part), bands))
        raise Infeasible("too large", minimum_bytes=0)

    with pytest.raises(Infeasible):
        InParts(forward, lambda *_: trace, bands_last=True).output(x)
    assert asked == [(6, False), (6, True)]


def test_training_goes_on_with_the_same_bits():
    with tight() as tested, tight() as plain:
        tested.evaluate([batch(40, 1)])
        assert tested.step(*batch(4, 3)) == plain.step(*batch(4, 3))


def test_what_was_refused_once_is_not_planned_again(monkeypatch):
    """An epoch ends with a test, and each test would look for the least that does."""
    from ooctrain.execution import step_cache

    asked = []
    prepare = step_cache.prepare

    def counting(trace, *more):
        asked.append(trace)
        return prepare(trace, *more)

    monkeypatch.setattr(step_cache, "prepare", counting)
    with tight() as trainer:
        trainer.evaluate([batch(40, 1)])
        first = len(asked)
        trainer.evaluate([batch(40, 1), batch(40, 2)])
        assert len(asked) == first > 2


def test_statistics_of_the_batch_are_not_those_of_its_parts():
    """Without running statistics an evaluation goes by the batch that it is given."""
    with tight(network(track_running_stats=False)) as trainer:
        assert trainer.evaluate([batch(4)]).samples == 4
        with pytest.raises(Infeasible):
            trainer.evaluate([batch(64, 1)])


def test_a_loss_whose_terms_have_no_common_average_is_refused_for_its_memory():
    """That it cannot be had in parts is not what the user asked."""

    def both(output, target):
        return oc.functional.cross_entropy(output, target) + oc.functional.cross_entropy(
            output, target, reduction="sum"
        )

    with tight(loss=both) as trainer, pytest.raises(Infeasible):
        trainer.evaluate([batch(64, 1)])


class Mixes(nn.Module):
    """Each sample's answer depends on the others."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x.flatten(1))


MIXING = {
    "a sum over the batch": lambda x: x - x.mean(0, keepdim=True),
    "a softmax over the batch": lambda x: oc.functional.softmax(x, 0),
    "a batch as its own weights": lambda x: oc.functional.linear(x, x),
    "samples that lie side by side": lambda x: x.reshape(x.shape[0] // 2, -1),
    "samples one after the other": lambda x: oc.functional.cat([x, x], 0),
    "a product of all samples": lambda x: x @ x.transpose(0, 1),
    "the largest of a batch": lambda x: x - x.amax(0, keepdim=True),
    "samples backwards": lambda x: x + x.flip(0),
    "every second sample": lambda x: x[::2].repeat(2, 1),
    "rows that become columns": lambda x: x.permute(1, 0),
}  # fmt: skip


@pytest.mark.parametrize("how", MIXING)
def test_who_mixes_samples_is_seen(how):
    trace = oc.trace(Mixes(MIXING[how]), (4, 3, 2, 2), None, training=False, threads=1)
    assert not samples_apart(trace, [trace.outputs["output"]])


APART = {
    "heads": lambda x: oc.functional.scaled_dot_product_attention(
        *[x.reshape(x.shape[0] * 2, 3, 2)] * 3
    ).reshape(x.shape[0], -1),
    "the largest": lambda x: x - x.amax(1, keepdim=True) + x.max(1, keepdim=True).values,
    "steps": lambda x: x[:, ::2].flip(1).repeat(1, 2) * oc.functional.maximum(x, x.exp()),
    "borders": lambda x: oc.functional.pad(x, (1, 2)).unsqueeze(2).expand(-1, -1, 3),
}  # fmt: skip


@pytest.mark.parametrize("how", APART)
def test_samples_that_stay_apart_are_seen(how):
    trace = oc.trace(Mixes(APART[how]), (4, 3, 2, 2), None, training=False, threads=1)
    assert samples_apart(trace, [trace.outputs["output"]])


class Repeats(nn.Module):
    """Each sample's answer depends on it, and on a value that is repeated for all samples."""

    def __init__(self, *shape):
        super().__init__()
        self.repeated = nn.Parameter(np.ones(shape, np.float32))

    def forward(self, x):
        return self.repeated * x.flatten(1)


@pytest.mark.parametrize("shape", [(12,), (1, 12)])
def test_a_value_that_is_repeated_mixes_no_samples(shape):
    trace = oc.trace(Repeats(*shape), (4, 3, 2, 2), None, training=False, threads=1)
    assert samples_apart(trace, [trace.outputs["output"]])


@pytest.mark.parametrize("name", sorted(oc.models.MODELS))
def test_every_network_here_keeps_its_samples_apart(name):
    channels, side = oc.models.MODELS[name].channels, min(oc.models.MODELS[name].height, 128)
    model = oc.models.build(name, stem="cifar", in_channels=channels)
    trace = oc.trace(model, (2, channels, side, side), None, training=False, threads=1)
    assert samples_apart(trace, [trace.outputs["output"]])


def test_the_whole_batch_lies_beside_its_part():
    """The promise of a part counts it: it is held, and so is what it was made from."""
    trace = oc.trace(network(), (4, 3, SIDE, SIDE), training=False, threads=1)
    sizes = [parts_of(trace, 0, None, 1, whole).batch_bytes for whole in (4, 8, 16)]
    sample = 4 * 3 * SIDE * SIDE
    assert sizes[1] - sizes[0] >= 2 * 4 * sample
    assert sizes[2] - sizes[0] == 3 * (sizes[1] - sizes[0])


F = oc.functional
#: Losses of parts whose mean, or sum, is that of the whole.
SUMS = {
    "two terms": lambda o, t: F.cross_entropy(o, t) + 0.4 * F.cross_entropy(2 * o, t),
    "a term less another": lambda o, t: F.cross_entropy(o, t) / 2 - F.cross_entropy(3 * o, t),
    "a constant besides": lambda o, t: F.cross_entropy(o, t) + 1.0,
    "likelihood": nn.NLLLoss(weight=np.arange(1, CLASSES + 1, dtype=np.float32)),
    "a sum": lambda o, t: 2 * F.cross_entropy(o, t, reduction="sum"),
}
#: And others: each was averaged as if it were one of those.
NO_SUMS = {
    "a product of terms": lambda o, t: F.cross_entropy(o, t) * F.cross_entropy(o, t),
    "a sum over the batch besides": lambda o, t: F.cross_entropy(o, t) + 0.01 * (o * o).sum(),
    "a quotient": lambda o, t: F.cross_entropy(o, t) / (o * o).mean(),
    "a constant beside a sum": lambda o, t: F.cross_entropy(o, t, reduction="sum") + 1.0,
    "a term that mixes samples": lambda o, t: F.cross_entropy(o - o.mean(0), t),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_loss_of_parts_is_that_of_the_whole(name):
    with tight(loss=SUMS[name]) as small, roomy(loss=SUMS[name]) as whole:
        expected, found = whole.evaluate([batch(40, 1)]), small.evaluate([batch(40, 1)])
        assert max(shapes_of(small)) < 40
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)


@pytest.mark.parametrize("name", NO_SUMS)
def test_a_loss_that_parts_do_not_add_up_to_is_refused(name):
    with tight(loss=NO_SUMS[name]) as small, pytest.raises(Infeasible):
        small.evaluate([batch(40, 1)])


@pytest.mark.parametrize("trainer", [tight, roomy])
def test_labels_of_other_samples_are_refused(trainer):
    """The second half of sixteen labels was left out for eight samples, without a word."""
    with trainer() as asked:
        asked.evaluate([batch(40)])
        for wrong in (batch(16)[1], np.int64(3)):
            with pytest.raises((oc.errors.ShapeError, Infeasible)):
                asked.evaluate([(batch(8)[0], wrong)])
        with pytest.raises(oc.errors.ConfigError, match="no batch axis"):
            asked.predict(np.float32(3))


def test_a_target_with_an_axis_of_its_own_is_given_as_it_is():
    """`step` took it, and `evaluate` cut it to the number of samples."""

    def flat(output, target):
        return F.cross_entropy(output.permute(0, 2, 3, 1).reshape(-1, 4), target)

    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))
    x, y = batch(2)[0], np.random.default_rng(1).integers(0, 4, 2 * SIDE * SIDE)
    optimizer = oc.optim.SGD(model.parameters(), lr=0.0)
    with oc.Trainer(model, flat, optimizer, planner="naive", threads=1) as trainer:
        assert trainer.evaluate([(x, y)]).loss == pytest.approx(trainer.step(x, y), rel=1e-6)


class Rows:
    """A batch that is no array, so it cannot be cut."""

    def __init__(self, x):
        self.shape, self.values = x.shape, x


def test_a_batch_that_cannot_be_cut_stays_whole_after_one_that_was():
    x, trace, asked = batch(6)[0], oc.trace(network(), (6, 3, SIDE, SIDE), threads=1), []

    def forward(part, target, whole, bands):
        asked.append(part.shape[0])
        if part.shape[0] > 2 and isinstance(part, np.ndarray):
            raise Infeasible("too large", minimum_bytes=0)
        return trace, {"output": part.values if isinstance(part, Rows) else part}

    def traced(x, y):
        return oc.trace(network(), x.shape, training=False, threads=1)

    in_parts = InParts(forward, traced)
    for given in (x, Rows(x), x):
        assert np.array_equal(in_parts.output(given), x)
    assert asked == [6, 3, 2, 2, 2, 6, 2, 2, 2]
