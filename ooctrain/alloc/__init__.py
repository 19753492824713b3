"""Allocators: who lies where in the device's memory.

In: sizes in list order. Out: addresses, books, logs. The names below are for users; a plug-in needs
`base.py`, which says what an allocator is. Read next: `base.py`, then `best_fit.py`.
"""

from ooctrain.alloc.log import AllocationLog, Recorder, Request
from ooctrain.alloc.registry import allocators

# `oc.alloc.replay` is the function; its module is found by `from ooctrain.alloc.replay import ...`.
from ooctrain.alloc.replay import Replayed, replay

__all__ = ["AllocationLog", "Recorder", "Replayed", "Request", "allocators", "replay"]
