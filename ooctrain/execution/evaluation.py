"""Averages over a data set: loss and accuracy of its batches.

In: what a step of evaluation gave for each batch. Out: an `Evaluation`. Read next: `../train.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooctrain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Averages over a data set. `accuracy` is None where no target is a class that counts."""

    loss: float
    accuracy: float | None
    samples: int


class Averages:
    """Sums up batches.

    Args:
        ignored: the label that counts nothing.
    """

    def __init__(self, ignored: int):
        self._ignored = ignored
        self._loss_sum, self._samples = 0.0, 0
        self._correct, self._judged, self._classes = 0, 0, True

    def add(self, outputs: Mapping[str, np.ndarray], y: np.ndarray) -> None:
        """Adds a batch, with its "loss" and "output"."""
        output, target = outputs["output"], np.asarray(y)
        self._loss_sum += float(outputs["loss"]) * len(target)
        self._samples += len(target)
        self._classes = self._classes and output.ndim == target.ndim + 1
        if self._classes:
            counts = target != self._ignored
            self._correct += int(((output.argmax(axis=1) == target) & counts).sum())
            self._judged += int(counts.sum())

    def result(self) -> Evaluation:
        """The averages. Raises ConfigError: there was no batch."""
        if not self._samples:
            raise ConfigError("nothing to evaluate: the data set is empty", code="OOC-106")
        accuracy = self._correct / self._judged if self._classes and self._judged else None
        return Evaluation(self._loss_sum / self._samples, accuracy, self._samples)
