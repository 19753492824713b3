"""The arithmetic of PTX as one table: opcode -> a NumPy function over the lanes of a block.

First the functions themselves, where NumPy, which rounds as IEEE 754 requires, differs from PTX: a
fused multiply-add with one rounding, minimum and maximum with their rules for NaN and signed zeros,
conversions that saturate, TF32, and the one NaN that a GPU produces. The approximate instructions
(ex2, rcp, ...) give the exact value rounded once, which is within the bounds that PTX states; a GPU
may give another value within them. Then the suffixes of an instruction, which choose among the
functions; then the table. An opcode that is not in it is an error, and so is a suffix that its line
does not name. Source: PTX ISA, "Instruction Set", "Floating Point Instructions", "cvt"; Boldo and
Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd"
(2008). Read next: `ptx_machine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from doubles.ptx_lanes import (
    DTYPES,
    F32,
    NAN,
    Lanes,
    Read,
    Step,
    Write,
    kinds_of,
    nan_of,
    one_nan,
    parts_of,
    reader,
    words_of,
    writer,
)
from doubles.ptx_memory import UnknownInstruction
from doubles.ptx_text import Instruction, PtxProgram, Several

F64, U32, U64 = np.dtype("f8"), np.dtype("u4"), np.dtype("u8")
SMALLEST_NORMAL = np.float32(2.0**-126)
#: bits of a float64 that a float32 has no room for, and what they are halfway between two of those
_BELOW, _HALFWAY = np.uint64((1 << 29) - 1), np.uint64(1 << 28)
_ONE = np.uint64(1)
Array = np.ndarray


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
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), nan_of(a), choose(a, b))


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


# Suffixes: the effect of `.ftz`, `.sat`, a rounding or a comparison is settled once, when an
# instruction is looked up, so running it is one call.

Function = Callable[..., np.ndarray]


@dataclass(frozen=True, slots=True)
class Form:
    """The suffixes of an instruction: types, from the result's on, and other words."""

    kinds: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def dtype(self) -> np.dtype:
        """NumPy's type of the result."""
        return DTYPES[self.kinds[0]]

    @property
    def is_float(self) -> bool:
        """Whether it computes with floats."""
        return self.dtype.kind == "f"


def _picked(choices: Mapping[str, Function], form: Form) -> Function:
    """What the suffixes choose."""
    for word in form.words:
        if word in choices:
            return choices[word]
    raise UnknownInstruction(f"none of the suffixes {', '.join(choices)}")


def plain(function: Function) -> Callable[[Form], Function]:
    """A function that no suffix changes."""
    return lambda form: function


def either(of_floats: Function, of_integers: Function) -> Callable[[Form], Function]:
    """Floats by one function, their NaN as a GPU makes it; integers by the other."""

    def make(form: Form) -> Function:
        if not form.is_float:
            return of_integers
        return _flushed(form, lambda *values: one_nan(of_floats(*values)))

    return make


def only_floats(function: Function) -> Callable[[Form], Function]:
    """A function that exists for floats only."""

    def make(form: Form) -> Function:
        if not form.is_float:
            raise UnknownInstruction(f"this instruction on {form.kinds[0]}")
        return _flushed(form, function)

    return make


def _flushed(form: Form, function: Function) -> Function:
    if "ftz" not in form.words:
        return function
    return lambda *values: flush(function(*map(flush, values)))


def approximate(function: Callable) -> Callable[[Form], Function]:
    """A function that a GPU only approximates."""
    return only_floats(in_doubles(function))


