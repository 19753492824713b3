"""The lanes of a few blocks: their registers, which lanes are active, and how operands are read.

`Lanes` holds the state of the given blocks of a program, and functions read an operand or write a
result. A register is one vector over all lanes, never changed in place; a value that is the same
for all lanes is a vector of length one, which NumPy broadcasts. A register has no type, only a
width: each instruction reads its bits as its own type. Read next: `ptx_table.py`, `ptx_machine.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ooctrain.testing.emulator.ptx_faults import UnknownInstruction
from ooctrain.testing.emulator.ptx_memory import GlobalMemory, OwnMemory
from ooctrain.testing.emulator.ptx_races import WARP, Who
from ooctrain.testing.emulator.ptx_text import (
    WIDTH_BYTES,
    Instruction,
    Number,
    Operand,
    PtxProgram,
    Register,
    Several,
    Symbol,
)

_KINDS = {"u": "u", "s": "i", "f": "f", "b": "u", "t": "u"}
#: {PTX's type: NumPy's}
DTYPES = {
    name: np.dtype("?" if name == "pred" else f"{_KINDS[name[0]]}{width}")
    for name, width in WIDTH_BYTES.items()
    if name != "bf16"
}
Extent = tuple[int, int, int]
Read = Callable[["Lanes"], np.ndarray]
Write = Callable[["Lanes", np.ndarray], None]
Step = Callable[["Lanes"], None]


@dataclass(frozen=True, slots=True)
class PtxLaunch:
    """What a kernel is started with.

    Args:
        grid: blocks along x, y, z.
        block: threads of a block along x, y, z.
        shared_bytes: dynamic shared memory of a block, besides what the program declares.
        parameters: the block of parameters.
        memory: global memory.
    """

    grid: Extent
    block: Extent
    shared_bytes: int
    parameters: bytes
    memory: GlobalMemory

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


class Lanes:
    """All threads of a few blocks.

    Args:
        program: that they run.
        launch: that they belong to.
        first, count: numbers of the blocks.
    """

    def __init__(self, program: PtxProgram, launch: PtxLaunch, first: int, count: int):
        self.launch, self.threads = launch, launch.threads
        self.size = count * self.threads
        self.row = np.repeat(np.arange(count), self.threads)
        self.specials = _specials(launch.grid, launch.block, first, count)
        self.registers: dict[str, np.ndarray] = {}
        by_space = {s: [v for v in program.variables if v.space == s] for s in ("shared", "local")}
        self.shared = OwnMemory("shared", by_space["shared"], launch.shared_bytes, count)
        self.local = OwnMemory("local", by_space["local"], 0, self.size)
        self.copies: list = []  # asynchronous ones, not yet waited for (ptx_access.OpenCopies)
        self.groups = np.zeros(self.size, np.int64)
        stride = -(-self.threads // WARP) * WARP
        numbers = (first + np.arange(count))[:, None] * stride + np.arange(self.threads)
        self._everyone = Who(
            numbers.reshape(-1),
            np.zeros(self.size, np.int64),
            np.zeros(self.size, np.int64),
            stride,
        )
        self.living = np.ones(self.size, bool)
        self.activate(self.living)

    def activate(self, mask: np.ndarray) -> None:
        """From now on only these lanes are at work."""
        self.mask = mask
        self.full = bool(mask.all())
        self._at_work: np.ndarray | None = None
        self._who: Who | None = None

    @property
    def at_work(self) -> np.ndarray:
        """Numbers of the lanes at work."""
        if self._at_work is None:
            self._at_work = np.flatnonzero(self.mask)
        return self._at_work

    @property
    def who(self) -> Who:
        """The threads at work."""
        if self._who is None:
            self._who = self._everyone if self.full else self._everyone[self.at_work]
        return self._who

    def who_of(self, lanes: np.ndarray) -> Who:
        """The threads of some lanes, by their numbers here."""
        return self._everyone[lanes]

    def pass_barrier(self, *, warp: bool) -> None:
        """The lanes at work have all been at a barrier of their warp, or of their block."""
        column = self._everyone.warp_interval if warp else self._everyone.interval
        column[self.at_work] += 1
        self._who = None

    def spread(self, value: np.ndarray) -> np.ndarray:
        """A value for each lane."""
        return value if len(value) == self.size else np.broadcast_to(value, self.size)

    def of_active(self, value: np.ndarray) -> np.ndarray:
        """A value for each lane at work."""
        return self.spread(value) if self.full else self.spread(value)[self.at_work]

    def from_active(self, values: np.ndarray) -> np.ndarray:
        """The reverse: for all lanes, with anything for those that rest."""
        if self.full:
            return values
        whole = np.zeros(self.size, values.dtype)
        whole[self.at_work] = values
        return whole

    @cached_property
    def lane_of_warp(self) -> np.ndarray:
        """Each lane's number in its warp."""
        return np.arange(self.size) % self.threads % WARP


