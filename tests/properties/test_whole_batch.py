"""The loss is that of the whole batch, however it goes through: in parts, or over many batches.

A step with `accumulate=k` has the loss and the gradients of the step with `accumulate=1`, and an
evaluation over batches that of one batch, for every loss and reduction, on networks without batch
norm: sums of labels that are ignored, weighted, smoothed, a part without any label included. They
differ by the order of their sums alone: of n summands t, two orders differ by at most 2 gamma_n
sum |t|, gamma_n = n u / (1 - n u), u the unit roundoff (Higham 2002, section 4.2). In float64 this
is tested for all losses on the definitions; on the kernels for some.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.errors import ConfigError, TrainingStopped
from ooctrain.step.op import Spec
from ooctrain.tracing import trace

SAMPLES, CLASSES, PIXELS = 6, 3, 4
WEIGHT = np.array([1.0, 0.25, 3.0], np.float32)
SCALARS = {"lr": 0.1, "step": 0, "seed": 0}
#: summands of a gradient's element, and roundings on the way to each of them
ADDITIONS = SAMPLES * PIXELS + 64


def bound(unit, magnitude):
    """How much two orders of summation may differ."""
    return 2 * ADDITIONS * unit / (1 - ADDITIONS * unit) * magnitude


def network(per_pixel):
    oc.manual_seed(1)
    if per_pixel:
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, CLASSES, 1))
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def images():
    return np.random.default_rng(5).standard_normal((SAMPLES, 2, 2, 2)).astype(np.float32)


def reshaped(output, target):
    """The labels as they are, under another shape and back."""
    flat = target.reshape(-1)
    return F.cross_entropy(output, flat.reshape(target.shape), label_smoothing=0.2)


def several(output, target):
    total = F.cross_entropy(output, target) + 0.3 * F.cross_entropy(
        output, target, oc.tensor(WEIGHT)
    )
    return total + F.cross_entropy(output, target, reduction="sum") * 0.01


class_losses = st.builds(
    nn.CrossEntropyLoss,
    weight=st.sampled_from([None, WEIGHT, np.array([0, 1, 2], np.float32)]),
    ignore_index=st.sampled_from([-100, 1]),
    reduction=st.sampled_from(["mean", "sum"]),
    label_smoothing=st.sampled_from([0.0, 0.1]),
) | st.sampled_from(["cross_entropy", F.cross_entropy, reshaped, several])
likelihoods = st.builds(
    nn.NLLLoss,
    weight=st.sampled_from([None, WEIGHT, np.array([0, 1, 2], np.float32)]),
    ignore_index=st.sampled_from([-100, 1]),
    reduction=st.sampled_from(["mean", "sum"]),
)
OF_VALUES = nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss
value_losses = st.sampled_from(
    ["mse", "l1", *(kind(reduction=r) for kind in OF_VALUES for r in ("mean", "sum"))]
) | st.builds(
    nn.BCEWithLogitsLoss,
    weight=st.sampled_from([None, np.array([0.5], np.float32)]),
    pos_weight=st.sampled_from([None, np.array([3.0], np.float32)]),
    reduction=st.sampled_from(["mean", "sum"]),
)
labels = st.lists(st.sampled_from([0, 1, 2, -100]), min_size=SAMPLES, max_size=SAMPLES)


def problem(loss, chosen, per_pixel):
    """(model, target, options of the trace)."""
    if isinstance(loss, OF_VALUES) or loss in ("mse", "l1"):
        shape = (SAMPLES, CLASSES, 2, 2) if per_pixel else (SAMPLES, CLASSES)
        target = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    else:
        ignored = getattr(loss, "ignore_index", -100)
        target = np.array([ignored if label == -100 else label for label in chosen])
        if per_pixel:
            target = np.stack([np.roll(target, i) for i in range(PIXELS)], 1)
            target = target.reshape(SAMPLES, 2, 2)
    return network(per_pixel), target


def results(model, loss, x, y, parts, mode):
    step = trace(
        model, x.shape, loss, None, accumulate=parts, target_shape=y.shape, threads=1,
        conv_algorithm="direct",
    )  # fmt: skip
    return run_trace(step, initial_values(step, model) | {"input": x, "target": y}, SCALARS, mode)


@settings(max_examples=60)
@given(
    loss=class_losses | likelihoods | value_losses, chosen=labels, per_pixel=st.booleans(),
    parts=st.sampled_from([2, 3, 4, 5, 6, 9]), mode=st.sampled_from(["reference", "cpu"]),
)  # fmt: skip
@example(nn.CrossEntropyLoss(), [-100, -100, 0, 1, 2, 0], False, 3, "cpu")
@example(nn.CrossEntropyLoss(reduction="sum"), [0, 1, 2, 0, 1, 2], False, 2, "cpu")
@example(nn.CrossEntropyLoss(WEIGHT), [0, 0, 0, 2, 2, 1], False, 2, "cpu")
@example(nn.CrossEntropyLoss(np.array([0, 1, 2], np.float32), label_smoothing=0.1),
         [0, 0, 0, 2, 2, 1], False, 2, "cpu")  # fmt: skip
@example(nn.NLLLoss(), [-100, -100, 0, 1, 2, 0], False, 3, "cpu")
@example(nn.CrossEntropyLoss(WEIGHT), [0, -100, 0, 2, 2, 1], True, 4, "cpu")
@example(nn.NLLLoss(WEIGHT), [0, -100, 0, 2, 2, 1], False, 5, "cpu")
@example(nn.CrossEntropyLoss(reduction="sum"), [0, 1, 2, 0, 1, 2], False, 4, "cpu")
@example("mse", [0] * SAMPLES, True, 4, "cpu")
@example("cross_entropy", [0, 1, 2, 0, -100, 2], False, 9, "reference")
@example(nn.NLLLoss(WEIGHT), [0, 0, 0, 2, 2, 1], True, 2, "cpu")
@example(nn.NLLLoss(WEIGHT, reduction="sum"), [0, 1, 2, 0, 1, 2], False, 2, "cpu")
@example(nn.BCEWithLogitsLoss(reduction="sum"), [0] * SAMPLES, True, 2, "cpu")
@example(nn.SmoothL1Loss(reduction="sum"), [0] * SAMPLES, False, 3, "cpu")
@example(reshaped, [0, -100, 0, 2, 2, 1], True, 4, "cpu")
@example(several, [0, -100, 0, 2, 2, 1], False, 2, "cpu")
def test_a_batch_in_parts_has_the_loss_of_the_whole(loss, chosen, per_pixel, parts, mode):
    check_parts(loss, chosen, per_pixel, parts, mode)


def check_parts(loss, chosen, per_pixel, parts, mode):
    model, y = problem(loss, chosen, per_pixel)
    x = images()
    whole, parted = (results(model, loss, x, y, k, mode) for k in (1, parts))
    if not np.isfinite(whole["loss"]):  # a mean over no label at all
        assert not np.isfinite(parted["loss"])
        return
    unit = 2.0**-53 if mode == "reference" else 2.0**-24
    singles = [results(model, _summed(loss), x[i : i + 1], y[i : i + 1], 1, "reference")
               for i in range(SAMPLES)]  # fmt: skip
    for name, value in whole.items():
        magnitude = sum(abs(single[name]) for single in singles)
        allowed = bound(unit, np.max(magnitude) + np.max(abs(value)))
        assert np.max(abs(parted[name] - value)) <= allowed, name


def _summed(loss):
    """The same loss, summed: what the terms of a mean are, but for a common factor."""
    if isinstance(loss, nn.CrossEntropyLoss):
        weight = None if loss.weight is None else loss.weight.numpy()
        options = {"ignore_index": loss.ignore_index, "label_smoothing": loss.label_smoothing}
        return nn.CrossEntropyLoss(weight, reduction="sum", **options)
    if isinstance(loss, nn.NLLLoss | nn.BCEWithLogitsLoss):
        twin = copy.deepcopy(loss)
        twin.reduction = "sum"
        return twin
    if isinstance(loss, OF_VALUES):
        return type(loss)(reduction="sum")
    kinds = {"mse": nn.MSELoss, "l1": nn.L1Loss}
    return kinds.get(loss, nn.CrossEntropyLoss)(reduction="sum")


class TwoHeads(nn.Module):
    """A model with a loss of its own: one of logits and a smaller one of others."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, x):
        x = x.flatten(1)
        return self.first(x), self.second(x)

    def loss(self, output, target):
        weight = oc.tensor(WEIGHT)
        return F.cross_entropy(output[0], target) + 0.4 * F.cross_entropy(
            output[1], target, weight, label_smoothing=0.1
        )

    def target_spec(self, output):
        return Spec(output[0].shape[:1], "int64")


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_loss_of_the_model_s_own_is_that_of_the_whole(parts):
    oc.manual_seed(1)
    model, x, y = TwoHeads(), images(), np.array([0, -100, -100, 2, 2, 1])
    steps = [trace(model, x.shape, optimizer=None, accumulate=k, threads=1) for k in (1, parts)]
    values = initial_values(steps[0], model) | {"input": x, "target": y}
    whole, parted = (run_trace(step, values, SCALARS, "reference") for step in steps)
    for name, value in whole.items():
        assert np.max(abs(parted[name] - value)) <= bound(2.0**-53, 10 * np.max(abs(value))), name


