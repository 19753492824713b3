"""The arithmetic of PTX as one table: opcode -> a NumPy function over the lanes of a block.

An instruction becomes a `Step` that runs it. A line of the table gives the types of the sources,
the suffixes that have a meaning here, and how the function is made from them; reading registers and
writing those of the active lanes is the same for all. An opcode that is not in the table is an
error, and so is a suffix that its line does not name. Source: PTX ISA, "Instruction Set".
Read next: `ptx_suffixes.py`, `ptx_numbers.py`; `ptx_warp.py` and `ptx_access.py` for the
instructions that access memory or other lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ooctrain.testing.emulator import ptx_numbers as numbers
from ooctrain.testing.emulator import ptx_suffixes as by
from ooctrain.testing.emulator.ptx_faults import UnknownInstruction
from ooctrain.testing.emulator.ptx_lanes import (
    DTYPES,
    Lanes,
    Read,
    Step,
    Write,
    kinds_of,
    parts_of,
    reader,
    words_of,
    writer,
)
from ooctrain.testing.emulator.ptx_suffixes import Form, Function
from ooctrain.testing.emulator.ptx_text import Instruction, PtxProgram, Several


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
_COMPARISONS = " ".join((*by.OF_INTEGERS, *by.OF_FLOATS, *by.COMBINED, "ftz"))
TABLE: Mapping[str, Opcode] = MappingProxyType({
    "add": Opcode("TT", "rz " + _ROUNDED, by.add),
    "sub": Opcode("TT", _ROUNDED, by.either(np.subtract, np.subtract)),
    "mul": Opcode("TT", "lo hi wide " + _ROUNDED, by.mul),
    "mad": Opcode("TTM", "lo hi wide", by.mad),
    "fma": Opcode("TTT", "rn rm rp rz ftz", by.fma),
    "div": Opcode("TT", _LOOSE, by.either(np.divide, numbers.quotient)),
    "rem": Opcode("TT", "", by.plain(numbers.remainder)),
    "neg": Opcode("T", "ftz", by.either(np.negative, np.negative)),
    "abs": Opcode("T", "ftz", by.either(np.abs, np.abs)),
    "min": Opcode("TT", "NaN ftz", by.smaller),
    "max": Opcode("TT", "NaN ftz", by.larger),
    "copysign": Opcode("TT", "", by.plain(lambda a, b: np.copysign(b, a))),
    "sqrt": Opcode("T", _LOOSE, by.only_floats(lambda x: numbers.one_nan(np.sqrt(x)))),
    "rcp": Opcode("T", _LOOSE, by.only_floats(lambda x: numbers.one_nan(np.reciprocal(x)))),
    "rsqrt": Opcode("T", "approx ftz", by.approximate(lambda x: 1 / np.sqrt(x))),
    "ex2": Opcode("T", "approx ftz", by.approximate(np.exp2)),
    "lg2": Opcode("T", "approx ftz", by.approximate(np.log2)),
    "and": Opcode("TT", "", by.plain(np.bitwise_and)),
    "or": Opcode("TT", "", by.plain(np.bitwise_or)),
    "xor": Opcode("TT", "", by.plain(np.bitwise_xor)),
    "not": Opcode("T", "", by.plain(np.invert)),
    "shl": Opcode("Tu", "", by.plain(numbers.shift_left)),
    "shr": Opcode("Tu", "", by.plain(numbers.shift_right)),
    "bfi": Opcode("TTuu", "", by.plain(numbers.insert_bits)),
    "mov": Opcode("T", "", by.plain(lambda x: x)),
    "cvta": Opcode("T", "to global", by.plain(lambda x: x)),
    "selp": Opcode("TTp", "", by.plain(by.select)),
    "setp": Opcode("TTP", _COMPARISONS, by.compare),
    "cvt": Opcode("S", "ftz sat " + " ".join(numbers.ROUNDINGS), by.cvt),
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