def _specials(grid: Extent, block: Extent, first: int, count: int) -> dict[str, np.ndarray]:
    threads = np.arange(block[0] * block[1] * block[2])
    blocks = first + np.arange(count)
    found = {"%laneid": np.tile(threads % WARP, count), "%warpid": np.tile(threads // WARP, count)}
    for axis, (name, below) in enumerate(
        zip("xyz", (1, block[0], block[0] * block[1]), strict=True)
    ):
        found[f"%tid.{name}"] = np.tile(threads // below % block[axis], count)
        found[f"%ntid.{name}"] = np.array([block[axis]])
    for axis, (name, below) in enumerate(zip("xyz", (1, grid[0], grid[0] * grid[1]), strict=True)):
        places = blocks // below % grid[axis]
        found[f"%ctaid.{name}"] = places if count == 1 else np.repeat(places, len(threads))
        found[f"%nctaid.{name}"] = np.array([grid[axis]])
    return {name: value.astype(np.uint32) for name, value in found.items()}


SPECIALS = frozenset(_specials((1, 1, 1), (1, 1, 1), 0, 1))


# Operands


def reader(program: PtxProgram, operand: Operand, kind: np.dtype) -> Read:
    """The function that reads an operand as a type."""
    if isinstance(operand, Number):
        return _constant(_number(operand, kind))
    if isinstance(operand, Symbol):
        return lambda lanes: np.array([_address(lanes, operand.name)]).astype(kind)
    if not isinstance(operand, Register):
        raise UnknownInstruction(f"an operand that is no number: {operand}")
    if operand.name in SPECIALS:
        return lambda lanes: lanes.specials[operand.name].astype(kind, copy=False)
    name, width = operand.name, _width(program, operand.name)
    unwritten = np.full(width, 0xFF, np.uint8).view(f"u{width}")
    if operand.negated:
        return lambda lanes: ~lanes.registers[name]
    if width == kind.itemsize:
        return _same_width(name, kind, unwritten)
    narrow = np.dtype(f"u{kind.itemsize}")
    bits = np.dtype(f"u{width}")
    return lambda lanes: lanes.registers.get(name, unwritten).view(bits).astype(narrow).view(kind)


def _same_width(name: str, kind: np.dtype, unwritten: np.ndarray) -> Read:
    def read(lanes: Lanes) -> np.ndarray:
        value = lanes.registers.get(name, unwritten)
        return value if value.dtype is kind else value.view(kind)

    return read


def _constant(value: np.ndarray) -> Read:
    return lambda lanes: value


def _number(number: Number, kind: np.dtype) -> np.ndarray:
    """A constant as an array of length one."""
    if kind == np.bool_:
        return np.array([bool(number.bits)])
    bits = number.bits & ((1 << 8 * kind.itemsize) - 1)
    return np.array([bits], f"u{kind.itemsize}").view(kind)


def _address(lanes: Lanes, name: str) -> int:
    for memory in (lanes.shared, lanes.local):
        if name in memory.offsets:
            return memory.offsets[name]
    raise UnknownInstruction(f"the address of {name}, which is neither shared nor local")


def _width(program: PtxProgram, name: str) -> int:
    width = program.width_bytes(name)
    if not width:
        raise UnknownInstruction(f"a register that is not declared: {name}")
    return width


def writer(program: PtxProgram, operand: Operand) -> Write:
    """The function that writes a result into a register, for the lanes at work."""
    if not isinstance(operand, Register):
        raise UnknownInstruction(f"a result that is no register: {operand}")
    name = operand.name
    if name == "_":
        return lambda lanes, value: None
    width = _width(program, name)
    unwritten = np.full(width, 0xFF, np.uint8).view(f"u{width}")

    def write(lanes: Lanes, value: np.ndarray) -> None:
        if value.itemsize != width:  # ld and cvt fill a wider register
            value = value.astype(f"{value.dtype.kind}{width}")
        if not lanes.full:
            old = lanes.registers.get(name, unwritten)
            value = np.where(lanes.mask, value, old.view(value.dtype))
        lanes.registers[name] = value

    return write


def parts_of(operand: Operand) -> tuple[Operand, ...]:
    """The members of a group; of anything else itself alone."""
    return operand.parts if isinstance(operand, Several) else (operand,)


def kinds_of(instruction: Instruction) -> tuple[str, ...]:
    """Those suffixes of an instruction that are types."""
    return tuple(word for word in instruction.suffixes if word in WIDTH_BYTES)


def words_of(instruction: Instruction) -> tuple[str, ...]:
    """Those suffixes of an instruction that are no types."""
    return tuple(word for word in instruction.suffixes if word not in WIDTH_BYTES)
