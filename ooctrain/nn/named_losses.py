"""The loss of a step, and the target that fits it.

A loss is given by name, as a function or as the model's own. Only the loss knows the form of its
target (class numbers, or another output), so the target's shape and type are asked of it in the
middle of tracing, once the shape of the model's output is known. Read next: `tracing.py`;
`models/inception.py`, which has a loss of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ooctrain import functional as F
from ooctrain.engine.module import Module
from ooctrain.engine.parts import Parts
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.nn import CrossEntropyLoss, NLLLoss
from ooctrain.step.op import Spec

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: Mapping[str, Loss] = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss, "l1": F.l1_loss}

#: whose target has the shape of the output
OF_VALUES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits)


@runtime_checkable
class OwnLoss(Protocol):
    """A model that defines its own loss, since its step is more than one output and a named loss.

    Inception v3, which has a second classifier, and Pix2PixHD with its two players are such models.
    Their own loss is used where "cross_entropy", the default, is asked for.
    """

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """The loss of what `forward` returned, in training or in evaluation."""

    def target_spec(self, output: Any) -> Spec:
        """Shape and type of the target that fits an output."""


def named_loss(loss: str | Loss | None, model: Module) -> Loss:
    """The function that a name stands for: the model's own, where it has one and no other is meant.

    Raises:
        ConfigError: no loss has that name.
    """
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
    model: Module, loss: Loss, output: Any, target_shape: Sequence[int] | None,
    parts: Parts | None = None,
) -> Spec:  # fmt: skip
    """Shape and type of the target for the whole batch.

    Args:
        output: what the model returned, for one of the `parts` of the batch if there are any.
        target_shape: as given by the user.

    Raises:
        ConfigError: a named loss cannot take several outputs.
    """
    if isinstance(model, OwnLoss) and loss == model.loss and target_shape is None:
        spec = model.target_spec(output)
        return Spec(_of_the_batch(spec.shape, parts), spec.dtype)
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"{type(model).__name__} has several outputs; a named loss takes one", code="OOC-106",
            fix="give a function of (outputs, target) as loss",
        )  # fmt: skip
    return _spec_for(loss, output, target_shape, parts)


def _of_the_batch(shape: tuple[int, ...], parts: Parts | None) -> tuple[int, ...]:
    return shape if parts is None else (parts.length_of(shape[0]), *shape[1:])


def _spec_for(
    loss: Loss, output: Tensor, target_shape: Sequence[int] | None, parts: Parts | None
) -> Spec:
    """Shape and type of the target that fits a loss: class numbers, or another output.

    Args:
        output: of one part of the batch; the target is for all `parts`.
        target_shape: as given by the user; with the output's own shape the target is float32.
    """
    whole = _of_the_batch(output.shape, parts)
    if target_shape is not None:
        return Spec(tuple(target_shape), "float32" if tuple(target_shape) == whole else "int64")
    if loss in OF_VALUES:
        return Spec(whole)
    of_classes = isinstance(loss, CrossEntropyLoss | NLLLoss)
    if isinstance(loss, Module) and not of_classes:
        return Spec(whole)
    return Spec((whole[0], *whole[2:]), "int64")
