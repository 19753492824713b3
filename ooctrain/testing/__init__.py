"""The laws that every pluggable part must keep, for the library's own parts and for a user's.

The promises of an operation, a planner, an allocator, a rewrite or a split are written down as code
that tries to break them, and that ends with the smallest example found. `check_op`,
`check_planner`, `check_allocator`, `check_rewrite` and `check_split` are that code; `check_tiled`
compares a model in tiles with the untiled one. The other modules are their building blocks: random
traces and lists, an interpreter that runs a list on bytes in random orders, an emulator of CUDA
kernels, a strict fake of a GPU's driver. What stands for a compiler's output or a real driver, for
the library's own tests alone, is in `tests/doubles/`. Read next: `check_planner.py`,
`random_traces.py`, `interpreter.py`.
"""

from ooctrain.testing.check_allocator import AllocatorFailure, check_allocator
from ooctrain.testing.check_op import check_op
from ooctrain.testing.check_planner import PlannerFailure, check_planner
from ooctrain.testing.check_rewrite import RewriteFailure, check_rewrite
from ooctrain.testing.check_split import SplitFailure, check_split
from ooctrain.testing.tiled.check_tiled import TiledFailure, TiledReport, check_tiled

__all__ = [
    "AllocatorFailure", "PlannerFailure", "RewriteFailure", "SplitFailure", "TiledFailure",
    "TiledReport", "check_allocator", "check_op", "check_planner", "check_rewrite",
    "check_split", "check_tiled",
]  # fmt: skip
