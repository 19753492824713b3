"""The gradient of the weight in float32: forms of `weight_product.py`.

Activations x and gradients dy, both NHWC, give dW. A thread multiplies eight terms by eight filters
of each pixel, or by four where there are few filters, as in `conv_gemm.py`. Then 83 of 100
instructions of the loop are multiply-adds, 79 for 64 filters, 68 where each term is loaded by
itself (`tests/support/sass.py` counts). Read next: `conv_tf32_weights.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ooctrain.layers.conv_shape import ConvShape
from ooctrain.layers.kernels.cuda.conv.conv_address import terms_of
from ooctrain.layers.kernels.cuda.conv.conv_fetch import (
    filters_quad,
    filters_singles,
    pixel_quad,
    pixel_singles,
    store_upto,
)
from ooctrain.layers.kernels.cuda.conv.tile_product import (
    A_STRIDE,
    LONG_DEPTH,
    NARROW,
    PADDING,
    QUAD_DISTANCE,
    TILE_DEPTH,
    WIDE,
    long_product_64,
    product_128,
)
from ooctrain.layers.kernels.cuda.conv.weight_product import WeightForm, launch, weight_kernel
from ooctrain.layers.kernels.cuda.runtime.launcher import Launcher
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, device, int32, uint32


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
