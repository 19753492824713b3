"""The loss of a step, and the target that fits it.

A loss is given by name, as a function or as the model's own. Only the loss knows the form of its
target (class numbers, or another output), so the loss gives the target's shape and type in the
middle of tracing, once the shape of the model's output is known. Read next: `tracing.py`;
`models/inception.py`, which has a loss of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from ooctrain import functional as F
from ooctrain.engine.module import Module
from ooctrain.engine.nested import TargetGiven, taken_apart
from ooctrain.engine.parts import Parts
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, ShapeError
from ooctrain.nn import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from ooctrain.step.op import Spec

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: Mapping[str, Loss] = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss, "l1": F.l1_loss}

#: whose target has the shape of the output
OF_VALUES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits)
#: the same of modules
_OF_VALUES = (BCEWithLogitsLoss, L1Loss, MSELoss, SmoothL1Loss)
_OF_CLASSES = (CrossEntropyLoss, NLLLoss)
_MODULES = (*_OF_VALUES, *_OF_CLASSES)


@runtime_checkable
class OwnLoss(Protocol):
    """A model that defines its own loss, since its step is more than one output and a named loss.

    Inception v3, which has a second classifier, and Pix2PixHD with its two players are such models.
    Their own loss is used where "cross_entropy", the default, is requested.
    """

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """The loss of what `forward` returned, in training or in evaluation."""

    def target_spec(self, output: Any) -> Spec:
        """Shape and type of the target that fits an output."""


def named_loss(loss: str | Loss | None, model: Module) -> Loss:
    """The function that a name stands for: the model's own, where it has one and no other is meant.

    Raises:
        ConfigError: no loss has that name; or it is a class, not an object of it.
    """
    if isinstance(loss, type(Module)):
        name = getattr(loss, "__name__", "")
        raise ConfigError(f"{name} is a class", code="OOC-106", fix=f"one of it: nn.{name}()")
    if callable(loss):
        return loss
    if loss == "cross_entropy" and isinstance(model, OwnLoss):
        return model.loss
    if loss is None or loss not in LOSSES:
        raise ConfigError(
            f"no loss {loss!r}", code="OOC-106", fix=f"one of {', '.join(LOSSES)}, or a function"
        )
    return LOSSES[loss]


def target_of(
    model: Module, loss: Loss, output: Any, given: TargetGiven | None, parts: Parts | None = None
) -> Spec:
    """Shape and type of the target for the whole batch.

    Args:
        output: what the model returned, for one of the `parts` of the batch if there are any.
        given: by the user.

    Raises:
        ConfigError: a named loss cannot take several outputs.
        ShapeError: the target that is given does not fit the loss.
    """
    if isinstance(model, OwnLoss) and loss == model.loss:
        spec = model.target_spec(output)
        return Spec(_of_the_batch(spec.shape, parts), spec.dtype)
    known = loss in LOSSES.values() or (isinstance(loss, Module) and type(loss) in _MODULES)
    if known and not isinstance(output, Tensor):
        raise ConfigError(
            f"{type(model).__name__} has several outputs; this loss takes one", code="OOC-106",
            fix="give a function of (outputs, target) as loss",
        )  # fmt: skip
    wholes = [_of_the_batch(one.shape, parts) for one in taken_apart(output, "output")[0].values()]
    if not wholes:
        raise ConfigError(f"{type(model).__name__} returns no tensor", code="OOC-106",
                          fix="return the output from forward")  # fmt: skip
    if given is None:
        return _usual(loss, wholes[0])
    if known:
        return _fitting(given, loss, wholes[0])
    floats = given.shape in wholes or given.dtype == "float32"
    return Spec(given.shape, "float32" if floats else "int64")


def _of_the_batch(shape: tuple[int, ...], parts: Parts | None) -> tuple[int, ...]:
    return shape if parts is None else (parts.length_of(shape[0]), *shape[1:])


def _usual(loss: Loss, whole: tuple[int, ...]) -> Spec:
    """The target that fits a loss, given the shape of the output: class numbers, or another
    output."""
    of_classes = isinstance(loss, _OF_CLASSES)
    if loss in OF_VALUES or (isinstance(loss, Module) and not of_classes):
        return Spec(whole)
    return Spec((whole[0], *whole[2:]), "int64")


def _fitting(given: TargetGiven, loss: Any, whole: tuple[int, ...]) -> Spec:
    """The target that is given. Raises ShapeError: it does not fit a loss of the library."""
    labels = (whole[0], *whole[2:])
    if loss in OF_VALUES or type(loss) in _OF_VALUES:
        if given.shape != whole:
            reshaped = math.prod(given.shape) == math.prod(whole)
            raise ShapeError(
                f"the target has shape {given.shape}, the output {whole}",
                fix=f"target.reshape({whole})" if reshaped else "a target for each output",
            )
        return Spec(whole)
    probable = loss is F.cross_entropy or isinstance(loss, CrossEntropyLoss)
    if given.shape == whole and given.dtype != "int64" and probable:
        return Spec(whole)  # class probabilities
    if given.shape == whole:
        raise ShapeError(
            f"the target has the shape {whole} of the output, but holds no class probabilities",
            fix="one_hot.astype(np.float32), or class numbers: one_hot.argmax(1)"
            if probable else "class numbers: one_hot.argmax(1)",
        )  # fmt: skip
    if given.shape != labels:
        alone = (*labels[:1], 1, *labels[1:]) == given.shape or (*labels, 1) == given.shape
        raise ShapeError(
            f"the labels have shape {given.shape}, one for each "
            f"{'image' if len(labels) == 1 else 'pixel'} is {labels}",
            fix=f"labels.reshape({labels})" if alone else
            f"class numbers of shape {labels}" + f", or class probabilities {whole}" * probable,
        )  # fmt: skip
    return Spec(labels, "int64")
