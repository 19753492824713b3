"""Copying parts of images into scratch memory, zeros around them; packing weights.

NHWC images become windows with their padding written out, KRSC weights become panels of PANEL
columns. Once the zeros of the padding lie in memory, no multiplying loop needs a test; the copy is
a small share of the work and stays in the cache. Read next: `conv/conv_direct.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.layers.kernels.cpu.blocking import PANEL
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import inner
from ooctrain.layers.kernels.cpu.simd.simd import VL, vsplat
from ooctrain.layers.kernels.cpu.simd.simd_memory import (
    prefetch,
    vload,
    vload_part,
    vstore,
    vstore_part,
    vtranspose,
)

ZERO = np.float32(0)
#: How far ahead of their use pixels of a window, and rows of weights, are prefetched.
AHEAD_PIXELS, AHEAD_ROWS = 12, 6


@inner
def fill_zero(target, start, count):
    """target[start : start + count] = 0."""
    zero = vsplat(ZERO)
    end = start + count - VL
    i = start
    while i <= end:
        vstore(target, i, zero)
        i += VL
    if i < start + count:
        vstore_part(target, i, zero, start + count - i)


@inner
def copy_run(source, source_start, target, start, count):
    """target[start : start + count] = source[source_start : source_start + count]."""
    i = 0
    while i <= count - VL:
        vstore(target, start + i, vload(source, source_start + i))
        i += VL
    if i < count:
        vstore_part(target, start + i, vload_part(source, source_start + i, count - i), count - i)


@inner
def copy_window(source, of, image, top, left, target, start, window_h, window_w):
    """Copies window_h x window_w pixels of one NHWC image, from row `top` and column `left` (which
    may lie outside: zeros), to target[start:], one pixel behind the other; `of` has its extents.
    """
    height, width, channels = of.in_h, of.in_w, of.in_c
    before = min(window_w, max(0, -left))
    inside = max(0, min(width, left + window_w) - max(0, left))
    after = window_w - before - inside
    for row in range(window_h):
        y, place = top + row, start + row * window_w * channels
        if y < 0 or y >= height or inside == 0:
            fill_zero(target, place, window_w * channels)
            continue
        fill_zero(target, place, before * channels)
        origin = ((image * height + y) * width + max(0, left)) * channels
        copy_run(source, origin, target, place + before * channels, inside * channels)
        fill_zero(target, place + (before + inside) * channels, after * channels)


@inner
def copy_panel(
    source, of, image, first, count, top, left, skip_h, skip_w, target, start, window_h, window_w
):
    """As `copy_window`, but of every skip-th pixel `count` channels from channel `first` on, each
    pixel PANEL floats: zeros fill it up.
    """
    height, width, channels = of.in_h, of.in_w, of.in_c
    place = start
    for row in range(window_h):
        y = top + row * skip_h
        for column in range(window_w):
            z = left + column * skip_w
            if y >= 0 and y < height and z >= 0 and z < width:
                at = ((image * height + y) * width + z) * channels + first
                # Pixels lie far apart: without a prefetch each would wait for memory.
                prefetch(source, at + AHEAD_PIXELS * skip_w * channels)
                prefetch(source, at + AHEAD_PIXELS * skip_w * channels + PANEL // 2)
                if count >= PANEL:
                    for c in range(0, PANEL, VL):
                        vstore(target, place + c, vload(source, at + c))
                else:
                    for c in range(0, PANEL, VL):
                        vstore(target, place + c, vload_part(source, at + c, count - c))
            else:
                for c in range(0, PANEL, VL):
                    vstore(target, place + c, vsplat(ZERO))
            place += PANEL


@inner
def pack_transposed(w, start, rows, row_length, target, place):
    """target[place + i * PANEL + j] = w[start + j * row_length + i] for j < rows, else 0."""
    if rows < PANEL:
        fill_zero(target, place, row_length * PANEL)
    whole_rows, whole_length = rows - rows % VL, row_length - row_length % VL
    for j in range(0, whole_rows, VL):
        for i in range(0, whole_length, VL):
            for lane in range(VL):
                prefetch(w, start + (j + lane) * row_length + i + 4 * VL)
            vtranspose(
                w, start + j * row_length + i, row_length, target, place + i * PANEL + j, PANEL
            )
    for j in range(rows):
        for i in range(whole_length if j < whole_rows else 0, row_length):
            target[place + i * PANEL + j] = w[start + j * row_length + i]


@inner
def pack_columns(w, start, rows, row_length, columns, target, place):
    """target[place + i * PANEL + j] = w[start + i * row_length + j] for j < columns, else 0."""
    for i in range(rows):
        # Rows lie far apart: without a prefetch each would wait for memory.
        prefetch(w, start + (i + AHEAD_ROWS) * row_length)
        prefetch(w, start + (i + AHEAD_ROWS) * row_length + columns - 1)
        if columns < PANEL:
            fill_zero(target, place + i * PANEL, PANEL)
        copy_run(w, start + i * row_length, target, place + i * PANEL, columns)
