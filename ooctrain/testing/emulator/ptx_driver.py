"""Runs the launches of a stub of CUDA's driver: true values behind the real path, without a GPU.

A launch comes as a driver receives it: a kernel's name, the loaded image, grid and block, and the
packed arguments, with all addresses in this process. The kernel changes the memory, and the result
is 0 or the number of the error that ends the launch, with the fault kept. A cubin cannot be
interpreted, so the code that compiles keeps the PTX (`Texts`); an image that is itself PTX needs no
such record. Read next: `ptx_machine.py`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ooctrain.errors import OoctrainError
from ooctrain.testing.emulator import ptx_faults as faults
from ooctrain.testing.emulator.ptx_lanes import PtxLaunch
from ooctrain.testing.emulator.ptx_machine import run
from ooctrain.testing.emulator.ptx_memory import GlobalMemory, MemoryRange
from ooctrain.testing.emulator.ptx_text import entries, read_program

Hole = Callable[[int, int], int]
PAGE_BYTES, MOST_BYTES = 1 << 12, 1 << 40
#: {fault: the number that CUDA gives a launch that ends so}; what it does not notice: 719
STATUS: Mapping[type[OoctrainError], int] = MappingProxyType({
    faults.OutOfBounds: 700, faults.Misaligned: 716, faults.UnknownInstruction: 715,
    faults.Endless: 702,
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
