"""The work on blocks: writes, and reads that check them, ordered as the executor orders its work.

The blocks are those that a client holds over a `Ground` with streams. A claim waits for every
release listed before it, and work on a block for the block's earlier work. Nothing else is ordered,
so an allocator that relies on more order is exposed as `Broken`. Read next: `allocator_client.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.alloc.base import Reached
from ooctrain.testing.allocator_grounds import STREAMS, Ground
from ooctrain.testing.allocator_held import Held, reaching
from ooctrain.testing.allocator_laws import hold

_MARKS = 250


class Queues:
    """What a client queues.

    Args:
        ground: whose streams do it.
    """

    def __init__(self, ground: Ground):
        self._ground = ground
        self._releases: list[Reached] = []
        self._waited = [0] * STREAMS  # how many of the releases each stream waits for already

    def claim(self, stream: int) -> None:
        """A claim waits for all releases listed before it."""
        for event in self._releases[self._waited[stream] :]:
            self._ground.wait(stream, event)
        self._waited[stream] = len(self._releases)

    def released(self, held: Held) -> None:
        """A block, or a part of it, is given back; its uses may still go on."""
        self._releases += held.uses()

    def put(self, held: Held, ranges: Sequence[tuple[int, int]], stream: int) -> None:
        """Queues a write of ranges of a block behind all that uses it, then a check of all of
        it."""
        for event in held.uses():
            self._ground.wait(stream, event)
        # A mark of its own for each write, so that bytes of another one are never taken for it.
        held.mark = held.mark % _MARKS + 1
        with reaching(held.block):
            for lo, hi in ranges:
                self._ground.fill(held.block.address + lo, hi - lo, held.mark, stream)
                if held.marks is not None:
                    held.marks[lo // held.unit] = held.mark
        held.reads.clear()
        held.wrote = self._ground.event(stream)
        self._read(held, stream)

    def use(self, held: Held, stream: int) -> None:
        """Queues a check of a block, behind the latest write; nothing if there was none."""
        if held.wrote is not None:
            self._ground.wait(stream, held.wrote)
            self._read(held, stream)

    def complain(self) -> None:
        """Does all that is queued, and says what was read wrong."""
        problem = self._ground.finish()
        hold("P4", not problem, problem)

    def _read(self, held: Held, stream: int) -> None:
        for lo, hi in held.ranges():
            mark = held.mark if held.marks is None else held.marks[lo // held.unit]
            address, what = held.block.address + lo, f"bytes [{lo}, {hi}) of {held.block.tag}"
            with reaching(held.block):
                self._ground.expect(address, hi - lo, mark, stream, what)
        held.reads.append(self._ground.event(stream))
