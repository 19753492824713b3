"""The loss of a batch that is processed in parts.

The mean of the parts' losses, each by its share of the samples, must be the loss of the batch. So
each mean over labels is divided by the weight of *all* labels that count, times the share (where
all count, this is the part's own weight), and each sum is divided by the share. Parts are equal, or
one sample apart where they cannot be, as in an epoch's last batch. Read next:
`../functional/loss_functions.py`, which requests the divisor; `../tracing.py`, which cuts into
parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.engine.tensor import Tape, Tensor, call
from ooctrain.errors import ConfigError
from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.layout import Reshape
from ooctrain.layers.losses import LabelWeight
from ooctrain.step.op import Op, Site


class Parts:
    """The parts of a batch.

    Args:
        count: how many.
        rows: samples of the batch; None: parts are equal, and nothing depends on how many samples.

    Attributes:
        number: number of the part that goes through now, from 0.
    """

    def __init__(self, count: int, rows: int | None = None):
        self.count, self.number, self._rows = count, 0, count if rows is None else rows
        self._whole: dict[Tensor, Tensor] = {}
        self._weights: dict[tuple[Tensor, int, tuple[float, ...] | None], Tensor] = {}

    def begin(self, number: int) -> None:
        """From now on calls are those of this part."""
        self.number = number

    def span(self, number: int) -> tuple[int, int]:
        """The first sample of a part, and the first after it."""
        size, larger = divmod(self._rows, self.count)
        return tuple(n * size + min(n, larger) for n in (number, number + 1))  # type: ignore[return-value]

    @property
    def share(self) -> float:
        """Of this part: its samples / those of the batch."""
        lo, hi = self.span(self.number)
        return (hi - lo) / self._rows

    @property
    def factor(self) -> float:
        """1 / share."""
        lo, hi = self.span(self.number)
        return self._rows / (hi - lo) if self._rows % self.count else self.count

    def rows_of(self, length: int) -> tuple[int, int] | None:
        """Where this part lies along an axis of `length` in the batch that has samples in order;
        None where the axis is none of samples."""
        each, rest = divmod(length, self._rows)
        lo, hi = self.span(self.number)
        return None if rest else (lo * each, hi * each)

    def length_of(self, length: int) -> int:
        """An axis of the batch whose part has this length."""
        lo, hi = self.span(self.number)
        return length * self._rows // (hi - lo)

    def place_of(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Where a part's value of this shape lies in the batch's: "offset", and the shape "full"
        of that, as axes (N, C, H, W)."""
        block = (*shape, 1, 1)[:4]
        lo, hi = self.span(self.number)
        each, rest = divmod(shape[0], hi - lo)
        first, rows = (self.number, self.count) if rest else (lo, self._rows)
        each = shape[0] if rest else each
        return {"offset": (first * each, 0, 0, 0), "full": (rows * each, *block[1:])}

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

        Args: values, weights: weights of the classes, as numbers and as a tensor; or None and
        nothing.

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
        equal = self._rows % self.count == 0
        if key not in self._weights:
            op = LabelWeight(ignore_index, self.count if equal else 1)
            self._weights[key] = call(op, whole, *weights)
        weight = self._weights[key]
        return (weight if equal else weight * self.share,)
