"""What travels: the gaps of a step, cut into pieces, compiled.

From an `ExpandedStep` and the bytes of each gap that are on the host come pieces, in the order of
their next use. The readable twin is `sched/planning/pieces.py`. Read next: `play.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled


class Pieces(NamedTuple):
    """What travels, in the order of the next use.

    Args:
        size: bytes.
        written: the run that writes them; -1: they are there before the step.
        after, before: the runs around the gap; after = -1: they are on the host before the step.
        copy: the first piece that brings these bytes to the host: later ones need not.
    """

    size: np.ndarray
    written: np.ndarray
    after: np.ndarray
    before: np.ndarray
    copy: np.ndarray


@compiled
def cut(step, evicted, chunk_bytes):
    """The pieces of at most `chunk_bytes` (0: whole gaps) that the gaps of a step move. An input
    comes in whole, but for what leaves again in pieces.
    """
    gaps = evicted.size
    in_pieces = np.zeros(step.life_first.size, np.int64)  # of each life, what is cut at all
    for gap in range(gaps):
        life = step.gap_life[gap]
        if step.gap_after[gap] >= 0:
            in_pieces[life] = max(in_pieces[life], evicted[gap])
    count = 0
    for gap in range(gaps):
        parts = min(evicted[gap], in_pieces[step.gap_life[gap]]) if chunk_bytes else 0
        count += (-(-parts // chunk_bytes) if parts else 0) + (evicted[gap] > parts)
    size = np.empty(count, np.int64)
    written = np.empty(count, np.int64)
    after = np.empty(count, np.int64)
    before = np.empty(count, np.int64)
    copy = np.empty(count, np.int64)
    hosted = np.zeros(step.life_first.size, np.int64)  # bytes [0, hosted) left in an earlier gap,
    first = np.zeros(step.life_first.size, np.int64)  # from this piece on
    piece = 0
    for gap in range(gaps):
        life = step.gap_life[gap]
        begins = piece
        parts = min(evicted[gap], in_pieces[life]) if chunk_bytes else 0
        lo = 0
        while lo < evicted[gap]:
            hi = min(parts, lo + chunk_bytes) if lo < parts else evicted[gap]
            size[piece] = hi - lo
            written[piece] = step.life_first[life]
            after[piece] = step.gap_after[gap]
            before[piece] = step.gap_before[gap]
            known = hi <= hosted[life]
            before_it = first[life] + (lo // chunk_bytes if chunk_bytes else 0)
            copy[piece] = copy[before_it] if known else piece
            piece += 1
            lo = hi
        if evicted[gap] > hosted[life]:
            hosted[life] = evicted[gap]
            first[life] = begins
    return Pieces(size, written, after, before, copy)
