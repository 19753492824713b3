"""The size of a chunk: the requested one, or the smallest that can be mapped.

A chunk is made of whole pages, so its size must be a multiple of the memory's granularity. All
chunks of the budget must be mappable apart from each other, and Linux bounds the mappings of a
process, so a large budget needs larger chunks. Read next: `chunks.py`, `alloc/virtual.py`.
"""

from __future__ import annotations

from ooctrain.devices.base import VirtualMemory
from ooctrain.errors import ConfigError
from ooctrain.units import format_bytes


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


def check_chunk_count(memory: VirtualMemory, chunk_bytes: int, allocator: str) -> None:
    """Raises ConfigError if the memory has no whole chunk, or more than can be mapped apart."""
    chunk_bytes = checked_chunk_bytes(memory, chunk_bytes, f"{allocator}:chunk=2MiB")
    chunks, most = memory.size_bytes // chunk_bytes, memory.max_mappings
    if not 0 < chunks <= most:
        raise ConfigError(
            f"chunks of {format_bytes(chunk_bytes)} do not suit the budget", code="OOC-107",
            numbers=f"{chunks} of them in {format_bytes(memory.size_bytes)}, of 1 to {most}",
            fix=f"{allocator}:chunk=BYTES",
        )  # fmt: skip


def mappable_chunk_bytes(least_bytes: int, budget_bytes: int, max_mappings: int) -> int:
    """The least size, doubled until all chunks of the budget can be mapped apart."""
    chunk = least_bytes
    while budget_bytes // chunk > max_mappings:
        chunk *= 2
    return chunk
