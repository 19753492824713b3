"""The lives of blocks: for each one when it was made, when it went, and where it lay meanwhile.

A log is served by an allocator over memory without bytes; every block becomes one `BlockLife` for
each piece of memory it lies in (one, or several with virtual addressing). Drawn as rectangles,
requests across and addresses up, lives show fragmentation at a glance. Read next:
`report/moving_memory.py` and tutorial 06, which draw them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ooctrain.alloc.arena_map import pieces_of
from ooctrain.alloc.base import Allocator, Block, Reached
from ooctrain.alloc.replay.log import AllocationLog
from ooctrain.alloc.replay.replay import made_dry, serve
from ooctrain.alloc.wrapper import Wrapper
from ooctrain.errors import OutOfDeviceMemory


@dataclass(frozen=True, slots=True)
class BlockLife:
    """A block in one piece of memory.

    Args:
        tag: what lies in it.
        begin, end: it lives in [begin, end), counted in claims and releases since the beginning.
        lo, hi: bytes [lo, hi) of the arena.
    """

    tag: str
    begin: int
    end: int
    lo: int
    hi: int


def block_lives(
    log: AllocationLog, allocator: str = "best-fit", arena_bytes: int | None = None
) -> list[BlockLife]:
    """Where and when the blocks of a log's first step lay.

    Args:
        log: what a step asks for.
        allocator: by name with parameters.
        arena_bytes: of the arena; None: four times the log's budget, so that nothing is refused.
            Where it is too small, the lives end with the request that was refused.

    Cost: O(claims * live blocks).
    """
    steps = [n for n, request in enumerate(log.requests) if request.op == "step"]
    last = steps[1] if len(steps) > 1 else len(log.requests)
    watcher = _Watcher(made_dry(allocator, arena_bytes or 4 * log.budget_bytes))
    try:
        serve(log.requests[:last], watcher)
    except OutOfDeviceMemory:
        watcher.clock += 1
    for block in list(watcher.made):
        watcher.note(block)
    return sorted(watcher.lives, key=lambda life: (life.begin, life.lo))


class _Watcher(Wrapper):
    """Notes when and where each block lived."""

    def __init__(self, inner: Allocator):
        super().__init__(inner)
        self.clock = 0
        self.made: dict[int, tuple[int, str, list[tuple[int, int]]]] = {}
        self.lives: list[BlockLife] = []

    def allocate(self, nbytes: int, tag: str = "") -> Block:
        block = super().allocate(nbytes, tag)
        pieces = pieces_of(self.inner.snapshot())
        places = [(piece.lo, piece.hi) for piece in pieces if piece.block == block.id]
        self.made[block.id] = (self.clock, tag, places)
        self.clock += 1
        return block

    def free(self, block: Block, after: Sequence[Reached] = ()) -> None:
        self.note(block.id)
        super().free(block, after)
        self.clock += 1

    def note(self, block_id: int) -> None:
        """A block's life ends now."""
        begin, tag, places = self.made.pop(block_id)
        self.lives += [BlockLife(tag, begin, self.clock, lo, hi) for lo, hi in places]
