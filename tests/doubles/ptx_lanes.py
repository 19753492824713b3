"""The lanes of a few blocks, as vectors of registers that instructions load, exchange, store.

`Lanes` holds the state of the given blocks of a program, and functions read an operand or write a
result. A register is one vector over all lanes, never changed in place; a value that is the same
for all lanes is a vector of length one, which NumPy broadcasts. A register has no type, only a
width: each instruction reads its bits as its own type. Instructions that are more than arithmetic
stand here, too: each becomes a `Step`. The lanes of a warp are 32 neighbours in the vector, so an
exchange is an index, and a matrix that a warp holds together is its lanes' registers arranged in
rows and columns. A copy begun by cp.async puts its bytes in place at once, but its words stay
unreadable until the thread that asked for it has waited; only then do they count as that thread's
writes, and other threads still need a barrier. Behaviour that PTX calls undefined is an error.
Source: PTX ISA, "bar", "shfl.sync", "mma.m16n8k8", "ld", "st", "cp.async", "ldmatrix". Read next:
`ptx_numbers.py`, `ptx_machine.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from doubles.ptx_memory import (
    PENDING,
    WARP,
    WRITTEN,
    GlobalMemory,
    NotForAll,
    OwnMemory,
    UnknownInstruction,
    Who,
)
from doubles.ptx_text import (
    WIDTH_BYTES,
    Address,
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
F32, WORD, ADDRESS = DTYPES["f32"], DTYPES["u32"], DTYPES["s64"]
#: the NaN that instructions on float32 give
NAN = np.uint32(0x7FFFFFFF).view(F32)
ALL_LANES, TF32_BITS = 0xFFFFFFFF, 0xFFFFE000
MMA = ("sync", "aligned", "m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32")
SPACES = ("global", "shared", "local", "param")
#: suffixes that say how to cache, which has no meaning here
HINTS = ("nc", "ca", "cg", "cs", "volatile", "weak", "v2", "v4", "cta", "L1::evict_last")
COPIED_BYTES = 16  # by one cp.async
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
        self.copies: list = []  # asynchronous ones, not yet waited for (`OpenCopies`)
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


def one_nan(result: np.ndarray) -> np.ndarray:
    """A result in which each NaN is the one that a GPU makes."""
    squares = result.dot(result)  # NaN if and only if there is one: one call instead of two
    return result if squares == squares else np.where(np.isnan(result), nan_of(result), result)


def nan_of(result: np.ndarray) -> np.floating:
    """The NaN of a result's type."""
    return NAN if result.dtype == F32 else result.dtype.type(np.nan)


# Lanes together: some lanes of a warp or a block elsewhere is an error.


def require_whole_warps(lanes: Lanes) -> None:
    """Raises NotForAll if a warp is only partly at work."""
    _require_whole(lanes, WARP, "an exchange within a warp is not reached by all of its lanes")


def _require_whole(lanes: Lanes, size: int, what: str) -> None:
    if lanes.threads % size:
        raise NotForAll(f"{what}: a block of {lanes.threads} threads")
    groups = lanes.mask.reshape(-1, size)
    torn = groups.any(axis=1) & ~groups.all(axis=1)
    if torn.any():
        missing = int(np.argmax(torn)) * size + int(np.argmin(groups[np.argmax(torn)]))
        raise NotForAll(what, thread=lanes.who_of(np.array([missing])).thread[0])


# Barriers


def barrier(program: PtxProgram, instruction: Instruction) -> Step:
    """bar.sync 0 of the block, bar.warp.sync of the warp"""
    if instruction.suffixes == ("warp", "sync"):
        mask = reader(program, instruction.operands[0], WORD)
        return lambda lanes: _warp_barrier(lanes, mask(lanes))
    if instruction.suffixes != ("sync",) or len(instruction.operands) != 1:
        raise UnknownInstruction("another barrier than one for the whole block")
    return _block_barrier


def _block_barrier(lanes: Lanes) -> None:
    _require_whole(lanes, lanes.threads, "a barrier is not reached by all threads of the block")
    lanes.pass_barrier(warp=False)


