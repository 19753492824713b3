"""Instructions in which lanes cooperate: barriers, shuffles, matrix products.

Each instruction becomes a `Step`. The lanes of a warp are 32 neighbours in the vector, so an
exchange is an index, and a matrix that a warp holds together is its lanes' registers arranged in
rows and columns. Behaviour that PTX calls undefined (some lanes of a warp or a block are elsewhere)
is an error. Source: PTX ISA, "bar", "shfl.sync", "mma.m16n8k8". Read next: `ptx_access.py`,
`ptx_machine.py`.
"""

from __future__ import annotations

import numpy as np

from ooctrain.testing.emulator.ptx_faults import NotForAll, UnknownInstruction
from ooctrain.testing.emulator.ptx_lanes import Lanes, Step, parts_of, reader, writer
from ooctrain.testing.emulator.ptx_numbers import one_nan
from ooctrain.testing.emulator.ptx_races import WARP
from ooctrain.testing.emulator.ptx_text import Instruction, PtxProgram

WORD, FLOAT = np.dtype("u4"), np.dtype("f4")
ALL_LANES, TF32_BITS = 0xFFFFFFFF, 0xFFFFE000
MMA = ("sync", "aligned", "m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32")


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
    c = [reader(program, part, FLOAT) for part in parts_of(sources[2])]

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
        total = (sums + left @ right).astype(FLOAT)
        parts = total.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, 4)
        for i, write in enumerate(writes):
            write(lanes, lanes.from_active(one_nan(np.ascontiguousarray(parts[:, i]))))

    return step


def _as_tf32(bits: np.ndarray) -> np.ndarray:
    return (bits & WORD.type(TF32_BITS)).view(FLOAT).astype(np.float64)
