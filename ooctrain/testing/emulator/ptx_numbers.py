"""Arithmetic as PTX defines it, bit by bit, on vectors of lanes.

NumPy rounds as IEEE 754 requires, so this module holds only the differences: a fused multiply-add
with one rounding, minimum and maximum with their rules for NaN and signed zeros, conversions that
saturate, TF32, and the one NaN that a GPU produces. The approximate instructions (ex2, rcp, ...)
give the exact value rounded once, which is within the bounds that PTX states; a GPU may give
another value within them. Source: PTX ISA, "Floating Point Instructions", "cvt"; Boldo and
Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd"
(2008). Read next: `ptx_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

F32, F64, U32, U64 = np.dtype("f4"), np.dtype("f8"), np.dtype("u4"), np.dtype("u8")
#: the NaN that instructions on float32 give
NAN = np.uint32(0x7FFFFFFF).view(F32)
SMALLEST_NORMAL = np.float32(2.0**-126)
#: bits of a float64 that a float32 has no room for, and what they are halfway between two of those
_BELOW, _HALFWAY = np.uint64((1 << 29) - 1), np.uint64(1 << 28)
_ONE = np.uint64(1)
Array = np.ndarray


def one_nan(result: Array) -> Array:
    """A result in which each NaN is the one that a GPU makes."""
    squares = result.dot(result)  # NaN if and only if there is one: one call instead of two
    return result if squares == squares else np.where(np.isnan(result), _nan_of(result), result)


def _nan_of(result: Array) -> np.floating:
    return NAN if result.dtype == F32 else result.dtype.type(np.nan)


def flush(value: Array) -> Array:
    """Subnormal numbers become zeros of their sign (.ftz)."""
    tiny = np.abs(value) < SMALLEST_NORMAL
    return np.where(tiny, np.copysign(np.float32(0), value), value) if tiny.any() else value


def saturate(value: Array) -> Array:
    """.sat: at least +0 and at most 1; NaN becomes +0."""
    return np.where(value > 0, np.minimum(value, value.dtype.type(1)), value.dtype.type(0))


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float32, rounded once.

    The product is exact in float64. Its sum with c is rounded there, and rounding again goes wrong
    only where the first one ends halfway between two float32, or at a subnormal one: these sums
    are rounded to odd first, after which a second rounding does no harm.
    """
    product = a.astype(F64) * b
    total = product + c
    risky = (total.view(U64) & _BELOW) == _HALFWAY
    risky |= (np.abs(total) < SMALLEST_NORMAL) & (total != 0)
    if risky.any():
        total = _rounded_to_odd(total, product, c.astype(F64))
    return one_nan(total.astype(F32))


def fma32_towards(goal: float) -> Callable[[Array, Array, Array], Array]:
    """The same, rounded towards minus or plus infinity, or towards 0 (fma.rm, fma.rp, fma.rz)."""

    def run(a: Array, b: Array, c: Array) -> Array:
        product = a.astype(F64) * b
        exact = _rounded_to_odd(product + c, product, c.astype(F64))
        nearest = exact.astype(F32)
        if goal:
            beyond = (nearest < exact) if goal > 0 else (nearest > exact)
        else:
            beyond = np.abs(nearest) > np.abs(exact)
        moved = np.where(beyond, np.nextafter(nearest, F32.type(goal)), nearest)
        return one_nan(moved)

    return run


_cut = fma32_towards(0)


def sum_towards_zero(a: Array, b: Array) -> Array:
    """a + b in float32, what does not fit cut off (add.rz)."""
    return _cut(a, np.ones_like(a), b)


def _rounded_to_odd(total: Array, product: Array, c: Array) -> Array:
    """product + c, where `total` is that to nearest: the odd one of its two neighbours."""
    back = total - product
    lost = (product - (total - back)) + (c - back)
    bits = total.view(U64)
    even = (lost != 0) & np.isfinite(total) & ((bits & _ONE) == 0)
    away = (lost > 0) == (total > 0)
    return np.where(even, np.where(away, bits + _ONE, bits - _ONE), bits).view(F64)


def smaller(a: Array, b: Array) -> Array:
    """min: of a number and NaN the number; -0 is below +0."""
    bits = np.dtype(f"u{a.itemsize}")
    same = (a.view(bits) | b.view(bits)).view(a.dtype)
    return one_nan(np.where(a == b, same, np.fmin(a, b)))


def larger(a: Array, b: Array) -> Array:
    """max: of a number and NaN the number; +0 is above -0."""
    bits = np.dtype(f"u{a.itemsize}")
    same = (a.view(bits) & b.view(bits)).view(a.dtype)
    return one_nan(np.where(a == b, same, np.fmax(a, b)))


def or_nan(choose: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """min.NaN, max.NaN: NaN if either is."""
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), _nan_of(a), choose(a, b))