def test_labels_that_no_count_can_be_made_of_are_refused():
    def first(output, target):
        return F.cross_entropy(output, target[:, :1].reshape(-1))

    options = {"target_shape": (SAMPLES, 2), "optimizer": None}
    trace(network(False), images().shape, first, **options)
    with pytest.raises(ConfigError, match="accumulate"):
        trace(network(False), images().shape, first, accumulate=2, **options)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_wrong_label_is_named_in_whatever_part_it_is(parts):
    trainer = oc.Trainer(network(False), accumulate=parts, threads=1)
    with trainer, pytest.raises(ConfigError, match="label 7 is not one of the 3 classes"):
        trainer.step(images(), np.array([0, 1, 2, 0, 1, 7]))


def test_a_batch_without_any_label_changes_nothing():
    with oc.Trainer(network(False), accumulate=2, threads=1) as trainer:
        before = trainer.model.state_dict()
        with pytest.raises(TrainingStopped):
            trainer.step(images(), np.full(SAMPLES, -100))
        for name, value in trainer.model.state_dict().items():
            assert np.array_equal(value, before[name])


# Evaluation.


def evaluated(loss, x, y, cuts):
    batches = zip(np.split(x, cuts), np.split(y, cuts), strict=True)
    with oc.Trainer(network(y.ndim > 2), loss, threads=1) as trainer:
        return trainer.evaluate(list(batches))


