"""Paper 001's tables 1 and 2, and what its figures 3 and 4 say in words.

`NETWORKS` holds all of it in one place, as it is printed, so that a reader who doubts a comparison
finds the figure. Numbers of checkpoints are those of TensorFlow's graph, whose height in levels is
the largest `swapin_groupby` without recomputation. Source: paper 001, section 4. Read next:
`hybrid.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuned:
    """What TFLMS chose, in levels, and the checkpoints whose segments are computed again."""

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    checkpoints: tuple[int, ...] = ()

    def __str__(self) -> str:
        listed = f", list {'+'.join(map(str, self.checkpoints))}" if self.checkpoints else ""
        return f"{self.swapout_threshold}/{self.swapin_ahead}/{self.swapin_groupby}{listed}"


@dataclass(frozen=True, slots=True)
class TunedNetwork:
    """A network and what the paper found; of plain mappings, since it travels to other processes.

    Args:
        model, batch: which.
        levels: height of its graph in TensorFlow.
        image_sizes: that are asked here.
        sizes_of_fit: the largest image without any method, and the next that the paper tried.
        sizes_of_knee: the largest image at which swapping loses nothing, and the next.
        largest: {method: largest image}.
        recompute_overhead: at the first of `sizes_of_fit`.
        gain: (image size, gain) of hybrid over swapping.
        swap, hybrid: {image size: parameters}: the table.
    """

    model: str
    batch: int
    levels: int
    image_sizes: tuple[int, ...]
    sizes_of_fit: tuple[int, int]
    sizes_of_knee: tuple[int, int]
    largest: Mapping[str, int]
    recompute_overhead: float
    gain: tuple[int, float]
    swap: Mapping[int, Tuned]
    hybrid: Mapping[int, Tuned]


def _table(
    sizes: range, thresholds: tuple[int, ...], ahead: tuple[int, ...], groupby: tuple[int, ...],
    lists: tuple[tuple[int, ...], ...] = (),
) -> Mapping[int, Tuned]:  # fmt: skip
    """{image size: parameters} of the rows of a table."""
    listed = lists or ((),) * len(sizes)
    rows = zip(thresholds, ahead, groupby, listed, strict=True)
    return {size: Tuned(*row) for size, row in zip(sizes, rows, strict=True)}


_TABLE_1, _TABLE_2 = range(3500, 7001, 500), range(500, 1301, 100)
_LATER = (8, 9, 11, 12, 13, 14, 15, 16, 17, 18)

RESNET50 = TunedNetwork(
    "resnet50", 1, 802, (2000, 2500, 3000, *_TABLE_1, 7500, 8000, 9000, 10000), (3000, 3500),
    (4000, 4500),
    {"vanilla": 3000, "recompute": 4500, "swap": 7000, "hybrid": 7000},
    0.158, (6500, 0.375),
    _table(
        _TABLE_1, (743, 639, 593, 529, 501, 463, 429, 399), (217, 74, 49, 30, 28, 23, 17, 9),
        (802,) * 8,
    ),
    _table(
        _TABLE_1, (743, 639, 593, 529, 477, 463, 429, 399), (217, 74, 68, 34, 25, 30, 25, 9),
        (802, 802, 817, 808, 808, 821, 821, 808),
        ((), (), (2, 4, 6), (2,), (2,), (2, 4, 6, 7), (2, 4, 5, 6), (2,)),
    ),
)  # fmt: skip
DEEPLAB = TunedNetwork(
    "deeplabv3plus_xception65", 16, 1501, (300, 400, *_TABLE_2, 1400, 1500, 1700), (400, 500),
    (500, 600),
    {"vanilla": 400, "recompute": 800, "swap": 1300, "hybrid": 1300},
    0.167, (1000, 0.187),
    _table(
        _TABLE_2, (1427, 1236, 650, 456, 217, 174, 161, 121, 111),
        (906, 381, 77, 30, 11, 12, 6, 3, 3), (1501, 1501, 1501, 1501, 0, 22, 1501, 1501, 22),
    ),
    _table(
        _TABLE_2, (1427, 1236, 650, 456, 217, 174, 164, 121, 111),
        (906, 575, 77, 30, 30, 31, 6, 3, 33),
        (1501, 1508, 1501, 1501, 1508, 1525, 1539, 1501, 23),
        ((), (1, 2, 3, 4), (), (), (2, 3, 4), (1, 2, 3, 4, 5, 6), _LATER, (8, 9), _LATER),
    ),
)  # fmt: skip
NETWORKS = (RESNET50, DEEPLAB)
