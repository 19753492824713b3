"""Losses: how far a network's predictions are from their targets.

A loss is one number, or one for each row. The plain forms have an operation of their own, of which
a step is made; options lead to a more general operation. Read next: `../layers/losses.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.engine.tensor import Tensor, call, current_tape
from ooctrain.errors import ConfigError, warn
from ooctrain.layers.function import Elementwise
from ooctrain.layers.losses import (
    ClassWeights,
    ErrorEach,
    LabelLikelihood,
    LabelWeight,
    MeanError,
    Reduction,
    SoftmaxCrossEntropy,
    ValueLoss,
    WeightedCrossEntropy,
    check_labels,
    looks_like_probabilities,
)
from ooctrain.layers.softmax import SoftmaxAlong
from ooctrain.step.arguments import checked


@checked
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    reduction: Reduction = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """-log softmax(input)[target]: class numbers per image (N) or per pixel (N, H, W); or class
    probabilities, such as mixup and CutMix make them.

    Args:
        input: logits, (N, K) or (N, K, H, W); not probabilities.
        target: int64 class numbers, rows with `ignore_index` do not count; or float32 probabilities
            of the shape of the input, where each row counts the same and no class is ignored.
        weight: of each class one number, (K,), a constant of the step; a mean is by weight.
        reduction: "mean", "sum", or "none" for the loss of each row by itself.
        label_smoothing: share of each label that is spread evenly over all classes.

    Raises:
        ShapeError: shapes or dtypes do not fit.
        ConfigError: a label that is not a class number, or an invalid option.
    """
    _check_reduction("cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ConfigError(f"cross_entropy: label_smoothing {label_smoothing} is not in [0, 1]")
    _check_weight("cross_entropy", weight)
    if target.dtype.startswith("float") and target.shape == input.shape:
        return _of_probabilities(input, target, weight, ignore_index, reduction, label_smoothing)
    plain = SoftmaxCrossEntropy(ignore_index, "sum" if reduction == "sum" else "mean")
    if input.storage is not None and target.storage is not None:
        plain.infer(input.spec, target.spec)
        check_labels(target.numpy(), input.shape[1], ignore_index)
        _hint_at_softmax(input)
    parts = current_tape().parts if reduction == "mean" else None
    if weight is None and not label_smoothing and reduction != "none":
        divisor = parts.divisor(target, ignore_index, None) if parts else ()
        return _of_the_batch(call(plain, input, target, *divisor), reduction)
    values = (1.0,) * input.shape[1] if weight is None else _class_weights(weight)
    op = WeightedCrossEntropy(ignore_index, float(label_smoothing), reduction)
    weights = call(ClassWeights(values))
    divisor = parts.divisor(target, ignore_index, values, weights) if parts else ()
    return _of_the_batch(call(op, input, target, weights, *divisor), reduction)


def _of_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: Reduction,
    label_smoothing: float,
) -> Tensor:  # fmt: skip
    """Cross-entropy whose target is a distribution in each row; a mean is over rows."""
    if ignore_index >= 0:
        raise ConfigError(
            f"cross_entropy: class probabilities have no label {ignore_index} to ignore",
            code="OOC-106", fix="class numbers, or without ignore_index",
        )  # fmt: skip
    if input.storage is not None:
        _hint_at_softmax(input)
    if label_smoothing:
        target = target * (1.0 - label_smoothing) + label_smoothing / input.shape[1]
    logarithms = call(SoftmaxAlong(1, log=True), input)
    terms = call(ValueLoss("soft_labels", reduction=reduction), logarithms, target)
    if weight is not None:
        weights = call(ClassWeights(_class_weights(weight)))
        terms = terms * weights.reshape((input.shape[1], *(1,) * (input.ndim - 2)))
    return _reduced(terms.sum(1), reduction)


def _of_the_batch(loss: Tensor, reduction: Reduction) -> Tensor:
    """A part's share of the batch's loss, where a batch goes through in parts: the mean of the
    shares is the loss."""
    parts = current_tape().parts
    return loss * parts.factor if parts is not None and reduction == "sum" else loss


@checked
def mse_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """(input - target)^2, for two of one shape.

    Args:
        reduction: "mean" or "sum" over all elements, or "none" for each by itself.
    """
    return _error("mse_loss", input, target, False, reduction)


@checked
def l1_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """|input - target|, for two of one shape; `reduction` as in `mse_loss`."""
    return _error("l1_loss", input, target, True, reduction)


@checked
def smooth_l1_loss(
    input: Tensor, target: Tensor, *, reduction: Reduction = "mean", beta: float = 1.0
) -> Tensor:
    """|d| - beta / 2 where |d| >= beta, else d^2 / (2 beta), with d = input - target.

    Args:
        reduction: as in `mse_loss`.
        beta: not negative; 0: |d|.
    """
    _check_reduction("smooth_l1_loss", reduction)
    if not beta >= 0:
        raise ConfigError(f"smooth_l1_loss: beta {beta} is not 0 or more")
    return _reduced(call(ValueLoss("smooth_l1", float(beta), reduction), input, target), reduction)


@checked
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *,
    reduction: Reduction = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """-target log s - (1 - target) log(1 - s), s the sigmoid of each logit.

    Args:
        target: in the shape of the input, in [0, 1].
        weight: factor of each loss, repeated to its shape; a constant, or a traced tensor.
        reduction: as in `mse_loss`; a mean is over all losses, whatever their weights.
        pos_weight: a factor of the first term, (K,) for logits (N, K), repeated likewise.
    """
    _check_reduction("binary_cross_entropy_with_logits", reduction)
    each = call(ValueLoss("binary_cross_entropy", reduction=reduction), input, target)
    if pos_weight is not None:
        more = target * call(Elementwise("softplus"), -input)
        each = each + more * (_fixed(pos_weight) - 1.0)
    if weight is not None:
        each = each * _fixed(weight)
    return _reduced(each, reduction)


@checked
def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:  # fmt: skip
    """-input[target]: the input holds logarithms of probabilities, as of `log_softmax`.

    Args:
        input: (N, K) or (N, K, H, W).
        target, weight, ignore_index, reduction: as in `cross_entropy`.
    """
    _check_reduction("nll_loss", reduction)
    _check_weight("nll_loss", weight)
    op = LabelLikelihood(ignore_index, reduction)
    if input.storage is not None and target.storage is not None:
        SoftmaxCrossEntropy(ignore_index).infer(input.spec, target.spec)
        check_labels(target.numpy(), input.shape[1], ignore_index)
    values = (1.0,) * input.shape[1] if weight is None else _class_weights(weight)
    weights = call(ClassWeights(values))
    each = call(op, input, target, weights)
    if reduction != "mean":
        return _reduced(each, reduction)
    given, parts = () if weight is None else (weights,), current_tape().parts
    if parts is None:
        return each.sum() / call(LabelWeight(ignore_index), target, *given)
    of_values = None if weight is None else values
    return each.sum() / parts.divisor(target, ignore_index, of_values, *given)[0]


def _reduced(each: Tensor, reduction: Reduction) -> Tensor:
    """The losses, their mean or their sum."""
    if reduction == "none":
        return each
    return each.mean() if reduction == "mean" else _of_the_batch(each.sum(), reduction)


def _fixed(weight: Tensor) -> Tensor:
    """Weights as constants of the step; traced or trained ones as they are."""
    if weight.storage is None or weight.requires_grad:
        return weight
    values = tuple(weight.numpy().reshape(-1).tolist())
    return call(ClassWeights(values)).reshape(weight.shape)


def _check_weight(name: str, weight: Tensor | None) -> None:
    if weight is not None and (weight.requires_grad or weight.storage is None):
        raise ConfigError(f"{name}: class weights are constants, they get no gradient")


def _class_weights(weight: Tensor) -> tuple[float, ...]:
    values = weight.numpy().reshape(-1)
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ConfigError("cross_entropy: class weights are finite and not negative")
    return tuple(values.tolist())


def _error(
    name: str, input: Tensor, target: Tensor, absolute: bool, reduction: Reduction
) -> Tensor:
    _check_reduction(name, reduction)
    if reduction == "none":
        return call(ErrorEach(absolute), input, target)
    return _of_the_batch(call(MeanError(absolute, reduction), input, target), reduction)


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ConfigError(f"{name}: reduction {reduction!r} is not 'mean', 'sum' or 'none'")


def _hint_at_softmax(logits: Tensor) -> None:
    warned = current_tape().warned
    if "softmax" not in warned and looks_like_probabilities(logits.numpy()):
        warned.add("softmax")
        warn("cross_entropy takes logits, but each row sums to 1: remove the softmax before it")
