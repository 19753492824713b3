"""Batches of a data set, in an order that depends on (seed, epoch), read ahead by a thread.

In: a data set. Out: (images, labels) batch by batch. The one idea: the order of an epoch is a
function of (seed, epoch) alone, so the whole state of a loader is two numbers, and a run that
resumes sees the same batches as one that was never stopped. Read next: `execution/checkpoint.py`,
which keeps those two numbers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from numbers import Integral

import numpy as np

from ooctrain.data.dataset import Batch, Dataset, permutation, take
from ooctrain.errors import CheckpointError, ConfigError


class DataLoader:
    """Iterating gives the batches of one epoch; iterating again gives the next epoch.

    Args:
        dataset: anything with a length and numbered samples.
        batch_size: samples in a batch; the last one of an epoch may be smaller.
        shuffle: a new order each epoch.
        drop_last: leaves a smaller last batch out.
        seed: of the order.
        prefetch: batches read ahead by a thread; 0 reads in the caller.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *,
        seed: int = 0,
        prefetch: int = 2,
    ):
        if batch_size < 1 or prefetch < 0:
            raise ConfigError(
                f"batch size {batch_size} must be at least 1, prefetch {prefetch} at least 0"
            )
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.drop_last, self.seed, self.prefetch = drop_last, seed, prefetch
        if not len(self):
            raise ConfigError(
                f"{len(dataset)} samples do not fill one batch of {batch_size}",
                fix=f"a batch of at most {len(dataset)}" if len(dataset) else "give it data",
            )
        self._next, self._state = (0, 0), (0, 0)

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        epoch, first = self._next
        self._next = (epoch + 1, 0)
        for position, batch in enumerate(self._read(self._indices(epoch)[first:]), first + 1):
            # After its last batch an epoch is over, whether or not somebody asks for one more.
            self._state = (epoch, position) if position < len(self) else (epoch + 1, 0)
            yield batch

    def state_dict(self) -> dict[str, int]:
        """{"epoch": the epoch, "position": batches of it that have been handed out}."""
        return {"epoch": self._state[0], "position": self._state[1]}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """The next iteration goes on where a loader of this state had stopped.

        Raises:
            CheckpointError: the state is not one of this loader (the batches of an epoch have
                changed).
        """
        epoch, position = state.get("epoch", -1), state.get("position", -1)
        whole = isinstance(epoch, Integral) and isinstance(position, Integral)
        if not whole or epoch < 0 or not 0 <= position < len(self):
            raise CheckpointError(
                f"data position {dict(state)} is not one of {len(self)} batches an epoch",
                fix="resume with the batch size and the data of the run that was saved",
            )
        self._next = self._state = (epoch, position)

    def _read(self, batches: list[np.ndarray]) -> Iterator[Batch]:
        if self.prefetch:
            return _read_ahead(self.dataset, batches, self.prefetch)
        return (take(self.dataset, indices) for indices in batches)

    def _indices(self, epoch: int) -> list[np.ndarray]:
        """Of each batch of an epoch the numbers of its samples."""
        count = len(self.dataset)
        order = permutation(count, self.seed, epoch) if self.shuffle else np.arange(count)
        return [order[i * self.batch_size :][: self.batch_size] for i in range(len(self))]


def _read_ahead(dataset: Dataset, batches: list[np.ndarray], ahead: int) -> Iterator[Batch]:
    """Batches in order; a thread reads up to `ahead` of them before they are asked for."""
    ready: queue.Queue[Batch | BaseException] = queue.Queue(ahead)
    stop = threading.Event()
    reader = threading.Thread(
        target=_fill, args=(ready, stop, dataset, batches), daemon=True, name="ooctrain-reader"
    )
    reader.start()
    try:
        for _ in batches:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        # The reader may be waiting to put one more batch; it looks at `stop` every tenth of a
        # second.
        stop.set()
        reader.join()


def _fill(
    ready: queue.Queue, stop: threading.Event, dataset: Dataset, batches: list[np.ndarray]
) -> None:
    """The reader's thread: batches, or the error that ended it, into `ready`, until `stop`."""
    for indices in batches:
        try:
            item: Batch | BaseException = take(dataset, indices)
        except BaseException as error:  # raised in the thread that waits for the batch
            item = error
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                break
            except queue.Full:
                continue
        if stop.is_set() or isinstance(item, BaseException):
            return
