"""The same program without a GPU: compiled, linked, loaded and launched over the stub driver.

In a process's environment CUDA's driver is replaced by the stub; while the context lasts, its
launches are run by the PTX interpreter, on what Numba made of the kernels ("values"), or not at all
("time"), since large sizes would take it days. All other steps are the real ones; the PTX texts are
taken where they are compiled, as a cubin says nothing to an interpreter. With "time" only the
kernel that tries the compiler is run, and large copies move nothing, so that steps of many GB fit a
small machine. Read next: `tests/doubles/ptx_machine.py`,
`tests/doubles/stub_driver.py`; docs/gpu.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

from doubles.ptx_machine import LaunchRunner, Texts
from doubles.stub_driver import Stub, environment

from benchmarks.gpu.bench import Asked
from ooctrain.errors import DeviceUnavailable
from ooctrain.layers.kernels.cuda.runtime import cubins, shim
from ooctrain.layers.kernels.cuda.runtime.launcher import count_up

#: Newer than any toolkit, so that no PTX is too new.
DRIVER_VERSION = 13990
#: The stub's options. "values": strict, with pages as small as tiny steps want them. "time": a GPU
#: that takes no time, of an H100's memory.
OPTIONS: Mapping[str, Mapping[str, int]] = {
    "values": {"total_bytes": 1 << 29, "granularity": 4096},
    "time": {"total_bytes": 80 << 30, "late": 0, "fresh": 0, "kept": 0, "most_moved": 32 << 20},
}


def surroundings(asked: Asked) -> dict[str, str] | None:
    """Variables of a process that rehearses; None: it does not, and has this one's."""
    if not asked.rehearse:
        return None
    return environment(**_options(asked))


@contextmanager
def rehearsing(asked: Asked) -> Iterator[LaunchRunner]:
    """Runs what this process launches over the stub.

    Raises:
        DeviceUnavailable: its driver is not the stub (`surroundings`).
    """
    stub, texts = Stub(**_options(asked)), Texts()
    if not hasattr(ctypes.CDLL("libcuda.so.1"), "stub_number"):
        raise DeviceUnavailable("a rehearsal wants the stub driver", call="dlopen")
    runner = LaunchRunner(texts, stub.hole)
    stub.on_launch(runner if asked.rehearse == "values" else _only_the_trial(runner))
    with _keeping(texts, asked.rehearse == "values"):
        yield runner
    stub.on_launch(None)


def _options(asked: Asked) -> dict[str, int]:
    given = OPTIONS[asked.rehearse]
    return {**given, "version": DRIVER_VERSION, "capability": asked.capability}


def _only_the_trial(runner: LaunchRunner) -> Any:
    """Runs the kernel by which the compiler is tried, and no other."""
    wanted = count_up.function.__name__.encode()

    def run(name: bytes, *rest: Any) -> int:
        return runner(name, *rest) if wanted in name else 0

    return run


@contextmanager
def _keeping(texts: Texts, every: bool) -> Iterator[None]:
    """Keeps the text of each kernel that is compiled, or found as a cubin; or of the one that tries
    the compiler, since a cubin that was found need not be compiled for a text that nobody runs."""
    compiled, get = shim.compiled, cubins.CubinStore.get
    compile_ptx = cache(shim.compile_ptx)

    def keep_compiled(kernel: shim.Kernel) -> Any:
        made = compiled(kernel)
        if every or kernel is count_up:
            texts.keep_compiled(made)
        return made

    def keep_found(store: Any, kernel: shim.Kernel, capability: shim.Capability) -> cubins.Cubin:
        found = get(store, kernel, capability)
        if every or kernel is count_up:
            texts.keep_for(found.image, found.entry, cubins.text_of(kernel, capability))
        return found

    with (
        mock.patch.object(shim, "compiled", cache(keep_compiled)),
        mock.patch.object(shim, "compile_ptx", compile_ptx),
        mock.patch.object(cubins.CubinStore, "get", keep_found),
    ):
        yield
