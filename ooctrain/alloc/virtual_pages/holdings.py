"""What a block of virtual addressing holds: chunks, and the mapping in which it sees them.

A block of `allocate` is whole until it is freed. One of `reserve` holds some of its slots, and
knows which it ever held: these keep their chunks where they can. Both say their chunks in runs, and
slot by slot. Read next: `mappings.py`; `../virtual.py`, which opens and frees the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooctrain.alloc.virtual_pages.chunks import FreeRuns, Run, chunks_of, runs_of, stretches
from ooctrain.alloc.virtual_pages.mappings import ChunkMapping


@dataclass(frozen=True, slots=True)
class WholeBlock:
    """A block of `allocate`: what it holds, and its mapping (None: the identity)."""

    runs: tuple[Run, ...]
    mapping: ChunkMapping | None

    def places(self) -> list[list[int]]:
        """[slot within the block, slot behind, chunk] of what it holds."""
        chunks = chunks_of(self.runs)
        return _places(np.arange(chunks.size), chunks)


@dataclass(frozen=True, slots=True)
class PartedBlock:
    """A block of `reserve`: its mapping, which of its slots it holds, and which it ever held."""

    mapping: ChunkMapping
    held: np.ndarray
    had: np.ndarray

    @property
    def runs(self) -> list[Run]:
        """The chunks it holds."""
        return runs_of(self.mapping.table[self.held])

    def places(self) -> list[list[int]]:
        """[slot within the block, slot behind, chunk] of what it holds."""
        slots = np.flatnonzero(self.held)
        return _places(slots, self.mapping.table[slots])

    def keeps(self, slots: np.ndarray, free: FreeRuns) -> np.ndarray:
        """For each slot whether its chunk is the block's own from before, and free.

        A chunk that has moved within the block is mapped at its old slot, too: it counts once.
        """
        there = self.mapping.table[slots]
        own = self.had[slots] & (there >= 0) & ~free.held[there]
        once = np.zeros(slots.size, bool)
        once[np.unique(there, return_index=True)[1]] = True
        return own & once


def _places(slots: np.ndarray, chunks: np.ndarray) -> list[list[int]]:
    return [
        [int(slots[lo]), int(slots[lo]) + hi - lo, int(chunks[lo])]
        for lo, hi in stretches(slots, chunks)
    ]