def _warp_barrier(lanes: Lanes, mask: np.ndarray) -> None:
    _require_all_in(mask)
    require_whole_warps(lanes)
    lanes.pass_barrier(warp=True)


def _require_all_in(mask: np.ndarray) -> None:
    if not (mask == ALL_LANES).all():
        raise UnknownInstruction("an exchange of some lanes of a warp")


# Shuffles


def shuffle(program: PtxProgram, instruction: Instruction) -> Step:
    """shfl.sync"""
    if instruction.suffixes[::2] != ("sync", "b32"):
        raise UnknownInstruction("another shuffle than shfl.sync of 32 bits")
    how = instruction.suffixes[1]
    result, value, other, limits, mask = instruction.operands
    writes = [writer(program, part) for part in parts_of(result)]
    reads = [reader(program, source, WORD) for source in (value, other, limits, mask)]

    def step(lanes: Lanes) -> None:
        values, others, limit, members = (read(lanes) for read in reads)
        _require_all_in(members)
        require_whole_warps(lanes)
        lane, inside = _partner(lanes, how, others.astype(np.int64), limit.astype(np.int64))
        first = np.arange(lanes.size) - lanes.lane_of_warp
        for write, found in zip(writes, (lanes.spread(values)[first + lane], inside), strict=False):
            write(lanes, found)

    return step


