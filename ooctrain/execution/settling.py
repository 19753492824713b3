"""Settling: whether what persists ends a step in the same places as an earlier step ended it.

Addresses depend on the requests alone, so steps that begin with the same layout go on alike for
ever, and a replay of those until then shows the whole future. Where an allocator does not come to
that within some steps (a plan that moves parameters, on an allocator with holes), a replay shows
these steps and no more, and a trainer opens its session anew after them, where all begins again.
Read next: `placement.py`, which replays; `residence.py`, which opens sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ooctrain.execution.placement import Placement

#: Steps of a session that settles nowhere; as many are replayed.
MAX_STEPS = 16


class Settling:
    """Watches where steps end.

    Args:
        placement: of the steps, from their first one on.

    Attributes:
        settled: a step has ended as an earlier one did; or any free chunks make a block, so that
            places do not matter.
    """

    def __init__(self, placement: Placement):
        self.placement = placement
        self.settled = placement.allocator.granule.ranges
        self._seen: set[tuple[tuple[int, int], ...]] = set()

    @property
    def worn(self) -> bool:
        """Whether the steps that a replay has shown are over, and nothing is settled."""
        return not self.settled and len(self._seen) >= MAX_STEPS

    def after_step(self) -> None:
        """Looks at a step's end. Cost: O(p log p) for p blocks that persist, until it is settled.

        More than `MAX_STEPS` are not looked at.
        """
        if self.settled or self.worn:
            return
        blocks = self.placement.blocks
        layout = tuple(sorted((v, block.address) for v, block in blocks.items()))
        self.settled = layout in self._seen
        self._seen.add(layout)
