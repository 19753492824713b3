"""Halo algebra against counting: every claim about intervals is checked row by row."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ooctrain.rewrite.tile.halo import (
    chain_reads,
    extents,
    out_extent,
    split_evenly,
    tile_spans,
    whole_reads,
)
from ooctrain.step.rows import Read, RowsRead, Span, Window, read_span

SAME_3 = Window(kernel=3, pad_lo=1, pad_hi=1)
POOL_3_2_1 = Window(kernel=3, stride=2, pad_lo=1, pad_hi=1)
POOL_2 = Window(kernel=2, stride=2)
POINTWISE = Window()


@pytest.mark.parametrize(
    ("window", "extent", "outputs", "expected"),
    [
        (SAME_3, 8, Span(0, 4), Read(Span(0, 5), 1, 0)),
        (SAME_3, 8, Span(4, 8), Read(Span(3, 8), 0, 1)),
        (SAME_3, 8, Span(2, 3), Read(Span(1, 4), 0, 0)),
        (SAME_3, 8, Span(0, 8), Read(Span(0, 8), 1, 1)),
        (POOL_3_2_1, 9, Span(0, 2), Read(Span(0, 4), 1, 0)),
        (POOL_3_2_1, 9, Span(4, 5), Read(Span(7, 9), 0, 1)),
        (POOL_3_2_1, 8, Span(3, 4), Read(Span(5, 8), 0, 0)),
        (POOL_2, 9, Span(3, 4), Read(Span(6, 8), 0, 0)),  # row 8 is never read
        (POINTWISE, 5, Span(1, 3), Read(Span(1, 3), 0, 0)),
        (Window(kernel=3, dilation=2, pad_lo=2, pad_hi=2), 7, Span(0, 1), Read(Span(0, 3), 2, 0)),
        (Window(kernel=1, stride=2), 7, Span(1, 3), Read(Span(2, 5), 0, 0)),
    ],
)
def test_read_span_by_hand(window: Window, extent: int, outputs: Span, expected: Read) -> None:
    assert read_span(outputs, window, extent) == expected


windows = st.builds(
    Window,
    kernel=st.integers(1, 7),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    pad_lo=st.integers(0, 4),
    pad_hi=st.integers(0, 4),
)


@given(windows, st.integers(1, 40), st.integers(0, 9), st.booleans())
def test_rows_stop_where_the_last_of_those_before_stops_to_read(
    window: Window, extent: int, row: int, gathers: bool
) -> None:
    reads = RowsRead(window, gathers)
    before = [reads.read(Span(one, one + 1), extent).inside.hi for one in range(row)]
    assert reads.stop(row, extent) == (before[-1] if before else 0)


@given(windows, st.integers(1, 40), st.data())
def test_read_span_is_what_the_outputs_touch(
    window: Window, extent: int, data: st.DataObject
) -> None:
    count = out_extent(extent, window)
    if count < 1:
        return
    lo = data.draw(st.integers(0, count - 1))
    outputs = Span(lo, data.draw(st.integers(lo + 1, count)))
    touched = [
        o * window.stride - window.pad_lo + tap * window.dilation
        for o in range(outputs.lo, outputs.hi)
        for tap in range(window.kernel)
    ]
    read = read_span(outputs, window, extent)
    assert read.inside.lo == max(min(touched), 0)
    assert read.inside.hi == min(max(touched) + 1, extent)
    if read.inside.extent:
        # The operation on the padded slice gives exactly the outputs asked for.
        assert read.pad_lo == max(-min(touched), 0)
        assert read.pad_hi == max(max(touched) + 1 - extent, 0)
        padded = read.pad_lo + read.inside.extent + read.pad_hi
        assert (padded - window.reach) // window.stride + 1 == outputs.extent


@given(st.lists(windows, min_size=1, max_size=4), st.integers(8, 40), st.integers(1, 12))
def test_tiles_of_a_chain(chain: list[Window], extent: int, parts: int) -> None:
    sizes = extents(chain, extent)
    if min(sizes) < 1:
        return
    spans = tile_spans(chain, extent, parts)
    assert [row for s in spans for row in range(s.lo, s.hi)] == list(range(sizes[-1]))
    assert 1 <= len(spans) <= parts
    for span in spans:
        reads = chain_reads(span, chain, extent) if len(spans) > 1 else whole_reads(chain, extent)
        written = [read.inside for read in reads[1:]] + [span]
        for read, target, window in zip(reads, written, chain, strict=True):
            assert read.inside.extent > 0
            padded = read.pad_lo + read.inside.extent + read.pad_hi
            assert (padded - window.reach) // window.stride + 1 == target.extent


def test_padding_only_tiles_join_their_neighbours() -> None:
    """Output 0 of a padded 1 x 1 convolution reads no row at all."""
    padded_point = [Window(kernel=1, pad_lo=1, pad_hi=1)]
    assert extents(padded_point, 4) == (4, 6)
    assert tile_spans(padded_point, 4, 6) == (
        Span(0, 2), Span(2, 3), Span(3, 4), Span(4, 6),
    )  # fmt: skip


@pytest.mark.parametrize(("extent", "parts"), [(1, 1), (5, 2), (7, 7), (3, 9), (64, 5)])
def test_split_evenly(extent: int, parts: int) -> None:
    spans = split_evenly(extent, parts)
    assert len(spans) == min(extent, parts)
    assert sum(s.extent for s in spans) == extent
    assert max(s.extent for s in spans) - min(s.extent for s in spans) <= 1


def test_spans_print_as_in_names() -> None:
    assert str(Span(32, 48)) == "32:48"
    assert Span(3, 1).extent == 0
