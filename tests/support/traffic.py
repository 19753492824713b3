"""The instructions of a memory-bound kernel for each byte that it moves, counted without a GPU.

The PTX interpreter runs launches and gives a `Traffic` for each kernel: bytes of one load or store
of global memory, and instructions per thread, counted as they run. A kernel runs at the speed of
memory if its instructions take less time than its bytes. A GPU issues one instruction per cycle and
scheduler, which limits the number of instructions per byte, and they can be counted without a GPU.
Some PTX instructions stand for several machine instructions (`COST`, counted in machine code with
`sass.py`); divisions of 64 bits have become divisions of 32 by then, since the compiler examines
the numbers. Read next: `doubles/ptx_machine.py`; docs/gpu.md, "Kernels bound by memory".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from doubles.ptx_lanes import Lanes
from doubles.ptx_machine import PtxLauncher, Ready, prepare
from doubles.ptx_text import Instruction, readable

from ooctrain.layers.kernels.cuda.runtime.launcher import Blocks
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel

#: Machine instructions that stand for one of PTX, by its opcode and type; all others are one.
COST = {
    "div u32": 18, "rem u32": 20, "div s64": 70, "rem s64": 70, "div u64": 70, "rem u64": 70,
    "div f32": 9, "sqrt f32": 8, "rcp f32": 6, "mul s64": 3, "mul u64": 3, "add s64": 2,
    "mad u64": 4, "mad s64": 4, "shr u64": 2, "shl b64": 2, "xor b64": 2, "neg f32": 0,
    "setp s64": 2, "setp u64": 2, "selp b64": 2, "sub s64": 2, "and b64": 2, "or b64": 2,
}  # fmt: skip
#: What costs none: registers get other names, parameters are operands of what uses them.
FREE = ("mov", "cvta")
#: Bits of a register: a number of 64 bits is two, and a shift by this many takes the upper one.
HALF = 32
_NUMBER = re.compile(r", (\d+);?$")
#: Instructions for a byte: 132 processors of 4 schedulers at 1.755 GHz, 32 lanes, 4.8 TB/s (H200).
ISSUED_PER_BYTE = 132 * 4 * 1.755e9 * 32 / 4.8e12
#: The part of its issue slots that a kernel may hope to use; latencies take the rest.
USED_SLOTS = 0.8

#: Blocks of a launch that are run; all have much the same to do.
MOST_BLOCKS = 8


@dataclass(slots=True)
class Traffic:
    """What a kernel does.

    Args:
        widths: {bytes of a load or store of global memory: how often a thread does one}.
        issued: machine instructions, over all threads.
    """

    widths: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    issued: float = 0.0

    @property
    def moved_bytes(self) -> float:
        """Bytes loaded and stored, those included that the cache has."""
        return sum(size * times for size, times in self.widths.items())

    @property
    def wide_share(self) -> float:
        """The part of these bytes that goes 16 at a time."""
        return self.widths[16] * 16 / max(1, self.moved_bytes)


def share_of_copy(per_byte: float) -> float:
    """The part of a copy's bandwidth that the instructions of each byte allow on an H200.

    Bytes and instructions travel side by side, so that the slower of both decides.
    """
    return min(1.0, USED_SLOTS * ISSUED_PER_BYTE / per_byte)


class CountingLauncher(PtxLauncher):
    """Counts what launches do, by their first blocks.

    Attributes:
        found: {kernel: what it does}.
    """

    def __init__(self) -> None:
        super().__init__(watched=False)
        self.found: dict[str, Traffic] = {}
        self._share = 1.0  # of the blocks that are run

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        count = blocks if isinstance(blocks, int) else prod(blocks)
        self._share = min(1.0, MOST_BLOCKS / count)
        super().launch(kernel, blocks, *args)

    def chosen(self, blocks: int) -> range:
        """The first blocks."""
        return range(min(blocks, MOST_BLOCKS))

    def ready(self, text: str, entry: str) -> Ready:
        """The program, whose steps count themselves."""
        made = prepare(text, entry)
        traffic = self.found.setdefault(readable(made.program.name), Traffic())
        steps = tuple(
            tuple((_counted(step, each, traffic, self._share), each) for step, each in piece)
            for piece in made.steps
        )
        return replace(made, steps=steps)


def _counted(
    step: Any, instruction: Instruction, traffic: Traffic, share: float
) -> Callable[[Lanes], None]:
    cost, width = cost_of(instruction), width_of(instruction)

    def run(lanes: Lanes) -> None:
        threads = float(lanes.mask.sum()) / share
        traffic.issued += cost * threads
        if width:
            traffic.widths[width] += threads
        step(lanes)

    return run


def cost_of(instruction: Instruction) -> int:
    """Machine instructions that stand for one of PTX, about."""
    opcode, suffixes = instruction.opcode, instruction.suffixes
    saturates = opcode == "cvt" and suffixes[0] == "sat"  # done by what makes the number
    if opcode in FREE or "param" in suffixes or saturates:
        return 0
    if (opcode, suffixes) == ("shr", ("u64",)) and (by := _NUMBER.search(instruction.text)):
        return 2 if int(by[1]) < HALF else int(int(by[1]) > HALF)
    return COST.get(" ".join((opcode, *suffixes[-1:])), 1)


def width_of(instruction: Instruction) -> int:
    """Bytes of global memory that an instruction loads or stores; 0: none."""
    suffixes = instruction.suffixes
    if instruction.opcode not in ("ld", "st") or "global" not in suffixes:
        return 0
    lanes = next((int(s[1:]) for s in suffixes if s[0] == "v" and s[1:].isdigit()), 1)
    return lanes * int(suffixes[-1][1:]) // 8
