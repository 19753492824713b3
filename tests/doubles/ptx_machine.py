"""Runs a kernel's compiled form, its PTX, where there is no GPU, and tolerates no fault.

A launch changes the memory as the kernel does, or ends in a `PtxFault` that names kernel, line of
PTX, block and thread. All threads of a block are one NumPy vector, and an instruction is one
function over it. Lanes that diverge at a branch wait for each other where the ways meet: a stack of
masks, as in the hardware. So the interpreter sees details that the Python source does not show:
widths of indices, register layouts, inline PTX, as the compiler wrote them. Time, caches, and the
choice among the permitted results of an approximate instruction are not modelled. Two things start
it: `PtxLauncher`, for kernels of the library on NumPy arrays, `LaunchRunner`, for the launches of a
stub of CUDA's driver. Source: PTX ISA;
Fung et al., "Dynamic Warp Formation and Scheduling for Efficient GPU Control Flow" (2007), section
2.3. Read next: `ptx_text.py`, `ptx_numbers.py`, `ptx_lanes.py`, `ptx_memory.py`;
`tests/zoo/ptx_bugs.py` for the bugs that it catches.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from doubles.ptx_lanes import (
    Extent,
    Lanes,
    PtxLaunch,
    Read,
    Step,
    barrier,
    copy,
    load,
    load_matrices,
    multiply,
    reader,
    shuffle,
    store,
)
from doubles.ptx_memory import (
    NOBODY,
    Endless,
    GlobalMemory,
    MemoryRange,
    Misaligned,
    OutOfBounds,
    PtxFault,
    UnknownInstruction,
)
from doubles.ptx_numbers import TABLE, arithmetic
from doubles.ptx_text import (
    CodeBlock,
    Flow,
    Instruction,
    PtxProgram,
    entries,
    find_flow,
    read_program,
    readable,
)
from support.ptx_facts import read_ptx

from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.layers.kernels.cuda.runtime.launcher import Blocks, part_of, prepare_arguments
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel
from ooctrain.testing.emulator import flat

Decode = Callable[[PtxProgram, Instruction], Step]
#: How the threads of some blocks are put into one vector, so that NumPy has something to do.
LANES_AT_ONCE = 2048
MOST_PIECES = 1_000_000
BOOL = np.dtype("?")
#: every opcode but those that end a piece (`ptx_text.ENDS`)
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


# Kernels of the library. Numba gives a kernel one parameter for each number and seven for each
# array (owner, parent, number of elements, bytes of one element, address, length, stride), and the
# text says where each lies. The address is the array's own, in this process.

Edit = Callable[[Kernel, str], str]
HOPPER: Capability = (9, 0)


class PtxLauncher:
    """`Launcher` on NumPy arrays, by the PTX of a compute capability; each launch runs at once.

    Args:
        capability: that kernels are compiled for.
        edit: changes a kernel's text before it runs, to see what notices.
        last_blocks: how many blocks to run, counted from the end; None: all.
        watched: look for races in global memory too.
    """

    def __init__(
        self, capability: Capability = HOPPER, edit: Edit | None = None,
        last_blocks: int | None = None, watched: bool = True,
    ):  # fmt: skip
        self._capability, self._edit = capability, edit
        self._last_blocks, self._watched = last_blocks, watched

    def launch(self, kernel: Kernel, blocks: Blocks, *args: Any) -> None:
        text = read_ptx(kernel, self._capability).text
        text = self._edit(kernel, text) if self._edit else text
        given = prepare_arguments(kernel, args, flat)
        (entry,) = entries(text)
        ready = self.ready(text, entry)
        arrays = [value for value in given if isinstance(value, np.ndarray)]
        x, y, z = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
        launch = PtxLaunch(
            (x, y, z), (kernel.threads, 1, 1), 0, pack(ready.program.parameters, given),
            GlobalMemory.of_arrays(arrays, self._watched),
        )  # fmt: skip
        run_blocks(ready, launch, self.chosen(launch.blocks))

    def ready(self, text: str, entry: str) -> Ready:
        """A program as it is to be run."""
        return prepare(text, entry)

    def chosen(self, blocks: int) -> range:
        """Which blocks of a launch are run."""
        first = 0 if self._last_blocks is None else max(0, blocks - self._last_blocks)
        return range(first, blocks)

    def part(self, workspace: Any, offset_bytes: int, count: int, dtype: str) -> Any:
        return part_of(workspace, offset_bytes, count, dtype)


def pack(parameters: dict[str, tuple[int, int]], values: list[Any]) -> bytes:
    """The block of parameters for arrays and numbers, each where the text wants it."""
    packed = bytearray(max((offset + size for offset, size in parameters.values()), default=0))
    numbers = [number for value in values for number in _flattened(value)]
    for (offset, size), number in zip(parameters.values(), numbers, strict=True):
        assert number.nbytes == size, (offset, size, number)
        packed[offset : offset + size] = number.tobytes()
    return bytes(packed)


def _flattened(value: Any) -> Iterator[Any]:
    """The parameters that one argument becomes."""
    if isinstance(value, tuple):
        for each in value:
            yield from _flattened(each)
    elif isinstance(value, np.ndarray):
        length, size = value.size, value.itemsize
        yield from np.array([0, 0, length, size, value.ctypes.data, length, size], np.int64)
    else:
        yield value


# Launches of a stub driver, as a driver receives them: a kernel's name, the loaded image, grid and
# block, and the packed arguments, with all addresses in this process. A cubin cannot be
# interpreted, so the code that compiles keeps the PTX (`Texts`); an image that is itself PTX needs
# no such record.

Hole = Callable[[int, int], int]
PAGE_BYTES, MOST_BYTES = 1 << 12, 1 << 40
#: {fault: the number that CUDA gives a launch that ends so}; what it does not notice: 719
STATUS: Mapping[type[OoctrainError], int] = MappingProxyType({
    OutOfBounds: 700, Misaligned: 716, UnknownInstruction: 715, Endless: 702,
})  # fmt: skip
LAUNCH_FAILED, NO_TEXT = 719, 209
_ELF = b"\x7fELF"


class Texts:
    """PTX by the names of its entries, as it is compiled, or by the machine code made of it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._images: dict[bytes, str] = {}

    def keep(self, text: str) -> str:
        """Keeps a module's text for its entries; returns it."""
        self._texts |= dict.fromkeys(entries(text), text)
        return text

    def keep_compiled(self, dispatcher: Any) -> None:
        """Keeps what one of Numba's dispatchers (`shim.compiled`) was compiled to."""
        for text in dispatcher.inspect_asm().values():
            self.keep(text)

    def keep_for(self, image: bytes, entry: str, text: str) -> None:
        """Keeps the text of machine code whose kernel has a name of its own: what another process
        has made may have equal names for other kernels."""
        (named,) = entries(text)
        self._images[image] = re.sub(rf"{re.escape(named)}\b", entry, text)

    def of(self, name: str, image: bytes) -> str | None:
        """The text with an entry: the image itself if it is PTX, else what was kept."""
        if not image.startswith(_ELF):
            text = image.split(b"\0")[0].decode()
            if re.search(rf"\.entry\s+{re.escape(name)}\b", text):
                return text
        return self._images.get(image) or self._texts.get(name)


