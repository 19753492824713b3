"""Errata of paper 003 (segmented fused-tiled execution): listings and tables are run as printed.

The graphs have a few operators, the arrays are tiny. Each listing is written out in Python, with
the printed line and the corrected one side by side; the printed one raises, loops or gives a wrong
size. Source: paper 003, sections 4.1 to 4.3, listings 1 to 4, tables 3 and 4. What the library does
instead is `ooctrain/rewrite/tile/halo.py`. The table of errata is docs/errata.md.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import pytest
from unit.test_sft import Residual, figure_6, operators

from ooctrain import nn
from ooctrain.layers.pooling import MaxPool2d, PoolGeometry
from ooctrain.rewrite.tile.dimensions import DIMENSIONS, LoopNest, TensorLoops
from ooctrain.rewrite.tile.sft import (
    find_segments,
    ft_dimensions,
    must_tile,
    need_bytes,
    tile_spans_of,
)
from ooctrain.step.rows import Span, Window, read_span

# --------------------------------------------------------------------------------------------------
# -------
# Listing 1 (data structures) and listing 2 (connections)
# --------------------------------------------------------------------------------------------------
# -------


@dataclass(eq=False)
class Edge:
    """Listing 1's EdgeMeta."""

    size: list[int]
    source: Node | None = None
    target: Node | None = None
    inp_to_iter: list[int] = field(default_factory=list)
    iter_to_out: dict[int, int] = field(default_factory=dict)
    delta: list[int] = field(default_factory=list)
    scale: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Node:
    """Listing 1's OpMeta."""

    id: int
    iter_space: list[int] = field(default_factory=list)
    full_iter_space: list[int] = field(default_factory=list)
    ready: int = 0
    in_edges: list[Edge] = field(default_factory=list)
    out_edges: list[Edge] = field(default_factory=list)


@pytest.mark.parametrize("printed", [True, False])
def test_003_listing_2_map_order(printed: bool) -> None:
    """Line 11 reads (inpDimId, iterId) from a map that was filled as {iterId: inpDimId}."""
    # A convolution: iteration space [B, C, K, H, W]; the input has B, C, H, W, the output B, K, H,
    # W.
    inp_to_iter, iter_to_out = [0, 1, 3, 4], {0: 0, 2: 1, 3: 2, 4: 3}
    iter_to_inp = {iteration: dim for dim, iteration in enumerate(inp_to_iter)}
    pairs = [(k, v) if printed else (v, k) for k, v in iter_to_inp.items()]
    connected = {inp: iter_to_out.get(iteration) for inp, iteration in pairs}
    # B, H and W of the input go to B, H and W of the output; C is summed away.
    right = {0: 0, 1: None, 2: 2, 3: 3}
    assert (connected == right) is not printed
    nest = figure_6().nest(0)
    assert nest is not None
    here = LoopNest.connections(nest)
    assert {inp: here.get((0, inp)) for inp in right} == right


# --------------------------------------------------------------------------------------------------
# -------
# Listing 3: partition into segments
# --------------------------------------------------------------------------------------------------
# -------

SIZES = [90, 90, 20, 10]  # bytes of the outputs of a chain of four operators
CAPACITY = 50


def must_tile_sizes(sizes: Sequence[int], capacity: int, printed: bool) -> list[bool]:
    """Lines 2 to 4."""
    return [size < capacity if printed else size > capacity for size in sizes]


def segments(
    sizes: Sequence[int], capacity: int, stuck: bool, inclusive: bool
) -> list[tuple[int, int]]:
    """Lines 5 to 17 for a chain, as (start, end); a step limit stands for "for ever"."""
    tiled, found, i, end = must_tile_sizes(sizes, capacity, printed=False), [], 0, 0
    for _ in range(100):
        if i >= len(sizes):
            return found
        if not tiled[i]:
            i = end if stuck else i + 1
            continue
        start, end = i, i + 1
        while end < len(sizes) and tiled[end]:
            end += 1
        end = min(end + 1, len(sizes)) if inclusive else end
        found.append((start, end))
        i = end
    raise TimeoutError("no end")


