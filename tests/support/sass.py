"""The instructions that a GPU issues: the machine code of a kernel, read where there is no GPU.

For a `Kernel` and a compute capability, a `Loop` counts the instructions of each kind in the loop
where the kernel spends its time. A processor issues one instruction per cycle and scheduler, so the
share of multiply-adds in that loop bounds the share of the peak that is reached. PTX does not show
it, since addresses and predicates appear only in machine code. An instruction has 128 bits; the
lowest nine give its kind, whatever the form of its operands. A branch gives the distance of its
jump, and one that jumps back closes a loop. The formats are not published; they were compared with
NVIDIA's disassembler, `nvdisasm`, for the capabilities below. Needs nvJitLink, no driver.
Read next: `ptx_facts.py`, `layers/kernels/cuda/runtime/cubins.py`; `tests/unit/cuda/test_sass.py`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cuda.runtime.cubins import CubinStore
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel

ELF = b"\x7fELF"
INSTRUCTION_BYTES, KIND_BITS = 16, 9
#: the kinds that are counted, by their lowest bits; all others only add to the length
FFMA, HMMA, BRANCH, BARRIER, FILL = 0x023, 0x03C, 0x147, 0x11D, 0x118
LOAD, STORE = 0x181, 0x186  # of global memory
#: bytes of an access, by the number in its instruction
WIDTHS = (1, 1, 2, 2, 4, 8, 16)
LOWEST, HIGHEST, HOPPER = (7, 5), (9, 0), (9, 0)
_SECTION = struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of machine code.

    Args:
        kinds: of its instructions, how many there are of each.
    """

    kinds: Counter[int]

    @property
    def length(self) -> int:
        """All instructions, also those that are seldom reached."""
        return self.kinds.total()

    def share(self, kind: int) -> float:
        """The part of all instructions that is of a kind."""
        return self.kinds[kind] / self.length


def why_no_machine_code(kernel: Kernel, capability: Capability) -> str:
    """Why no machine code can be read; "" where it can."""
    image = CubinStore().get(kernel, capability).image
    return "" if image.startswith(ELF) else "nvJitLink is not here, so the driver would make it"


def hot_loop(kernel: Kernel, capability: Capability, kind: int) -> Loop:
    """The loop with most instructions of a kind; of several the shortest.

    Raises:
        ConfigError: there is none, or the capability's branches are not known.
    """
    if not LOWEST <= capability <= HIGHEST:
        raise ConfigError(f"the machine code of capability {capability} is not known")
    image = CubinStore().get(kernel, capability).image
    found = [
        _loop(code[start:end])
        for section in _sections(image, ".text.")
        for code in [list(struct.iter_unpack("<QQ", section))]
        for start, end in _loops(code, capability)
    ]
    best = max(found, key=lambda loop: (loop.kinds[kind], -loop.length), default=None)
    if best is None or not best.kinds[kind]:
        raise ConfigError(f"{kernel.name} has no loop with such an instruction", numbers=hex(kind))
    return best


def widths(kernel: Kernel, capability: Capability, kind: int) -> Counter[int]:
    """{bytes: how many loads or stores of this width from global memory a kernel's code has}.

    Args:
        kind: LOAD or STORE.
    """
    image = CubinStore().get(kernel, capability).image
    return Counter(
        WIDTHS[high >> 9 & 7]
        for section in _sections(image, ".text.")
        for low, high in struct.iter_unpack("<QQ", section)
        if low & (1 << KIND_BITS) - 1 == kind
    )


def code_length(kernel: Kernel, capability: Capability) -> int:
    """Instructions of a kernel's code, those left out that only fill it up."""
    image = CubinStore().get(kernel, capability).image
    return sum(
        low & (1 << KIND_BITS) - 1 != FILL
        for section in _sections(image, ".text.")
        for low, _ in struct.iter_unpack("<QQ", section)
    )


def _loop(code: list[tuple[int, int]]) -> Loop:
    return Loop(Counter(low & (1 << KIND_BITS) - 1 for low, _ in code))


def _loops(code: list[tuple[int, int]], capability: Capability) -> Iterator[tuple[int, int]]:
    """(first, past the last) instruction of each stretch that a branch closes."""
    for i, (low, high) in enumerate(code):
        if low & (1 << KIND_BITS) - 1 == BRANCH:
            words = _distance(low | high << 64, capability)
            target = i + 1 + words * 4 // INSTRUCTION_BYTES
            if target < i:  # a branch to itself only stops a thread that must not go on
                yield target, i + 1


def _distance(instruction: int, capability: Capability) -> int:
    """How far a branch jumps from the instruction behind it, in words of 32 bits.

    A signed number of 48 bits; Hopper has eight more below it, elsewhere in the instruction.
    """
    number = instruction >> 34 & (1 << 48) - 1
    number -= (number >> 47) << 48
    return number << 8 | instruction >> 16 & 0xFF if capability >= HOPPER else number


def _sections(image: bytes, start: str) -> Iterator[bytes]:
    """The sections of an ELF file whose names begin so: one for each function."""
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<HHH", image, 58)
    sections = [_SECTION.unpack_from(image, table + i * size) for i in range(count)]
    for name, _, _, _, offset, length, *_ in sections:
        at = sections[names][4] + name
        if image[at:].startswith(start.encode()):
            yield image[offset : offset + length]
