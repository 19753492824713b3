"""From the suffixes of an arithmetic instruction to the function that it computes.

A `Form` holds the types and the other suffixes of an instruction; the result is a function of
arrays. The effect of `.ftz`, `.sat`, a rounding or a comparison is settled once, when an
instruction is looked up, so running it is one call. A suffix without a meaning here raises
`UnknownInstruction`. Read next: `ptx_table.py`, which assigns these functions to opcodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ooctrain.testing.emulator import ptx_numbers as numbers
from ooctrain.testing.emulator.ptx_faults import UnknownInstruction
from ooctrain.testing.emulator.ptx_lanes import DTYPES

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
        return _flushed(form, lambda *values: numbers.one_nan(of_floats(*values)))

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
    flush = numbers.flush
    return lambda *values: flush(function(*map(flush, values)))


def approximate(function: Callable) -> Callable[[Form], Function]:
    """A function that a GPU only approximates."""
    return only_floats(numbers.in_doubles(function))


def select(a: np.ndarray, b: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """selp: the first where the predicate holds."""
    return np.where(chosen, a, b)


_FMA: Mapping[str, Function] = MappingProxyType({
    "rn": numbers.fma32, "rm": numbers.fma32_towards(-np.inf),
    "rp": numbers.fma32_towards(np.inf), "rz": numbers.fma32_towards(0),
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
    return _flushed(form, numbers.sum_towards_zero)


_PRODUCTS: Mapping[str, Function] = MappingProxyType({
    "lo": np.multiply, "hi": numbers.high_product, "wide": numbers.wide_product,
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


def smaller(form: Form) -> Function:
    """min"""
    return _choice(form, np.minimum, numbers.smaller)


def larger(form: Form) -> Function:
    """max"""
    return _choice(form, np.maximum, numbers.larger)


def _choice(form: Form, of_integers: Function, of_floats: Function) -> Function:
    if not form.is_float:
        return of_integers
    return _flushed(form, numbers.or_nan(of_floats) if "NaN" in form.words else of_floats)


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


def cvt(form: Form) -> Function:
    """cvt: the conversion, with what `.sat` and `.ftz` add."""
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
