"""A GPU's slab on a disk: pieces are filled, written, read, emptied in any order of the queues."""

from __future__ import annotations

import errno
import random

import pytest
from support.same_bits import out_of_core
from support.spilling import Anywhere, Failing
from unit import test_cuda_device as GPU
from unit import test_cuda_training as TRAINING
from zoo import planting

from ooctrain.devices.cuda import device, spilled
from ooctrain.devices.cuda.spilled import SpilledSlab
from ooctrain.devices.host_file import HostFile
from ooctrain.devices.interface import Debug
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.devices.spill import BLOCK_BYTES, FileCalls, Spill
from ooctrain.errors import OoctrainError, TransferError
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings

np = GPU.np


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """So that each copy takes several, and they run out."""
    monkeypatch.setattr(device, "PINNED_BYTES", BLOCK_BYTES)
    for room in (device, spilled):
        monkeypatch.setattr(room, "PIECES", 3)


def slab_in(folder, calls=None):
    return lambda size: HostFile(Spill(str(folder)), size, calls or Anywhere(), BLOCK_BYTES)


def three_steps(run):
    """As tests/unit/test_cuda_device.py: right or not."""
    w = np.float32(1)
    for x in (0.5, 2.0, -1.0):
        gradient = 3 * (np.float32(x) + w)
        outputs = run.step(x).outputs
        w -= np.float32(0.25) * gradient
        same = (outputs[GPU.G] == gradient).all() and (run.session.read(GPU.W) == w).all()
        if not same:
            return False
    run.close()
    return True


CASES = [(name, order) for name in GPU.LISTS for order in GPU.orders()]
QUICK = (("swapped", "oldest"),)


@pytest.mark.parametrize(
    ("name", "order"),
    [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES],
)
def test_three_steps_by_hand_in_every_order_of_the_queues(tmp_path, name, order):
    for link in ("duplex", "shared"):
        for quick in (False, True):
            run = GPU.Bench(
                GPU.LISTS[name], "va:chunk=4KiB", choose=GPU.orders()[order], quick=quick,
                slab=slab_in(tmp_path), link=link,
            )  # fmt: skip
            assert three_steps(run), (link, quick)


@pytest.mark.parametrize(
    "debug",
    [
        pytest.param(Debug(poison=0xFF, check_ledger=True), marks=pytest.mark.slow),
        pytest.param(Debug(poison=0x7F), marks=pytest.mark.slow),
        pytest.param(Debug(synchronous=True), marks=pytest.mark.slow),
    ],
    ids=["fresh", "freed", "synchronous"],
)
def test_debug_modes_change_no_bit(tmp_path, debug):
    for order in GPU.orders().values():
        run = GPU.Bench(GPU.SWAPPED, choose=order, slab=slab_in(tmp_path), debug=debug)
        assert three_steps(run)


def test_the_host_pins_its_pieces_and_not_the_slab(tmp_path):
    run = GPU.Bench(GPU.SWAPPED, slab=slab_in(tmp_path))
    run.step(1.0)
    pinned = [block.size for block in run.driver.host.values()]
    assert 3 * BLOCK_BYTES in pinned
    assert run.device.host_bytes not in pinned
    assert run.device.graphs is None
    run.close()


def test_a_failing_disk_ends_the_step_and_everything_is_given_back(tmp_path):
    run = GPU.Bench(GPU.SWAPPED, slab=slab_in(tmp_path, Failing(5, 8)))

    def steps():
        for x in (0.5, 2.0, -1.0):
            run.step(x)

    with pytest.raises(TransferError) as found:
        steps()
    assert found.value.code == "OOC-141"
    run.close()


SIZE = 5 * BLOCK_BYTES + 100
SLAB = 12 * BLOCK_BYTES


