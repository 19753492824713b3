"""The two micro-kernels that do all multiplying: small matrix products kept in vector registers.

The inputs are float32 arrays with offsets, and a call stores one tile of the product ("batch-reduce
GEMM"):

    C[i, :] = sum over b, k of A[row(i) + tap(b) + k] * B[b, k, :]

Small tables of offsets give the rows and the taps. With a pixel for each row i, a filter tap for
each b and a channel for each k, this *is* a convolution; with one tap it is a matrix product. One
loop therefore serves forward, gradient of the input, 1x1, strided, dilated, grouped, linear and the
products inside Winograd. The accumulators are LLVM phi nodes and hence stay in registers: MR x NV
vectors for C, NV for a row of B, one broadcast element of A at a time, 2 NV MR VL flops for each k.
Source: Georganas et al., "High-Performance Deep Learning via a Single Building Block" (2019).
Read next: `conv_direct.py`.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu.blocking import PANEL
from ooctrain.layers.kernels.cpu.simd.simd import (
    I8,
    I32,
    I64,
    ISA,
    VECTOR,
    VL,
    array_data,
    call_llvm,
    first_lanes,
    fused,
    masked_load,
    masked_store,
    splat,
    vector_pointer,
)

# Rows of C in one register tile. AVX-512 has 32 registers: 12 x 2 + 2 + 1; AVX2 has 16: 6 x 2 + 2
# + 1. The outer-product form must divide usual channel counts, for it adds into C and so cannot
# overlap tiles.
MR = {"avx512": 12, "avx2": 6, "generic": 4}[ISA]
OUTER_MR = {"avx512": 8, "avx2": 4, "generic": 4}[ISA]
NV = 2
LINE_FLOATS = 16  # of a cache line
COLUMNS = NV * VL  # columns of C in one register tile; PANEL is a multiple of it


def _constant(value: int):
    return ir.Constant(I64, value)


def _at(builder, pointer, *terms):
    """pointer + sum of the terms (int64 values or Python ints), in elements."""
    for term in terms:
        pointer = builder.gep(pointer, [_constant(term) if isinstance(term, int) else term])
    return pointer


def _with_pointers(context, builder, signature, args):
    """The arguments of an intrinsic, arrays replaced by pointers to their first elements."""
    return [
        array_data(context, builder, type_, value) if isinstance(type_, types.Array) else value
        for type_, value in zip(signature.args, args, strict=True)
    ]


def _load_row(builder, pointer, count):
    """NV vectors from `pointer`; only the first `count` elements where a count is given."""
    if count is None:
        places = [vector_pointer(builder, _at(builder, pointer, j * VL)) for j in range(NV)]
        return [builder.load(place, align=4) for place in places]
    masks = [first_lanes(builder, builder.sub(count, _constant(j * VL))) for j in range(NV)]
    return [
        masked_load(builder, _at(builder, pointer, j * VL), mask) for j, mask in enumerate(masks)
    ]


def _multiply_add(builder, accumulators, row_of_b, a_pointers):
    """accumulators[i][j] + a[i] * row_of_b[j] for the whole register tile."""
    result = []
    for i, pointer in enumerate(a_pointers):
        a = splat(builder, builder.load(pointer))
        result += [fused(builder, a, row_of_b[j], accumulators[i * NV + j]) for j in range(NV)]
    return result


class _Loop:
    """A counted loop whose values stay in registers, as LLVM phi nodes.

    Making one begins the body. Emit it, reading `index` (0 in the first turn) and `carried` (first
    `initial`), then call `finish` with the values for the next turn; after the loop these are the
    results. The body runs at least once.
    """

    def __init__(self, builder, name, count, initial):
        self.builder, self.count = builder, count
        before = builder.block
        self.body = builder.append_basic_block(name)
        builder.branch(self.body)
        builder.position_at_end(self.body)
        self.index = builder.phi(I64)
        self.index.add_incoming(_constant(0), before)
        self.carried = [builder.phi(value.type) for value in initial]
        for phi, value in zip(self.carried, initial, strict=True):
            phi.add_incoming(value, before)

    def finish(self, new):
        """Ends the body: the next turn carries the values `new`; what is emitted next follows."""
        builder = self.builder
        following = builder.add(self.index, _constant(1))
        last = builder.block
        self.index.add_incoming(following, last)
        for phi, value in zip(self.carried, new, strict=True):
            phi.add_incoming(value, last)
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", following, self.count), self.body, after)
        builder.position_at_end(after)


def _store_tile(builder, values, pointers, count):
    """Writes row i of the register tile at pointers[i]; masked where `count` is less than a row."""
    full = builder.icmp_signed(">=", count, _constant(COLUMNS))
    with builder.if_else(full) as (whole, partial):
        with whole:
            for i, pointer in enumerate(pointers):
                for j in range(NV):
                    place = vector_pointer(builder, _at(builder, pointer, j * VL))
                    builder.store(values[i * NV + j], place, align=4)
        with partial:
            for j in range(NV):
                mask = first_lanes(builder, builder.sub(count, _constant(j * VL)))
                for i, pointer in enumerate(pointers):
                    masked_store(builder, values[i * NV + j], _at(builder, pointer, j * VL), mask)


def _ask_for_rows(builder, pointers):
    """Prefetches the cache lines of a register tile that will be written: rows of a wide output lie
    far apart, and no hardware predicts them (measured: a quarter of the time of first layers).
    """
    for pointer in pointers:
        for j in range(0, COLUMNS, LINE_FLOATS):
            byte = builder.bitcast(_at(builder, pointer, j), I8.as_pointer())
            to_write_in_all_levels_as_data = [ir.Constant(I32, hint) for hint in (1, 3, 1)]
            arguments = byte, *to_write_in_all_levels_as_data
            call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), *arguments)


def _make_rows_kernel(rows_count: int):
    @intrinsic
    def multiply(
        typingctx, a, a0, tables, rows, taps, tap_count, b, b0, run, bias, bias0, c, c0, outs,
        columns,
    ):  # fmt: skip
        """C tile = bias + sum over taps and run; see `multiply_rows`."""
        whole = types.int64
        signature = types.void(
            a, whole, tables, whole, whole, whole, b, whole, whole, bias, whole, c, whole, whole,
            whole,
        )  # fmt: skip

        def codegen(context, builder, signature, args):
            (
                a, a0, tables, rows, taps, tap_count, b, b0, run, bias, bias0, c, c0, outs, columns,
            ) = _with_pointers(context, builder, signature, args)  # fmt: skip
            a_start, b_start = _at(builder, a, a0), _at(builder, b, b0)
            row_offsets = [builder.load(_at(builder, tables, rows, i)) for i in range(rows_count)]
            first = _load_row(builder, _at(builder, bias, bias0), None) * rows_count
            targets = [builder.load(_at(builder, tables, outs, i)) for i in range(rows_count)]
            pointers = [_at(builder, c, c0, target) for target in targets]
            _ask_for_rows(builder, pointers)

            over_taps = _Loop(builder, "taps", tap_count, [b_start, *first])
            tap = _at(builder, a_start, builder.load(_at(builder, tables, taps, over_taps.index)))
            pixels = [_at(builder, tap, offset) for offset in row_offsets]
            over_run = _Loop(builder, "run", run, over_taps.carried)
            b_row, *tile = over_run.carried
            elements = [_at(builder, pixel, over_run.index) for pixel in pixels]
            tile = _multiply_add(builder, tile, _load_row(builder, b_row, None), elements)
            following = [_at(builder, b_row, PANEL), *tile]
            over_run.finish(following)
            over_taps.finish(following)

            _store_tile(builder, tile, pointers, columns)
            return context.get_dummy_value()

        return signature, codegen

    return multiply


def _make_outer_kernel(rows_count: int):
    @intrinsic
    def multiply(
        typingctx, a, a0, a_step, b, b0, b_step, tables, starts_a, starts_b, starts, run, c,
        c0, c_step, add, columns,
    ):  # fmt: skip
        """C tile (+)= sum over starts and run; see `multiply_outer`."""
        whole = types.int64
        signature = types.void(
            a, whole, whole, b, whole, whole, tables, whole, whole, whole, whole, c, whole, whole,
            types.boolean, whole,
        )  # fmt: skip

        def codegen(context, builder, signature, args):
            (
                a, a0, a_step, b, b0, b_step, tables, starts_a, starts_b, starts, run, c, c0,
                c_step, add, columns,
            ) = _with_pointers(context, builder, signature, args)  # fmt: skip
            a_start, b_start = _at(builder, a, a0), _at(builder, b, b0)
            zeros = [ir.Constant(VECTOR, [0.0] * VL)] * (rows_count * NV)

            over_starts = _Loop(builder, "starts", starts, zeros)
            a_first = _at(
                builder, a_start, builder.load(_at(builder, tables, starts_a, over_starts.index))
            )
            b_first = _at(
                builder, b_start, builder.load(_at(builder, tables, starts_b, over_starts.index))
            )
            over_run = _Loop(builder, "run", run, [a_first, b_first, *over_starts.carried])
            a_row, b_row, *tile = over_run.carried
            row_of_b = _load_row(builder, b_row, None)
            elements = [_at(builder, a_row, i) for i in range(rows_count)]
            tile = _multiply_add(builder, tile, row_of_b, elements)
            over_run.finish([_at(builder, a_row, a_step), _at(builder, b_row, b_step), *tile])
            over_starts.finish(tile)

            pointers = [
                _at(builder, c, c0, builder.mul(_constant(i), c_step)) for i in range(rows_count)
            ]
            with builder.if_else(add) as (adding, storing):
                with adding:
                    old = [_load_row(builder, pointer, columns) for pointer in pointers]
                    flat = [vector for row in old for vector in row]
                    sums = [builder.fadd(x, y) for x, y in zip(tile, flat, strict=True)]
                    _store_tile(builder, sums, pointers, columns)
                with storing:
                    _store_tile(builder, tile, pointers, columns)
            return context.get_dummy_value()

        return signature, codegen

    return multiply


# multiply_rows(
#     a, a0, tables, rows, taps, tap_count, b, b0, run, bias, bias0, c, c0, outs, columns)
#   C[c0 + outs[i] + j] = bias[bias0 + j] + sum_b sum_k a[a0 + rows[i] + taps[b] + k] * B[b, k, j]
#   for MR rows i and COLUMNS columns j, of which the first `columns` are stored. `rows`, `taps` and
#   `outs` are positions in the int64 array `tables`; B's rows lie PANEL floats apart, a tap's rows
#   right after those of the tap before.
multiply_rows = _make_rows_kernel(MR)

# multiply_outer(
#     a, a0, a_step, b, b0, b_step, tables, starts_a, starts_b, starts, run,
#     c, c0, c_step, add, columns)
#   C[c0 + i c_step + j] (+)= sum_b sum_k a[a0 + A(b) + k a_step + i] * B[b0 + B(b) + k b_step + j]
#   for OUTER_MR neighbouring elements i; A(b) and B(b) are read from `tables`. All COLUMNS elements
#   of a row of B are read, only `columns` of a row of C are written. `multiply_outer_one` does a
#   single row, for counts that OUTER_MR does not divide; `multiply_outer_wide` does MR rows.
multiply_outer = _make_outer_kernel(OUTER_MR)
multiply_outer_wide = _make_outer_kernel(MR)
multiply_outer_one = _make_outer_kernel(1)
