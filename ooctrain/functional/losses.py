"""Losses: how far what a network says is from what it should say.

In: predictions and targets. Out: one number, or one for each row. The one idea: the plain forms
have an operation of their own, which a step is made of; options go to a more general one. Read
next: `../layers/regression_loss.py`, `../layers/cross_entropy.py`.
"""

from __future__ import annotations

import warnings

import numpy as np

from ooctrain.engine.tensor import Tensor, call, current_tape
from ooctrain.errors import ConfigError
from ooctrain.layers.class_loss import Reduction
from ooctrain.layers.cross_entropy import (
    SoftmaxCrossEntropy,
    check_labels,
    looks_like_probabilities,
)
from ooctrain.layers.regression_loss import ErrorEach, MeanError
from ooctrain.layers.weighted_loss import ClassWeights, WeightedCrossEntropy


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    reduction: Reduction = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """-log softmax(input)[target]: class numbers per image (N) or per pixel (N, H, W).

    Args:
        input: logits, (N, K) or (N, K, H, W); not probabilities.
        target: int64 class numbers; rows with `ignore_index` do not count.
        weight: of each class, (K,), a constant of the step; the mean is by weight.
        reduction: "mean", "sum", or "none" for the loss of each row by itself.
        label_smoothing: share of each label that is spread evenly over all classes.

    Raises:
        ShapeError: shapes or dtypes do not fit.
        ConfigError: a label that is not a class number, or an option that is none.
    """
    _check_reduction("cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ConfigError(f"cross_entropy: label_smoothing {label_smoothing} is not in [0, 1]")
    if weight is not None and (weight.requires_grad or weight.storage is None):
        raise ConfigError("cross_entropy: class weights are constants, they get no gradient")
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


def _of_the_batch(loss: Tensor, reduction: Reduction) -> Tensor:
    """A part's share of the batch's loss, where a batch goes through in parts: the mean of the
    shares is the loss."""
    parts = current_tape().parts
    return loss * parts.count if parts is not None and reduction == "sum" else loss


def mse_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """(input - target)^2, for two of one shape.

    Args:
        reduction: "mean" or "sum" over all elements, or "none" for each by itself.
    """
    return _error("mse_loss", input, target, False, reduction)


def l1_loss(input: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """|input - target|, for two of one shape; `reduction` as in `mse_loss`."""
    return _error("l1_loss", input, target, True, reduction)


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
        warnings.warn(
            "cross_entropy takes logits, but each row sums to 1: remove the softmax before it",
            stacklevel=3,
        )
