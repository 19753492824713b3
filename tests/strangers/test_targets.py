"""Targets that people give: class probabilities are one of cross-entropy as in PyTorch, and what
does not fit is named with what would."""

import warnings

import numpy as np
import pytest
from support.quick import every

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn
from ooctrain.errors import ConfigError, ShapeError, TrainingStopped

WEIGHT = np.array([1.0, 0.25, 3.0], np.float32)
RNG = np.random.default_rng(0)


def probabilities(*shape):
    found = RNG.random(shape).astype(np.float32)
    return found / found.sum(1, keepdims=True)


def defined(x, target, weight=None, reduction="mean", label_smoothing=0.0):
    """PyTorch's definition, in float64: means are over rows, whatever the weights."""
    x, target = x.astype(np.float64), target.astype(np.float64)
    peak = x.max(1, keepdims=True)
    log = x - peak - np.log(np.exp(x - peak).sum(1, keepdims=True))
    target = target * (1 - label_smoothing) + label_smoothing / x.shape[1]
    by = np.ones(x.shape[1]) if weight is None else weight.astype(np.float64)
    each = -(log * target * by.reshape(-1, *(1,) * (x.ndim - 2))).sum(1)
    return {"none": each, "sum": each.sum(), "mean": each.mean()}[reduction]


def slope(x, target, **options):
    """Its gradient, by differences in float64."""
    found, step = np.zeros(x.shape), 1e-6
    for place in np.ndindex(*x.shape):
        moved = [x.astype(np.float64), x.astype(np.float64)]
        moved[0][place] += step
        moved[1][place] -= step
        found[place] = (defined(moved[0], target, **options)
                        - defined(moved[1], target, **options)) / (2 * step)  # fmt: skip
    return found


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2, 3)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_class_probabilities_are_a_target(shape, reduction, smoothing, weight):
    x = RNG.standard_normal(shape).astype(np.float32)
    options = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
    target = probabilities(*shape)
    logits = oc.tensor(x, requires_grad=True)
    loss = nn.CrossEntropyLoss(**options)(logits, oc.tensor(target))
    assert np.allclose(loss.numpy(), defined(x, target, **options), rtol=1e-5, atol=1e-6)
    if reduction != "none":
        loss.backward()
        assert np.allclose(logits.grad.numpy(), slope(x, target, **options), atol=1e-5)


def test_one_hot_probabilities_are_class_numbers():
    x, labels = RNG.standard_normal((5, 3)).astype(np.float32), np.array([0, 2, 1, 1, 0])
    hard = F.cross_entropy(oc.tensor(x), oc.tensor(labels), label_smoothing=0.2)
    soft = F.cross_entropy(
        oc.tensor(x), oc.tensor(np.eye(3, dtype=np.float32)[labels]), label_smoothing=0.2
    )
    assert np.isclose(hard.item(), soft.item(), rtol=1e-6)


def trainer(outputs=3, loss="cross_entropy", **options):
    oc.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, outputs))
    sgd = oc.optim.SGD(model.parameters(), lr=0.1)
    return oc.Trainer(model, loss, sgd, threads=1, **options)


def images(rows=8):
    return RNG.standard_normal((rows, 3, 2, 2)).astype(np.float32)


def mixup(outputs, target):
    return F.cross_entropy(outputs, target, label_smoothing=0.1)


LOSSES = {
    "by name": "cross_entropy", "a function": F.cross_entropy, "one's own": mixup,
    "a module": nn.CrossEntropyLoss(WEIGHT),
    "a sum": nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    "options", every([{"accumulate": 3}, {}, {"budget": "0%", "planner": "belady"}], 2)
)
def test_probabilities_train_and_evaluate(name, options):
    loss, x, y = LOSSES[name], images(), probabilities(8, 3)
    with trainer(loss=loss) as whole, trainer(loss=loss, **options) as t:
        for _ in range(2):
            assert np.isclose(t.step(x, y), whole.step(x, y), rtol=1e-5)
        found = t.evaluate([(x[:5], y[:5]), (x[5:], y[5:])])
        assert np.isclose(found.loss, whole.evaluate([(x, y)]).loss, rtol=1e-5)
        assert found.accuracy is None
        t.step(x, np.arange(8) % 3)  # class numbers in between
        t.step(x, y.astype(np.float64))


def test_mixup_of_pixels():
    oc.manual_seed(0)
    model = nn.Conv2d(3, 4, 1)
    x, y = images(2), probabilities(2, 4, 2, 2)
    sgd = oc.optim.SGD(model.parameters(), lr=0.1)
    logits = model(oc.tensor(x)).numpy()
    with oc.Trainer(model, optimizer=sgd, threads=1) as t:
        assert np.isclose(t.step(x, y), defined(logits, y), rtol=1e-5)