def test_003_listing_3_capacity() -> None:
    """Line 4 prints "<": what fits would have to be tiled, and what does not fit would not."""
    assert must_tile_sizes(SIZES, CAPACITY, printed=True) == [False, False, True, True]
    assert must_tile_sizes(SIZES, CAPACITY, printed=False) == [True, True, False, False]
    graph = figure_6()
    assert must_tile(graph, need_bytes(graph, 2)) == [True, True, False, False]


def test_003_listing_3_endless() -> None:
    """Line 6 continues with i = end, which has not moved."""
    with pytest.raises(TimeoutError):
        segments(SIZES, CAPACITY, stuck=True, inclusive=False)
    assert segments(SIZES, CAPACITY, stuck=False, inclusive=False) == [(0, 2)]
    # Where an operator that fits comes first, the library goes on, too.
    graph = operators(nn.Sequential(nn.MaxPool2d(4), nn.Conv2d(3, 512, 3)), (2, 3, 16, 16))
    assert [s.start for s in find_segments(graph, need_bytes(graph, 0))] == [1]


def test_003_listing_3_end() -> None:
    """[start, end) leaves out the first operator whose output fits; the checkpoint does not."""
    checkpoint = {
        inclusive: SIZES[segments(SIZES, CAPACITY, stuck=False, inclusive=inclusive)[0][1] - 1]
        for inclusive in (False, True)
    }
    assert checkpoint[False] > CAPACITY
    assert checkpoint[True] <= CAPACITY
    graph = figure_6()
    capacity = need_bytes(graph, 2)
    (found,) = find_segments(graph, capacity)
    assert [must_tile(graph, capacity)[place] for place in (found.end - 1, found.end)] == [
        True, False,
    ]  # fmt: skip


def test_003_listing_3_gradient() -> None:
    """An output that fits alone does not fit beside the input and the gradient that its backward
    reads.
    """
    assert must_tile_sizes([40], CAPACITY, printed=False) == [False]
    assert must_tile_sizes([40 + 40 + 40], CAPACITY, printed=False) == [True]
    assert prod([1, 10]) * 4 == 40  # and the printed product counts elements, the capacity bytes
    image, output = 4 * 2 * 3 * 16 * 16, 4 * 2 * 4 * 16 * 16
    assert need_bytes(figure_6(), 0) == image + 2 * output


def test_003_listing_3_condition() -> None:
    """Line 32 prints `!len(a) != len(b)`, which compares a truth value with a number, and indexes
    by i.
    """
    connections, out_edges = [(0, 2)], [object()]
    printed_says_broken = (not len(connections)) != len(out_edges)
    assert printed_says_broken  # one connection for one output edge: nothing is broken
    assert len(connections) == len(out_edges)
    connection = {("in", 0): [("out", 0)], ("in", 2): [("out", 2)]}
    # The walk starts at i and goes on with other dims.
    for i, dim in itertools.product([0], [0, 2]):
        printed, corrected = connection[("in", i)], connection[("in", dim)]
        assert (printed == corrected) is (dim == i)
    # Four dimensions enter, one ends in each convolution: the other three go on.
    assert ft_dimensions(figure_6(), 0, 2) == ("B", "H", "W")


def test_003_listing_3_entering_edges() -> None:
    """Only the first operator's edges are walked; a skip that enters later is never looked at."""
    # conv1 -> scale, and the statistics of a whole image enter at scale: its rows go nowhere.
    connections = {"x -> conv1": {"h": "h"}, "conv1 -> scale": {"h": "h"}, "mean -> scale": {}}
    edges_out = {"x -> conv1": "conv1 -> scale"}

    def tileable(entering: list[str]) -> bool:
        walked = []
        for edge in entering:
            while edge:
                walked.append("h" in connections[edge])
                edge = edges_out.get(edge, "")
        return all(walked)

    assert tileable(["x -> conv1"])  # lines 27 to 29: the segment is called tileable in h
    assert not tileable(["x -> conv1", "mean -> scale"])
    # The same in the library: the mean of each image enters behind the convolution.
    graph = operators(MeanBeside(), (2, 3, 8, 8))
    assert ft_dimensions(graph, 0, 0) == ("B", "H", "W")
    assert ft_dimensions(graph, 0, len(graph.calls) - 1) == ("B",)


