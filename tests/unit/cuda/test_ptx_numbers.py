"""Arithmetic of the PTX interpreter against exact fractions, to the last bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from support.hand_ptx import apply

F4 = np.float32
NAN_BITS = 0x7FFFFFFF
#: zeros, ones, the smallest and largest of all kinds, infinities, NaN
CORNERS = np.array(
    [0, -0.0, 1, -1, 2**-149, -(2**-149), 2**-126, -(2**-126), 2**-126 - 2**-149, 0.1, -1 / 3,
     3.4028234663852886e38, -3.4028234663852886e38, np.inf, -np.inf, np.nan, 1 + 2**-23, 1 - 2**-24,
     2**24 + 2, 8388607.5, 0.5, 1.5, 2.5, -0.5],
    F4,
)  # fmt: skip


def bits(values):
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def pairs(*kinds):
    """All pairs of corners, then random numbers of all sizes."""
    a, b = (x.ravel() for x in np.meshgrid(CORNERS, CORNERS))
    random = np.random.default_rng(1).integers(0, 2**32, (2, 448), np.uint32).view(F4)
    return np.concatenate([a, random[0]]), np.concatenate([b, random[1]])


def rounded(exact: Fraction, towards: str = "nearest") -> np.float32:
    """A fraction that is not 0 as float32."""
    sign, size = (-1 if exact < 0 else 1), abs(exact)
    place = max(_exponent(size) - 23, -149)
    whole, rest = divmod(size, Fraction(2) ** place)
    half = Fraction(2) ** place / 2
    if towards == "nearest":
        whole += rest > half or (rest == half and whole % 2)
    elif towards != "zero" and (towards == "up") == (sign > 0):
        whole += rest > 0
    with np.errstate(over="ignore"):
        value = float(sign * whole) * 2.0**place if place < 900 else np.inf
        found = F4(value)
    inwards = towards == "zero" or (towards == "up") != (sign > 0)
    if towards != "nearest" and np.isinf(found) and inwards:
        found = F4(sign * 3.4028234663852886e38)
    return found


def _exponent(size: Fraction) -> int:
    """floor(log2(size))"""
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess - (Fraction(2) ** guess > size)


def triples():
    """For fma: corners, random numbers, and products that nearly cancel or end halfway."""
    rng = np.random.default_rng(0)
    a, b = pairs()
    c = rng.permutation(np.concatenate([CORNERS, a]))[: len(a)]
    x = rng.integers(2**23, 2**24, 500).astype(F4)
    y = rng.integers(2**23, 2**24, 500).astype(F4)
    near = -(x.astype("f8") * y).astype(F4)
    # x * 2^k + a bit far below: the bit decides a tie.
    one = np.repeat(F4(1 + 2**-23), 500)
    tie = (1 + rng.integers(0, 2**23, 500) * 2.0**-23).astype(F4)
    tiny = (rng.choice([1, -1], 500) * 2.0 ** rng.integers(-149, -50, 500)).astype(F4)
    halfway = np.repeat(F4(2**-24), 500)
    subnormal = (rng.standard_normal(500) * 2.0**-75).astype(F4)
    columns = [
        (a, b, c), (x, y, near), (x, y, -near), (one, tie, tiny), (halfway, one, tie),
        (subnormal, subnormal, tiny), (halfway, tie, tie),
    ]  # fmt: skip
    return [np.concatenate(column) for column in zip(*columns, strict=True)]


@pytest.mark.parametrize(
    ("how", "towards"), [("rn", "nearest"), ("rm", "down"), ("rp", "up"), ("rz", "zero")]
)
def test_a_fused_multiply_add_rounds_once(how, towards):
    a, b, c = triples()
    found = apply(f"fma.{how}.f32 d, a, b, c", a, b, c)
    for x, y, z, value in zip(a.tolist(), b.tolist(), c.tolist(), found, strict=True):
        if np.isfinite([x, y, z]).all():
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            want = rounded(exact, towards) if exact else F4(0)
            assert value == want, (x, y, z, value, want)
    with np.errstate(all="ignore"):
        twice = (a.astype("f8") * b + c).astype(F4)
    assert (np.isnan(found) == np.isnan(twice)).all()
    assert (bits(found)[np.isnan(found)] == NAN_BITS).all()
    assert how != "rn" or (found != twice)[~np.isnan(found)].any(), "no case tells them apart"


def test_a_sum_is_cut_off_towards_zero():
    a, b = pairs()
    for x, y, value in zip(a.tolist(), b.tolist(), apply("add.rz.f32 d, a, b", a, b), strict=True):
        if np.isfinite([x, y]).all():
            exact = Fraction(x) + Fraction(y)
            assert value == (rounded(exact, "zero") if exact else F4(0)), (x, y, value)


def test_a_product_and_a_sum_round_twice_where_a_fused_one_rounds_once():
    a = np.array([1 + 2**-12], F4)
    fused = apply("fma.rn.f32 d, a, b, c", a, a, np.array([-1], F4))
    assert fused == F4(2**-11 + 2**-24)
    product = apply("mul.f32 d, a, b", a, a)
    assert apply("add.f32 d, a, b", product, np.array([-1], F4)) == F4(2**-11)


@pytest.mark.parametrize(("opcode", "function"), [
    ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b),
    ("div.rn", lambda a, b: a / b if b else None),
])  # fmt: skip
def test_the_basic_four_round_to_nearest_and_have_one_nan(opcode, function):
    a, b = pairs()
    found = apply(f"{opcode}.f32 d, a, b", a, b)
    for x, y, value in zip(a.tolist(), b.tolist(), found, strict=True):
        if np.isfinite([x, y]).all():
            exact = function(Fraction(x), Fraction(y))
            if exact:
                assert value == rounded(exact), (x, y)
    assert (bits(found)[np.isnan(found)] == NAN_BITS).all()


def test_the_smaller_and_the_larger_know_nan_and_signed_zeros():
    a, b = pairs()
    low, high = apply("min.f32 d, a, b", a, b), apply("max.f32 d, a, b", a, b)
    for x, y, least, most in zip(a, b, low, high, strict=True):
        numbers = sorted(
            (v for v in (x, y) if not np.isnan(v)), key=lambda v: (v, not np.signbit(v))
        )
        want = (numbers[0], numbers[-1]) if numbers else (np.nan, np.nan)
        np.testing.assert_array_equal([least, most], want)
        assert not numbers or np.signbit([least, most]).tolist() == np.signbit(want).tolist()
    either = apply("max.NaN.f32 d, a, b", a, b)
    assert np.isnan(either[np.isnan(a) | np.isnan(b)]).all()


def test_comparisons_of_nan():
    a, b = pairs()
    unordered = np.isnan(a) | np.isnan(b)
    for name, other in (("lt", "geu"), ("le", "gtu"), ("gt", "leu"), ("ge", "ltu"),
                        ("eq", "neu"), ("ne", "equ"), ("num", "nan")):  # fmt: skip
        holds = apply(f"setp.{name}.f32 d, a, b", a, b, result="?")
        assert not holds[unordered].any()
        np.testing.assert_array_equal(apply(f"setp.{other}.f32 d, a, b", a, b, result="?"), ~holds)
    np.testing.assert_array_equal(apply("setp.lt.f32 d, a, b", a, b, result="?"), a < b)


def test_flushing_takes_subnormals_in_and_out():
    tiny, small = np.array([2**-127, -(2**-127)], F4), np.array([2**-126, 2**-126], F4)
    assert (bits(apply("add.ftz.f32 d, a, b", tiny, tiny)) == [0, 1 << 31]).all()
    half = np.array([0.5, -0.5], F4)
    assert (bits(apply("mul.ftz.f32 d, a, b", small, half)) == [0, 1 << 31]).all()
    assert (apply("mul.f32 d, a, b", small, half) != 0).all()


@pytest.mark.parametrize(("how", "function"), [
    ("rzi", np.trunc), ("rni", np.rint), ("rmi", np.floor), ("rpi", np.ceil),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u8"])
def test_floats_become_the_nearest_integer_that_there_is(how, function, kind):
    x, _ = pairs()
    dtype = np.dtype(kind.replace("s", "i").replace("u", "u")[0] + str(int(kind[1:]) // 8))
    wide = dtype if dtype.itemsize > 1 else np.dtype("u2")
    found = apply(f"cvt.{how}.{kind}.f32 d, a", x, result=wide.str)
    limits = np.iinfo(dtype)
    for value, whole in zip(x, found.tolist(), strict=True):
        if np.isnan(value):
            want = 0 if dtype.itemsize < 8 else -(1 << 63)
        elif np.isinf(value):
            want = limits.max if value > 0 else limits.min
        else:
            want = min(max(int(function(float(value))), limits.min), limits.max)
        assert whole == want, value


def test_integers_become_floats_and_each_other():
    whole = np.array([0, 1, -1, 2**24 + 1, 2**31 - 1, -(2**31), 16777219], np.int32)
    np.testing.assert_array_equal(apply("cvt.rn.f32.s32 d, a", whole), whole.astype(F4))
    np.testing.assert_array_equal(
        apply("cvt.rn.f32.u32 d, a", whole.view("u4")), whole.view("u4").astype(F4)
    )
    np.testing.assert_array_equal(apply("cvt.s64.s32 d, a", whole, result="i8"), whole)
    np.testing.assert_array_equal(apply("cvt.u64.u32 d, a", whole, result="u8"), whole.view("u4"))
    long = np.array([-1, 2**32 + 5, 2**63 - 1], np.int64)
    np.testing.assert_array_equal(
        apply("cvt.u32.u64 d, a", long, result="u4"), [2**32 - 1, 5, 2**32 - 1]
    )
    np.testing.assert_array_equal(apply("cvt.rn.f32.s64 d, a", long), long.astype(F4))


def test_tf32_rounds_ties_away_or_to_even_and_keeps_what_is_no_number():
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-12, -1 - 2**-11, np.inf, -0.0, np.nan,
                  3.4028234663852886e38, 2**-149], F4)  # fmt: skip
    away, even = (
        apply(f"cvt.{how}.tf32.f32 d, a", x, result="u4").view(F4) for how in ("rna", "rn")
    )
    up = 1 + 2**-10
    np.testing.assert_array_equal(
        away, np.array([up, 1 + 2**-9, 1, -up, np.inf, 0, np.nan, np.inf, 0], F4)
    )
    np.testing.assert_array_equal(
        even, np.array([1, 1 + 2**-9, 1, -1, np.inf, 0, np.nan, np.inf, 0], F4)
    )
    assert np.signbit(away[5])


def test_saturation_ends_at_0_and_1():
    x = np.array([-3, -0.0, 0.25, 1.5, np.nan, np.inf], F4)
    found = apply("cvt.sat.f32.f32 d, a", x)
    np.testing.assert_array_equal(bits(found), bits(np.array([0, 0, 0.25, 1, 0, 1], F4)))


@pytest.mark.parametrize(("instruction", "function", "bound"), [
    ("ex2.approx.ftz.f32", np.exp2, 2**-22), ("rcp.approx.ftz.f32", np.reciprocal, 2**-23),
    ("sqrt.rn.f32", np.sqrt, 2**-24), ("rcp.rn.f32", np.reciprocal, 2**-24),
    ("lg2.approx.f32", np.log2, 2**-22), ("div.full.f32", None, 2**-22),
])  # fmt: skip
def test_approximations_are_within_what_ptx_promises(instruction, function, bound):
    x = np.abs(np.random.default_rng(0).standard_normal(500)).astype(F4) + F4(0.01)
    if function is None:
        found, want = apply(f"{instruction} d, a, b", x, x[::-1].copy()), x.astype("f8") / x[::-1]
    else:
        found, want = apply(f"{instruction} d, a", x), function(x.astype("f8"))
    assert (np.abs(found - want) <= bound * np.maximum(np.abs(want), 1e-3)).all()


def exact_integers(kind, count=400):
    rng = np.random.default_rng(2)
    info = np.iinfo(kind)
    edge = np.array([0, 1, 2, 3, 7, info.max, info.min, info.max - 1, info.max // 2], kind)
    a, b = (x.ravel() for x in np.meshgrid(edge, edge))
    drawn = rng.integers(info.min, info.max, (2, count), kind, endpoint=True)
    small = rng.integers(0, 100, count).astype(kind)
    return np.concatenate([a, drawn[0], drawn[0]]), np.concatenate([b, drawn[1], small])


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_integers_wrap_and_divide_towards_zero(kind):
    dtype = np.dtype({"s": "i", "u": "u"}[kind[0]] + str(int(kind[1:]) // 8))
    width, a_b = int(kind[1:]), exact_integers(dtype)

    def wrapped(value):
        value &= (1 << width) - 1
        return value - (1 << width) if kind[0] == "s" and value >> (width - 1) else value

    def check(instruction, function, result=dtype, chosen=None):
        a, b = (x if chosen is None else x[chosen] for x in a_b)
        found = apply(f"{instruction}.{kind} d, a, b", a, b, result=np.dtype(result).str)
        want = [function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert found.tolist() == want, instruction

    divisible = a_b[1] != 0
    check("add", lambda x, y: wrapped(x + y))
    check("sub", lambda x, y: wrapped(x - y))
    check("mul.lo", lambda x, y: wrapped(x * y))
    check("mul.hi", lambda x, y: wrapped(x * y >> width))
    check("div", lambda x, y: wrapped(abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)),
          chosen=divisible)  # fmt: skip
    check("rem", lambda x, y: wrapped(abs(x) % abs(y) * (-1 if x < 0 else 1)), chosen=divisible)
    check("min", min)
    check("max", max)
    if width == 32:
        check("mul.wide", lambda x, y: x * y, result=f"{dtype.kind}8")


def test_shifts_are_clamped_and_bits_are_inserted():
    a = np.array([-5, 1, 2**31 - 1, -(2**31)] * 5, np.int32)
    by = np.repeat(np.array([0, 1, 31, 32, 200], np.uint32), 4)
    down = apply("shr.s32 d, a, b", a, by, result="i4").tolist()
    assert down == [x >> min(s, 31) for x, s in zip(a.tolist(), by.tolist(), strict=True)]
    up = apply("shl.b32 d, a, b", a, by, result="u4").tolist()
    plain = a.view("u4").tolist()
    assert up == [(x << s) % 2**32 for x, s in zip(plain, by.tolist(), strict=True)]
    right = apply("shr.u32 d, a, b", a.view("u4"), by, result="u4").tolist()
    assert right == [x >> s for x, s in zip(plain, by.tolist(), strict=True)]
    low, whole = np.array([0xAB] * 4, "u4"), np.array([0xFFFFFFFF] * 4, "u4")
    start = np.array([0, 8, 28, 40], "u4")
    found = apply("bfi.b32 d, a, b, c, 8", low, whole, start, result="u4")
    assert found.tolist() == [0xFFFFFFAB, 0xFFFFABFF, 0xBFFFFFFF, 0xFFFFFFFF]


def test_signs():
    x, y = pairs()
    assert (np.signbit(apply("copysign.f32 d, a, b", x, y)) == np.signbit(x)).all()
    finite = np.isfinite(y)
    np.testing.assert_array_equal(
        np.abs(apply("copysign.f32 d, a, b", x, y))[finite], np.abs(y[finite])
    )
    np.testing.assert_array_equal(apply("neg.f32 d, a", CORNERS[:14]), -CORNERS[:14])
    np.testing.assert_array_equal(apply("abs.f32 d, a", CORNERS[:14]), np.abs(CORNERS[:14]))
    chosen = np.arange(24) % 2 == 0
    np.testing.assert_array_equal(
        apply("selp.f32 d, a, b, c", CORNERS, -CORNERS, chosen), np.where(chosen, CORNERS, -CORNERS)
    )
