"""A GPU for a machine that has none: the strict fake driver, with kernels of the cpu or emulated.

All code opens its GPU through `devices/cuda/open.py`, so this is the one place where the fake is
put in, and every caller gets it while the context lasts. Tests of `make gpu`'s own bookkeeping and
tutorial 19 use it, since it costs no compilation; what a GPU would compile and launch is rehearsed
over the stub driver (`stub/`). Read next: `fake_cuda.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from unittest import mock

from ooctrain.devices.cuda import open as cuda_open
from ooctrain.testing.driver.fake_cuda import CpuKernels, EmulatedKernels
from ooctrain.testing.driver.fake_driver import FakeDriver
from ooctrain.testing.driver.fake_streams import Choose
from ooctrain.testing.emulator.emulator import EmulatedLauncher

PAGE_BYTES = 4096
FAKE_BYTES = 256 << 20


@contextmanager
def fake_gpu(
    kernels: Literal["emulator", "cpu kernels"] = "cpu kernels", choose: Choose = min
) -> Iterator[None]:
    """Every caller who opens a GPU gets the fake: 256 MiB, in pages of 4 KiB.

    Args:
        kernels: "emulator": the real device code, slowly; "cpu kernels": those of the cpu device.
        choose: which of the streams that can go on does so.
    """

    def emulated(driver: Any, stream: int) -> EmulatedKernels:
        return EmulatedKernels(driver, stream, EmulatedLauncher())

    with mock.patch.multiple(
        cuda_open, open_cuda_driver=lambda: FakeDriver(FAKE_BYTES, PAGE_BYTES, choose),
        make_kernels=CpuKernels if kernels == "cpu kernels" else emulated,
        require_compiler=lambda gpu: None,
    ):  # fmt: skip
        yield
