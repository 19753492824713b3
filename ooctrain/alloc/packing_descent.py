"""A packing that is lowered: one capacity after another between a bound and the best one known.

A search for one capacity (`exact_search.py`) is lucky or not: seen on training steps, 1.2 % above
the bound was met within 1,617 blocks tried, 1.5 % only after 12,075. So each capacity is asked for
a short while, first those far down, then those nearer to the best. What is found lowers the best;
what is proved to hold no packing raises the bound. If no capacity is met, all are asked for three
times as long. An order that has led to a packing is a good place to look for the next one: most
attempts take that order with some keys moved, the others new ones. Without it ResNet-50 at 40 %
stayed 0.91 % above the bound, with it 0.20 % in as many attempts. A descent divides its work among
many capacities, and what it knows to be impossible counts for one of them only. So there is an aim
as well: one capacity, asked for in many short attempts. Bounded by the blocks tried, so the result
is the same on every machine. Sources: Luby's restarts; large neighbourhood search (Shaw,
1998), here of the order instead of the places; ours otherwise. Read next: `packing_orders.py`,
`exact_places.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from ooctrain.alloc.exact_search import FOUND, NONE, search
from ooctrain.alloc.packing_board import new_board
from ooctrain.alloc.packing_orders import SHORTEST, Orders, luby, ranks
from ooctrain.alloc.sections import Sections

#: Where between the bound and the best the capacities lie, in percent.
SHARES = (0, 30, 60, 80, 92, 97)
#: Blocks that are tried for one capacity at first, for each block there is.
_EFFORT = 60
#: How many attempts keep near the order that served last.
_NEAR = 0.6
#: The longest attempt at an aim, in units of the shortest; those that were seen to serve took six.
_LONGEST_AIM = 16
#: Keys that are kept of what could not be packed; 8 bytes each.
MOST_KEYS = 1 << 21


class Descent:
    """The best packing so far of some blocks, and what is known to be impossible.

    Args:
        sections: the blocks over time, at least one.
        low: no packing takes less; nor less than the largest block.
        high: a packing of so much is known.

    Attributes:
        offsets: of the best packing found here; None: none below `high` yet.
        tried: how many blocks were tried.
    """

    def __init__(self, sections: Sections, low: int, high: int):
        self.low, self.high = max(low, int(sections.size.max())), high
        self.offsets: tuple[int, ...] | None = None
        self.tried = 0
        self._sections, self._orders = sections, Orders(sections)
        self._served: np.ndarray | None = None  # keys of the order that found the best packing

    def run(self, nodes: int) -> None:
        """Lowers the best until it is the bound, or `nodes` blocks were tried."""
        effort = _EFFORT * len(self._sections.size)
        while self.low < self.high and self.tried < nodes:
            for share in SHARES:
                # Above one that holds none the next is a share further up: bytes are too many.
                capacity = self.low + (self.high - self.low) * share // 100
                left = min(effort, nodes - self.tried)
                over = left <= 0 or self.low >= self.high
                if over or self._ask(capacity, left, self._attempts()):
                    break
            else:
                effort *= 3

    def aim(self, capacity: int, nodes: int) -> None:
        """Asks for one capacity in lasting orders, until it is met or `nodes` blocks were tried."""
        if self.low <= capacity < self.high:
            self._ask(capacity, nodes, self._short_attempts())

    def _ask(self, capacity: int, nodes: int, attempts: Iterator[tuple[int, np.ndarray]]) -> bool:
        """Asks for a packing; whether one was found. That there is none moves the bound."""
        failed = np.full(min(nodes, MOST_KEYS), -1)
        for length, keys in attempts:
            board = new_board(self._sections)
            limits = capacity, min(length, nodes)
            status, tried = search(self._sections, board, ranks(keys), failed, limits)
            self.tried += tried
            nodes -= tried
            if status == FOUND:
                self._take(board.offset, keys)
                return True
            if status == NONE:
                self.low = capacity + 1
                return False
            if nodes <= 0:
                return False
        raise AssertionError("attempts have no end")

    def _take(self, offsets: np.ndarray, keys: np.ndarray) -> None:
        self.offsets, self._served = tuple(offsets.tolist()), keys
        self.high = int((offsets + self._sections.size).max())

    def _short_attempts(self) -> Iterator[tuple[int, np.ndarray]]:
        unit = SHORTEST * len(self._sections.size)
        for number in count(1):
            yield unit * min(luby(number), _LONGEST_AIM), self._orders.lasting()

    def _attempts(self) -> Iterator[tuple[int, np.ndarray]]:
        """(how many blocks to try, keys of the order), without end."""
        unit = SHORTEST * len(self._sections.size)
        left = self._orders.fixed() if self._served is None else []
        for number in count(1):
            if left:
                keys = left.pop()
            elif self._served is not None and self._orders.coin(_NEAR):
                keys = self._orders.beside(self._served)
            else:
                keys = self._orders.mixture()
            yield unit * luby(number), keys
