"""The gradient of the weight as a matrix product whose sum runs over pixels.

Activations x and gradients dy, both NHWC, give dW, or one partial result for each split of the
pixels. dW is terms (taps x channels) x filters. In x and dy the channels are contiguous, so factors
are stored in the order in which they are fetched, and a tile's rows are pixels: eight in a step, or
sixteen. Where a pixel reads takes two divisions to find, so each thread of a block computes it for
one of 256 pixels, and all look it up. Few filters and many pixels would keep few blocks busy, so
pixels are cut into splits by shape alone, whose results are added in order. A `WeightForm` contains
the differences between float32 and TF32. Source: Chetlur et al., "cuDNN" (2014), section 3. Read
next: `conv_tf32_weights.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ooctrain.layers.conv2d import ConvShape
from ooctrain.layers.kernels.cuda.conv import conv_blocking
from ooctrain.layers.kernels.cuda.conv.conv_address import terms_of
from ooctrain.layers.kernels.cuda.conv.conv_blocking import INNER
from ooctrain.layers.kernels.cuda.conv.conv_fetch import (
    filters_quad,
    filters_singles,
    keep_place,
    keep_term,
    kept_place,
    pixel_quad,
    pixel_singles,
    store_upto,
)
from ooctrain.layers.kernels.cuda.conv.conv_pieces import add_partials
from ooctrain.layers.kernels.cuda.conv.tile_product import (
    A_STRIDE,
    LONG_DEPTH,
    NARROW,
    PADDING,
    QUAD_DISTANCE,
    THREADS,
    TILE_DEPTH,
    TILE_ROWS,
    TWO_BLOCKS,
    WIDE,
    clear,
    long_product_64,
    product_128,
)
from ooctrain.layers.kernels.cuda.runtime.intrinsics import shared_array, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    LOWEST_CAPABILITY,
    Capability,
    Kernel,
    cuda,
    device,
    float32,
    int32,
    int64,
    kernel,
    smaller,
    uint32,
    uint64,
)
from ooctrain.layers.kernels.signature import I4, F4s, I4x5, I4x9


@dataclass(frozen=True, slots=True)
class WeightForm:
    """What differs between the kernels of the gradient of a weight; the functions are device code.

    Args:
        columns: filters of a tile, which has 128 terms.
        depth: pixels of a step, TILE_DEPTH or LONG_DEPTH.
        pitches: words from one pixel's row to the next, in the tile of the terms and of the
            filters.
        fetch: (what loads four terms of a pixel, what loads four filters).
        cells: where in both tiles a thread's factors begin.
        product: what adds the products of a step to a thread's sums.
        results: (row, column) of a thread's first result in the block's.
        store: what writes a thread's results.
        padded: whether each tap has four terms, of which the last are zero.
        capability: lowest compute capability.
    """

    columns: int
    depth: int
    pitches: tuple[int, int]
    fetch: tuple[Any, Any]
    cells: Callable
    product: Any
    results: Callable
    store: Callable
    padded: bool = False
    capability: Capability = LOWEST_CAPABILITY


def weight_kernel(form: WeightForm) -> Kernel:
    """The kernel of dW for tiles of 128 terms (taps x channels) x `form.columns` filters."""
    columns, depth, padded = form.columns, form.depth, form.padded
    (a_pitch, b_pitch), (fetch_terms, fetch_filters) = form.pitches, form.fetch
    first_cells, first_results = form.cells, form.results
    product, store_results = form.product, form.store
    is_long, sums_words, line_quads = depth == LONG_DEPTH, columns // 2, columns // 4
    further, a_words = TILE_DEPTH * a_pitch, depth * a_pitch
    stage_words = a_words + depth * b_pitch
    tile_words = 2 * stage_words

    @kernel(threads=THREADS, capability=form.capability, max_registers=TWO_BLOCKS)
    def multiply_pixels(
        x: F4s, dy: F4s, partials: F4s, source: I4x9, taps: I4x9, pixels: I4x5, outer: I4,
        groups: I4,
    ):  # fmt: skip
        tiles = shared_array(tile_words, float32)
        shift_rows = shared_array(TILE_ROWS, int32)
        shift_columns = shared_array(TILE_ROWS, int32)
        shift_distances = shared_array(TILE_ROWS, int64)
        place_rows = shared_array(THREADS, int32)
        place_columns = shared_array(THREADS, int32)
        place_offsets = shared_array(THREADS, int64)
        sums = cuda.local.array(sums_words, float32)
        clear(sums, sums_words)
        total, image_rows, image_columns, filters, per_split = pixels
        thread = uint32(cuda.threadIdx.x)
        group = int32(uint32(cuda.blockIdx.z) % uint32(groups))
        split = int32(uint32(cuda.blockIdx.z) // uint32(groups))
        first_term = int32(cuda.blockIdx.x * TILE_ROWS)
        first_filter = int32(cuda.blockIdx.y * columns)
        shifts = shift_rows, shift_columns, shift_distances
        places = place_rows, place_columns, place_offsets
        if thread < uint32(TILE_ROWS):
            term = uint32(uint32(first_term) + thread)
            if padded:
                term = uint32(uint32(term // uint32(4)) * uint32(taps[INNER]))
            keep_term(shifts, thread, term, int32(group * taps[INNER]), source, taps)
        cuda.syncthreads()

        # This thread fetches four terms of one or two of a step's pixels, and four filters of one.
        number, within = uint32(thread // uint32(32)), uint32(thread % uint32(32) * uint32(4))
        b_number = uint32(thread // uint32(line_quads))
        b_within = uint32(thread % uint32(line_quads) * uint32(4))
        k = int32(first_filter + int32(b_within))
        those = filters, int32(group * outer + k), int32(outer - k)
        a_put = uint32(uint32(number * uint32(a_pitch)) + within)
        b_put = uint32(uint32(b_number * uint32(b_pitch)) + b_within)

        # What lies a constant further is added as uint64, which costs no register.
        a_cell, b_cell = first_cells(thread)
        start, end = uint32(split * per_split), uint32((split + 1) * per_split)
        end = end if end < uint32(total) else uint32(total)
        stage = uint32(0)
        while start < end:
            image = end, image_rows, image_columns
            keep_place(places, thread, uint32(start + thread), image, source)
            cuda.syncthreads()
            known = smaller(uint32(THREADS), uint32(end - start))
            a = fetch_terms(x, kept_place(places, number), shifts, within, source)
            more = a
            if is_long:
                i = uint32(number + uint32(TILE_DEPTH))
                more = fetch_terms(x, kept_place(places, i), shifts, within, source)
            b = fetch_filters(dy, uint32(start + b_number), end, those)
            step = uint32(0)
            while step < known:
                st4(tiles, uint32(stage + a_put), a)
                if is_long:
                    st4(tiles, uint64(uint32(stage + a_put)) + uint64(further), more)
                st4(tiles, uint64(uint32(stage + b_put)) + uint64(a_words), b)
                cuda.syncthreads()
                step = uint32(step + uint32(depth))
                if step < known:
                    i = uint32(step + number)
                    a = fetch_terms(x, kept_place(places, i), shifts, within, source)
                    if is_long:
                        i = uint32(i + uint32(TILE_DEPTH))
                        more = fetch_terms(x, kept_place(places, i), shifts, within, source)
                    b = fetch_filters(dy, uint32(start + step + b_number), end, those)
                b_get = uint64(uint32(stage + b_cell)) + uint64(a_words)
                product(sums, tiles, uint32(stage + a_cell), tiles, b_get)
                stage = uint32(uint32(stage_words) - stage)
            start = uint32(start + uint32(THREADS))

        row, column = first_results(thread)
        line = int64(split) * filters + group * outer
        k, term = int32(first_filter + int32(column)), int32(first_term + int32(row))
        store_results(partials, sums, line, k, outer, term, taps)

    return multiply_pixels


def launch(
    launcher: Launcher, kernel: Kernel, form: WeightForm, shape: ConvShape, arrays: Any,
    workspace: Any,
) -> None:  # fmt: skip
    """Queues a kernel for all tiles and splits, and the sum of the splits.

    Args:
        arrays: x, dy, dw.
    """
    x, dy, dw = arrays
    source, taps, pixels = conv_blocking.grad_weight(shape)
    splits, terms = conv_blocking.splits(shape), taps.count * (4 if form.padded else taps.inner)
    partials = launcher.part(workspace, 0, splits * dw.size, "float32") if splits > 1 else dw
    blocks = (
        blocks_for(terms, TILE_ROWS), blocks_for(shape.kg, form.columns), shape.groups * splits,
    )  # fmt: skip
    launcher.launch(kernel, blocks, x, dy, partials, source, taps, pixels, shape.kg, shape.groups)
    add_partials(launcher, partials, splits, dw)


# The forms in float32. A thread multiplies eight terms by eight filters of each pixel, or by four
# where there are few filters, as in `conv_gemm.py`. Then 83 of 100 instructions of the loop are
# multiply-adds, 79 for 64 filters, 68 where each term is loaded by itself (`tests/support/sass.py`
# counts).


@device
def _cells(thread):
    """The first of a thread's rows, and of its columns."""
    row = uint32(thread // uint32(16) * uint32(4))
    return row, uint32(thread % uint32(16) * uint32(4))


def _epilogue(columns: int) -> Any:
    """The function that writes a thread's results."""
    wide = columns // 16

    @device
    def store_results(partials, sums, first, k, outer, term, taps):
        """Terms from `term` of the filters from k, of which `outer` follow on the line `first`."""
        terms = int32(terms_of(taps))
        in_fours = terms % 4 == 0
        for q in range(2):
            left = int32(terms - term - q * QUAD_DISTANCE)
            for j in range(wide):
                i, filter_number = q * 4 * wide + j, int32(k + j // 4 * QUAD_DISTANCE + j % 4)
                values = (sums[i], sums[i + wide], sums[i + 2 * wide], sums[i + 3 * wide])
                if filter_number < outer:
                    at = (first + filter_number) * terms + term + q * QUAD_DISTANCE
                    store_upto(partials, at, values, left, in_fours)

    return store_results


def grad_weight(launcher: Launcher, shape: ConvShape, x, dy, dw, workspace) -> None:
    """dw[k, term] = sum over pixels of what the term reads times dy[pixel, k], in splits."""
    in_fours = shape.cg % 4 == 0 and shape.kg % 4 == 0
    columns = WIDE if in_fours and shape.kg > NARROW else NARROW
    form = _form(in_fours, columns)
    launch(launcher, _weight_kernel(in_fours, columns), form, shape, (x, dy, dw), workspace)


@cache
def _form(in_fours: bool, columns: int) -> WeightForm:
    """Of 64 filters sixteen pixels in a step, so that all threads have as much to fetch."""
    fetch = (pixel_quad, filters_quad) if in_fours else (pixel_singles, filters_singles)
    depth, product = (TILE_DEPTH, product_128) if columns == WIDE else (LONG_DEPTH, long_product_64)
    pitches = A_STRIDE, columns + PADDING
    return WeightForm(columns, depth, pitches, fetch, _cells, product, _cells, _epilogue(columns))


@cache
def _weight_kernel(in_fours: bool, columns: int) -> Kernel:
    """The addresses of single terms leave no registers for the wide tile."""
    return weight_kernel(_form(in_fours, columns))
