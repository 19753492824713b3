"""`make cubins OUT=folder`: the machine code of every kernel, made on a machine without a GPU.

The folder gets a cubin for each kernel and compute capability. `make gpu CUBINS=folder` takes them
on the GPU's machine, so that nothing is compiled there. Read next:
`ooctrain/layers/kernels/cuda/runtime/cubins.py`.

    python -m benchmarks.gpu.cubins FOLDER [--capabilities 7.5,8.0,9.0]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ooctrain.layers.kernels.cuda.every_kernel import every_kernel
from ooctrain.layers.kernels.cuda.runtime.cubins import fill
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel, why_no_ptx

CAPABILITIES = "7.5,8.0,9.0"


def main(arguments: Sequence[str] | None = None, kernels: Sequence[Kernel] | None = None) -> int:
    """Fills the folder; 2 if there is no compiler here."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.cubins", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--capabilities", default=CAPABILITIES, help=f"default: {CAPABILITIES}")
    asked = parser.parse_args(arguments)
    if why_no_ptx():
        print(why_no_ptx(), file=sys.stderr)
        return 2
    capabilities = [_capability(text) for text in asked.capabilities.split(",")]
    made = fill(asked.folder, every_kernel() if kernels is None else kernels, capabilities)
    print(f"{made} made, {len(list(asked.folder.glob('*.cubin')))} in {asked.folder}")
    return 0


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


if __name__ == "__main__":
    sys.exit(main())
