"""In which order exact packing tries blocks: measures of them, mixtures drawn, and how long each.

The order decides how soon a packing is found: with one within a thousand blocks tried, with another
not within a million. No measure is the best for all: wide blocks first in one problem, those of the
fullest section in another. So orders are mixtures of measures with drawn powers, most of them tried
for a short while only, in the lengths of Luby's sequence. In lasting orders size hardly counts:
only such ones have met 0.9 % above the bound for ResNet-50 at 20 %, each time with a power of the
size below 0.1. The seed is fixed, so everybody draws the same ones. Source: Luby, Sinclair and
Zuckerman, "Optimal speedup of Las Vegas algorithms" (1993); the mixtures are ours. Read next:
`exact_places.py`, `packing_descent.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.alloc.packing_board import new_board
from ooctrain.alloc.sections import Sections

#: Blocks that the shortest attempt may try, for each block there is.
SHORTEST = 4


def luby(number: int) -> int:
    """Luby's sequence 1 1 2 1 1 2 4 1 1 2 ...: twice the length, half as often.

    Whatever chance attempts of each length have, no other sequence is much better.
    """
    while (number + 1) & number:
        number -= (1 << (number.bit_length() - 1)) - 1
    return (number + 1) // 2


class Orders:
    """Orders of the blocks of a problem, as a key for each block, the largest first.

    Args:
        sections: the blocks over time.
    """

    def __init__(self, sections: Sections):
        self._sections = sections
        self._measured = _measures(sections)
        self._drawn = np.random.default_rng(0)

    def fixed(self) -> list[np.ndarray]:
        """By several measures in turn, the best one last."""
        width, _, area, fullest = self._measured
        return [
            _steps([area]), _steps([width, area, fullest]), _steps([fullest, area, width]),
            _steps([fullest, width, area]),
        ]  # fmt: skip

    def mixture(self) -> np.ndarray:
        """The measures multiplied, each to a drawn power; in half of the draws, with noise."""
        powers = self._drawn.uniform(0, [1, 1, 0, 8])
        noise = self._drawn.normal(0, 0.3, self._count) * self._drawn.integers(0, 2)
        return self._logarithms @ powers + noise

    def lasting(self) -> np.ndarray:
        """A mixture without noise in which the power of the size is near zero: what lives long, and
        what lives when most bytes do, comes first, and size decides among those.
        """
        powers = self._drawn.uniform(0, [1, 1, 0, 8])
        powers[1] **= 3
        return self._logarithms @ powers

    def beside(self, keys: np.ndarray) -> np.ndarray:
        """An order near to one that has served: all keys, or a tenth of them, moved by chance, and
        in half of the draws the measures weighed another way.
        """
        spread = max(float(keys.std()), 1e-9)
        moved = self._drawn.random(self._count) < self._drawn.choice([0.1, 1.0])
        by = self._drawn.normal(0, self._drawn.choice([0.02, 0.1, 0.3]), self._count)
        near = (keys - keys.mean()) / spread + by * moved
        if self._drawn.random() < 0.5:
            near = near + self._logarithms @ self._drawn.normal(0, 0.3, 4)
        return near

    def coin(self, share: float) -> bool:
        """True in this share of the draws."""
        return bool(self._drawn.random() < share)

    @property
    def _count(self) -> int:
        return len(self._sections.size)

    @property
    def _logarithms(self) -> np.ndarray:
        return np.log(np.array(self._measured, float).T)


def ranks(keys: np.ndarray) -> np.ndarray:
    """The place of each block, the largest key first; equals, and so twins, by their numbers."""
    return _places([keys])


def _measures(sections: Sections) -> tuple[np.ndarray, ...]:
    """Of each block: width in sections, size, area, and the bytes of its fullest section."""
    width = np.diff(sections.own_start)
    bytes_of = new_board(sections).total
    parts = np.split(sections.own, sections.own_start[1:-1])
    fullest = np.array([bytes_of[own].max() for own in parts])
    return width, sections.size, sections.size * width, fullest


def _places(measures: list[np.ndarray]) -> np.ndarray:
    order = np.lexsort([-measure for measure in reversed(measures)])
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def _steps(measures: list[np.ndarray]) -> np.ndarray:
    """Keys one step apart, in the order of several measures."""
    return -_places(measures).astype(float)
