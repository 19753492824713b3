"""The arena: mapping, limits, forks, and the plain arena that serves without virtual memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from ooctrain.cli import main
from ooctrain.devices.cpu.host_vm import (
    PAGE_BYTES,
    Arena,
    HostCalls,
    VirtualArena,
    available_memory_bytes,
    check_memory,
    max_mapped_chunks,
    open_arena,
    why_no_virtual_memory,
)
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import ConfigError, DriverError

needs_memfd = pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no memfd here")
SIZE = 64 * PAGE_BYTES


@pytest.fixture
def arena():
    arena = VirtualArena(SIZE)
    yield arena
    arena.close()


@needs_memfd
def test_one_physical_page_shows_at_every_address_it_is_mapped_to(arena):
    first, second = arena.reserve(SIZE), arena.reserve(SIZE)
    arena.map(first, 3 * PAGE_BYTES, PAGE_BYTES)
    arena.map(second + PAGE_BYTES, 3 * PAGE_BYTES, PAGE_BYTES)
    bytes_at(first, PAGE_BYTES)[:] = 7
    assert (bytes_at(second + PAGE_BYTES, PAGE_BYTES) == 7).all()
    assert (bytes_at(arena.linear() + 3 * PAGE_BYTES, PAGE_BYTES) == 7).all()


@needs_memfd
def test_unmapping_keeps_the_bytes_and_the_reservation(arena):
    address = arena.reserve(SIZE)
    arena.map(address, 0, 2 * PAGE_BYTES)
    bytes_at(address, 2 * PAGE_BYTES)[:] = 9
    arena.unmap(address, PAGE_BYTES)
    elsewhere = [arena.reserve(PAGE_BYTES) for _ in range(50)]
    assert not any(address <= other < address + SIZE for other in elsewhere)
    arena.map(address, 0, PAGE_BYTES)
    assert (bytes_at(address, 2 * PAGE_BYTES) == 9).all()


@needs_memfd
def test_the_kernel_counts_exactly_the_budget(arena):
    assert arena.used_bytes() == SIZE
    address = arena.reserve(4 * SIZE)
    for slot in range(4):
        arena.map(address + slot * SIZE, 0, SIZE)
    bytes_at(address, 4 * SIZE)[:] = 1
    assert arena.used_bytes() == SIZE


@pytest.mark.parametrize("probe", [why_no_virtual_memory, lambda: "hidden by a test"])
def test_all_bytes_of_a_budget_can_be_used_in_whole_pages_of_the_machine(probe):
    arena = open_arena(SIZE + 5, probe)
    assert arena.size_bytes == SIZE + 5
    assert arena.used_bytes() == SIZE + PAGE_BYTES
    bytes_at(arena.linear(), SIZE + 5)[:] = 1
    arena.close()
    assert arena.used_bytes() == 0


@needs_memfd
@pytest.mark.parametrize(
    ("shift", "size", "offset"),
    [(-1, 1, 0), (64, 1, 0), (63, 2, 0), (0, 0, 0), (0, 1, 64), (0, 2, 63), (0, 1, -1)],
)
def test_a_mapping_stays_within_its_reservation_and_the_arena(arena, shift, size, offset):
    address = arena.reserve(SIZE)
    with pytest.raises(DriverError) as caught:
        arena.map(address + shift * PAGE_BYTES, offset * PAGE_BYTES, size * PAGE_BYTES)
    assert caught.value.call == "mmap"


@needs_memfd
def test_releasing_twice_and_after_close_are_refused(arena):
    address = arena.reserve(SIZE)
    arena.release(address)
    with pytest.raises(DriverError, match="not a reservation"):
        arena.release(address)
    arena.close()
    assert arena.used_bytes() == 0
    with pytest.raises(DriverError):
        arena.map(address, 0, PAGE_BYTES)


@needs_memfd
def test_a_whole_that_cannot_be_mapped_is_not_taken_for_mapped(arena, monkeypatch):
    place = HostCalls.place

    def refuse_once(*arguments, **options):
        monkeypatch.setattr(HostCalls, "place", place)
        raise DriverError("mmap failed", call="mmap")

    monkeypatch.setattr(HostCalls, "place", refuse_once)
    with pytest.raises(DriverError):
        arena.linear()
    address = arena.linear()
    assert arena.map_calls == 1  # else the next line would kill the process
    bytes_at(address, SIZE)[:] = 5


@needs_memfd
def test_a_forked_child_cannot_write_into_our_tensors(arena):
    address = arena.reserve(SIZE)
    arena.map(address, 0, PAGE_BYTES)
    bytes_at(address, 1)[0] = 1
    child = os.fork()
    if child == 0:  # must die of the write, whatever pytest's handlers want
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        bytes_at(address, 1)[0] = 99
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert bytes_at(address, 1)[0] == 1


@needs_memfd
def test_reading_an_unmapped_range_is_noticed_by_the_processor():
    code = (
        "from ooctrain.devices.cpu.host_vm import *\n"
        "from ooctrain.devices.raw_bytes import bytes_at\n"
        "arena = VirtualArena(1 << 20); address = arena.reserve(1 << 20)\n"
        "arena.map(address, 0, 1 << 16); print(bytes_at(address, 1)[0], flush=True)\n"
        "arena.unmap(address, 1 << 16); print(bytes_at(address, 1)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0\n"
    assert done.returncode == -signal.SIGSEGV


def test_the_plain_arena_has_the_same_size_and_is_one_piece():
    arena = open_arena(SIZE, probe=lambda: "hidden by a test")
    assert type(arena) is Arena
    assert not arena.ranges
    assert arena.size_bytes == arena.used_bytes() == SIZE
    bytes_at(arena.linear(), SIZE)[:] = 3
    assert bytes_at(arena.linear(), SIZE).sum(dtype=np.int64) == 3 * SIZE
    arena.close()


def test_hiding_memfd_gives_the_plain_arena(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert "memfd" in why_no_virtual_memory()
    arena = open_arena(SIZE)
    assert not arena.ranges
    arena.close()


@pytest.mark.parametrize("size", [0, -1])
def test_an_arena_has_at_least_a_byte(size):
    with pytest.raises(ConfigError, match="cannot have"):
        open_arena(size)


def test_more_than_the_machine_has_is_refused_before_anything_is_taken():
    with pytest.raises(ConfigError, match="more memory than this machine has free"):
        open_arena(1 << 55)
    check_memory(10, "a test wants", available_bytes=10)
    with pytest.raises(ConfigError, match="wanted 11 B, free 10 B"):
        check_memory(11, "a test wants", available_bytes=10)


@pytest.mark.parametrize("budget", ["10000GiB", "5000000000GiB"])
def test_a_budget_beyond_every_machine_is_told_the_most_that_a_step_can_use(budget, capsys):
    """It was told the way to the least budget, or to a smaller batch, which changes nothing."""
    words = ["train", "lenet", "--batch", "4", "--steps", "1", "--threads", "1"]
    assert main([*words, "--budget", budget]) == 2
    said = capsys.readouterr().err
    assert "100% is all that a step can use" in said
    assert "smallest" not in said
    assert "--batch" not in said


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8 kB\n"}, 8 << 10),
        (
            {
                "proc/meminfo": "MemAvailable: 8 kB\n",
                "sys/fs/cgroup/memory.max": "5000\n",
                "sys/fs/cgroup/memory.current": "1000\n",
            },
            4000,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 8 kB\n",
                "sys/fs/cgroup/memory.max": "max\n",
                "sys/fs/cgroup/memory.current": "1000\n",
            },
            8 << 10,
        ),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "700",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "900",
            },
            0,
        ),
        ({}, None),
    ],
)
def test_free_memory_is_the_least_of_what_system_and_control_group_say(tmp_path, files, expected):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_memory_bytes(tmp_path) == expected


def test_half_the_mappings_of_the_system_may_be_chunks(tmp_path):
    assert max_mapped_chunks(tmp_path) == (65530 - 4096) // 2
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/max_map_count").write_text("262144\n")
    assert max_mapped_chunks(tmp_path) == (262144 - 4096) // 2


@needs_memfd
def test_what_is_discarded_is_given_back_in_whole_pages_and_no_more(arena):
    address, held = arena.linear(), SIZE
    data = bytes_at(address, SIZE)
    data[:] = 7
    arena.discard(address + 10, 3 * PAGE_BYTES)
    held -= 2 * PAGE_BYTES
    assert arena.used_bytes() == held
    kept = np.ones(SIZE, bool)
    kept[PAGE_BYTES : 3 * PAGE_BYTES] = False
    assert (data[kept] == 7).all()
    arena.discard(address + 5 * PAGE_BYTES + 1, PAGE_BYTES)
    assert arena.used_bytes() == held, "no whole page is among these bytes"
    with pytest.raises(DriverError, match="within one reservation"):
        arena.discard(address + SIZE - PAGE_BYTES, 2 * PAGE_BYTES)
    arena.discard_all()
    assert arena.used_bytes() == 0
    arena.allocate()
    assert (arena.used_bytes(), data.any()) == (SIZE, False)
