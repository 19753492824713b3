"""The stub driver as Python sees it: options, ordered failures, counts, and launches with a runner.

The library has one state for the whole process, as CUDA's driver has. It is loaded here by its
path, so only code that asks for it uses it, and `reset` restores its initial state. Addresses are
plain ones of this process: a launch's arguments point to memory that NumPy can read
(`devices/raw_bytes.py`). Read next: `launches.c`, `gate.c`; `testing/emulator/`, which runs the
kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ooctrain.devices.cuda.driver import CudaDriver, open_cuda_driver
from ooctrain.testing.driver.stub.build import build_stub

Grid = tuple[int, int, int]

#: (name, address of the image, its bytes, grid, block, bytes of shared memory, address of the
#: packed arguments) -> 0, or the number of the error that the launch ends in. `grid` and `block`
#: are three unsigned ints; every address is one of this process.
OnLaunch = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint * 3), ctypes.POINTER(ctypes.c_uint * 3), ctypes.c_uint,
    ctypes.c_void_p,
)  # fmt: skip


class _Launch(ctypes.Structure):
    """`struct launch` of stub.h."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("image", ctypes.c_void_p), ("image_bytes", ctypes.c_size_t),
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("parameter_bytes", ctypes.c_size_t),
        ("parameters", ctypes.c_void_p),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeptLaunch:
    """A launch as the driver got it.

    Args:
        name: of the kernel in its image.
        grid, block: blocks, and threads of a block.
        shared_bytes: of dynamic shared memory.
        stream: its handle.
        arguments: packed as the kernel reads them.
    """

    name: str
    grid: Grid
    block: Grid
    shared_bytes: int
    stream: int
    arguments: bytes


class Stub:
    """The library, loaded in this process.

    Args:
        library: another one than `build_stub` makes.
        options: of `struct stub_options`: `total_bytes`, `late`, `capability` and others.
    """

    def __init__(self, library: Path | None = None, **options: int):
        self.library = ctypes.CDLL(str(library or build_stub()))
        self._declare()
        self._interpreter: Any = None
        self.reset(**options)

    def reset(self, **options: int) -> None:
        """As if it were loaded anew; a name that is not an option is an error."""
        self.library.stub_reset()
        for name, value in options.items():
            if not self.library.stub_set(name.encode(), value):
                raise ValueError(f"the stub driver has no option {name!r}")

    def open(self) -> CudaDriver:
        """This project's own driver object over it, by its real binary interface."""
        return open_cuda_driver(load=lambda _name: self.library)

    def fail(self, after: int, status: int, calls: str = "*") -> None:
        """Lets the call after the next `after` of these calls (names with spaces) fail once."""
        self.library.stub_fail(calls.encode(), after, status)

    def clear_fault(self) -> bool:
        """Takes back what `fail` ordered; whether it was still to come."""
        return bool(self.library.stub_clear_fault())

    @property
    def why(self) -> str:
        """Why the last refused call was refused."""
        return self.library.stub_why().decode()

    def calls(self, name: str) -> int:
        """How often a function of the driver was called, by its exported name."""
        return self.library.stub_calls(name.encode())

    def number(self, name: str) -> int:
        """One of `struct stub_numbers`: "contexts_made", "used_bytes", "streams" and others."""
        found = self.library.stub_number(name.encode())
        if found < 0:
            raise ValueError(f"the stub driver counts no {name!r}")
        return found

    def hole(self, address: int, size_bytes: int) -> int:
        """The first address of a range that a kernel may not touch; 0: it may touch all."""
        return self.library.stub_hole(address, size_bytes)

    def launches(self) -> list[KeptLaunch]:
        """What was launched and has been done, oldest first; the latest 4096 are kept."""
        done = self.library.stub_launches_done()
        found = [self.library.stub_launch(number) for number in range(max(0, done - 4096), done)]
        return [_launch(kept.contents) for kept in found if kept]

    def on_launch(self, run: Callable[..., int] | None) -> None:
        """Hands each launch to a function when its turn in its stream comes (`OnLaunch`).

        An exception in it is not passed on by ctypes: it returns the number of an error instead.
        """
        self._interpreter = OnLaunch(run) if run else OnLaunch()  # kept alive with the stub
        self.library.stub_on_launch(self._interpreter)

    def _declare(self) -> None:
        """Tells ctypes what takes and gives more than an int."""
        functions: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "stub_reset": (None, ()),
            "stub_set": (ctypes.c_int, (ctypes.c_char_p, ctypes.c_longlong)),
            "stub_fail": (None, (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)),
            "stub_why": (ctypes.c_char_p, ()),
            "stub_calls": (ctypes.c_long, (ctypes.c_char_p,)),
            "stub_number": (ctypes.c_longlong, (ctypes.c_char_p,)),
            "stub_hole": (ctypes.c_uint64, (ctypes.c_uint64, ctypes.c_size_t)),
            "stub_launches_done": (ctypes.c_size_t, ()),
            "stub_launch": (ctypes.POINTER(_Launch), (ctypes.c_size_t,)),
            "stub_on_launch": (None, (OnLaunch,)),
        }
        for name, (result, arguments) in functions.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments


def _launch(kept: _Launch) -> KeptLaunch:
    arguments = ctypes.string_at(kept.parameters, kept.parameter_bytes)
    return KeptLaunch(
        kept.name.decode(), tuple(kept.grid), tuple(kept.block), kept.shared_bytes,
        kept.stream or 0, arguments,
    )  # fmt: skip
