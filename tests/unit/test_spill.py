"""The host slab on a disk: what is written is read, whatever the file system does in between."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.spilling import (
    Anywhere,
    Buffered,
    Failing,
    LateFailing,
    Short,
    Slow,
    cached_pages,
)

from ooctrain.cli import workload
from ooctrain.cli.step_options import options_from
from ooctrain.cli.workload import host_rows
from ooctrain.devices import spill as rooms
from ooctrain.devices.cpu.copy_engine import CopyLink
from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.devices.cpu.process_memory import held
from ooctrain.devices.host_file import HostFile
from ooctrain.devices.spill import BLOCK_BYTES, FileCalls, Spill, SpillPlace, as_spill, look_at
from ooctrain.errors import ConfigError, TransferError
from ooctrain.execution.settings import Settings
from ooctrain.machine import doctor
from ooctrain.machine.disk_speed import COPIES, COPY_BYTES, DiskTimes, link_of, measure_disk
from ooctrain.step.machine import Disk
from ooctrain.step.presets import load_calibration, machine, on_disk, save_calibration, with_link

PIECE = 4 * BLOCK_BYTES
SIZE = 10 * PIECE + 777
SILENT = partial(Buffered, "silently")
KINDS = (Anywhere, Buffered, partial(Buffered, "first block"), Short, SILENT)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A folder that is taken for one on a disk."""
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: 0xEF53)
    return str(tmp_path)


def opened(folder, calls=None, size=SIZE):
    return HostFile(Spill(str(folder)), size, calls or Anywhere(), PIECE)


def bytes_of(size):
    return np.ones(size, np.uint8)


# Copies.


@pytest.fixture(scope="module")
def slabs(tmp_path_factory):
    """One of each kind, used by all examples."""
    folder = tmp_path_factory.mktemp("spill")
    found = [opened(folder, kind()) for kind in KINDS]
    yield found
    for slab in found:
        slab.close()


#: (writes?, offset, bytes, where in memory)
ONE = (True, 0, SIZE, 0)
COPIES_OF_ALL_FORMS = [
    [ONE, (True, 5000, 1, 3), (False, 0, SIZE, 0)],
    [(True, 100, 200, 0), (True, 300, 4000, 1), (False, 0, 3 * PIECE, 64)],
    [(True, BLOCK_BYTES, PIECE, 0), (True, PIECE - 1, PIECE + 2, 0), (False, 7, 4 * PIECE, 9)],
    [ONE, (True, SIZE - 1, 1, 0), (False, SIZE - 5, 5, 0), (False, 0, 0, 0)],
]
copies = st.tuples(
    st.booleans(), st.integers(0, SIZE), st.integers(0, SIZE), st.sampled_from([0, 1, 64, 4096])
)


def copy_and_compare(slab, moves):
    """The slab beside a plain array."""
    expected = np.random.default_rng(99).integers(0, 256, SIZE).astype(np.uint8)
    slab.put(0, expected)
    memory = rooms.aligned_bytes(SIZE + 3 * BLOCK_BYTES)
    fresh = np.random.default_rng(len(moves)).integers(0, 256, memory.size).astype(np.uint8)
    for number, (writes, offset, size, at) in enumerate(moves):
        size = min(size, SIZE - offset)
        address = memory.ctypes.data + at
        memory[:] = np.roll(fresh, number)
        if writes:
            slab.copy(slab.address + offset, address, size)
            expected[offset : offset + size] = memory[at : at + size]
        else:
            around = memory.copy()
            slab.copy(address, slab.address + offset, size)
            around[at : at + size] = expected[offset : offset + size]
            same = (memory == around).all()
            assert same, "what was written is read, and nothing beside it"
    same = (slab.get(0, SIZE) == expected).all()
    assert same, "what was written is there"
    return slab


@settings(max_examples=10)
@given(st.integers(0, len(KINDS) - 1), st.lists(copies, max_size=8))
@example(0, COPIES_OF_ALL_FORMS[0])
@example(0, COPIES_OF_ALL_FORMS[1])
@example(1, COPIES_OF_ALL_FORMS[2])
@example(2, COPIES_OF_ALL_FORMS[3])
@example(3, COPIES_OF_ALL_FORMS[0])
@example(3, COPIES_OF_ALL_FORMS[2])
def test_what_is_written_is_read_however_calls_move_it(slabs, kind, moves):
    copy_and_compare(slabs[kind], moves)


