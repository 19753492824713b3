"""A batch that goes through in equal parts, whose losses together are that of the batch.

In: the parts of a target as they are cut off. Out: what the mean over a part is divided by. The one
idea: the mean of the parts' losses is the batch's loss if each mean over labels is divided by the
weight of *all* labels that count, / parts (where all count, that is the part's own), and each sum
is taken `count` times. Read next: `../functional/losses.py`, which asks; `../tracing.py`, which
cuts.
"""

from __future__ import annotations

from ooctrain.engine.tensor import Tensor, call
from ooctrain.errors import ConfigError
from ooctrain.layers.class_loss import LabelWeight
from ooctrain.layers.layout import Reshape
from ooctrain.step.op import Op


class Parts:
    """The parts of a batch.

    Args:
        count: how many.
    """

    def __init__(self, count: int):
        self.count = count
        self._whole: dict[Tensor, Tensor] = {}
        self._weights: dict[tuple[Tensor, int, tuple[float, ...] | None], Tensor] = {}

    def cut(self, part: Tensor, whole: Tensor) -> None:
        """Notes what a part of the target is a part of."""
        self._whole[part] = whole

    def follow(self, op: Op, source: Tensor, result: Tensor) -> None:
        """Notes a call: labels count as many under another shape."""
        if isinstance(op, Reshape) and source in self._whole:
            self._whole[result] = self._whole[source]

    def divisor(
        self, labels: Tensor, ignore_index: int, values: tuple[float, ...] | None, *weights: Tensor
    ) -> tuple[Tensor]:
        """What a mean over a part's labels is divided by, as the input more of the loss.

        Args:
            values, weights: of the classes: what they are, and as a tensor; or None and nothing.

        Raises:
            ConfigError: they are not the target's.
        """
        if labels not in self._whole:
            raise ConfigError(
                "with accumulate a mean is over the labels of the whole batch, and these labels "
                "are made from its target", code="OOC-106", where="cross_entropy",
                fix='hand the target on as it is, or accumulate=1, or reduction="sum"',
            )  # fmt: skip
        whole = self._whole[labels]
        key = whole, ignore_index, values
        if key not in self._weights:
            op = LabelWeight(ignore_index, self.count)
            self._weights[key] = call(op, whole, *weights)
        return (self._weights[key],)
