"""The books of an allocator as numbers: asked for, held, lost, and how often what happened.

In: nothing; a plain record that `Books` fills. Out: the same terms for every allocator. The one
idea: whatever an allocator took of its arena is granted, pending or cached; so fragmentation is a
difference of two of its numbers, and a sum that is wrong is noticed. Sources: the statistics of
PyTorch's and RMM's allocators; GMLake's ratio of peaks; paper 000, equations 1 and 2. Read next:
`base.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stats:
    """The books. V = A + W + C at all times: reserved = granted + pending + cached.

    Args:
        requested_bytes: R, what the live blocks asked for (with ranges: what is mapped of it).
        granted_bytes: A, what they hold.
        pending_bytes: W, freed, but not to be had yet, as its last uses may not be over. 0
            where free memory can be claimed at once: a list allows it (`docs/schedule.md`).
        cached_bytes: C, free, but in holes between blocks: what external fragmentation costs.
            Always 0 where any free chunk serves any request.
        reserved_bytes: V, what of the budget is in use or held up.
        peak_requested_bytes, peak_granted_bytes, peak_pending_bytes, peak_cached_bytes,
            peak_reserved_bytes: their largest values, kept at every event, not sampled.
        free_bytes: of the budget, neither granted nor pending.
        largest_bytes: the largest request that would be served now.
        allocations, frees: blocks given out and taken back.
        creates: physical pieces asked of the driver.
        reservations: address ranges made.
        maps, unmaps, set_access: changes of mappings asked of the driver.
        reuses: claims that needed no change of a mapping, though mappings exist.
        failures: requests refused.
        host_waits, waited_ns: how often, and how long, the breaking of mappings waited for last
            uses.
        mapped_bytes: seen through all address ranges, the same memory through several of them
            counted each time.
    """

    requested_bytes: int = 0
    granted_bytes: int = 0
    pending_bytes: int = 0
    cached_bytes: int = 0
    reserved_bytes: int = 0
    peak_requested_bytes: int = 0
    peak_granted_bytes: int = 0
    peak_pending_bytes: int = 0
    peak_cached_bytes: int = 0
    peak_reserved_bytes: int = 0
    free_bytes: int = 0
    largest_bytes: int = 0
    allocations: int = 0
    frees: int = 0
    creates: int = 0
    reservations: int = 0
    maps: int = 0
    unmaps: int = 0
    set_access: int = 0
    reuses: int = 0
    failures: int = 0
    host_waits: int = 0
    waited_ns: int = 0
    mapped_bytes: int = 0

    @property
    def internal_bytes(self) -> int:
        """Internal fragmentation: granted beyond what was asked for (paper 000, equation 2)."""
        return self.granted_bytes - self.requested_bytes

    @property
    def external_bytes(self) -> int:
        """External fragmentation: what is free beyond the largest request that would be served."""
        return self.free_bytes - self.largest_bytes

    @property
    def external_ratio(self) -> float:
        """The share of the free memory that no single request can have; 0 where nothing is free."""
        return self.external_bytes / self.free_bytes if self.free_bytes else 0.0

    @property
    def overhead(self) -> float:
        """What rounding and holes cost at most: peak reserved over peak requested, less one."""
        peak = self.peak_requested_bytes
        return self.peak_reserved_bytes / peak - 1 if peak else 0.0