def test_the_file_is_whole_blocks_and_never_grows(tmp_path):
    for size in (0, 1, BLOCK_BYTES, SIZE):
        calls = Anywhere()
        slab = opened(tmp_path, calls, size)
        slab.put(0, np.ones(size, np.uint8))
        assert os.fstat(calls.files[0]).st_size == slab.reserved_bytes == calls.reserved
        assert slab.reserved_bytes % BLOCK_BYTES == 0
        assert slab.reserved_bytes >= size
        slab.close()


def test_a_copy_outside_the_slab_is_refused(tmp_path):
    slab = opened(tmp_path)
    for offset, size in ((SIZE, 1), (SIZE - 1, 2), (SIZE + 5 * PIECE, PIECE)):
        for copy in (partial(slab.get, offset, size), partial(slab.put, offset, bytes_of(size))):
            with pytest.raises(TransferError) as found:
                copy()
            assert found.value.code == "OOC-141"
    slab.close()


def test_a_copy_is_done_when_all_its_pieces_are(tmp_path):
    calls = Slow()
    slab = opened(tmp_path, calls)
    data = np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8)
    slab.put(0, data)
    there = os.pread(calls.files[0], SIZE, 0)
    slab.close()
    same = there == data.tobytes()
    assert same, "a read that waits for the copy must find what was written"