def select(a: np.ndarray, b: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """selp: the first where the predicate holds."""
    return np.where(chosen, a, b)


_FMA: Mapping[str, Function] = MappingProxyType({
    "rn": fma32, "rm": fma32_towards(-np.inf),
    "rp": fma32_towards(np.inf), "rz": fma32_towards(0),
})  # fmt: skip


def fma(form: Form) -> Function:
    """fma, by its rounding."""
    if form.kinds != ("f32",):
        raise UnknownInstruction(f"fma on {form.kinds[0]}")
    return _flushed(form, _picked(_FMA, form))


def add(form: Form) -> Function:
    """add: integers, or floats by their rounding."""
    if "rz" not in form.words:
        return either(np.add, np.add)(form)
    if form.kinds != ("f32",):
        raise UnknownInstruction(f"add.rz on {form.kinds[0]}")
    return _flushed(form, sum_towards_zero)


_PRODUCTS: Mapping[str, Function] = MappingProxyType({
    "lo": np.multiply, "hi": high_product, "wide": wide_product,
})  # fmt: skip


def mul(form: Form) -> Function:
    """mul: floats, or the part of an integer product that is wanted."""
    if form.is_float:
        return either(np.multiply, np.multiply)(form)
    return _picked(_PRODUCTS, form)


def mad(form: Form) -> Function:
    """mad: mul and add, of integers."""
    product = mul(form)
    return lambda a, b, c: product(a, b) + c


def smaller_of(form: Form) -> Function:
    """min"""
    return _choice(form, np.minimum, smaller)


def larger_of(form: Form) -> Function:
    """max"""
    return _choice(form, np.maximum, larger)


def _choice(form: Form, of_integers: Function, of_floats: Function) -> Function:
    if not form.is_float:
        return of_integers
    return _flushed(form, or_nan(of_floats) if "NaN" in form.words else of_floats)


#: comparisons of integers
OF_INTEGERS: Mapping[str, Function] = MappingProxyType({
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
})  # fmt: skip


def _unless(function: Function) -> Function:
    return lambda a, b: ~function(a, b)


#: comparisons of floats: false with a NaN, or true with a NaN (the opposite of the opposite)
OF_FLOATS: Mapping[str, Function] = MappingProxyType({
    "eq": np.equal, "ne": lambda a, b: (a < b) | (a > b), "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal, "ltu": _unless(np.greater_equal), "leu": _unless(np.greater),
    "gtu": _unless(np.less_equal), "geu": _unless(np.less),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
})  # fmt: skip
COMBINED = MappingProxyType({"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor})


def compare(form: Form) -> Function:
    """setp: compare, and combine with a predicate where one is given."""
    function = _picked(OF_FLOATS if form.is_float else OF_INTEGERS, form)
    combine = [COMBINED[word] for word in form.words if word in COMBINED]
    if form.is_float and "ftz" in form.words:
        unflushed = function
        function = lambda a, b: unflushed(flush(a), flush(b))  # noqa: E731
    if combine:
        return lambda a, b, also: combine[0](function(a, b), also)
    return function


def _convert(form: Form) -> Function:
    result, source = form.kinds
    rounding = next((word for word in form.words if word in ROUNDINGS), "")
    if result == "tf32" and source == "f32":
        return to_tf32(rounding)
    if rounding == "rna":
        raise UnknownInstruction("cvt.rna to another type than tf32")
    return convert(DTYPES[source], DTYPES[result], rounding)


def cvt(form: Form) -> Function:
    """cvt: the conversion, with what `.sat` and `.ftz` add."""
    function = _convert(form)
    if "sat" in form.words:
        if form.kinds != ("f32", "f32"):
            raise UnknownInstruction(f"cvt.sat to {form.kinds[0]}")
        function = saturate
    if "ftz" not in form.words:
        return function
    with_source = function if form.kinds[1] != "f32" else lambda x: function(flush(x))
    return with_source if form.kinds[0] != "f32" else lambda x: flush(with_source(x))


# The table: reading registers and writing those of the active lanes is the same for all lines.


@dataclass(frozen=True, slots=True)
class Opcode:
    """One opcode.

    Args:
        sources: a letter for each. T and S: the first and the second type of the suffixes; M: T, or
            with `.wide` twice as wide; u: 32 bits; p: a predicate; P: one that may be missing.
        words: suffixes that have a meaning here, besides types.
        make: the function for a form.
    """

    sources: str
    words: str
    make: Callable[[Form], Function]


_ROUNDED = "rn ftz"
_LOOSE = "rn approx full ftz"
_COMPARISONS = " ".join((*OF_INTEGERS, *OF_FLOATS, *COMBINED, "ftz"))
TABLE: Mapping[str, Opcode] = MappingProxyType({
    "add": Opcode("TT", "rz " + _ROUNDED, add),
    "sub": Opcode("TT", _ROUNDED, either(np.subtract, np.subtract)),
    "mul": Opcode("TT", "lo hi wide " + _ROUNDED, mul),
    "mad": Opcode("TTM", "lo hi wide", mad),
    "fma": Opcode("TTT", "rn rm rp rz ftz", fma),
    "div": Opcode("TT", _LOOSE, either(np.divide, quotient)),
    "rem": Opcode("TT", "", plain(remainder)),
    "neg": Opcode("T", "ftz", either(np.negative, np.negative)),
    "abs": Opcode("T", "ftz", either(np.abs, np.abs)),
    "min": Opcode("TT", "NaN ftz", smaller_of),
    "max": Opcode("TT", "NaN ftz", larger_of),
    "copysign": Opcode("TT", "", plain(lambda a, b: np.copysign(b, a))),
    "sqrt": Opcode("T", _LOOSE, only_floats(lambda x: one_nan(np.sqrt(x)))),
    "rcp": Opcode("T", _LOOSE, only_floats(lambda x: one_nan(np.reciprocal(x)))),
    "rsqrt": Opcode("T", "approx ftz", approximate(lambda x: 1 / np.sqrt(x))),
    "ex2": Opcode("T", "approx ftz", approximate(np.exp2)),
    "lg2": Opcode("T", "approx ftz", approximate(np.log2)),
    "and": Opcode("TT", "", plain(np.bitwise_and)),
    "or": Opcode("TT", "", plain(np.bitwise_or)),
    "xor": Opcode("TT", "", plain(np.bitwise_xor)),
    "not": Opcode("T", "", plain(np.invert)),
    "shl": Opcode("Tu", "", plain(shift_left)),
    "shr": Opcode("Tu", "", plain(shift_right)),
    "bfi": Opcode("TTuu", "", plain(insert_bits)),
    "mov": Opcode("T", "", plain(lambda x: x)),
    "cvta": Opcode("T", "to global", plain(lambda x: x)),
    "selp": Opcode("TTp", "", plain(select)),
    "setp": Opcode("TTP", _COMPARISONS, compare),
    "cvt": Opcode("S", "ftz sat " + " ".join(ROUNDINGS), cvt),
})  # fmt: skip


def arithmetic(program: PtxProgram, instruction: Instruction) -> Step:
    """The step of an instruction of the table."""
    row = TABLE[instruction.opcode]
    form = Form(kinds_of(instruction), words_of(instruction))
    unknown = set(form.words) - set(row.words.split())
    if unknown or not form.kinds or (instruction.opcode == "cvta" and "to" not in form.words):
        raise UnknownInstruction(f"suffixes without a meaning here: {sorted(unknown)}")
    if instruction.opcode == "mov" and any(isinstance(o, Several) for o in instruction.operands):
        return _pack(program, instruction, form)
    result, *sources = instruction.operands
    letters = row.sources if "P" not in row.sources else row.sources[: len(sources)]
    if len(letters) != len(sources):
        raise UnknownInstruction(f"{len(sources)} sources instead of {len(letters)}")
    reads = [
        reader(program, operand, _dtype(letter, form))
        for operand, letter in zip(sources, letters, strict=True)
    ]
    write, function = writer(program, result), row.make(form)
    return _step(write, function, reads)


def _step(write: Write, function: Function, reads: list[Read]) -> Step:
    """As loops over one, two and three sources, since this is where the time goes."""
    if len(reads) == 1:
        (a,) = reads
        return lambda lanes: write(lanes, function(a(lanes)))
    if len(reads) == 2:
        a, b = reads
        return lambda lanes: write(lanes, function(a(lanes), b(lanes)))
    return lambda lanes: write(lanes, function(*[read(lanes) for read in reads]))


def _dtype(letter: str, form: Form) -> np.dtype:
    """NumPy's type of a source."""
    if letter in "uPp":
        return DTYPES["u32" if letter == "u" else "pred"]
    if letter == "M" and "wide" in form.words:
        return np.dtype(f"{form.dtype.kind}{2 * form.dtype.itemsize}")
    return DTYPES[form.kinds[letter == "S"]]


def _pack(program: PtxProgram, instruction: Instruction, form: Form) -> Step:
    """mov between a register and the registers that hold its parts, the lowest bits first."""
    result, source = instruction.operands
    parts = max(len(parts_of(result)), len(parts_of(source)))
    part = np.dtype(f"u{form.dtype.itemsize // parts}")
    whole = np.dtype(f"u{form.dtype.itemsize}")
    if isinstance(result, Several):
        read = reader(program, source, whole)
        writes = [writer(program, each) for each in result.parts]

        def unpack(lanes: Lanes) -> None:
            pieces = np.ascontiguousarray(read(lanes)).view(part).reshape(-1, parts)
            for i, write in enumerate(writes):
                write(lanes, np.ascontiguousarray(pieces[:, i]))

        return unpack
    reads = [reader(program, each, part) for each in parts_of(source)]
    write = writer(program, result)

    def pack(lanes: Lanes) -> None:
        pieces = np.stack(np.broadcast_arrays(*[read(lanes) for read in reads]), axis=1)
        write(lanes, pieces.reshape(-1).view(whole))

    return pack
