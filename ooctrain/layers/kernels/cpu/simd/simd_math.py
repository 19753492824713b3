"""Functions of vectors: exp, expm1, log, log1p, powers, sigmoid, tanh, erf.

Arguments and results are of type `f32v` (`simd.py`). exp is 2^k * 2^f with k whole: the power of
two is an addition to the exponent bits, the rest a polynomial. Sixteen exponentials thus cost about
as much as one call of the library's. Each function is right to about one unit in the last place.
Sources: coefficients of expf, logf and tanhf in the Cephes library (Moshier 1992); log1p: Kahan's
quotient (Goldberg 1991, theorem 4); erf: minimax polynomials of Juffa (2013). Read next:
`layers/kernels/cpu/losses.py`, `layers/kernels/cpu/functions.py`.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ooctrain.layers.kernels.cpu.simd.simd import (
    LANES,
    VECTOR,
    VL,
    f32v,
    vabs,
    vfma,
    vmax,
    vmin,
    vround,
    vselect_eq,
    vselect_gt,
    vsplat,
)

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
HALF, INFINITY, NAN = np.float32(0.5), np.float32(np.inf), np.float32(np.nan)
#: Numbers below the first one are subnormal, and normal times the second one.
NORMAL, TO_NORMAL, LOG_TO_NORMAL = (
    np.float32(2.0**-126), np.float32(2.0**25), np.float32(25 * 0.6931471805599453),
)  # fmt: skip
EXP_LOW, EXP_HIGH = np.float32(-87.0), np.float32(88.0)
LOG2_E = np.float32(1.44269504088896341)
LN2 = np.float32(0.6931471805599453)
#: Largest exponent of `vpower`. Its result is exp(rest) 2^k, |rest| at most 65 ln 2 / 2. At the
#: largest k it is infinite or 0; half of this k can be added to the exponent of exp(rest).
MOST_POWER, MOST_REST, MOST_BITS = 64.0, np.float32(22.8), np.float32(186)
MORE_BITS = np.float32(25)
LN2_HIGH, LN2_LOW = np.float32(-0.693359375), np.float32(2.12194440e-4)
E5, E4, E3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E2, E1, E0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
SQRT_HALF, MINUS_HALF = np.float32(0.707106781186547524), np.float32(-0.5)
L8, L7, L6 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
L5, L4, L3 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
L2, L1, L0 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)
TANH_SMALL, TANH_LARGE = np.float32(0.625), np.float32(44.0)
T4, T3 = np.float32(-5.70498872745e-3), np.float32(2.06390887954e-2)
T2, T1, T0 = (
    np.float32(-5.37397155531e-2),
    np.float32(1.33314422036e-1),
    np.float32(-3.33332819422e-1),
)

# erf(x) = x + x P(x^2) below ERF_NEAR, else 1 - exp(-Q(|x|)), which is 1 from ERF_FAR on.
ERF_NEAR, ERF_FAR = np.float32(0.927734375), np.float32(4.5)
P5, P4, P3 = np.float32(-5.96761703e-4), np.float32(4.99119423e-3), np.float32(-2.67681349e-2)
P2, P1, P0 = np.float32(1.12819925e-1), np.float32(-3.76125336e-1), np.float32(1.28379166e-1)
Q6, Q5 = np.float32(-1.72853470e-5), np.float32(3.83197126e-4)
Q4, Q3 = np.float32(-3.88396438e-3), np.float32(2.42546219e-2)
Q2, Q1, Q0 = (
    np.float32(-1.06777877e-1),
    np.float32(-6.34846687e-1),
    np.float32(-1.28717512e-1),
)


@intrinsic
def vscale2(typingctx, x, exponent):
    """x * 2**exponent for whole-numbered exponents that keep the result normal (for exp)."""

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[0], LANES)
        shift = ir.Constant(LANES, [23] * VL)
        step = builder.shl(builder.fptosi(args[1], LANES), shift)
        return builder.bitcast(builder.add(bits, step), VECTOR)

    return f32v(f32v, f32v), codegen


@numba.njit(inline="always")
def _exp_within(bounded):
    """exp for arguments in [-87, 88]; NaN stays."""
    k = vround(bounded * LOG2_E)
    # ln 2 in two parts: the first product is exact.
    r = vfma(k, vsplat(LN2_LOW), vfma(k, vsplat(LN2_HIGH), bounded))
    p = vfma(vsplat(E5), r, vsplat(E4))
    p = vfma(p, r, vsplat(E3))
    p = vfma(p, r, vsplat(E2))
    p = vfma(p, r, vsplat(E1))
    p = vfma(p, r, vsplat(E0))
    p = vfma(p, r * r, r) + ONE
    return vscale2(p, k)


@numba.njit(inline="always")
def vexp(x):
    """exp(x) to about one unit in the last place for x <= 88; 0 below -87; NaN stays."""
    value = _exp_within(vmax(vsplat(EXP_LOW), x))
    return vselect_gt(vsplat(EXP_LOW), x, vsplat(ZERO), value)


@numba.njit(inline="always")
def vexp_any(x):
    """exp(x) of any x: as `vexp` where that is exact, else the square of exp(x / 2), which is
    infinite or subnormal where exp(x) is; NaN stays.
    """
    half = _exp_within(vmin(vsplat(EXP_HIGH), vmax(vsplat(EXP_LOW), HALF * x)))
    near = vexp(vmin(vsplat(EXP_HIGH), x))
    return vselect_gt(vabs(x), ZERO - vsplat(EXP_LOW), half * half, near)


@numba.njit(inline="always")
def vexpm1(x):
    """exp(x) - 1 for x <= 0, without losing the digits of a small x; NaN stays."""
    return vtanh(HALF * x) * (vexp(x) + ONE)


@intrinsic
def vsplit(typingctx, x):
    """(mantissa in [0.5, 1), exponent) of positive normal numbers."""

    def codegen(context, builder, signature, args):
        constant = lambda value: ir.Constant(LANES, [value] * VL)  # noqa: E731
        bits = builder.bitcast(args[0], LANES)
        exponent = builder.sub(builder.lshr(bits, constant(23)), constant(126))
        mantissa = builder.or_(builder.and_(bits, constant(0x007FFFFF)), constant(0x3F000000))
        parts = builder.bitcast(mantissa, VECTOR), builder.sitofp(exponent, VECTOR)
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(f32v, 2)(f32v), codegen


@numba.njit(inline="always")
def _mantissa(x):
    """(m - 1, e, what log(m) is more than m - 1 - (m - 1)^2 / 2), x = m 2^e with m near 1."""
    m, e = vsplit(x)
    e = vselect_gt(vsplat(SQRT_HALF), m, e - ONE, e)
    m = vselect_gt(vsplat(SQRT_HALF), m, m + m, m) - ONE
    p = vfma(vsplat(L8), m, vsplat(L7))
    p = vfma(p, m, vsplat(L6))
    p = vfma(p, m, vsplat(L5))
    p = vfma(p, m, vsplat(L4))
    p = vfma(p, m, vsplat(L3))
    p = vfma(p, m, vsplat(L2))
    p = vfma(p, m, vsplat(L1))
    p = vfma(p, m, vsplat(L0))
    return m, e, p * m * (m * m)


@numba.njit(inline="always")
def vlog(x):
    """log(x) to about one unit in the last place for positive normal x; NaN stays."""
    m, e, more = _mantissa(x)
    p = vfma(ZERO - vsplat(LN2_LOW), e, more)
    p = m + vfma(vsplat(MINUS_HALF), m * m, p)
    return vselect_eq(x, x, vfma(ZERO - vsplat(LN2_HIGH), e, p), x)


@numba.njit(inline="always")
def vlog_any(x):
    """log(x) of any x: minus infinity of 0, NaN below; NaN and infinity stay."""
    tiny, zero = vsplat(NORMAL), vsplat(ZERO)
    larger = vselect_gt(tiny, x, x * TO_NORMAL, x)
    value = vlog(larger) - vselect_gt(tiny, x, vsplat(LOG_TO_NORMAL), zero)
    value = vselect_gt(x, zero, value, vselect_eq(x, zero, ZERO - vsplat(INFINITY), (x - x) / zero))
    return vselect_eq(x, vsplat(INFINITY), x, value)


@numba.njit(inline="always")
def vpower(x, numbers):
    """|x|^p for p of at most MOST_POWER, to about one unit in the last place for each whole number
    in p; then what `numbers` say of numbers below 0, of 0 and of infinity. NaN stays.

    x = m 2^e has x^p = 2^k exp(f ln 2 + p log(m)), k + f = p e.

    Args:
        numbers: p, its first 12 bits and the rest, whose products with e are exact; by what the
            power of -x is multiplied for x below 0 (NaN: there is none); the powers of 0 and of
            infinity.
    """
    p, high, low, below, of_zero, of_infinity = numbers
    size, tiny, zero = vabs(x), vsplat(NORMAL), vsplat(ZERO)
    m, e, more = _mantissa(vselect_gt(tiny, size, size * TO_NORMAL, size))
    e = vselect_gt(tiny, size, e - MORE_BITS, e)
    k = vround(vmin(vsplat(MOST_BITS), vmax(ZERO - vsplat(MOST_BITS), p * e)))
    log_m = m + vfma(vsplat(MINUS_HALF), m * m, more)
    rest = ((high * e - k) + low * e) * LN2 + p * log_m
    value = _exp_within(vmin(vsplat(MOST_REST), vmax(ZERO - vsplat(MOST_REST), rest)))
    half = vround(HALF * k)  # in two steps, each of which is a normal number
    value = vscale2(value, half) * vscale2(vsplat(ONE), k - half)
    value = vselect_eq(size, vsplat(INFINITY), vsplat(of_infinity), value)
    value = vselect_gt(zero, x, below * value, value)
    value = vselect_eq(size, zero, vsplat(of_zero), value)
    return vselect_eq(x, x, value, x)


@numba.njit(inline="always")
def vsigmoid(x):
    """1 / (1 + exp(-x)); 0 below -88; NaN stays."""
    # Bounded below as well: 1 + exp(-87) is 1, as for any smaller exponential.
    y = ONE / (_exp_within(vmin(vsplat(EXP_HIGH), vmax(vsplat(EXP_LOW), ZERO - x))) + ONE)
    return vselect_gt(ZERO - vsplat(EXP_HIGH), x, vsplat(ZERO), y)


@numba.njit(inline="always")
def vtanh(x):
    """tanh(x): an odd polynomial near 0, else 1 - 2 / (exp(2 |x|) + 1) with the sign of x."""
    z = x * x
    p = vfma(vsplat(T4), z, vsplat(T3))
    p = vfma(p, z, vsplat(T2))
    p = vfma(p, z, vsplat(T1))
    p = vfma(p, z, vsplat(T0))
    near = vfma(p * z, x, x)
    size = vabs(x)
    far = ONE - TWO / (vexp(TWO * vmin(vsplat(TANH_LARGE), size)) + ONE)
    far = vselect_gt(vsplat(ZERO), x, ZERO - far, far)
    return vselect_gt(vsplat(TANH_SMALL), size, near, far)


@numba.njit(inline="always")
def vlog1p(x):
    """log(1 + x) for x >= 0, without losing the digits of a small x; NaN stays."""
    one = vsplat(ONE)
    whole = one + x
    # What 1 + x has lost of x is in the quotient.
    return vselect_eq(whole, one, x, vlog(whole) * (x / (whole - one)))


@numba.njit(inline="always")
def verf(x):
    """The error function, to about one unit in the last place; NaN stays."""
    size = vmin(vsplat(ERF_FAR), vabs(x))
    square = size * size
    q = vfma(vsplat(Q6), size, vsplat(Q5))
    q = vfma(q, square, vfma(vsplat(Q4), size, vsplat(Q3)))
    q = vfma(q, size, vsplat(Q2))
    q = vfma(q, size, vsplat(Q1))
    q = vfma(q, size, vsplat(Q0))
    far = ONE - vexp(vfma(q, size, ZERO - size))
    far = vselect_gt(vsplat(ZERO), x, ZERO - far, far)
    p = vfma(vsplat(P5), square, vsplat(P4))
    p = vfma(p, square, vsplat(P3))
    p = vfma(p, square, vsplat(P2))
    p = vfma(p, square, vsplat(P1))
    p = vfma(p, square, vsplat(P0))
    return vselect_gt(size, vsplat(ERF_NEAR), far, vfma(p, x, x))
