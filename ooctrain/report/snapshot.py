"""A step as a memory snapshot of PyTorch, for pytorch.org/memory_viz: every value as a block.

A value that comes to the device is an allocation and one that leaves is a free; a value that comes
in again is a block of its own, so the picture shows each swap. The holdings of a `Record` become
plain data and the bytes of a pickle that the viewer reads. A list has no addresses, since an
allocator gives them: the blocks lie where best fit puts them, in the order of time. Source:
`torch/cuda/_memory_viz.py` and its JavaScript, which know pickles of protocol 2 to 4 with plain
values only. Read next: `holdings.py`, which places them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ooctrain.alloc.base import Block
from ooctrain.errors import ConfigError
from ooctrain.report.holdings import Holding, placed
from ooctrain.report.record import Record
from ooctrain.units import MAX_BYTES

PROTOCOL = 4
#: Which device and stream the viewer shows.
DEVICE = STREAM = 0
Entry = dict[str, Any]


def snapshot_pickle(record: Record) -> bytes:
    """The file that the viewer opens.

    Raises:
        ConfigError: the record has no holdings.
    """
    return pickle.dumps(snapshot(record), protocol=PROTOCOL)


def snapshot(record: Record) -> dict[str, Any]:
    """The snapshot as plain data: how the step goes, and what is there when it ends.

    Raises:
        ConfigError: the record has no holdings.
    """
    if not record.holdings:
        raise ConfigError(
            "the record says how much memory was held, but not by which variables", code="OOC-118",
            fix="write it again with this version of `ooctrain simulate MODEL --json FILE`",
        )  # fmt: skip
    live: dict[int, Block] = {}
    trace: list[Entry] = []
    lowest, highest = MAX_BYTES, 0
    for number, block, comes in placed(record.holdings, record.timeline.makespan_us):
        trace += _entries(block, record.holdings[number], comes)
        lowest = min(lowest, block.address)
        highest = max(highest, block.address + block.granted_bytes)
        if comes:
            live[number] = block
        else:
            del live[number]
    kept = [(block, record.holdings[number]) for number, block in live.items()]
    segments = [_segment(kept, highest - lowest)]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {}}


def _entries(block: Block, one: Holding, comes: bool) -> Iterator[Entry]:
    """The viewer's entry for a holding that comes, or goes."""
    if comes:
        yield _entry("alloc", block, one, one.from_us)
    else:
        yield _entry("free_requested", block, one, one.until_us)
        yield _entry("free_completed", block, one, one.until_us)


def _entry(action: str, block: Block, one: Holding, time_us: float) -> Entry:
    return {
        "action": action, "addr": block.address, "size": block.granted_bytes, "stream": STREAM,
        "time_us": int(time_us), "frames": _frames(one),
    }  # fmt: skip


def _frames(one: Holding) -> list[Mapping[str, Any]]:
    """Where the viewer shows a call stack: the group and the name."""
    return [{"filename": one.group, "line": 0, "name": one.name}]


def _segment(kept: Sequence[tuple[Block, Holding]], size_bytes: int) -> Entry:
    """The arena at the end of the step; its blocks and the gaps between them tile it."""
    base = min((block.address for block, _ in kept), default=0)
    blocks, at = [], base
    for block, one in sorted(kept, key=lambda pair: pair[0].address):
        if block.address > at:
            blocks.append(_block(at, block.address - at, "inactive", []))
        blocks.append(_block(block.address, block.granted_bytes, "active_allocated", _frames(one)))
        at = block.address + block.granted_bytes
    if at < base + size_bytes:
        blocks.append(_block(at, base + size_bytes - at, "inactive", []))
    held = sum(block.granted_bytes for block, _ in kept)
    return {
        "device": DEVICE, "address": base, "total_size": max(size_bytes, at - base),
        "stream": STREAM, "segment_type": "large", "allocated_size": held, "active_size": held,
        "requested_size": sum(one.size_bytes for _, one in kept), "blocks": blocks, "frames": [],
    }  # fmt: skip


def _block(address: int, size: int, state: str, frames: Sequence[Mapping[str, Any]]) -> Entry:
    return {
        "address": address, "size": size, "requested_size": size, "state": state,
        "frames": list(frames),
    }  # fmt: skip