def copies_in_list_order(folder, seed, pieces, choose=min):
    """Random copies, queued on one stream, against arrays that are changed at once."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    driver = GPU.RefusingDriver(GPU.TOTAL, GPU.CHUNK, choose)
    stream, device_address = driver.create_stream(), driver.allocate(SIZE)
    pinned, loads = driver.host_alloc(pieces * BLOCK_BYTES), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilled, "PIECES", pieces)
        slab = SpilledSlab(driver, slab_in(folder)(SLAB), pinned, BLOCK_BYTES)
    there, on_disk = np.zeros(SIZE, np.uint8), np.zeros(SLAB, np.uint8)
    slab.put(0, on_disk)
    for what in ["load", *rng.choices(["load", "out", "out", "in", "put", "step"], k=20)]:
        size = rng.randint(1, SIZE)
        offset = rng.randint(0, SLAB - size)
        if what == "load":
            loads.append(driver.host_alloc(SIZE))
            there = numbers.integers(0, 256, SIZE).astype(np.uint8)
            bytes_at(loads[-1], SIZE)[:] = there
            driver.copy_in(device_address, loads[-1], SIZE, stream)
        elif what == "out":
            slab.copy_out(device_address, offset, size, stream)
            on_disk[offset : offset + size] = there[:size]
        elif what == "in":
            slab.copy_in(device_address, offset, size, stream)
            there = np.concatenate([on_disk[offset : offset + size], there[size:]])
        elif what == "put":
            slab.put(offset, np.full(size, seed % 256, np.uint8))
            on_disk[offset : offset + size] = seed % 256
        else:
            driver.step()
    back = driver.host_alloc(SIZE)
    driver.copy_out(back, device_address, SIZE, stream)
    driver.synchronize_stream(stream)
    same = (slab.get(0, SLAB) == on_disk).all() and (bytes_at(back, SIZE) == there).all()
    for address in (pinned, back, *loads):
        driver.host_free(address)
    slab.close()
    driver.free(device_address)
    driver.destroy_stream(stream)
    assert same, f"seed {seed}, {pieces} pieces"
    assert not any(driver.held().values()), driver.held()


def test_copies_are_those_of_the_list_in_its_order(tmp_path):
    for seed in range(6):
        copies_in_list_order(tmp_path, seed, (3, 16)[seed % 2])


@pytest.mark.slow
def test_many_copies_are_those_of_the_list_in_its_order(tmp_path):
    for seed in range(200):
        copies_in_list_order(tmp_path, seed, (2, 3, 16)[seed % 3])


def test_what_the_disk_has_refused_is_not_read_as_it_was_before(tmp_path):
    """The first look failed, and the second one, such as a checkpoint that is tried again, found
    the bytes of the step before."""
    driver = GPU.RefusingDriver(GPU.TOTAL, GPU.CHUNK, min)
    stream, device_address = driver.create_stream(), driver.allocate(SIZE)
    pinned, calls = driver.host_alloc(3 * BLOCK_BYTES), Failing(errno.ENOSPC, 1000)
    slab = SpilledSlab(driver, slab_in(tmp_path, calls)(SLAB), pinned, BLOCK_BYTES)
    slab.put(0, np.zeros(SLAB, np.uint8))
    driver.fill(device_address, 7, SIZE, stream)
    slab.copy_out(device_address, 0, 3 * BLOCK_BYTES, stream)
    calls.left = 0
    looks = (
        lambda: slab.get(0, 3 * BLOCK_BYTES),
        lambda: slab.get(2 * BLOCK_BYTES, BLOCK_BYTES),
        lambda: slab.copy_out(device_address, 5 * BLOCK_BYTES, 10, stream),  # no piece is idle
    )
    for look in 2 * looks:
        with pytest.raises(TransferError):
            look()
    calls.left = 1000  # another program has made room
    same = (slab.get(0, SLAB) == [7] * 3 * BLOCK_BYTES + [0] * (SLAB - 3 * BLOCK_BYTES)).all()
    assert same
    slab.close()
    driver.host_free(pinned)
    driver.free(device_address)
    driver.destroy_stream(stream)


BUGS = {
    "a copy in does not look for what is still on its way": (
        "copy_in", "self._settle(offset, offset + size_bytes)", "pass",
    ),
    "bytes are written beside those that are still on their way": (
        "put", "self._settle(offset, offset + data.size)", "pass",
    ),
    "a piece goes to the file before the GPU has filled it": (
        "_settle_oldest", "self._driver.synchronize_event(moving.piece.event)", "pass",
    ),
    "a piece that the GPU empties is taken for an idle one": (
        "copy_in", "self._moving.append(_Moving(piece))", "self._idle.append(piece)",
    ),
    "of several pieces all go to the first one's place": (
        "copy_out", "_Moving(piece, offset + lo, offset + hi)",
        "_Moving(piece, offset, offset + hi - lo)",
    ),
    "pieces are settled last in, first out": (
        "_settle_oldest", "self._moving[0]", "self._moving[-1]",
    ),
    "a piece is idle before the disk has what it holds": (
        "_settle_oldest", "moving = self._moving[0]",
        "moving = self._moving.popleft(); self._moving.appendleft(_Moving(moving.piece))",
    ),
    "only the oldest piece is settled for a copy in": (
        "_settle", "while any(", "if any(",
    ),
}  # fmt: skip


def _both_laws(folder):
    test_copies_are_those_of_the_list_in_its_order(folder)
    test_what_the_disk_has_refused_is_not_read_as_it_was_before(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_each_bug_is_found(tmp_path, monkeypatch, name):
    planting.plant(monkeypatch, SpilledSlab, *BUGS[name])
    with pytest.raises((AssertionError, OoctrainError, pytest.fail.Exception)):
        _both_laws(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("order", TRAINING.orders())
def test_a_network_trains_to_the_bit(tmp_path, monkeypatch, order):
    fakes, workload = TRAINING.Fakes(monkeypatch), TRAINING.Workload("resnet")
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: 0xEF53)
    expected = workload.in_core()
    fakes.choose = TRAINING.orders()[order]
    how = Settings(
        budget="25%", planner="window", allocator="va:chunk=4KiB", device="cuda",
        time_limit_s=None, machine="cpu-generic", spill=Spill(str(tmp_path), 5000.0),
    )  # fmt: skip
    prepared = prepare(workload.trace, how)
    assert prepared.host_written_bytes > 0
    found = out_of_core(prepared, how, workload.start, workload.batches, TRAINING.SCALARS)
    assert TRAINING.same(found, expected)
    fakes.check_nothing_is_held()
