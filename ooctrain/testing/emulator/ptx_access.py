"""Instructions that access memory: ld, st, asynchronous copies, ldmatrix.

Each instruction becomes a `Step`, which takes the addresses of the active lanes and passes them to
the memory of its space, which checks them. A copy begun by cp.async puts its bytes in place at
once, but its words stay unreadable until the thread that asked for it has waited; only then do they
count as that thread's writes, and other threads still need a barrier. Source: PTX ISA, "ld", "st",
"cp.async", "ldmatrix". Read next: `ptx_memory.py`, `ptx_warp.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooctrain.testing.emulator.ptx_faults import UnknownInstruction
from ooctrain.testing.emulator.ptx_lanes import (
    DTYPES,
    Lanes,
    Read,
    Step,
    kinds_of,
    parts_of,
    reader,
    words_of,
    writer,
)
from ooctrain.testing.emulator.ptx_memory import PENDING, WRITTEN
from ooctrain.testing.emulator.ptx_races import WARP
from ooctrain.testing.emulator.ptx_text import (
    Address,
    Instruction,
    Operand,
    PtxProgram,
    Register,
    Symbol,
)
from ooctrain.testing.emulator.ptx_warp import require_whole_warps

ADDRESS, COPIED_BYTES = np.dtype("i8"), 16
WORD, LONG = np.dtype("u4"), np.dtype("u8")
SPACES = ("global", "shared", "local", "param")
#: suffixes that say how to cache, which has no meaning here
HINTS = ("nc", "ca", "cg", "cs", "volatile", "weak", "v2", "v4", "cta", "L1::evict_last")


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
