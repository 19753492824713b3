"""The gradient of the weight as an implicit matrix product: the sum runs over pixels.

In: activations x and gradients dy, both NHWC. Out: dW, or one partial result for each split of the
pixels. The one idea: dW is terms (taps x channels) x filters, and a step of the sum is eight
pixels; x and dy lie in memory with channels side by side, which is how `tile_product.py` wants
them, so what is fetched is stored as it comes. Few filters and many pixels would keep few blocks
busy: pixels are cut into splits by shape alone, and their results are added in order. Source:
Chetlur et al., "cuDNN" (2014), section 3. Read next: `conv_gemm.py`, which has the same loop.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Any

from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cuda.conv import conv_plan
from ooctrain.layers.kernels.cuda.conv.conv_address import terms_of
from ooctrain.layers.kernels.cuda.conv.conv_fetch import (
    fetch_pixel_quads,
    fetch_pixel_singles,
    store_upto,
)
from ooctrain.layers.kernels.cuda.conv.conv_kept import keep_term
from ooctrain.layers.kernels.cuda.conv.conv_pieces import add_partials
from ooctrain.layers.kernels.cuda.conv.conv_plan import INNER
from ooctrain.layers.kernels.cuda.conv.tile_product import (
    A_HALF,
    A_STRIDE,
    A_WORDS,
    NARROW,
    PADDING,
    QUAD_DISTANCE,
    THREADS,
    TILE_DEPTH,
    TILE_ROWS,
    TWO_BLOCKS,
    WIDE,
    clear,
    product_64,
    product_128,
)
from ooctrain.layers.kernels.cuda.runtime.intrinsics import shared_array, st4
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher, blocks_for
from ooctrain.layers.kernels.cuda.runtime.shim import (
    Kernel,
    cuda,
    device,
    float32,
    int32,
    int64,
    kernel,
    uint32,
)

_PRODUCTS = MappingProxyType({WIDE: product_128, NARROW: product_64})


def _weight_product(fetch: Any, product: Any, columns: int) -> Kernel:
    """The kernel of dW for tiles of 128 terms (taps x channels) x `columns` filters."""
    b_stride, sums_words = columns + PADDING, columns // 2
    b_half, b_words = TILE_DEPTH * b_stride, 2 * TILE_DEPTH * b_stride
    store_results = _epilogue(columns)

    @kernel(
        "void(f4[::1], f4[::1], f4[::1], UniTuple(i4, 9), UniTuple(i4, 9), UniTuple(i4, 5), i4,"
        " i4)",
        threads=THREADS,
        max_registers=TWO_BLOCKS,
    )
    def multiply_pixels(x, dy, partials, source, taps, pixels, outer, groups):
        a_tile = shared_array(A_WORDS, float32)
        b_tile = shared_array(b_words, float32)
        shift_rows = shared_array(TILE_ROWS, int32)
        shift_columns = shared_array(TILE_ROWS, int32)
        shift_distances = shared_array(TILE_ROWS, int64)
        sums = cuda.local.array(sums_words, float32)
        clear(sums, sums_words)
        total, image_rows, image_columns, filters, per_split = pixels
        thread, terms = uint32(cuda.threadIdx.x), int32(terms_of(taps))
        group = int32(uint32(cuda.blockIdx.z) % uint32(groups))
        split = int32(uint32(cuda.blockIdx.z) // uint32(groups))
        first_term = int32(cuda.blockIdx.x * TILE_ROWS)
        first_filter = int32(cuda.blockIdx.y * columns)
        shifts = shift_rows, shift_columns, shift_distances
        if thread < uint32(TILE_ROWS):
            term = uint32(uint32(first_term) + thread)
            keep_term(shifts, thread, term, int32(group * taps[INNER]), source, taps)
        cuda.syncthreads()

        # This thread fetches, for one of a step's eight pixels, four terms and four filters.
        number = uint32(thread // uint32(32))
        within = uint32(thread % uint32(32) * uint32(4))
        k = int32(first_filter + within)
        k_left = int32(outer - k) if within < uint32(columns) else int32(0)
        those = filters, int32(group * outer + k), k_left
        a_put = uint32(number * uint32(A_STRIDE) + within)
        b_put = uint32(number * uint32(b_stride) + within)

        row = uint32(thread // uint32(16) * uint32(4))
        cell = uint32(thread % uint32(16) * uint32(4))
        pixel = uint32(uint32(split * per_split) + number)
        end = uint32((split + 1) * per_split)
        image = end if end < uint32(total) else uint32(total), image_rows, image_columns
        steps = uint32(uint32(uint32(per_split) + uint32(TILE_DEPTH - 1)) // uint32(TILE_DEPTH))
        half = uint32(0)
        a, b = fetch(x, dy, pixel, image, shifts, within, those, source)
        while steps > uint32(0):
            st4(a_tile, uint32(half * uint32(A_HALF) + a_put), a)
            if within < uint32(columns):
                st4(b_tile, uint32(half * uint32(b_half) + b_put), b)
            cuda.syncthreads()
            steps, pixel = uint32(steps - uint32(1)), uint32(pixel + uint32(TILE_DEPTH))
            if steps > uint32(0):
                a, b = fetch(x, dy, pixel, image, shifts, within, those, source)
            a_get = uint32(half * uint32(A_HALF) + row)
            b_get = uint32(half * uint32(b_half) + cell)
            product(sums, a_tile, a_get, b_tile, b_get)
            half = uint32(uint32(1) - half)

        first = int64(split) * filters + group * outer
        k = int32(first_filter + int32(cell))
        store_results(partials, sums, first, k, outer, int32(first_term + int32(row)), terms)

    return multiply_pixels


def _epilogue(columns: int) -> Any:
    """The function that writes a thread's results."""
    wide = columns // 16

    @device
    def store_results(partials, sums, first, k, outer, term, terms):
        """Terms from `term` of the filters from k, of which `outer` follow on the line `first`."""
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
    launch(launcher, _weight_kernel(in_fours, columns), columns, shape, (x, dy, dw), workspace)


def launch(
    launcher: Launcher, kernel: Kernel, columns: int, shape: ConvShape, arrays: Any, workspace: Any
) -> None:
    """Queues a kernel for all tiles and splits, and the sum of the splits.

    Args:
        columns: filters of a tile.
        arrays: x, dy, dw.
    """
    x, dy, dw = arrays
    source, taps, pixels = conv_plan.grad_weight(shape)
    splits, terms = conv_plan.splits(shape), taps.count * taps.inner
    partials = launcher.part(workspace, 0, splits * dw.size, "float32") if splits > 1 else dw
    blocks = (
        blocks_for(terms, TILE_ROWS), blocks_for(shape.kg, columns), shape.groups * splits,
    )  # fmt: skip
    launcher.launch(kernel, blocks, x, dy, partials, source, taps, pixels, shape.kg, shape.groups)
    add_partials(launcher, partials, splits, dw)


@cache
def _weight_kernel(in_fours: bool, columns: int) -> Kernel:
    """The addresses of single terms leave no registers for the wide tile."""
    fetch = fetch_pixel_quads if in_fours else fetch_pixel_singles
    return _weight_product(fetch, _PRODUCTS[columns], columns)
