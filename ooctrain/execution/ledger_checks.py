"""Checks after each instruction, for finding bugs: the allocator's books and its waste.

The list says how many bytes are held after each instruction. Comparing the allocator's books with
that row of the table shows an accounting error at once, as `OoctrainError` OOC-161. Source: paper
000, equation 2. Read next: `executor.py`, `sched/ledger.py`.
"""

from __future__ import annotations

from ooctrain.alloc.base import Allocator
from ooctrain.errors import OoctrainError
from ooctrain.sched.ledger import Issued


def compare_ledger(row: Issued, allocator: Allocator) -> None:
    """Raises OoctrainError: the allocator has granted other than the ledger says."""
    granted = allocator.stats().granted_bytes
    if granted != row.ledger_bytes:
        raise OoctrainError(
            "the allocator holds other than the ledger says", code="OOC-161",
            where=f"instruction {row.index}",
            numbers=f"granted {granted} B, ledger {row.ledger_bytes} B",
            fix="`oc.testing.check_allocator(...)` finds the smallest case",
        )  # fmt: skip


def check_waste(row: Issued, allocator: Allocator) -> None:
    """Each block wastes less than a chunk; and the arena is enough. Raises OoctrainError."""
    stats, budget = allocator.stats(), allocator.budget_bytes
    blocks = stats.allocations - stats.frees
    most = blocks * allocator.granule.size_bytes
    if stats.internal_bytes > max(0, most - blocks) or stats.peak_reserved_bytes > budget:
        raise OoctrainError(
            "the allocator wastes more than its rounding can, or more than there is",
            code="OOC-161", where=f"instruction {row.index}",
            numbers=f"lost to rounding {stats.internal_bytes} B in {blocks} blocks, less than "
            f"{most} B expected; reserved {stats.peak_reserved_bytes} B of {budget} B",
            fix="`oc.testing.check_allocator(...)` finds the smallest case",
        )  # fmt: skip
