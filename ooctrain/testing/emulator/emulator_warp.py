"""Exchanges between the lanes of a warp: shuffles and matrices, as publish and collect.

An exchange is two plain functions with a pause of the whole warp between them. The first writes
this lane's operands into its row of the exchange table; the second reads the rows that the hardware
would read. Source: PTX ISA, "shfl.sync", "ldmatrix", "mma.m16n8k8". Read next:
`emulator_source.py`, which puts them into a kernel's text.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from numba.core import types
from numba.extending import overload

from ooctrain.layers.kernels.cpu.runtime.jit import inner
from ooctrain.layers.kernels.cuda.conv import tensor_core

WARP = 32
#: values that a lane may publish at once
SLOTS = 8


def same_type(like, value):
    """`value`, stored as float64, as the type of `like`; exact for 32-bit numbers."""


@overload(same_type)
def _same_type(like, value):
    cast = types.unliteral(like)
    return lambda like, value: cast(value)


@inner
def publish_value(table, turn, thread, value, lane):
    """Offers one value."""
    table[turn, thread, 0] = value


publish_shfl = publish_up = publish_down = publish_xor = publish_value


@inner
def collect_shfl(table, turn, thread, value, lane):
    """cuda.shfl_sync: the value of lane `lane`."""
    return same_type(value, table[turn, thread - thread % WARP + lane % WARP, 0])


@inner
def collect_xor(table, turn, thread, value, lane):
    """cuda.shfl_xor_sync: the value of this lane's partner."""
    return same_type(value, table[turn, thread ^ lane, 0])


@inner
def collect_down(table, turn, thread, value, delta):
    """cuda.shfl_down_sync: the value of the lane `delta` further; its own beyond the warp."""
    inside = thread % WARP + delta < WARP
    return same_type(value, table[turn, thread + delta if inside else thread, 0])


@inner
def collect_up(table, turn, thread, value, delta):
    """cuda.shfl_up_sync: the value of the lane `delta` before; its own beyond the warp."""
    inside = thread % WARP >= delta
    return same_type(value, table[turn, thread - delta if inside else thread, 0])


#: name in a kernel's source -> ending of the two functions here
SHUFFLES = MappingProxyType({
    "cuda.shfl_sync": "shfl", "cuda.shfl_xor_sync": "xor",
    "cuda.shfl_down_sync": "down", "cuda.shfl_up_sync": "up",
})  # fmt: skip


@inner
def publish_ldmatrix(table, turn, thread, tile, offset):
    """Offers the offset of one row."""
    if offset % 4 != 0:
        raise ValueError("ldmatrix at an offset that is no multiple of 4", offset)
    table[turn, thread, 0] = offset


@inner
def _matrix_word(table, turn, thread, tile, matrix):
    lane = thread % WARP
    row = np.int64(table[turn, thread - lane + matrix * 8 + lane // 4, 0])
    return tile[row + lane % 4]


@inner
def collect_ldmatrix(table, turn, thread, tile, offset):
    """tensor_core.ldmatrix_x4: word lane % 4 of row lane // 4 of each matrix."""
    return (
        _matrix_word(table, turn, thread, tile, 0), _matrix_word(table, turn, thread, tile, 1),
        _matrix_word(table, turn, thread, tile, 2), _matrix_word(table, turn, thread, tile, 3),
    )  # fmt: skip


@inner
def publish_mma(table, turn, thread, a, b, c):
    """Offers this lane's elements of a and b."""
    for i in range(4):
        table[turn, thread, i] = a[i]
    for i in range(2):
        table[turn, thread, 4 + i] = b[i]


@inner
def _product(offered, first, row, column, total):
    """total + row `row` of a times column `column` of b, elements where tensor_core says."""
    for k in range(8):
        a = offered[first + row % 8 * 4 + k % 4, row // 8 + k // 4 * 2]
        total += a * offered[first + column * 4 + k % 4, 4 + k // 4]
    return np.float32(total)


@inner
def collect_mma(table, turn, thread, a, b, c):
    """tensor_core.mma_tf32: this lane's four elements of c + a b."""
    lane = thread % WARP
    first, row, column = thread - lane, lane // 4, lane % 4 * 2
    offered = table[turn]
    return (
        _product(offered, first, row, column, c[0]),
        _product(offered, first, row, column + 1, c[1]),
        _product(offered, first, row + 8, column, c[2]),
        _product(offered, first, row + 8, column + 1, c[3]),
    )


#: the same for intrinsics
EXCHANGES = MappingProxyType({
    tensor_core.ldmatrix_x4: "ldmatrix",
    tensor_core.mma_tf32: "mma",
})  # fmt: skip
