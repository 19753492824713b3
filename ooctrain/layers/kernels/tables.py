"""The devices that there are, each with its table of operations.

In: the name of a device, as a trace has it. Out: its table. Pure Python: a step is traced, with its
workspaces, where no GPU and no compiler is. Read next: `driver_table.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.kernels.driver_table import DriverTable

TABLES: Mapping[str, DriverTable] = {table.device: table for table in (CPU, CUDA)}
