"""Batches of a data set, in an order that depends on (seed, epoch), read ahead by threads.

The order of an epoch, and the random changes of each of its images, are functions of (seed, epoch)
alone. So the whole state of a loader is two numbers, and a run that resumes sees the same batches
(images, labels) as one that was never stopped. Read next: `transforms.py`;
`execution/checkpoint.py`, which keeps those two numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from numbers import Integral

import numpy as np

from ooctrain.data.dataset import Batch, Samples, permutation, take
from ooctrain.data.transforms import Transform, transformed
from ooctrain.errors import CheckpointError, ConfigError
from ooctrain.step.arguments import checked_but


@checked_but("drop_last")
class DataLoader:
    """Iterating gives the batches of one epoch; iterating again gives the next epoch.

    Images of a data set that gives bytes (uint8) stay bytes, which `nn.FromBytes` takes. A
    `Trainer` of a model with it is given folders and other images as bytes, too, by `fit`,
    `evaluate` and, for a loop of one's own, `ahead`; also those that a data set of one's own asks
    for in its `__getitem__`.

    Args:
        dataset: anything with a length and numbered samples.
        batch_size: samples in a batch; the last one of an epoch may be smaller.
        shuffle: a new order each epoch.
        drop_last: leaves a smaller last batch out.
        seed: seed of the order, and of what chance does to the images.
        prefetch: batches read ahead by threads; 0 reads in the caller.
        num_workers: threads that read; batches are the same, whatever their number.
        transform: changes each image as it is read, see `transforms`; of data whose targets are
            class numbers. A function of one's own is given float32, or bytes where a trainer wants
            them; one with an attribute `keeps_bytes` that is true is given bytes always.
        share: which samples of a batch are handed out, by its size, such as `Ranks.part_of`; only
            these are read.

    Raises:
        ConfigError: invalid sizes, or too few samples; while iterating: a transform of images
            whose targets are maps, which it would not move along.
    """

    def __init__(
        self, dataset: Samples, batch_size: int = 1, shuffle: bool = False,
        drop_last: bool = False, *, seed: int = 0, prefetch: int = 2, num_workers: int = 1,
        transform: Transform | None = None, share: Callable[[int], slice] | None = None,
    ):  # fmt: skip
        if not isinstance(drop_last, bool):
            raise ConfigError(
                f"drop_last is {type(drop_last).__name__}, not True or False",
                fix="this loader has no sampler as its third argument; write drop_last=...",
            )
        if batch_size < 1 or prefetch < 0 or num_workers < 0:
            raise ConfigError(
                f"batch size {batch_size} must be at least 1, prefetch {prefetch} and "
                f"num_workers {num_workers} at least 0",
                fix="--batch 1 or more",
            )
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.drop_last, self.seed, self.prefetch = drop_last, seed, prefetch
        self.num_workers, self.transform, self.share = num_workers, transform, share
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
        for batch, hand_out in self.reading():
            hand_out()
            yield batch

    def reading(
        self, *, ahead: bool = True, as_bytes: bool = False
    ) -> Iterator[tuple[Batch, Callable[[], None]]]:
        """The batches, each with what is to be called when it is handed out, for a reader who is
        ahead: only then does the loader's state count it.

        Args:
            ahead: False: no batch is read before it is requested, as there is no memory for it.
            as_bytes: images come as uint8 where the data set has them so (`dataset.take`).
        """
        epoch, first = self._next
        self._next = (epoch + 1, 0)
        for position, batch in enumerate(self._read(epoch, first, ahead, as_bytes), first + 1):
            # After its last batch an epoch is over, whether or not one more is requested.
            state = (epoch, position) if position < len(self) else (epoch + 1, 0)
            yield batch, partial(setattr, self, "_state", state)

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

    def _read(self, epoch: int, first: int, ahead: bool, as_bytes: bool) -> Iterator[Batch]:
        """The batches of an epoch from one of them on."""
        batches, dataset, transform = self._indices(epoch)[first:], self.dataset, self.transform
        key = (self.seed, epoch)

        def read(indices: np.ndarray) -> Batch:
            images, targets = take(dataset, indices, as_bytes=as_bytes)
            if transform is None:
                return images, targets
            if not as_bytes and not getattr(transform, "keeps_bytes", False):
                images = images.astype(np.float32, copy=False)  # bytes would wrap around at 0
            if targets.ndim != 1:
                raise ConfigError(
                    f"targets of shape {targets.shape[1:]} would not be cut or mirrored with their "
                    "images", fix="no transform, or images with class numbers",
                )  # fmt: skip
            return transformed(transform, images, key, indices), targets

        if ahead and self.prefetch and self.num_workers:
            return _read_ahead(read, batches, self.num_workers, self.prefetch)
        return map(read, batches)

    def _indices(self, epoch: int) -> list[np.ndarray]:
        """Of each batch of an epoch the numbers of its samples."""
        count = len(self.dataset)
        order = permutation(count, self.seed, epoch) if self.shuffle else np.arange(count)
        batches = [order[i * self.batch_size :][: self.batch_size] for i in range(len(self))]
        return batches if self.share is None else [b[self.share(len(b))] for b in batches]


def _read_ahead(
    read: Callable[[np.ndarray], Batch], batches: list[np.ndarray], workers: int, ahead: int
) -> Iterator[Batch]:
    """Batches in order; threads read up to `ahead` of them before they are requested."""
    waiting = iter(batches)
    with ThreadPoolExecutor(min(workers, ahead), thread_name_prefix="ooctrain-reader") as pool:
        ready: deque[Future[Batch]] = deque()
        try:
            for indices in waiting:
                ready.append(pool.submit(read, indices))
                if len(ready) > ahead:
                    yield ready.popleft().result()
            while ready:
                yield ready.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
