"""What the system counts of a process: each page once, those of the arena that are mapped nowhere
too."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ooctrain.devices.cpu.host_vm import VirtualArena, why_no_virtual_memory
from ooctrain.devices.cpu.process_memory import MemoryWatch, group_bytes, held
from ooctrain.units import MIB

pytestmark = pytest.mark.skipif(held() is None, reason="no smaps_rollup here")
SIZE = 24 * MIB
#: What Python does meanwhile.
NOISE = 4 * MIB
SMAPS = """00400000-7fff0000 ---p 00000000 00:00 0 [rollup]
Rss:               90000 kB
Pss:               60000 kB
Pss_Anon:          20000 kB
Pss_File:          10000 kB
Pss_Shmem:         30000 kB
"""


def counted() -> int:
    found = held()
    assert found is not None
    return found.counted_bytes


def arena_is_counted_once() -> None:
    """Mapped nowhere, at one address, and at two: the same."""
    before = counted()
    arena = VirtualArena(SIZE)
    try:
        assert abs(counted() - before - SIZE) < NOISE
        for _ in range(2):
            arena.map(arena.reserve(SIZE), 0, SIZE)
            assert abs(counted() - before - SIZE) < NOISE
    finally:
        arena.close()
    assert abs(counted() - before) < NOISE


def mapped_file_is_counted(folder) -> None:
    """Pages of a file that the process has read through a mapping are held."""
    path = folder / "file"
    path.write_bytes(bytes(SIZE))
    before = counted()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as seen:
        assert not np.frombuffer(seen[:: mmap.PAGESIZE], np.uint8).any()
        assert counted() - before > SIZE - NOISE


def most_is_remembered() -> None:
    """What was held and is gone counts."""
    before = counted()
    with MemoryWatch() as watch:
        # Of the system, not of malloc, which may have as much that is free.
        with mmap.mmap(-1, SIZE) as pages:
            for page in range(0, SIZE, mmap.PAGESIZE):
                pages[page] = 1
            watch.look()
        watch.look()
    assert watch.most_bytes - before > SIZE - NOISE


def alone(call: str) -> None:
    """In a process of its own: what other tests have left may be given back at any moment."""
    program = f"from pathlib import Path\nfrom unit import test_process_memory as here\nhere.{call}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[1], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no memfd here")
def test_pages_of_the_arena_count_once_wherever_they_are_mapped():
    alone("arena_is_counted_once()")


def test_pages_of_a_mapped_file_count(tmp_path):
    alone(f"mapped_file_is_counted(Path({str(tmp_path)!r}))")


def test_the_most_that_was_held_is_remembered():
    alone("most_is_remembered()")


def test_counts_of_another_process_and_of_a_group_are_read(tmp_path):
    (tmp_path / "proc/7/fd").mkdir(parents=True)
    (tmp_path / "proc/7/smaps_rollup").write_text(SMAPS)
    (tmp_path / "proc/7/status").write_text("VmRSS: 9 kB\nRssFile:\t  50000 kB\n")
    found = held(7, tmp_path)
    assert found is not None
    assert (found.counted_bytes, found.most_bytes) == (60000 << 10, 100000 << 10)
    assert held(8, tmp_path) is None
    assert group_bytes(tmp_path) is None


def test_an_old_system_counts_all_kinds_together(tmp_path):
    (tmp_path / "proc/7").mkdir(parents=True)
    file = tmp_path / "proc/7/smaps_rollup"
    file.write_text("".join(line for line in SMAPS.splitlines(True) if "Pss_" not in line))
    found = held(7, tmp_path)
    assert found is not None
    assert found.counted_bytes == found.most_bytes == 60000 << 10
    file.write_text("Rss: 90000 kB\n")
    assert held(7, tmp_path) is None


@pytest.mark.parametrize(
    ("group", "file", "alone"),
    [("0::/a/b", "a/b/memory.current", True), ("0::/a/b", "a/b/memory.current", False),
     ("4:cpu:/a\n3:memory:/c", "memory/c/memory.usage_in_bytes", True), ("0::/", "x", False)],
)  # fmt: skip
def test_a_group_counts_where_this_process_is_alone_in_it(tmp_path, group, file, alone):
    """The second version of control groups, and the first, which has a tree for each kind."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    usage = tmp_path / "sys/fs/cgroup" / file
    usage.parent.mkdir(parents=True)
    usage.write_text("12345\n")
    members = [os.getpid()] if alone else [1, os.getpid()]
    (usage.parent / "cgroup.procs").write_text("".join(f"{number}\n" for number in members))
    assert group_bytes(tmp_path) == (12345 if alone else None)


#: Prints how much of every second one of many arrays is given back with it, once a large one has
#: taught the C library to put such sizes into its heap.
EVERY_SECOND_ARRAY = """
import sys
import numpy as np
from ooctrain.devices.cpu.process_memory import give_back_at_once, give_back_unused, held

if sys.argv[1] == "at once":
    give_back_at_once()
np.ones(24 << 20, np.uint8)
arrays = [np.ones(4 << 20, np.uint8) for _ in range(10)]
before = held().counted_bytes
del arrays[::2]
print((before - held().counted_bytes) / (20 << 20))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another C library")
@pytest.mark.parametrize(("how", "least"), [("at once", 0.9), ("as usual", -0.1)])
def test_each_large_array_is_given_back_by_itself(how, least):
    command = [sys.executable, "-c", EVERY_SECOND_ARRAY, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert least <= float(done.stdout) <= least + 0.2
