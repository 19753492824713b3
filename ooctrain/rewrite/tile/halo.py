"""Halo algebra: which inputs a tile of outputs reads, exact at the borders of the image.

Spans of output rows (or columns) and the windows of a chain of layers determine the input spans,
clipped to the true tensor, with the padding that was clipped away. The algebra carries intervals
[lo, hi), not sizes, and pads a tile only where the true tensor ends. Nothing outside the image is
ever computed, so no layer needs a mask (uniform halo tiles would: a convolution of padding gives
its bias, not zero). H and W are independent, so everything here is one-dimensional. Source: paper
003, sections 2.3 and 4.3, table 4; corrected there, since the extent of s * T + (k - s) holds for
every stride (docs/errata.md). Read next: `../../step/rows.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ooctrain.step.rows import Read, Span, Window, read_span


def row_axis(shape: Sequence[int]) -> int:
    """Which axis of a shape are rows: (N, C, H, W), or without channels (N, H, W), as labels."""
    return len(shape) - 2


def with_rows(shape: Sequence[int], rows: int) -> tuple[int, ...]:
    """The shape of some rows of one image."""
    return 1, *shape[1 : row_axis(shape)], rows, shape[-1]


def start_of(shape: Sequence[int], image: int, row: int) -> tuple[int, ...]:
    """The index of the first element of a row of an image."""
    return image, *(0 for _ in shape[1 : row_axis(shape)]), row, 0


def out_extent(extent: int, window: Window) -> int:
    """Number of outputs over an input of `extent` rows."""
    return (extent + window.pad_lo + window.pad_hi - window.reach) // window.stride + 1


def extents(windows: Sequence[Window], extent: int) -> tuple[int, ...]:
    """Extent of the input of each layer of a chain, and of its output as the last entry."""
    found = [extent]
    for window in windows:
        found.append(out_extent(found[-1], window))
    return tuple(found)


def chain_reads(outputs: Span, windows: Sequence[Window], extent: int) -> tuple[Read, ...]:
    """What each layer of a chain reads so that the last one can write `outputs`.

    Args:
        outputs: rows of the last layer.
        windows: one for each layer, first one first.
        extent: extent of the first layer's input.

    Returns:
        One `Read` per layer; `result[i + 1].inside` is exactly what layer i has to write.

    Cost: O(layers).
    """
    reads: list[Read] = []
    for window, size in zip(
        reversed(windows), reversed(extents(windows, extent)[:-1]), strict=True
    ):
        reads.append(read_span(outputs, window, size))
        outputs = reads[-1].inside
    return tuple(reversed(reads))


def whole_reads(windows: Sequence[Window], extent: int) -> tuple[Read, ...]:
    """What each layer of a chain reads where there is one tile only: all rows, and its padding."""
    sizes = extents(windows, extent)[:-1]
    return tuple(
        Read(Span(0, size), window.pad_lo, window.pad_hi)
        for window, size in zip(windows, sizes, strict=True)
    )


def split_evenly(extent: int, parts: int) -> tuple[Span, ...]:
    """[0, extent) as `parts` spans whose extents differ by one at most; fewer where there are fewer
    rows, and one where there are none.
    """
    count = max(min(parts, extent), 1)
    edges = [extent * i // count for i in range(count + 1)]
    return tuple(Span(lo, hi) for lo, hi in itertools.pairwise(edges))


def tile_spans(windows: Sequence[Window], extent: int, parts: int) -> tuple[Span, ...]:
    """Output spans of a chain's tiles, `parts` of them or fewer.

    A span for which some layer would read nothing but padding (a 1 x 1 convolution with padding has
    such rows) is joined with its neighbour, since no operation can run on zero rows. If that leaves
    one span, `whole_reads` says what it reads.
    """
    joined: list[Span] = []
    for span in split_evenly(extents(windows, extent)[-1], parts):
        if joined and not _reads_something(joined[-1], windows, extent):
            span = Span(joined.pop().lo, span.hi)
        joined.append(span)
    while len(joined) > 1 and not _reads_something(joined[-1], windows, extent):
        last = joined.pop()
        joined.append(Span(joined.pop().lo, last.hi))
    return tuple(joined)


def _reads_something(span: Span, windows: Sequence[Window], extent: int) -> bool:
    return all(read.inside.extent for read in chain_reads(span, windows, extent))
