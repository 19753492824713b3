"""Kernels whose code does nothing: only the launch is left of them.

Any kernel of the library becomes PTX that takes its arguments and returns. The host's cost of a
launch, and the data that the driver receives, do not depend on the work of the kernel, so both can
be studied without compiler or linker. Read next: `devices/cuda/launches.py`;
`layers/kernels/cuda/runtime/cubins.py` (the real store).
"""

from __future__ import annotations

from ooctrain.layers.kernels.cuda.runtime.cubins import Cubin
from ooctrain.layers.kernels.cuda.runtime.packing import layout_of
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel

_HEAD = ".version 8.0\n.target sm_75\n.address_size 64\n"


class HollowStore:
    """Finds code for every kernel, and counts what is asked of it."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, kernel: Kernel, capability: Capability) -> Cubin:
        """PTX of the kernel's parameters, and a return."""
        self.asked += 1
        size = layout_of(kernel).size
        entry = f".visible .entry k(.param .align 8 .b8 k_param_0[{size}])\n{{\n ret;\n}}\n"
        known_by = f"// {kernel.name} {kernel.signature} {kernel.moved}\n\0"
        return Cubin("k", f"{_HEAD}{entry}{known_by}".encode())
