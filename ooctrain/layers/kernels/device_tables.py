"""The available devices, each with its table of operations.

A device is looked up by its name, as a trace has it. The module is pure Python, so that a step and
its workspaces can be traced without a GPU or a compiler. Read next: `kernel_table.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.kernels.kernel_table import KernelTable

TABLES: Mapping[str, KernelTable] = {table.device: table for table in (CPU, CUDA)}
