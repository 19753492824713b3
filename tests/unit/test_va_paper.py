"""The paper's allocator, which maps each request anew, and pass-through, which hides nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strict_memory import StrictMemory

from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.passthrough import ALIGN_BYTES, Passthrough
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.va_paper import PaperVirtualAddressing, paper_chunk_bytes
from ooctrain.devices.cpu.host_vm import why_no_virtual_memory
from ooctrain.errors import ConfigError, DriverError, OutOfDeviceMemory
from ooctrain.units import GIB, MIB

PAGE = 4096
MAKERS = {
    "va-paper": lambda memory: PaperVirtualAddressing(memory, PAGE),
    "passthrough": lambda memory: Passthrough(memory, PAGE),
}
STEP = st.lists(st.one_of(st.integers(1, 9 * PAGE), st.integers(-30, -1)), max_size=40)


class Event:
    """Counts how often it was waited for."""

    waited = 0

    def wait(self):
        self.waited += 1


@pytest.mark.parametrize("name", MAKERS)
@given(step=STEP)
def test_blocks_keep_their_bytes_and_a_request_fails_only_if_memory_is_short(name, step):
    memory = StrictMemory(16 * PAGE)
    allocator = MAKERS[name](memory)
    live = []
    for mark, number in enumerate(step):
        if number < 0 and live:
            block, written = live.pop(number % len(live))
            assert set(memory.read(block.address, block.requested_bytes)) == {written}
            after = (Event(),) * (mark % 2)
            allocator.free(block, after)
            assert len(after) == sum(e.waited for e in after) or name == "va-paper"
        elif number > 0:
            granted = allocator.granule.granted(number)
            held = sum(b.granted_bytes for b, _ in live)
            try:
                live.append((allocator.allocate(number), mark))
            except OutOfDeviceMemory:
                assert held + granted > 16 * PAGE
                continue
            block = live[-1][0]
            memory.write(block.address, number, mark)
            # Equation 2: a block wastes less than a chunk.
            assert 0 <= block.granted_bytes - number < PAGE
        allocator.check()
        stats = allocator.stats()
        assert stats.reserved_bytes == stats.granted_bytes + stats.pending_bytes <= 16 * PAGE
    assert allocator.close() == [block for block, _ in live]
    assert not memory.reservations


def test_the_paper_maps_each_request_anew_and_each_chunk_once():
    memory = StrictMemory(6 * PAGE)
    allocator = PaperVirtualAddressing(memory, PAGE)
    uses = [Event(), Event()]
    a, b = allocator.allocate(2 * PAGE), allocator.allocate(2 * PAGE)
    assert memory.map_calls == 4
    allocator.free(a, uses[:1])
    allocator.free(b, uses[1:])
    assert [use.waited for use in uses] == [0, 0]
    assert (allocator.stats().pending_bytes, allocator.stats().largest_bytes) == (
        4 * PAGE, 6 * PAGE,
    )  # fmt: skip
    allocator.allocate(3 * PAGE)
    assert [use.waited for use in uses] == [1, 0], "b was freed later, and nobody needs its chunks"
    assert allocator.stats().pending_bytes == 2 * PAGE
    allocator.allocate(3 * PAGE)
    assert [use.waited for use in uses] == [1, 1]
    assert (memory.map_calls, allocator.stats().unmaps) == (10, 4)
    assert len(set(memory.page_at.values())) == len(memory.page_at) == 6
    allocator.check()


def test_the_papers_chunk():
    assert paper_chunk_bytes(16 * GIB) == 40 * MIB
    assert paper_chunk_bytes(200 * MIB) == 5 * MIB // 2
    assert paper_chunk_bytes(MIB) == 5 * MIB // 2
    assert PaperVirtualAddressing(DryMemory(16 * GIB)).granule.size_bytes == 40 * MIB
    with pytest.raises(ConfigError, match="do not suit"):
        choose_allocator("va-paper", MIB, probe=lambda: "")
    for name in ("va-paper", "passthrough"):
        with pytest.raises(ConfigError, match="multiple of the page"):
            choose_allocator(f"{name}:chunk=1000", GIB, probe=lambda: "")
        hidden = choose_allocator(name, GIB, probe=lambda: "no memory to map")
        assert hidden.name == "best-fit"
        assert "no memory to map" in hidden.notices[0]


@given(st.integers(1, 5 * PAGE))
def test_behind_a_passed_through_block_is_nothing(size):
    memory = StrictMemory(16 * PAGE)
    allocator = Passthrough(memory, PAGE)
    allocator.allocate(PAGE)
    block = allocator.allocate(size)
    memory.write(block.address, size, "mine")
    assert block.address % ALIGN_BYTES == 0
    behind = (block.address + size + ALIGN_BYTES - 1) // PAGE * PAGE
    assert behind not in memory.page_at
    allocator.free(block)
    assert len(memory.page_at) == 1


@pytest.mark.parametrize("name", MAKERS)
def test_a_refused_call_changes_nothing(name):
    memory = StrictMemory(8 * PAGE)
    allocator = MAKERS[name](memory)
    kept = allocator.allocate(PAGE)
    for nth in range(3):
        before = (allocator.snapshot(), allocator.stats(), dict(memory.reservations))
        memory.driver.fail(nth)
        with pytest.raises(DriverError):
            allocator.allocate(2 * PAGE)
        memory.driver.clear_fault()
        assert (allocator.snapshot(), allocator.stats(), dict(memory.reservations)) == before
        allocator.check()
    block = allocator.allocate(7 * PAGE)
    memory.write(block.address, 7 * PAGE, "all")
    assert kept.granted_bytes == PAGE


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no virtual memory here")
@pytest.mark.parametrize("act", ["overrun", "use after free"])
def test_a_real_wild_write_ends_the_process(act):
    """In a process of its own, as the machine's memory protection strikes."""
    program = textwrap.dedent(f"""
        from ooctrain.alloc.passthrough import Passthrough
        from ooctrain.devices.cpu.host_vm import VirtualArena
        from ooctrain.devices.raw_bytes import bytes_at
        allocator = Passthrough(VirtualArena(1 << 20))
        block = allocator.allocate(5000, "x")
        size = 5000 + (64 if {act == "overrun"} else 0)
        bytes_at(block.address, 5000)[:] = 1
        if {act != "overrun"}:
            allocator.free(block)
        print("before", flush=True)
        bytes_at(block.address, size)[:] = 1
        print("after", flush=True)
    """)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=root
    )
    assert done.stdout == "before\n"
    assert done.returncode == -11
