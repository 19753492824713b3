"""A small training on several ranks of one process, and the same on one.

The network has everything that ranks could get wrong: dropout, batch norm, a parameter that is used
twice, gradients of many sizes; and some of its labels do not count, more on one rank than on
others. A run returns losses and all that persists, of each rank. Read next:
`../properties/test_ranks.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ooctrain as oc
from ooctrain import nn
from ooctrain.distributed import Ranks
from ooctrain.testing.thread_ranks import on_ranks

BATCH, STEPS, IGNORED = 8, 2, -100


class Small(nn.Module):
    """Conv, batch norm, dropout, stochastic depth, one linear layer used twice, a head."""

    def __init__(self, norm: bool = True):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4) if norm else nn.ReLU()
        self.drop, self.depth = nn.Dropout(0.4), nn.StochasticDepth(0.3, "row")
        self.twice = nn.Linear(36, 36)
        self.head = nn.Linear(36, 5)

    def forward(self, x):
        x = self.depth(self.drop(self.norm(self.conv(x)))).flatten(1)
        return self.head(self.twice(oc.functional.relu(self.twice(x))))


@dataclass(frozen=True)
class Done:
    """What one rank has after its steps."""

    losses: list[float]
    arrays: dict[str, np.ndarray]


def batches(steps: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels; most of the labels that do not count are in the first part."""
    draw = np.random.default_rng(3)
    images = draw.standard_normal((steps, BATCH, 1, 8, 8)).astype(np.float32)
    labels = draw.integers(0, 5, (steps, BATCH))
    labels[:, 0], labels[0, 5] = IGNORED, IGNORED
    return list(zip(images, labels, strict=True))


def make_trainer(
    ranks: Ranks | None = None, norm: bool = True, drawn: bool = False, **how: Any
) -> oc.Trainer:
    """A trainer of a new network, with momentum, on one thread; `drawn`: in patches whose
    boundaries are drawn for each step."""
    oc.manual_seed(5)
    model = Small(norm)
    if drawn:
        model = oc.split(model, 1.0, (2, 2), True, omega=0.4, seed=2)
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return oc.Trainer(model, optimizer=optimizer, threads=1, ranks=ranks, **how)


def run_steps(trainer: oc.Trainer, data: list[tuple[np.ndarray, np.ndarray]]) -> Done:
    """Steps on this rank's part of each batch."""
    ranks = trainer.ranks
    part = slice(None) if ranks is None else ranks.part_of(BATCH)
    losses = [trainer.step(x[part], y[part]) for x, y in data]
    return Done(losses, trainer.state_arrays())


def alone(parts: int, steps: int = STEPS, **how: Any) -> Done:
    """One rank, which takes the parts of a batch one after the other."""
    with make_trainer(accumulate=parts, **how) as trainer:
        return run_steps(trainer, batches(steps))


def together(
    count: int, seed: int = 0, how: dict[str, Any] | None = None, steps: int = STEPS, **ranks: Any
):
    """What each of several ranks has."""

    def run(mine: Ranks) -> Done:
        with make_trainer(mine, **(how or {})) as trainer:
            return run_steps(trainer, batches(steps))

    return on_ranks(count, run, seed, **ranks)


def expect_same(found: list[Done], expected: Done) -> None:
    """Every rank has the losses and values of one, to the bit."""
    for rank, done in enumerate(found):
        assert done.losses == expected.losses, (rank, done.losses, expected.losses)
        assert done.arrays.keys() == expected.arrays.keys()
        differ = [n for n, v in expected.arrays.items() if v.tobytes() != done.arrays[n].tobytes()]
        assert not differ, f"rank {rank}: {differ} differ"


def expect_close(found: list[Done], expected: Done, tolerance: float = 2e-6) -> None:
    """Every rank has nearly the values of one, and exactly those of the others."""
    expect_same(found[1:], found[0])
    for name, value in expected.arrays.items():
        near = np.allclose(found[0].arrays[name], value, rtol=tolerance, atol=tolerance)
        assert near, (name, np.abs(found[0].arrays[name] - value).max())


def first_error(run: Callable[[], Any]) -> BaseException:
    """What a run raises."""
    try:
        run()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