def neighbours_at_once(folder, rounds=20):
    """Two threads write neighbouring ranges that share their blocks."""
    slab = opened(folder)
    half = 5 * BLOCK_BYTES + 11
    for turn in range(rounds):
        parts = [np.full(half, 2 * turn + n + 1, np.uint8) for n in range(2)]
        threads = [
            threading.Thread(target=slab.put, args=(n * half, part)) for n, part in enumerate(parts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        same = (slab.get(0, 2 * half) == np.concatenate(parts)).all()
        assert same, "a neighbour's bytes of the same block were lost"
    slab.close()


def test_writes_of_neighbours_keep_each_others_bytes(tmp_path):
    neighbours_at_once(tmp_path, 5)


def test_the_space_is_taken_at_the_start(tmp_path):
    calls = Anywhere()
    slab = opened(tmp_path, calls)
    assert os.fstat(calls.files[0]).st_blocks * 512 >= slab.reserved_bytes
    slab.close()


def test_a_file_without_a_name_leaves_none(tmp_path):
    """Where the system has no O_TMPFILE, too."""
    for lacks in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if lacks:
                patch.delattr(os, "O_TMPFILE", raising=False)
            slab = opened(tmp_path)
            assert os.listdir(tmp_path) == []
            slab.close()


@pytest.mark.parametrize("kind", [Anywhere, Buffered, SILENT])
def test_nothing_of_the_file_stays_in_the_page_cache(tmp_path, kind):
    """Memory that the system fills with the file is not saved. ext4 with data=journal takes the
    flag and ignores it: all of the slab was cached."""
    calls = kind()
    slab = opened(tmp_path, calls)
    slab.put(0, np.ones(SIZE, np.uint8))
    assert cached_pages(calls.files[0]) == 0
    slab.get(0, SIZE)
    slab.get(100, 3 * PIECE)
    assert cached_pages(calls.files[0]) == 0
    slab.close()


def test_the_cpu_device_copies_and_fills_through_it(tmp_path):
    slab = opened(tmp_path)
    device = CpuDevice(SIZE, slab, link=CopyLink(copy_bytes=ctypes.memmove))
    assert (device.host_bytes, device.host_align_bytes) == (SIZE, BLOCK_BYTES)
    address = device.memory.linear()
    data = np.random.default_rng(1).integers(0, 256, SIZE).astype(np.uint8)
    device.write(address, data)
    device.copy_out(address + 10, 5, 3 * PIECE)
    assert (device.host(5, 3 * PIECE) == data[10 : 10 + 3 * PIECE]).all()
    device.fill_host(6, 100, 0x7F)
    device.write_host(0, np.arange(5, dtype=np.uint8))
    device.copy_in(address, 0, 200)
    read = device.read(address, 200)
    assert list(read[:5]) == list(range(5))
    assert set(read[6:106]) == {0x7F}
    assert read[5] == data[10]
    assert read[106] == data[111]
    device.close()
    with pytest.raises(OSError):
        os.fstat(slab._file)


@pytest.mark.skipif(held() is None, reason="no smaps_rollup here")
def test_the_buffers_are_no_shared_memory():
    """They were counted as pages of the arena: 6 MiB too little, where a part of it is unmapped."""
    before = held().shared
    buffer = rooms.aligned_bytes(8 << 20)
    buffer[:] = 1
    assert held().shared - before < 1 << 20


# Failures.

REFUSED = {
    errno.ENOSPC: "no space", errno.EDQUOT: "quota", errno.EFBIG: "ulimit -f", errno.EIO: "fails",
    errno.EROFS: "read-only", errno.EACCES: "may not be written",
}  # fmt: skip


@pytest.mark.parametrize("number", REFUSED)
@pytest.mark.parametrize("call", ["make", "reserve"])
def test_what_the_folder_cannot_is_said_before_the_first_step(tmp_path, number, call):
    with pytest.raises(ConfigError) as found:
        opened(tmp_path, Failing(number, calls=(call,)))
    assert found.value.code == "OOC-142"
    assert REFUSED[number] in str(found.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("size", [BLOCK_BYTES, SIZE])
def test_a_failing_disk_is_an_error_of_the_copy(tmp_path, number, size):
    for calls, copy in (("write", "put"), ("read", "get")):
        slab = opened(tmp_path, Failing(number, 1, calls=(calls,)))  # opening tries one
        with pytest.raises(TransferError, match="checkpoint") as found:
            getattr(slab, copy)(0, size if copy == "get" else bytes_of(size))
        assert found.value.code == "OOC-141"
        assert errno.errorcode[number] in str(found.value)
        slab.close()


def test_a_write_that_the_disk_refuses_later_is_an_error_too(tmp_path):
    slab = opened(tmp_path, LateFailing())
    with pytest.raises(TransferError, match="fails"):
        slab.put(0, np.ones(100, np.uint8))
    slab.close()


def test_growth_that_the_disk_refuses_leaves_the_space_to_others(disk, monkeypatch):
    """The file kept what there was of the space, and "free" was said to be nothing."""
    file, blocks = opened(disk, FileCalls(), BLOCK_BYTES), 64

    def full_half_way(self, number, size_bytes):
        os.posix_fallocate(number, 0, size_bytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileCalls, "reserve", full_half_way)
    taken = []

    def free_bytes(self, folder):
        taken.append(os.fstat(file._file).st_blocks * 512)
        return 123 * BLOCK_BYTES

    monkeypatch.setattr(FileCalls, "free_bytes", free_bytes)
    file.put(0, bytes_of(BLOCK_BYTES))
    with pytest.raises(ConfigError, match="no space") as found:
        file.resize(blocks * BLOCK_BYTES)
    assert taken[0] == os.fstat(file._file).st_blocks * 512 <= 2 * BLOCK_BYTES
    assert found.value.numbers == "wanted 252 KiB more, free 492 KiB"
    assert file.get(0, BLOCK_BYTES).tobytes() == bytes_of(BLOCK_BYTES).tobytes()
    file.close()


@pytest.mark.parametrize("use", [look_at, lambda folder: opened(folder, FileCalls()).close()])
def test_a_file_whose_end_fails_has_ended(disk, monkeypatch, use):
    """On a network's disk `close` may say that an earlier write has failed; that was a traceback.
    What was in the file is no longer wanted then."""
    close = os.close

    def fails_late(file):
        close(file)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = sorted(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(rooms.os, "close", fails_late)
        use(disk)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_too_many_open_files_are_no_fault_of_the_folder(disk, monkeypatch):
    def none_left(self, folder):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(FileCalls, "make", none_left)
    with pytest.raises(ConfigError, match="too many open files") as found:
        look_at(disk)
    assert "ulimit -n" in found.value.fix


def test_a_file_that_ends_too_soon_is_an_error(tmp_path):
    calls = Buffered()
    slab = opened(tmp_path, calls)
    os.ftruncate(calls.files[0], BLOCK_BYTES)
    with pytest.raises(TransferError):
        slab.get(0, SIZE)
    slab.close()


def test_memory_under_the_name_of_a_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: 0x01021994)
    with pytest.raises(ConfigError, match="is memory: a tmpfs") as found:
        look_at(str(tmp_path))
    assert found.value.code == "OOC-142"


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="this system has no /dev/shm")
def test_dev_shm_is_refused():
    with pytest.raises(ConfigError, match="tmpfs"):
        look_at("/dev/shm")


def test_folders_that_are_none_are_refused(disk, tmp_path):
    (tmp_path / "file").write_text("")
    for folder, why in (("missing", "is not there"), ("file", "is not a folder")):
        with pytest.raises(ConfigError, match=why):
            look_at(str(tmp_path / folder))
    for wrong in ("", 3, ["a"]):
        with pytest.raises(ConfigError):
            as_spill(wrong)
    assert as_spill(tmp_path) == Spill(str(tmp_path))
    assert as_spill(None) is None


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), "100MB", True, 1e-12])
def test_a_rate_that_is_none_is_refused(rate):
    """Text was a TypeError; so slow a link that nanoseconds overflow, a plan that ran no call."""
    for use in (lambda: Spill("/tmp", rate), lambda: with_link(machine("cpu-generic"), rate)):
        with pytest.raises(ConfigError) as found:
            use()
        assert found.value.code == "OOC-105"
        assert "1 kB/s" in str(found.value)