def in_doubles(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """An approximate instruction on float32: the function in float64, rounded once."""
    return lambda x: one_nan(function(x.astype(F64)).astype(x.dtype))


# Integers


def quotient(a: Array, b: Array) -> Array:
    """a / b towards zero; all ones where b = 0, as good as any of the values PTX leaves open."""
    if a.dtype.kind == "u":
        return np.where(b == 0, ~np.zeros_like(a), a // np.maximum(b, 1))
    divisor = np.where(b == 0, 1, b).astype(a.dtype)
    return np.where(b == 0, a.dtype.type(-1), (a - np.fmod(a, divisor)) // divisor)


def remainder(a: Array, b: Array) -> Array:
    """a - b * (a / b): it has the sign of a."""
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b).astype(a.dtype)))


def wide_product(a: Array, b: Array) -> Array:
    """mul.wide: twice as many bits."""
    wide = np.dtype(f"{a.dtype.kind}{2 * a.itemsize}")
    return a.astype(wide) * b.astype(wide)


def high_product(a: Array, b: Array) -> Array:
    """mul.hi: the upper half of the product."""
    if a.itemsize < 8:
        return (wide_product(a, b) >> (8 * a.itemsize)).astype(a.dtype)
    if a.dtype.kind == "i":
        high = high_product(a.view(U64), b.view(U64)).view(a.dtype)
        return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
    low, half = U64.type(0xFFFFFFFF), U64.type(32)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = (a0 * b0 >> half) + (a1 * b0 & low) + a0 * b1
    # The sum of three numbers below 2^32, 2^32 and 2^64 - 2^33 does not overflow.
    return a1 * b1 + (a1 * b0 >> half) + (middle >> half)


def shift_left(a: Array, count: Array) -> Array:
    """shl: zeros come in; all of them where the shift is as wide as the number."""
    width = 8 * a.itemsize
    moved = a << np.minimum(count, width - 1).astype(a.dtype)
    return np.where(count >= width, a.dtype.type(0), moved) if (count >= width).any() else moved


def shift_right(a: Array, count: Array) -> Array:
    """shr: zeros come in, or copies of the sign."""
    width = 8 * a.itemsize
    moved = a >> np.minimum(count, width - 1).astype(a.dtype)
    if a.dtype.kind == "u" and (count >= width).any():
        return np.where(count >= width, a.dtype.type(0), moved)
    return moved


def insert_bits(a: Array, b: Array, start: Array, count: Array) -> Array:
    """bfi: b, with `count` bits from `start` on taken from the lowest of a."""
    ones = ~np.zeros_like(a)
    start, count = start & U32.type(0xFF), count & U32.type(0xFF)
    mask = shift_left(~shift_left(ones, count), start)
    return (shift_left(a, start) & mask) | (b & ~mask)


# Conversions

_WHOLE = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
#: how cvt rounds: to whole numbers by these, to fewer bits by "rn"
ROUNDINGS = (*_WHOLE, "rn", "rna")


def convert(source: np.dtype, result: np.dtype, rounding: str) -> Callable[[Array], Array]:
    """cvt between two types; `rounding`: one of ROUNDINGS, "" where nothing is rounded."""
    if source.kind == "f" and result.kind in "iu":
        return lambda x: _saturated(_WHOLE[rounding](x.astype(F64)), result)
    if source.kind == "f" and rounding in _WHOLE:
        return lambda x: one_nan(_WHOLE[rounding](x).astype(result))
    if source.kind == "f":
        return lambda x: one_nan(x.astype(result))
    return lambda x: x.astype(result)


def _saturated(whole: Array, kind: np.dtype) -> Array:
    """Whole numbers as integers: what does not fit becomes the nearest that does, NaN becomes 0."""
    limits = np.iinfo(kind)
    over, under = whole >= float(limits.max) + (kind.itemsize < 8), whole < float(limits.min)
    fitting = np.where(over | under | np.isnan(whole), 0, whole).astype(kind)
    ends = np.where(over, kind.type(limits.max), kind.type(limits.min))
    found = np.where(over | under, ends, fitting)
    if kind.itemsize == 8:  # PTX: NaN becomes 2^63 there
        found = np.where(np.isnan(whole), U64.type(1 << 63).astype(kind), found)
    return found


def to_tf32(rounding: str) -> Callable[[Array], Array]:
    """cvt to TF32: 10 bits of mantissa; ties away from zero ("rna"), or to even ("rn")."""

    def run(x: Array) -> Array:
        bits = x.view(U32)
        more = U32.type(0x1000) if rounding == "rna" else (bits >> 13 & 1) + U32.type(0xFFF)
        rounded = (bits + more) & U32.type(0xFFFFE000)
        return np.where(np.isfinite(x), rounded, np.where(np.isnan(x), NAN.view(U32), bits))

    return run