@pytest.mark.parametrize("shape", [(2,), (2, 3, 3), (2, 6, 5)])
def test_labels_of_pixels_that_do_not_fit_are_named_with_what_would(shape):
    with oc.Trainer(nn.Conv2d(3, 4, 1), threads=1) as t, pytest.raises(ShapeError) as caught:
        t.step(np.zeros((2, 3, 5, 6), np.float32), np.zeros(shape, np.int64))
    assert "(2, 5, 6)" in caught.value.fix


#: {name: (outputs, the loss, the target)} where no class is right or wrong
NO_CLASSES = {
    "a number": (3, lambda o, t: ((o.mean(1) - t) ** 2).mean(), np.float32([0, 1, 2, 1])),
    "yes or no": (1, lambda o, t: F.l1_loss(o.flatten(0), t), np.float32([0, 1, 0, 1])),
    "yes or no, counted": (1, lambda o, t: F.cross_entropy(o, t), np.array([0, 0, 0, 0])),
}


@pytest.mark.parametrize("name", NO_CLASSES)
def test_what_is_no_choice_of_classes_has_no_accuracy(name):
    outputs, loss, target = NO_CLASSES[name]
    found = trainer(loss=loss, outputs=outputs).evaluate([(images(4), target)])
    assert found.accuracy is None
    assert found.loss >= 0