@settings(max_examples=15)
@given(
    loss=class_losses | likelihoods | value_losses, chosen=labels, per_pixel=st.booleans(),
    cuts=st.sets(st.integers(1, SAMPLES - 1), max_size=2),
)  # fmt: skip
@example(nn.CrossEntropyLoss(), [-100, -100, 0, 1, 2, 0], False, {2})
@example(nn.CrossEntropyLoss(reduction="sum"), [0, 1, 2, 0, 1, 2], False, {2, 3})
@example(nn.CrossEntropyLoss(WEIGHT), [0, 0, 0, 2, 2, 1], False, {4})
@example("mse", [0] * SAMPLES, True, {1, 3})
@example(nn.NLLLoss(WEIGHT), [0, -100, 0, 2, 2, 1], False, {4})
@example(nn.BCEWithLogitsLoss(reduction="sum"), [0] * SAMPLES, True, {1, 3})
@example(nn.SmoothL1Loss(), [0] * SAMPLES, True, {1, 3})
def test_an_evaluation_over_batches_is_that_of_one(loss, chosen, per_pixel, cuts):
    check_evaluation(loss, chosen, per_pixel, cuts)


def check_evaluation(loss, chosen, per_pixel, cuts):
    _, y = problem(loss, chosen, per_pixel)
    if loss is several:
        loss = F.cross_entropy  # means and sums in one are refused, below
    whole, parted = (evaluated(loss, images(), y, sorted(c)) for c in ((), cuts))
    assert (parted.accuracy, parted.samples) == (whole.accuracy, whole.samples)
    assert whole.accuracy == share_of_hits(loss, y)
    if np.isnan(whole.loss):
        assert np.isnan(parted.loss)
    else:  # each batch's loss is rounded, and so is the whole one's
        assert abs(parted.loss - whole.loss) <= bound(2.0**-24, abs(whole.loss))


def share_of_hits(loss, y):
    """Among the labels that are not ignored, those with the largest logit; None: no classes."""
    if y.dtype.kind == "f":
        return None
    with oc.Trainer(network(y.ndim > 2), threads=1) as trainer:
        hits = trainer.predict(images()).argmax(axis=1) == y
    counted = y != getattr(loss, "ignore_index", -100)
    return hits[counted].mean() if counted.any() else None


def test_batches_that_cannot_be_averaged_are_refused():
    y = np.array([0, -100, 1, 2, 0, 1])

    def two_means(output, target):
        return F.cross_entropy(output, target) + F.mse_loss(output, output * 0.5)

    for loss in (several, two_means):
        evaluated(loss, images(), y, [])
        with pytest.raises(ConfigError, match="average"):
            evaluated(loss, images(), y, [3])
    # Means over as many of the batch each can be averaged.
    assert np.isfinite(evaluated(two_means, images(), abs(y) % 3, [3]).loss)


def test_a_loss_for_each_row_is_no_average():
    with pytest.raises(ConfigError, match="one number"):
        evaluated(nn.CrossEntropyLoss(reduction="none"), images(), np.zeros(SAMPLES, int), [])
