"""The size of a chunk: the requested one, or the smallest that can be mapped.

A chunk is made of whole pages, so its size must be a multiple of the memory's granularity. All
chunks of the budget must be mappable apart from each other, and Linux bounds the mappings of a
process, so a large budget needs larger chunks. Read next: `chunks.py`, `alloc/virtual.py`.
"""

from __future__ import annotations

from ooctrain.devices.base import VirtualMemory
from ooctrain.errors import ConfigError


def checked_chunk_bytes(memory: VirtualMemory, chunk: int, example: str) -> int:
    """A chunk's size, if the memory can map such chunks.

    Args:
        example: of a size that is right, for the message.

    Raises:
        ConfigError: not a positive multiple of the memory's granularity.
    """
    page = memory.granularity_bytes
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk <= 0 or chunk % page:
        raise ConfigError(
            f"chunk {chunk!r} is not a positive multiple of the page", code="OOC-107",
            numbers=f"page {page} bytes", fix=f"for example {example}",
        )  # fmt: skip
    return chunk


def mappable_chunk_bytes(least_bytes: int, budget_bytes: int, max_mappings: int) -> int:
    """The least size, doubled until all chunks of the budget can be mapped apart."""
    chunk = least_bytes
    while budget_bytes // chunk > max_mappings:
        chunk *= 2
    return chunk