def _partner(
    lanes: Lanes, how: str, other: np.ndarray, limit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The lane of its warp whose value each lane gets, and whether that is the one asked for."""
    own, other, clamp, segment = lanes.lane_of_warp, other & 31, limit & 31, limit >> 8 & 31
    least = own & segment
    greatest = least | (clamp & ~segment)
    wanted = {
        "up": own - other, "down": own + other, "bfly": own ^ other,
        "idx": least | (other & ~segment),
    }[how]  # fmt: skip
    inside = wanted >= greatest if how == "up" else wanted <= greatest
    return np.where(inside, wanted, own), inside


# Products of matrices


def multiply(program: PtxProgram, instruction: Instruction) -> Step:
    """mma: c + a b of a warp's matrices of 16 x 8, 8 x 8 and 16 x 8.

    With g = lane // 4 and t = lane % 4 a lane holds a[g, t], a[g + 8, t], a[g, t + 4],
    a[g + 8, t + 4]; b[t, g], b[t + 4, g]; c[g, 2 t], c[g, 2 t + 1], c[g + 8, 2 t],
    c[g + 8, 2 t + 1]. Of a and b the bits that TF32 lacks are not looked at. PTX leaves open how
    the sum is rounded; here it is exact to float64, then rounded once.
    """
    if instruction.suffixes != MMA:
        raise UnknownInstruction("another product than mma.m16n8k8 of TF32")
    result, *sources = instruction.operands
    writes = [writer(program, part) for part in parts_of(result)]
    a, b = ([reader(program, part, WORD) for part in parts_of(s)] for s in sources[:2])
    c = [reader(program, part, F32) for part in parts_of(sources[2])]

    def step(lanes: Lanes) -> None:
        require_whole_warps(lanes)

        def held(reads: list) -> np.ndarray:
            """(warps, g, t, which) of the warps at work."""
            values = [lanes.of_active(read(lanes)) for read in reads]
            return np.stack(values, axis=1).reshape(-1, 8, 4, len(reads))

        left = _as_tf32(held(a)).reshape(-1, 8, 4, 2, 2)  # which = 2 (column // 4) + row // 8
        left = left.transpose(0, 4, 1, 3, 2).reshape(-1, 16, 8)
        right = _as_tf32(held(b)).transpose(0, 3, 2, 1).reshape(-1, 8, 8)
        sums = held(c).reshape(-1, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8)
        total = (sums + left @ right).astype(F32)
        parts = total.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, 4)
        for i, write in enumerate(writes):
            write(lanes, lanes.from_active(one_nan(np.ascontiguousarray(parts[:, i]))))

    return step


def _as_tf32(bits: np.ndarray) -> np.ndarray:
    return (bits & WORD.type(TF32_BITS)).view(F32).astype(np.float64)


# Lanes and memory: the memory of each space checks the addresses of the active lanes.


def load(program: PtxProgram, instruction: Instruction) -> Step:
    """ld"""
    space, kind = _space_and_kind(instruction)
    results = parts_of(instruction.operands[0])
    writes = [writer(program, result) for result in results]
    place = instruction.operands[1]
    if space == "param":
        return _load_parameter(program, place, kind, writes)
    address = place_reader(program, place)

    def step(lanes: Lanes) -> None:
        at = lanes.of_active(address(lanes))
        values = _load(lanes, space, at, kind, len(writes))
        for i, write in enumerate(writes):
            write(lanes, lanes.from_active(np.ascontiguousarray(values[:, i])))

    return step


def _load(lanes: Lanes, space: str, at: np.ndarray, kind: np.dtype, count: int) -> np.ndarray:
    if space == "global":
        return lanes.launch.memory.load(lanes.who, at, kind, count)
    if space == "shared":
        return lanes.shared.load(lanes.who, lanes.row[lanes.at_work], at, kind, count)
    return lanes.local.load(lanes.who, lanes.at_work, at, kind, count)


def _load_parameter(program: PtxProgram, place: Operand, kind: np.dtype, writes: list) -> Step:
    assert isinstance(place, Address)
    if not isinstance(place.base, Symbol) or place.base.name not in program.parameters:
        raise UnknownInstruction("a parameter that is not the kernel's")
    start = program.parameters[place.base.name][0] + place.offset_bytes

    def step(lanes: Lanes) -> None:
        values = np.frombuffer(lanes.launch.parameters, kind, len(writes), start)
        for i, write in enumerate(writes):
            write(lanes, values[i : i + 1])

    return step


def store(program: PtxProgram, instruction: Instruction) -> Step:
    """st"""
    space, kind = _space_and_kind(instruction)
    place, source = instruction.operands
    address = place_reader(program, place)
    reads = [reader(program, part, kind) for part in parts_of(source)]

    def step(lanes: Lanes) -> None:
        at = lanes.of_active(address(lanes))
        values = np.stack([lanes.of_active(read(lanes)) for read in reads], axis=1)
        if space == "global":
            lanes.launch.memory.store(lanes.who, at, values)
        elif space == "shared":
            lanes.shared.store(lanes.who, lanes.row[lanes.at_work], at, values)
        else:
            lanes.local.store(lanes.who, lanes.at_work, at, values)

    return step


def _space_and_kind(instruction: Instruction) -> tuple[str, np.dtype]:
    """The memory and the type of an access; generic addresses are those of global memory."""
    words = words_of(instruction)
    unknown = set(words) - set(SPACES) - set(HINTS)
    if unknown or len(kinds_of(instruction)) != 1:
        raise UnknownInstruction(f"suffixes without a meaning here: {sorted(unknown)}")
    space = next((word for word in words if word in SPACES), "global")
    if space == "param" and instruction.opcode == "st":
        raise UnknownInstruction("a store to a parameter")
    return space, DTYPES[kinds_of(instruction)[0]]


def place_reader(program: PtxProgram, place: Operand) -> Read:
    """The function that computes the addresses of [base + offset]."""
    if not isinstance(place, Address):
        raise UnknownInstruction(f"an address without brackets: {place}")
    base, offset = place.base, place.offset_bytes
    width = program.width_bytes(base.name) if isinstance(base, Register) else ADDRESS.itemsize
    read = reader(program, base, np.dtype(f"u{width}"))
    return lambda lanes: read(lanes).astype(ADDRESS) + offset


# Asynchronous copies


@dataclass(slots=True)
class OpenCopies:
    """Copies that were begun together: lanes, the words of each, the group that each is in."""

    lanes: np.ndarray
    words: np.ndarray
    groups: np.ndarray


def copy(program: PtxProgram, instruction: Instruction) -> Step:
    """cp.async and its commit_group, wait_group, wait_all"""
    words = instruction.suffixes
    if words == ("async", "commit_group"):
        return _commit
    if words == ("async", "wait_all"):
        return lambda lanes: _wait(lanes, None)
    if words == ("async", "wait_group"):
        pending = reader(program, instruction.operands[0], ADDRESS)
        return lambda lanes: _wait(lanes, int(pending(lanes)[0]))
    if words[:4] not in (("async", "cg", "shared", "global"), ("async", "ca", "shared", "global")):
        raise UnknownInstruction("another copy than cp.async from global to shared memory")
    target, source, size, *used = instruction.operands
    to, start = place_reader(program, target), place_reader(program, source)
    size_of = reader(program, size, ADDRESS)
    used_of = reader(program, used[0], ADDRESS) if used else size_of

    def step(lanes: Lanes) -> None:
        size_bytes = int(size_of(lanes)[0])
        if size_bytes != COPIED_BYTES:
            raise UnknownInstruction(f"cp.async of {size_bytes} bytes")
        at, used_bytes = lanes.of_active(start(lanes)), lanes.of_active(used_of(lanes))
        values = np.zeros((len(at), COPIED_BYTES // WORD.itemsize), WORD)
        whole = used_bytes == COPIED_BYTES
        if not (whole | (used_bytes == 0)).all():
            raise UnknownInstruction("cp.async of a part")
        if whole.any():
            values[whole] = lanes.launch.memory.load(
                lanes.who[whole], at[whole], WORD, values.shape[1]
            )
        active = lanes.at_work
        place = lanes.of_active(to(lanes))
        touched = lanes.shared.store(lanes.who, lanes.row[active], place, values, PENDING)
        lanes.copies.append(OpenCopies(active, touched, lanes.groups[active]))

    return step


def _commit(lanes: Lanes) -> None:
    lanes.groups[lanes.at_work] += 1


def _wait(lanes: Lanes, but: int | None) -> None:
    """Copies of the lanes at work are there, but for those of each lane's newest groups."""
    left = []
    for copies in lanes.copies:
        done = lanes.mask[copies.lanes]
        if but is not None:
            done = done & (copies.groups < lanes.groups[copies.lanes] - but)
        words = copies.words[done]
        if len(words):
            lanes.shared.states[words] = WRITTEN
            who = lanes.who_of(copies.lanes[done]).repeated(words.shape[1])
            lanes.shared.log.write(who, words.reshape(-1))
        if not done.all():
            left.append(OpenCopies(copies.lanes[~done], copies.words[~done], copies.groups[~done]))
    lanes.copies = left


# Matrices


def load_matrices(program: PtxProgram, instruction: Instruction) -> Step:
    """ldmatrix: lane l tells where row l % 8 of matrix l // 8 is, and gets word l % 4 of row l // 4
    of each matrix."""
    expected = ("sync", "aligned", "m8n8")
    if instruction.suffixes[:3] != expected or set(instruction.suffixes[3:]) - {
        "x1", "x2", "x4", "shared", "b16",
    }:  # fmt: skip
        raise UnknownInstruction("another ldmatrix than m8n8 without .trans")
    writes = [writer(program, part) for part in parts_of(instruction.operands[0])]
    address = place_reader(program, instruction.operands[1])
    count = len(writes)

    def step(lanes: Lanes) -> None:
        require_whole_warps(lanes)
        active = lanes.at_work
        asked = active[lanes.lane_of_warp[active] < 8 * count]  # those whose addresses count
        at = lanes.spread(address(lanes))[asked]
        rows = lanes.shared.load(lanes.who_of(asked), lanes.row[asked], at, WORD, 4)
        matrices = rows.reshape(-1, count, 8 * 4)  # of each warp; word 4 r + w is lane 4 r + w's
        for i, write in enumerate(writes):
            write(lanes, lanes.from_active(np.ascontiguousarray(matrices[:, i]).reshape(-1)))

    return step


assert WARP == 8 * 4