#: {name: (outputs, target, loss, what the fix names)}
WRONG = {
    "BCE of (N,) for (N, 1)": (1, np.ones(8, np.float32), nn.BCEWithLogitsLoss(), "(8, 1)"),
    "MSE of (N,) for (N, 1)": (1, np.ones(8, np.float32), "mse", "(8, 1)"),
    "L1 of whole numbers (N,)": (1, np.ones(8, np.int64), nn.L1Loss(), "(8, 1)"),
    "values of another number": (3, np.ones((8, 2), np.float32), nn.MSELoss(), "each output"),
    "labels (N, 1)": (3, np.zeros((8, 1), np.int64), "cross_entropy", "(8,)"),
    "labels (N, 1) of a module": (3, np.zeros((8, 1), int), nn.CrossEntropyLoss(), "(8,)"),
    "labels (N, 1) of nll": (3, np.zeros((8, 1), int), nn.NLLLoss(), "(8,)"),
    "whole numbers (N, K)": (3, np.eye(3, dtype=int)[np.arange(8) % 3], "cross_entropy", "float32"),
    "probabilities of nll": (3, np.full((8, 3), 1 / 3, np.float32), nn.NLLLoss(), "argmax"),
    "probabilities of other classes": (
        3, np.full((8, 4), 0.25, np.float32), "cross_entropy", "(8, 3)"),
    "labels as floats": (3, np.zeros(8, np.float32), "cross_entropy", "int64"),
    "labels as floats of a module": (3, np.zeros(8), nn.CrossEntropyLoss(), "int64"),
    "labels of another batch": (3, np.zeros(7, int), nn.CrossEntropyLoss(), "(8,)"),
    "labels of another batch, by name": (3, np.zeros(7, int), "cross_entropy", "(8,)"),
    "one number": (3, np.zeros((), int), "cross_entropy", "(8,)"),
    "labels (N, 1) of a function": (3, np.zeros((8, 1), int), mixup, "(8,)"),
    "two numbers each, of a function": (3, np.zeros((8, 2), int), mixup, "class numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(name):
    outputs, target, loss, fix = WRONG[name]
    with trainer(outputs, loss) as t:
        for use in (lambda: t.step(images(), target), lambda: t.evaluate([(images(), target)])):
            with pytest.raises(ShapeError) as caught:
                use()
            assert caught.value.code == "OOC-110"
            assert fix in caught.value.fix
        assert t.steps_done == 0


def test_a_right_target_after_a_wrong_one_trains():
    with trainer(1, nn.BCEWithLogitsLoss()) as t:
        with pytest.raises(ShapeError):
            t.step(images(), np.ones(8, np.float32))
        for kind in (np.float32, np.float64, np.int64, bool):
            assert np.isfinite(t.step(images(), np.ones((8, 1), kind)))


YA, YB, LAM = np.arange(8) % 3, (np.arange(8) + 1) % 3, 0.3
#: {what people write: the target of a batch}
SEVERAL = {
    "two": (YA, YB), "two and a share": (YA, YB, LAM), "in a list": [YA, YB, LAM],
    "two in a list": [YA, YB], "a dict": {"a": YA, "b": YB, "lam": LAM}, "nested": ((YA, YB), LAM),
    "tensors": (oc.tensor(YA), oc.tensor(YB), LAM), "lists": (YA.tolist(), YB.tolist(), LAM),
    "a share for each": (YA, YB, np.full(8, LAM, np.float32)), "one": (YA,),
    "with None": (YA, None), "of other lengths": [YA, YB[:4]], "dicts in a list": [{"a": 1}] * 8,
    "a tuple for each": [(1, 2, 0.3)] * 8,
}  # fmt: skip


def two_losses(outputs, target):
    """As the examples of mixup have it."""
    ya, yb, lam = target
    return F.cross_entropy(outputs, ya) * lam + F.cross_entropy(outputs, yb) * (1 - lam)


@pytest.mark.parametrize("loss", [two_losses, "cross_entropy"])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_targets_are_told_what_to_write(name, loss):
    x, target = images(), SEVERAL[name]
    with trainer(loss=loss) as t:
        for use in (
            lambda: t.step(x, target), lambda: t.fit([(x, target)]), lambda: t.fit(((x, target),)),
            lambda: t.evaluate([(x, target)]), lambda: [t.step(*b) for b in t.ahead([(x, target)])],
        ):  # fmt: skip
            with pytest.raises(ShapeError) as caught:
                use()
            assert caught.value.code == "OOC-110"
            assert "class probabilities" in caught.value.fix
        assert t.steps_done == 0


@pytest.mark.parametrize("targets", [(YA, YB), (YA, YB, LAM)])
def test_a_batch_of_more_than_a_pair_is_told_what_to_write(targets):
    with trainer() as t:
        for use in (t.fit, t.evaluate):
            with pytest.raises(ConfigError) as caught:
                use([(images(), *targets)])
            assert "class probabilities" in caught.value.fix


@pytest.mark.parametrize("label", [(0, 2, 0.3), {"a": 0}, (YA[:3], LAM), ((0, 1), 0.3)])
def test_a_label_of_several_is_told_what_to_write(label):
    loader = oc.data.DataLoader([(images(1)[0], label)] * 8, 4)
    with trainer() as t, pytest.raises(ShapeError) as caught:
        t.fit(loader)
    assert "class probabilities" in caught.value.fix


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_what_is_named_for_mixup_has_its_loss(lam):
    x, eye = images(), np.eye(3, dtype=np.float32)
    logits = trainer().model(oc.tensor(x))
    wanted = lam * F.cross_entropy(logits, oc.tensor(YA)).item() + (
        1 - lam) * F.cross_entropy(logits, oc.tensor(YB)).item()  # fmt: skip
    mixed = lam * eye[YA] + (1 - lam) * eye[YB]
    for loss in ("cross_entropy", lambda o, t: F.cross_entropy(o, t)):
        with trainer(loss=loss) as t:
            assert np.isclose(t.evaluate([(x, mixed)]).loss, wanted, rtol=1e-5)
            assert np.isclose(t.step(x, mixed), wanted, rtol=1e-5)


#: {what is one array all the same: (outputs, the loss, the target)}
ONE = {
    "a list of numbers": (3, "cross_entropy", YA.tolist()),
    "a tuple of numbers": (3, "cross_entropy", tuple(YA.tolist())),
    "rows in lists": (3, "cross_entropy", np.eye(3)[YA].tolist()),
    "a list of rows": (3, "cross_entropy", list(np.eye(3, dtype=np.float32)[YA])),
    "a tensor": (3, "cross_entropy", oc.tensor(YA)),
    "a column for each": (3, lambda o, t: F.mse_loss(o[:, :2], t), np.ones((8, 2), np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_lists_that_are_one_array_train(name):
    outputs, loss, target = ONE[name]
    with trainer(outputs, loss) as t:
        assert np.isfinite(t.step(images(), target))
        assert np.isfinite(t.evaluate([(images(), target)]).loss)


def test_all_labels_ignored_is_said():
    ignored = np.full(8, -100)
    with trainer() as t:
        with pytest.raises(TrainingStopped, match="8 labels"):
            t.step(images(), ignored)
        with pytest.warns(UserWarning, match="ignored"):
            found = t.evaluate([(images(), ignored), (images(), ignored)])
        assert np.isnan(found.loss)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            t.evaluate([(images(), ignored), (images(), np.arange(8) % 3)])
    with trainer(loss=nn.CrossEntropyLoss(ignore_index=1)) as t:
        with pytest.raises(TrainingStopped, match="8 labels"):
            t.step(images(), np.ones(8, np.int64))
        t.step(images(), np.arange(8) % 3)


def test_probabilities_have_no_class_to_ignore():
    with trainer(loss=nn.CrossEntropyLoss(ignore_index=1)) as t, pytest.raises(ConfigError):
        t.step(images(), probabilities(8, 3))