class LaunchRunner:
    """Runs launches one after the other, as the function that a stub driver calls for each.

    Args:
        texts: of the kernels.
        hole: the first address of a range that a kernel may not touch; 0: it may touch all.
    """

    def __init__(self, texts: Texts, hole: Hole):
        self._texts, self._hole = texts, hole
        self.faults: list[OoctrainError] = []
        self.launches = 0

    def __call__(
        self, name: bytes, image: int, image_bytes: int, grid: Any, block: Any, shared_bytes: int,
        arguments: int,
    ) -> int:  # fmt: skip
        """Runs one launch; `grid` and `block` are pointers to three numbers."""
        text = self._texts.of(name.decode(), ctypes.string_at(image, image_bytes))
        if text is None:
            self.faults.append(
                OoctrainError("the PTX of this module was not kept", where=name.decode())
            )
            return NO_TEXT
        x, y, z = grid.contents
        threads_x, threads_y, threads_z = block.contents
        memory = GlobalMemory([], look_up=self._look_up)
        try:
            size = read_program(text, name.decode()).parameter_bytes
            parameters = ctypes.string_at(arguments, size) if size else b""
            threads = (threads_x, threads_y, threads_z)
            launch = PtxLaunch((x, y, z), threads, shared_bytes, parameters, memory)
            run(text, name.decode(), launch)
        except OoctrainError as fault:
            self.faults.append(fault)
            return STATUS.get(type(fault), LAUNCH_FAILED)
        self.launches += 1
        return 0

    def _look_up(self, address: int) -> MemoryRange | None:
        """All from the address's page on that a kernel may touch."""
        start = address // PAGE_BYTES * PAGE_BYTES
        if self._hole(start, address + 1 - start):
            start = address
            if self._hole(start, 1):
                return None
        end = self._hole(start, MOST_BYTES) or start + MOST_BYTES
        return MemoryRange(start, end - start)
