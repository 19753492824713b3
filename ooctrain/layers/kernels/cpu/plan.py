"""What the plans of all convolution algorithms have in common.

A kernel gets everything it must know as one tuple of integers (`numbers`, a NamedTuple, so that it
reads `p.out_h`) and one block of memory, so its signature is the same for every shape. The block is
the workspace, seen as float32 and as int64. No Numba here. Read next: `conv/direct_plan.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ooctrain.layers.kernels.cpu.tiling import PANEL

Numbers = TypeVar("Numbers", bound=tuple)


@dataclass(frozen=True, slots=True)
class KernelPlan(Generic[Numbers]):
    """How one part of a convolution is cut up.

    Args:
        numbers: what the kernels read.
        size_floats: size of the workspace.
        tables: int64 values that the driver writes to the front of the workspace.
    """

    numbers: Numbers
    size_floats: int
    tables: tuple[int, ...] = ()


def views(plan: KernelPlan, workspace: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The workspace as float32 and as int64, after writing the plan's tables to its front."""
    space = workspace[: plan.size_floats * 4]
    tables = space.view(np.int64)
    tables[: len(plan.tables)] = plan.tables
    return space.view(np.float32), tables


def write_bias(space: np.ndarray, at: int, channels: int, bias: np.ndarray | None) -> None:
    """space[at :] = bias or zeros, then PANEL zeros, for kernels that read whole panels."""
    space[at : at + channels + PANEL] = 0.0
    if bias is not None:
        space[at : at + channels] = bias