class MeanBeside(nn.Module):
    """A convolution, and the mean of its input over each image, spread out and added."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mean = nn.Conv2d(3, 3, 3, padding=1), nn.AdaptiveAvgPool2d(1)
        self.spread = nn.Upsample(scale_factor=8)

    def forward(self, x):
        return self.conv(x) + self.spread(self.mean(x))


# --------------------------------------------------------------------------------------------------
# -------
# Listing 4: tile sizes
# --------------------------------------------------------------------------------------------------
# -------

FIXES = ("out_to_out", "scale", "edge", "ready")


def chain_of_two(window: tuple[int, int]) -> tuple[Node, Node, Edge]:
    """Two operators over (H, W), both with size = scale * tile + delta; returns them and the first
    input.
    """
    first, second = Node(0, [0, 0], [8, 8]), Node(1, [0, 0], [8, 8])
    scale, delta = window
    entering = Edge([0, 0], None, first, [0, 1], {0: 0, 1: 1}, [delta] * 2, [scale] * 2)
    between = Edge([0, 0], first, second, [0, 1], {0: 0, 1: 1}, [delta] * 2, [scale] * 2)
    first.in_edges, first.out_edges, second.in_edges = [entering], [between], [between]
    return first, second, entering


def compute_tile_size(leaf: Node, tiles: int, fixes: Sequence[str]) -> None:
    """Listing 4; each element of `fixes` replaces one printed line by the corrected one."""
    ready: list = [leaf]
    leaf.iter_space = [extent // tiles for extent in leaf.full_iter_space]
    while ready:
        node = ready.pop()
        needed = [0] * len(node.full_iter_space)
        for edge in node.out_edges:
            needed = [max(a, b) for a, b in zip(needed, edge.size, strict=True)]
        if node.out_edges and "out_to_out" in fixes:
            for iteration, dim in node.out_edges[0].iter_to_out.items():
                node.iter_space[iteration] = needed[dim]
        elif node.out_edges:
            for i, dim in enumerate(node.outToOut):  # line 16
                node.iter_space[i] = needed[dim]
        for edge in node.in_edges:
            for i, iteration in enumerate(edge.inp_to_iter):
                if "scale" in fixes:
                    edge.size[i] = node.iter_space[iteration] * edge.scale[i] + edge.delta[i]
                else:
                    # Lines 21-23.
                    edge.size[i] = node.iter_space[iteration] * edge.scale + edge.delta
                if edge.source is not None and "edge" not in fixes:
                    edge.source.out_edges[i].size = list(edge.size)  # line 24: i is a dimension
            if edge.source is not None:
                edge.source.ready += 1
                if edge.source.ready == len(edge.source.out_edges):
                    ready.append(edge.source if "ready" in fixes else edge)  # line 29


def test_003_listing_4_all_lines_corrected() -> None:
    first, second, entering = chain_of_two((1, 2))
    compute_tile_size(second, 2, FIXES)
    assert (second.iter_space, first.iter_space, entering.size) == ([4, 4], [6, 6], [8, 8])
    convs = (nn.Conv2d(1, 1, 3, padding=1) for _ in range(2))
    graph = operators(nn.Sequential(*convs), (1, 1, 32, 32))
    (segment,) = find_segments(graph, 0)
    needed = tile_spans_of(graph, segment, Span(8, 12), 2)
    tensors = [graph.calls[0].ins[0], *(call.outs[0] for call in graph.calls)]
    assert [needed[v].extent for v in tensors] == [8, 6, 4]


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        pytest.param("out_to_out", AttributeError, id="003_listing_4_out_to_out"),
        pytest.param("edge", IndexError, id="003_listing_4_edge_index"),
        pytest.param("ready", AttributeError, id="003_listing_4_ready_node"),
    ],
)
def test_003_listing_4_line(missing: str, error: type[Exception]) -> None:
    _, second, _ = chain_of_two((1, 2))
    with pytest.raises(error):
        compute_tile_size(second, 2, [fix for fix in FIXES if fix != missing])


def test_003_listing_4_scale_index() -> None:
    """iterSpace * scale[:] + delta[:] makes a list where the size of one dimension belongs."""
    _, second, entering = chain_of_two((1, 2))
    with pytest.raises(TypeError):
        compute_tile_size(second, 2, [fix for fix in FIXES if fix != "scale"])
    assert entering.size == [0, 0]


def test_003_listing_4_union_of_intervals() -> None:
    """Two readers with different windows: the larger size is too small if the origins differ."""
    tile = Span(4, 8)
    reads = [read_span(tile, Window(kernel=3, pad_lo=p, pad_hi=2 - p), extent=32) for p in (0, 2)]
    sizes = [r.inside.extent for r in reads]
    union = Span(min(r.inside.lo for r in reads), max(r.inside.hi for r in reads))
    assert sizes == [6, 6]
    assert union.extent == 8 > max(sizes)
    graph = operators(Residual(), (1, 8, 16, 16))
    needed = tile_spans_of(graph, find_segments(graph, 0)[0], Span(2, 4), 2)
    # The sum reads 4:8 of the fork, the convolution beside it 3:9.
    assert needed[graph.calls[0].outs[0]] == Span(3, 9)


# --------------------------------------------------------------------------------------------------
# -------
# Tables 3 and 4: extents
# --------------------------------------------------------------------------------------------------
# -------


def rows_read(tile: Span, window: Window) -> int:
    """Counted, not computed: how many distinct input rows the outputs of a tile read, far from
    borders.
    """
    reach = (window.kernel - 1) * window.dilation + 1
    rows = {o * window.stride + r for o in range(tile.lo, tile.hi) for r in range(reach)}
    return max(rows) - min(rows) + 1


def test_003_table_4_stride() -> None:
    """A convolution is printed with sigma = 1, delta = 2f: right for stride 1, odd kernels."""
    right = wrong = 0
    for kernel, stride, size in itertools.product(range(1, 8), range(1, 4), range(1, 9)):
        window = Window(kernel, stride)
        truth = rows_read(Span(10, 10 + size), window)
        printed = size + 2 * ((kernel - 1) // 2)
        assert (
            stride * size + (kernel - stride)
            == truth
            == read_span(Span(10, 10 + size), window, 999).inside.extent
        )
        map_of = TensorLoops(DIMENSIONS, {2: window})
        assert map_of.scale(2) * size + map_of.delta(2) == truth
        right += printed == truth
        wrong += printed != truth
        if stride == 1 and kernel % 2:
            assert printed == truth
    assert wrong > right


def test_003_table_4_pool_delta() -> None:
    """A max pool is printed with extent T * p, delta 0; a pool 3 x 3 with stride 2 has delta k - s
    = 1.
    """
    window = Window(kernel=3, stride=2, pad_lo=1, pad_hi=1)
    assert rows_read(Span(4, 8), window) == 2 * 4 + 1
    assert read_span(Span(4, 8), window, 99).inside.extent == 2 * 4 + 1
    # The case that the table has in mind.
    assert rows_read(Span(4, 8), Window(kernel=2, stride=2)) == 2 * 4


def test_003_max_pool_padding() -> None:
    """Filling a tile with zeros is right for a convolution; the neutral element of a maximum is
    -inf.
    """
    rows = np.array([-3.0, -1.0, -2.0])
    padded = {fill: np.array([fill, *rows, fill]) for fill in (0.0, -np.inf)}
    pooled = {fill: [a[i : i + 3].max() for i in range(3)] for fill, a in padded.items()}
    assert pooled[-np.inf] == [-1.0, -1.0, -1.0]
    assert pooled[0.0] == [0.0, -1.0, 0.0]
    library = MaxPool2d(PoolGeometry((3, 3), (1, 1), (1, 1, 1, 1)))
    found, *_ = library.reference(rows.reshape(1, 1, 3, 1).astype(np.float32), scalars={})
    assert found.ravel().tolist() == pooled[-np.inf]


def test_003_padding_of_intermediate_layers() -> None:
    """Uniform halo tiles run on past the image: the second layer then reads a convolution of
    padding, not zeros.
    """
    rng = np.random.default_rng(0)
    image, w1, w2, bias = rng.integers(-3, 4, 8), rng.integers(-3, 4, 3), rng.integers(-3, 4, 3), 5
    conv = lambda x, w, b: np.convolve(x, w[::-1], "valid") + b  # noqa: E731
    truth = conv(np.pad(conv(np.pad(image, 1), w1, bias), 1), w2, 0)
    # One halo of 2 f, no padding between the layers.
    uniform = conv(conv(np.pad(image, 2), w1, bias), w2, 0)
    assert np.array_equal(uniform[1:-1], truth[1:-1])
    assert uniform[0] != truth[0]
    # Clipped to the true tensor and padded only by what was clipped, layer by layer:
    second = read_span(Span(0, 4), Window(3, pad_lo=1, pad_hi=1), extent=8)
    first = read_span(second.inside, Window(3, pad_lo=1, pad_hi=1), extent=8)
    tile = np.pad(image[first.inside.lo : first.inside.hi], (first.pad_lo, first.pad_hi))
    middle = np.pad(conv(tile, w1, bias), (second.pad_lo, second.pad_hi))
    assert np.array_equal(conv(middle, w2, 0), truth[:4])


def test_003_batch_norm_is_not_compatible() -> None:
    """Darknet has batch norm: with batch statistics a tile is not a function of its slice of the
    input.
    """
    x = np.random.default_rng(0).standard_normal(64)
    norm = lambda a: (a - a.mean()) / a.std()  # noqa: E731
    assert not np.allclose(np.concatenate([norm(x[:32]), norm(x[32:])]), norm(x))
    # Split into a reduction, which ends a segment, and an element-wise part, which may start one,
    # it is exact.
    mean, std = x.mean(), x.std()
    assert np.array_equal(np.concatenate([(x[:32] - mean) / std, (x[32:] - mean) / std]), norm(x))
    graph = operators(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 8, 8))
    apply = next(i for i, call in enumerate(graph.calls) if "Apply" in type(call.op).__name__)
    assert ft_dimensions(graph, 0, apply) == ()
    assert ft_dimensions(graph, apply, apply) == ("B", "C", "H", "W")


def test_003_random_chains_of_spans() -> None:
    """The corrected rule, applied layer by layer, covers exactly what the outputs read, for random
    chains.
    """
    rng = random.Random(0)
    for _ in range(200):
        windows, extents = [], [rng.randint(8, 24)]
        for _ in range(rng.randint(1, 4)):
            k, d = rng.randint(1, 3), rng.randint(1, 2)
            reach = (k - 1) * d + 1
            window = Window(
                k, rng.randint(1, 3), d, rng.randint(0, reach - 1), rng.randint(0, reach - 1)
            )
            out = (extents[-1] + window.pad_lo + window.pad_hi - reach) // window.stride + 1
            if out < 1:
                break
            windows.append(window)
            extents.append(out)
        lo = rng.randrange(extents[-1])
        span = Span(lo, rng.randint(lo + 1, extents[-1]))
        needed = set(range(span.lo, span.hi))
        for window, extent in zip(reversed(windows), reversed(extents[:-1]), strict=True):
            taps = range(0, window.kernel * window.dilation, window.dilation)
            needed = {o * window.stride - window.pad_lo + t for o in needed for t in taps}
            needed &= set(range(extent))
            span = read_span(span, window, extent).inside
            assert not needed or (span.lo <= min(needed) and max(needed) < span.hi)
