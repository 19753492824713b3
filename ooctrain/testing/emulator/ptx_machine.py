"""Runs a kernel's compiled form, its PTX, where there is no GPU, and tolerates no fault.

A launch changes the memory as the kernel does, or ends in a `PtxFault` that names kernel, line of
PTX, block and thread. All threads of a block are one NumPy vector, and an instruction is one
function over it. Lanes that diverge at a branch wait for each other where the ways meet: a stack of
masks, as in the hardware. So the interpreter sees details that the Python source does not show:
widths of indices, register layouts, inline PTX, as the compiler wrote them. Time, caches, and the
choice among the permitted results of an approximate instruction are not modelled. Source: PTX ISA;
Fung et al., "Dynamic Warp Formation and Scheduling for Efficient GPU Control Flow" (2007), section
2.3. Read next: `ptx_text.py`, `ptx_flow.py`, `ptx_table.py`, `ptx_warp.py`, `ptx_memory.py`;
`tests/zoo/ptx_bugs.py` for the bugs that it catches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.testing.emulator.ptx_access import copy, load, load_matrices, store
from ooctrain.testing.emulator.ptx_faults import NOBODY, Endless, PtxFault, UnknownInstruction
from ooctrain.testing.emulator.ptx_flow import CodeBlock, Flow, find_flow
from ooctrain.testing.emulator.ptx_lanes import Extent, Lanes, PtxLaunch, Read, Step, reader
from ooctrain.testing.emulator.ptx_table import TABLE, arithmetic
from ooctrain.testing.emulator.ptx_text import Instruction, PtxProgram, read_program, readable
from ooctrain.testing.emulator.ptx_warp import barrier, multiply, shuffle

Decode = Callable[[PtxProgram, Instruction], Step]
#: How the threads of some blocks are put into one vector, so that NumPy has something to do.
LANES_AT_ONCE = 2048
MOST_PIECES = 1_000_000
BOOL = np.dtype("?")
#: every opcode but those that end a piece (`ptx_flow.ENDS`)
OPCODES: dict[str, Decode] = {
    **dict.fromkeys(TABLE, arithmetic),
    "ld": load, "st": store, "cp": copy, "ldmatrix": load_matrices,
    "bar": barrier, "shfl": shuffle, "mma": multiply,
}  # fmt: skip


def run(ptx_text: str, kernel_name: str, launch: PtxLaunch) -> None:
    """Runs one launch to its end.

    Args:
        ptx_text: a module.
        kernel_name: an entry of it.
        launch: its parameters lie where `read_program(...).parameters` says, and hold addresses
            of its memory.

    Raises:
        PtxFault: the kernel does what a GPU leaves undefined, or what is not known here.
    """
    run_blocks(prepare(ptx_text, kernel_name), launch, range(launch.blocks))


def run_blocks(ready: Ready, launch: PtxLaunch, numbers: range) -> None:
    """Runs some blocks of a launch, by their numbers: x runs fastest, then y."""
    missing = ready.program.parameter_bytes - len(launch.parameters)
    if missing > 0:
        name, has = readable(ready.program.name), len(launch.parameters)
        raise ConfigError(f"{name} takes {has + missing} bytes of parameters, got {has}")
    launch.memory.begin_launch()
    at_once = max(1, LANES_AT_ONCE // launch.threads)
    with np.errstate(all="ignore"):
        for first in numbers[::at_once]:
            count = min(at_once, numbers.stop - first)
            _Run(ready, Lanes(ready.program, launch, first, count)).to_the_end()


@dataclass(frozen=True, slots=True)
class Ready:
    """A program whose instructions are functions.

    Args:
        steps: of each piece, with the instruction that each is.
        guards: of each piece, the lanes that jump at its end; None: all.
    """

    program: PtxProgram
    flow: Flow
    steps: tuple[tuple[tuple[Step, Instruction], ...], ...]
    guards: tuple[Read | None, ...]


@cache
def prepare(ptx_text: str, kernel_name: str) -> Ready:
    """Reads a kernel and looks up each instruction.

    Raises:
        UnknownInstruction: one is not in the table.
    """
    program = read_program(ptx_text, kernel_name)
    flow = find_flow(program)
    steps = tuple(
        tuple((_decode(program, each), each) for each in piece.body) for piece in flow.pieces
    )
    guards = tuple(
        reader(program, piece.guard, BOOL) if piece.guard else None for piece in flow.pieces
    )
    return Ready(program, flow, steps, guards)


def _decode(program: PtxProgram, instruction: Instruction) -> Step:
    try:
        if instruction.opcode not in OPCODES:
            raise UnknownInstruction(f"no instruction {instruction.opcode!r} is known here")
        step = OPCODES[instruction.opcode](program, instruction)
    except PtxFault as fault:
        fault.where = f"{readable(program.name)}, line {instruction.line}: {instruction.text}"
        raise
    if instruction.guard is None:
        return step
    return _guarded(step, reader(program, instruction.guard, BOOL))


def _guarded(step: Step, guard: Read) -> Step:
    """The step for those lanes at work whose predicate holds."""

    def run_some(lanes: Lanes) -> None:
        before = lanes.mask
        chosen = before & guard(lanes)
        if chosen.any():
            lanes.activate(chosen)
            step(lanes)
            lanes.activate(before)

    return run_some


@dataclass(slots=True)
class _Path:
    """Lanes on the way from a piece to the one where they meet others."""

    at: int
    until: int
    mask: np.ndarray


class _Run:
    """Some blocks from their first instruction to their last."""

    def __init__(self, ready: Ready, lanes: Lanes):
        self._ready, self._lanes = ready, lanes

    def to_the_end(self) -> None:
        """Runs the newest path up to where it meets the one below it, until none is left."""
        flow, lanes = self._ready.flow, self._lanes
        paths = [_Path(0, flow.end, lanes.living)]
        for _ in range(MOST_PIECES):
            if not paths:
                return
            path = paths[-1]
            mask = path.mask & lanes.living
            if path.at == path.until or not mask.any():
                paths.pop()
                continue
            lanes.activate(mask)
            self._run_steps(path.at)
            self._turn(path, paths)
        raise Endless(f"{readable(self._ready.program.name)} does not end")

    def _run_steps(self, number: int) -> None:
        instruction = None
        try:
            for step, instruction in self._ready.steps[number]:  # noqa: B007
                step(self._lanes)
        except PtxFault as fault:
            self._locate(fault, instruction)
            raise

    def _turn(self, path: _Path, paths: list[_Path]) -> None:
        """Moves the path on; where its lanes want to go two ways, each gets a path of its own."""
        piece = self._ready.flow.pieces[path.at]
        lanes = self._lanes
        taken = self._taken(path.at, piece)
        stay = lanes.mask & ~taken
        if piece.target == self._ready.flow.end:
            lanes.living = lanes.living & ~taken
            path.at = piece.following
        elif not taken.any():
            path.at = piece.following
        elif not stay.any():
            assert piece.target is not None
            path.at = piece.target
        else:
            assert piece.target is not None
            meeting = self._ready.flow.meets[path.at]
            path.at = meeting
            if meeting == path.until:
                paths.pop()
            paths.append(_Path(piece.following, meeting, stay))
            paths.append(_Path(piece.target, meeting, taken))

    def _taken(self, number: int, piece: CodeBlock) -> np.ndarray:
        """The lanes that jump."""
        lanes, guard = self._lanes, self._ready.guards[number]
        if piece.target is None:
            return np.zeros(lanes.size, bool)
        return lanes.mask if guard is None else lanes.mask & guard(lanes)

    def _locate(self, fault: PtxFault, instruction: Instruction | None) -> None:
        """Says where it was."""
        where = [readable(self._ready.program.name)]
        if instruction is not None:
            where.append(f"line {instruction.line}: {instruction.text}")
        if fault.thread != NOBODY:
            launch = self._lanes.launch
            number, thread = divmod(fault.thread, self._lanes.who.stride)
            place, lane = _place(number, launch.grid), _place(thread, launch.block)
            where.append(f"block {place}, thread {lane}")
        fault.where = ", ".join(where)


def _place(number: int, extent: Extent) -> tuple[int, int, int]:
    x, y = extent[:2]
    return number % x, number // x % y, number // (x * y)
