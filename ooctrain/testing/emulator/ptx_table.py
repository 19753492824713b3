"""The arithmetic of PTX as one table: opcode -> a NumPy function over the lanes of a block.

In: an instruction. Out: a `Step` that runs it. The one idea: a row of the table says what types
the sources and the result have, which suffixes have a meaning here, and how the function is made
from them; all the rest (reading registers, writing those of the lanes at work) is the same for
all. Whatever is not in the table is an error, and so is a suffix that its row does not name.
Source: PTX ISA, "Instruction Set". Read next: `ptx_numbers.py`; `ptx_warp.py` for the instructions
that touch memory or other lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ooctrain.testing.emulator import ptx_numbers as numbers
from ooctrain.testing.emulator.ptx_faults import UnknownInstruction
from ooctrain.testing.emulator.ptx_lanes import (
    DTYPES,
    Lanes,
    Step,
    kinds_of,
    parts_of,
    reader,
    words_of,
    writer,
)
from ooctrain.testing.emulator.ptx_text import Group, Instruction, Program

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


@dataclass(frozen=True, slots=True)
class Row:
    """One opcode.

    Args:
        sources: a letter for each: T and S the first and the second type of the suffixes, W twice
            as wide as T, u a number of 32 bits, p a predicate; lower case o after it: may be
            missing.
        words: suffixes that have a meaning here.
        make: the function for a form.
        result: a letter; "*": whatever the function gives.
    """

    sources: str
    words: str
    make: Callable[[Form], Function]


def _picked(choices: Mapping[str, Function], form: Form) -> Function:
    """What the suffixes choose."""
    for word in form.words:
        if word in choices:
            return choices[word]
    raise UnknownInstruction(f"none of the suffixes {', '.join(choices)}")


def _plain(function: Function) -> Callable[[Form], Function]:
    return lambda form: function


def _either(of_floats: Function, of_integers: Function) -> Callable[[Form], Function]:
    """Floats by one function, their NaN as a GPU makes it; integers by the other."""

    def make(form: Form) -> Function:
        if not form.is_float:
            return of_integers
        return _flushed(form, lambda *values: numbers.one_nan(of_floats(*values)))

    return make


def _float(function: Function) -> Callable[[Form], Function]:
    def make(form: Form) -> Function:
        if not form.is_float:
            raise UnknownInstruction(f"this instruction on {form.kinds[0]}")
        return _flushed(form, function)

    return make


def _flushed(form: Form, function: Function) -> Function:
    if "ftz" not in form.words:
        return function
    flush = numbers.flush
    return lambda *values: flush(function(*map(flush, values)))


def _approximate(function: Callable) -> Callable[[Form], Function]:
    return _float(numbers.in_doubles(function))


def _select(a: np.ndarray, b: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return np.where(chosen, a, b)


_FMA: Mapping[str, Function] = MappingProxyType({
    "rn": numbers.fma32, "rm": numbers.fma32_towards(-np.inf),
    "rp": numbers.fma32_towards(np.inf),
})  # fmt: skip


def _fma(form: Form) -> Function:
    if form.kinds != ("f32",):
        raise UnknownInstruction(f"fma on {form.kinds[0]}")
    return _flushed(form, _picked(_FMA, form))


_PRODUCTS: Mapping[str, Function] = MappingProxyType({
    "lo": np.multiply, "hi": numbers.high_product, "wide": numbers.wide_product,
})  # fmt: skip


def _mul(form: Form) -> Function:
    if form.is_float:
        return _either(np.multiply, np.multiply)(form)
    return _picked(_PRODUCTS, form)


def _mad(form: Form) -> Function:
    product = _mul(form)
    return lambda a, b, c: product(a, b) + c


def _min(form: Form) -> Function:
    return _choice(form, np.minimum, numbers.smaller)


def _max(form: Form) -> Function:
    return _choice(form, np.maximum, numbers.larger)


def _choice(form: Form, of_integers: Function, of_floats: Function) -> Function:
    if not form.is_float:
        return of_integers
    return _flushed(form, numbers.or_nan(of_floats) if "NaN" in form.words else of_floats)


#: comparisons of integers
_OF_INTEGERS: Mapping[str, Function] = MappingProxyType({
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
})  # fmt: skip


def _unless(function: Function) -> Function:
    return lambda a, b: ~function(a, b)


#: comparisons of floats: false with a NaN, or true with a NaN (the opposite of the opposite)
_OF_FLOATS: Mapping[str, Function] = MappingProxyType({
    "eq": np.equal, "ne": lambda a, b: (a < b) | (a > b), "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal, "ltu": _unless(np.greater_equal), "leu": _unless(np.greater),
    "gtu": _unless(np.less_equal), "geu": _unless(np.less),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
})  # fmt: skip
_COMBINED = MappingProxyType({"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor})


def _compare(form: Form) -> Function:
    """setp: compare, and combine with a predicate where one is given."""
    function = _picked(_OF_FLOATS if form.is_float else _OF_INTEGERS, form)
    combine = [_COMBINED[word] for word in form.words if word in _COMBINED]
    if form.is_float and "ftz" in form.words:
        plain, flush = function, numbers.flush
        function = lambda a, b: plain(flush(a), flush(b))  # noqa: E731
    if combine:
        return lambda a, b, also: combine[0](function(a, b), also)
    return function


def _convert(form: Form) -> Function:
    result, source = form.kinds
    rounding = next((word for word in form.words if word in numbers.ROUNDINGS), "")
    if result == "tf32" and source == "f32":
        return numbers.to_tf32(rounding)
    if rounding == "rna":
        raise UnknownInstruction("cvt.rna to another type than tf32")
    return numbers.convert(DTYPES[source], DTYPES[result], rounding)


def _cvt(form: Form) -> Function:
    function = _convert(form)
    if "sat" in form.words:
        if form.kinds != ("f32", "f32"):
            raise UnknownInstruction(f"cvt.sat to {form.kinds[0]}")
        function = numbers.saturate
    if "ftz" not in form.words:
        return function
    flush = numbers.flush
    with_source = function if form.kinds[1] != "f32" else lambda x: function(flush(x))
    return with_source if form.kinds[0] != "f32" else lambda x: flush(with_source(x))


_ROUNDED = "rn ftz"
_LOOSE = "rn approx full ftz"
TABLE: Mapping[str, Row] = MappingProxyType({
    "add": Row("TT", _ROUNDED, _either(np.add, np.add)),
    "sub": Row("TT", _ROUNDED, _either(np.subtract, np.subtract)),
    "mul": Row("TT", "lo hi wide " + _ROUNDED, _mul),
    "mad": Row("TTM", "lo hi wide", _mad),
    "fma": Row("TTT", "rn rm rp ftz", _fma),
    "div": Row("TT", _LOOSE, _either(np.divide, numbers.quotient)),
    "rem": Row("TT", "", _plain(numbers.remainder)),
    "neg": Row("T", "ftz", _either(np.negative, np.negative)),
    "abs": Row("T", "ftz", _either(np.abs, np.abs)),
    "min": Row("TT", "NaN ftz", _min),
    "max": Row("TT", "NaN ftz", _max),
    "copysign": Row("TT", "", _plain(lambda a, b: np.copysign(b, a))),
    "sqrt": Row("T", _LOOSE, _float(lambda x: numbers.one_nan(np.sqrt(x)))),
    "rcp": Row("T", _LOOSE, _float(lambda x: numbers.one_nan(np.reciprocal(x)))),
    "rsqrt": Row("T", "approx ftz", _approximate(lambda x: 1 / np.sqrt(x))),
    "ex2": Row("T", "approx ftz", _approximate(np.exp2)),
    "lg2": Row("T", "approx ftz", _approximate(np.log2)),
    "and": Row("TT", "", _plain(np.bitwise_and)),
    "or": Row("TT", "", _plain(np.bitwise_or)),
    "xor": Row("TT", "", _plain(np.bitwise_xor)),
    "not": Row("T", "", _plain(np.invert)),
    "shl": Row("Tu", "", _plain(numbers.shift_left)),
    "shr": Row("Tu", "", _plain(numbers.shift_right)),
    "bfi": Row("TTuu", "", _plain(numbers.insert_bits)),
    "mov": Row("T", "", _plain(lambda x: x)),
    "cvta": Row("T", "to global", _plain(lambda x: x)),
    "selp": Row("TTp", "", _plain(_select)),
    "setp": Row("TTP", " ".join((*_OF_INTEGERS, *_OF_FLOATS, *_COMBINED, "ftz")), _compare),
    "cvt": Row("S", "ftz sat " + " ".join(numbers.ROUNDINGS), _cvt),
})  # fmt: skip


def arithmetic(program: Program, instruction: Instruction) -> Step:
    """The step of an instruction of the table."""
    row = TABLE[instruction.opcode]
    form = Form(kinds_of(instruction), words_of(instruction))
    unknown = set(form.words) - set(row.words.split())
    if unknown or not form.kinds or (instruction.opcode == "cvta" and "to" not in form.words):
        raise UnknownInstruction(f"suffixes without a meaning here: {sorted(unknown)}")
    if instruction.opcode == "mov" and any(isinstance(o, Group) for o in instruction.operands):
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


def _step(write: Any, function: Function, reads: list) -> Step:
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


def _pack(program: Program, instruction: Instruction, form: Form) -> Step:
    """mov between a register and the registers that hold its parts, the lowest bits first."""
    result, source = instruction.operands
    parts = max(len(parts_of(result)), len(parts_of(source)))
    part = np.dtype(f"u{form.dtype.itemsize // parts}")
    whole = np.dtype(f"u{form.dtype.itemsize}")
    if isinstance(result, Group):
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
