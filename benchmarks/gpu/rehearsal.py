"""The same program without a GPU: the strict fake driver and what runs kernels on its bytes.

In: how kernels are to run. Out: while the context lasts, whoever opens a GPU gets the fake. The one
idea: everything in this package opens its GPU through `ooctrain.devices.cuda.open`, so that is the
one place to put the fake. Read next: `ooctrain/testing/driver/fake_cuda.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from unittest import mock

from ooctrain.devices.cuda import open as cuda_open
from ooctrain.testing.driver.fake_driver import FakeDriver

Kernels = Literal["emulator", "cpu kernels"]
PAGE_BYTES = 4096
FAKE_BYTES = 256 << 20


@contextmanager
def rehearsing(kernels: Kernels) -> Iterator[None]:
    """Whoever opens a GPU gets the fake.

    Args:
        kernels: "emulator": the real device code, slowly; "cpu kernels": those of the cpu device.
    """
    with mock.patch.multiple(
        cuda_open, open_cuda_driver=lambda: FakeDriver(FAKE_BYTES, PAGE_BYTES),
        make_kernels=_make_kernels(kernels), require_compiler=lambda gpu: None,
    ):  # fmt: skip
        yield


def _make_kernels(kernels: Kernels) -> Any:
    from ooctrain.testing.driver.fake_cuda import CpuKernels, EmulatedKernels

    if kernels == "cpu kernels":
        return CpuKernels
    from ooctrain.testing.emulator.emulator import EmulatedLauncher

    return lambda driver, stream: EmulatedKernels(driver, stream, EmulatedLauncher())
