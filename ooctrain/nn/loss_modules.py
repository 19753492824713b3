"""Losses as modules: of class numbers (cross entropy), of values (squared, absolute differences).

A module keeps the options of its loss and is called with a prediction and its target. Read next:
`../functional/loss_functions.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain import functional as F
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.layers.losses import Reduction
from ooctrain.step.arguments import checked
from ooctrain.step.user_values import as_numbers


@checked
class CrossEntropyLoss(Module):
    """Softmax cross-entropy of logits and class numbers; options as in `F.cross_entropy`."""

    def __init__(
        self, weight: np.ndarray | None = None, *, ignore_index: int = -100,
        reduction: Reduction = "mean", label_smoothing: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        given = None if weight is None else as_numbers(weight, "weight").astype(np.float32)
        self.register_buffer("weight", given)
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


@checked
class MSELoss(Module):
    """Squared differences; `reduction` as in `F.mse_loss`."""

    def __init__(self, *, reduction: Reduction = "mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(input, target, reduction=self.reduction)


@checked
class L1Loss(Module):
    """Absolute differences; `reduction` as in `F.l1_loss`."""

    def __init__(self, *, reduction: Reduction = "mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(input, target, reduction=self.reduction)


@checked
class SmoothL1Loss(Module):
    """Absolute differences, squared where small; options as in `F.smooth_l1_loss`."""

    def __init__(self, *, reduction: Reduction = "mean", beta: float = 1.0):
        super().__init__()
        self.reduction, self.beta = reduction, beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


@checked
class BCEWithLogitsLoss(Module):
    """Binary cross-entropy of logits; options as in `F.binary_cross_entropy_with_logits`."""

    def __init__(
        self, weight: np.ndarray | None = None, *, reduction: Reduction = "mean",
        pos_weight: np.ndarray | None = None,
    ):  # fmt: skip
        super().__init__()
        for name, value in (("weight", weight), ("pos_weight", pos_weight)):
            self.register_buffer(name, None if value is None else np.asarray(value, np.float32))
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


@checked
class NLLLoss(Module):
    """Of logarithms of probabilities and class numbers; options as in `F.nll_loss`."""

    def __init__(
        self, weight: np.ndarray | None = None, *, ignore_index: int = -100,
        reduction: Reduction = "mean",
    ):  # fmt: skip
        super().__init__()
        self.register_buffer("weight", None if weight is None else np.asarray(weight, np.float32))
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction
        )
