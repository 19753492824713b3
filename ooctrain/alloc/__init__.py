"""Allocators: they decide where each block lies in the device's memory.

Sizes in list order become addresses, and the allocator keeps books and logs. The names below are
for users; a plug-in needs `base.py`, which defines an allocator. Read next: `base.py`, then
`best_fit.py`.
"""

from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.log import AllocationLog, Recorder, Request
from ooctrain.alloc.registry import allocators, choose_allocator

# `oc.alloc.replay` is the function; its folder is found by `from ooctrain.alloc.log import`.
from ooctrain.alloc.replay import BlockLife, Replayed, block_lives, replay

__all__ = [
    "AllocationLog", "BlockLife", "DryMemory", "Recorder", "Replayed", "Request", "allocators",
    "block_lives", "choose_allocator", "replay",
]  # fmt: skip
