"""The loss of a batch that is processed in equal parts.

The mean of the parts' losses must be the loss of the batch. So each mean over labels is divided by
the weight of *all* labels that count, / parts (where all count, this is the part's own weight), and
each sum is multiplied by `count`. Read next: `../functional/losses.py`, which asks for the divisor;
`../tracing.py`, which cuts targets into parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.engine.site import Site
from ooctrain.engine.tensor import Tape, Tensor, call
from ooctrain.errors import ConfigError
from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.class_loss import LabelWeight
from ooctrain.layers.layout import Reshape
from ooctrain.step.op import Op


class Parts:
    """The parts of a batch.

    Args:
        count: how many.

    Attributes:
        number: of the part that goes through now, from 0.
    """

    def __init__(self, count: int):
        self.count, self.number = count, 0
        self._whole: dict[Tensor, Tensor] = {}
        self._weights: dict[tuple[Tensor, int, tuple[float, ...] | None], Tensor] = {}

    def begin(self, number: int) -> None:
        """From now on calls are those of this part."""
        self.number = number

    def place_of(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Where a part's value of this shape lies in the batch's: "offset", and the shape "full"
        of that, as axes (N, C, H, W)."""
        block = (*shape, 1, 1)[:4]
        return {
            "offset": (self.number * shape[0], 0, 0, 0),
            "full": (self.count * shape[0], *block[1:]),
        }

    def puts_off(self, op: Op, ins: Sequence[Tensor], states: Sequence[Tensor], site: Site) -> bool:
        """Whether an update of states waits until other parts are through: here it never does,
        since parts come one after the other."""
        return False

    def batch_statistics(
        self, tape: Tape, found: tuple[Tensor, ...], eps: float, rows: int
    ) -> tuple[tuple[Tensor, ...], BatchNormApply, int]:
        """Statistics that batch norm goes by, the operation that normalises by them, and over how
        many values per channel they are: this part's own.

        Args:
            found: mean, 1 / std and variance of this part.
            rows: its values per channel.
        """
        return found, BatchNormApply(), rows

    def cut(self, part: Tensor, whole: Tensor) -> None:
        """Notes what a part of the target is a part of."""
        self._whole[part] = whole

    def follow(self, op: Op, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """Notes a call: labels count as many under another shape."""
        if isinstance(op, Reshape) and ins[0] in self._whole:
            self._whole[outs[0]] = self._whole[ins[0]]

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