def test_a_rate_may_be_numpy_s():
    """A float32 was a TypeError once a copy was timed."""
    kept = Spill("/tmp", np.float32(100)).bytes_per_us
    assert (type(kept), kept) == (float, 100.0)
    linked = with_link(machine("cpu-generic"), np.float32(100))
    assert type(linked.link_bytes_per_us) is float


def test_a_slow_disk_s_rate_is_shown():
    """It was "0.00 GB/s", and "0.00 MB/s" of the slowest."""
    for rate, said in ((3.0, "3.00 MB/s"), (1e-3, "1.00 kB/s")):
        slow = on_disk(machine("cpu-generic"), rate)
        rows = host_rows(options_from({"spill": "/tmp"}, f"{rate * 1e3:.0f}kB"), slow)
        assert rows[1][1].startswith(f"planned with {said} out and {said} in")


def test_a_file_system_without_o_direct_is_named(disk, monkeypatch):
    monkeypatch.setattr(FileCalls, "bypass", Buffered.bypass)
    monkeypatch.setattr(FileCalls, "how", "flag", raising=False)
    place = look_at(disk)
    assert not place.direct
    assert "through the page cache" in place.text


#: Opens the slab, writes, says so, and waits to be killed.
CHILD = """
import sys, time
import numpy as np
from ooctrain.devices.spill import FileCalls, Spill
from ooctrain.devices.host_file import HostFile
FileCalls.file_system = lambda self, folder: 0xEF53
if sys.argv[2] == "named":
    import os
    del os.O_TMPFILE
slab = HostFile(Spill(sys.argv[1]), 1 << 20)
slab.put(0, np.ones(1 << 20, np.uint8))
print("written", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["unnamed", pytest.param("named", marks=pytest.mark.slow)])
def test_a_process_that_is_killed_leaves_nothing(tmp_path, how):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), how], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        assert os.listdir(tmp_path) == [], "the file has no name while it is used"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert os.listdir(tmp_path) == []


# The machine.


def test_the_plan_s_link_is_the_disk_at_most_as_fast_as_asked():
    generic = machine("cpu-generic")
    measured = replace(generic, disk=Disk(900.0, 500.0, "duplex", 50.0, "/x"), host_bytes=5)
    found = on_disk(measured)
    assert (found.out_bytes_per_us, found.in_bytes_per_us, found.link) == (900, 500, "duplex")
    assert found.latency_us == generic.latency_us + 50
    assert found.host_bytes is None
    assert 1 < found.interference < generic.interference
    slower = on_disk(measured, 600.0)
    assert (slower.out_bytes_per_us, slower.in_bytes_per_us) == (600, 500)
    typical = on_disk(generic)
    assert (typical.out_bytes_per_us, typical.link) == (1000, "shared")
    how = Settings(machine=measured, spill=Spill("/x", 600.0))
    assert how.find_machine() == slower


def test_a_disk_is_one_link_unless_reading_beside_writing_is_faster():
    size = COPIES * COPY_BYTES
    assert link_of(DiskTimes(100, 200, 290, 295)) == Disk(size / 100, size / 200, "shared")
    assert link_of(DiskTimes(100, 200, 120, 210)) == Disk(size / 120, size / 210, "duplex")


def test_a_calibration_keeps_the_disk(tmp_path):
    found = replace(machine("cpu-generic"), disk=Disk(900.0, 500.0, "duplex", 50.0, "/x"))
    save_calibration(found, tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == found


@pytest.mark.parametrize("wrong", [Disk(0.0, 1.0), Disk(1.0, -1.0)])
def test_a_disk_without_a_rate_is_no_disk(wrong):
    with pytest.raises(ConfigError, match="rate that is not positive"):
        replace(machine("cpu-generic"), disk=wrong)


@pytest.mark.slow
def test_a_disk_is_measured_and_nothing_is_left(disk):
    found = measure_disk(disk)
    assert found.out_bytes_per_us > 1
    assert found.in_bytes_per_us > 1
    assert found.folder == disk
    assert os.listdir(disk) == []


def test_a_link_of_memory_does_not_go_with_it():
    with pytest.raises(ConfigError) as found:
        Settings(spill=Spill("/tmp"), link_bandwidth=5.0)
    assert found.value.code == "OOC-106"


def test_the_words_of_the_command_are_a_folder_and_a_rate():
    assert options_from({}).disk is None
    assert options_from({"spill": "/x"}).disk == Spill("/x")
    assert options_from({"spill": "/x"}, "2GB/s").disk == Spill("/x", 2000.0)
    for wrong, rate in (
        ({}, "2GB"), ({"spill": "/x"}, "0"), ({"spill": "/x"}, "-1"), ({"spill": ""}, None),
        ({"spill": "/x", "link_bandwidth": "2GB"}, None),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            options_from(wrong, rate)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (None, "the disk assumed: this disk was not measured"),
        (Disk(2e3, 3e3, folder="/x"), "the disk measured by `ooctrain calibrate`"),
        (Disk(2e3, 3e3, folder="/y"), "the disk measured in /y"),
    ],
)  # fmt: skip
def test_the_command_says_where_the_rates_that_it_plans_with_are_from(measured, said, monkeypatch):
    monkeypatch.setattr(workload, "look_at", lambda folder: SpillPlace(folder, "ext4", True, 1))
    there = replace(machine("cpu-generic"), disk=measured)
    rows = host_rows(options_from({"spill": "/x"}), on_disk(there))
    assert rows[-1] == ("", said)
    held = host_rows(options_from({"spill": "/x"}, "50MB"), on_disk(there, 50.0))
    assert held[-1] == ("", f"{said}; --spill-rate is the most")
    assert "0.05 GB/s out and 0.05 GB/s in" in held[-2][1]


def test_the_doctor_says_what_a_disk_that_nobody_measured_is_taken_for(disk, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: disk)
    monkeypatch.setattr(doctor, "calibration_path", lambda: tmp_path / "c.json")
    assert "1.00 GB/s out, 1.00 in, assumed" in doctor.check_spill().text
    save_calibration(replace(machine("cpu-generic"), disk=Disk(900.0, 500.0, folder=disk)),
                     tmp_path / "c.json")  # fmt: skip
    assert "0.90 GB/s out, 0.50 in, measured by" in doctor.check_spill().text


class Toggled(Anywhere):
    """Notes when the page cache is passed by and when space is taken; `refuses` from so much on.

    Args:
        past_cache: whether the cache can be passed by.
    """

    def __init__(self, past_cache, refuses=1 << 40):
        super().__init__()
        self.past_cache, self.refuses, self.notes = past_cache, refuses, []

    def bypass(self, file, wanted):
        if wanted and not self.past_cache:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        self.notes.append("past" if wanted else "through")

    def is_cached(self, file):
        return False

    def reserve(self, file, size_bytes):
        self.notes.append(size_bytes)
        if size_bytes >= self.refuses:
            raise OSError(errno.ENOSPC, "full")
        super().reserve(file, size_bytes)

    def shrink(self, file, size_bytes):
        self.notes.append(-size_bytes)
        super().shrink(file, size_bytes)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("past_cache", [False, True])
def test_a_slab_grows_through_the_cache_and_goes_on_past_it(disk, past_cache, refused):
    """Where space cannot be reserved it is written with zeros, which lie anywhere in memory."""
    calls = Toggled(past_cache, 8 * BLOCK_BYTES if refused else 1 << 40)
    slab = opened(disk, calls, 2 * BLOCK_BYTES)
    calls.notes.clear()
    if refused:
        with pytest.raises(ConfigError):
            slab.resize(8 * BLOCK_BYTES)
        assert (slab.size_bytes, slab.reserved_bytes) == (2 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    else:
        slab.resize(8 * BLOCK_BYTES)
        assert (slab.size_bytes, slab.reserved_bytes) == (8 * BLOCK_BYTES, 8 * BLOCK_BYTES)
    given_back = [-2 * BLOCK_BYTES] * refused
    between = [8 * BLOCK_BYTES, *given_back]
    assert slab.direct == past_cache
    assert calls.notes == (["through", *between, "past"] if past_cache else between)
    slab.close()
