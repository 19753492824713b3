"""The slab on a disk changes no bit: any list, any planner, any allocator, any file system.

Lists of random traces run with hashes for kernels, and small networks train for real; both leave
what in-core leaves. A disk that fails in a step ends the run with an error, and training that is
taken up from the checkpoint before it goes on as if nothing had happened.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from properties import test_executor_laws as LISTS
from properties import test_same_bits as NETWORKS
from support.directed import always
from support.quick import all_but
from support.random_lists import random_schedule
from support.same_bits import check_same_bits, in_core, out_of_core
from support.spilling import Anywhere, Buffered, Short

import ooctrain as oc
from ooctrain import nn
from ooctrain.alloc.registry import choose_allocator
from ooctrain.cli import main
from ooctrain.devices.host_file import HostFile, KeptFile
from ooctrain.devices.interface import Debug
from ooctrain.devices.spill import BLOCK_BYTES, FileCalls, Spill
from ooctrain.engine.incore import initial_values
from ooctrain.errors import OoctrainError, TransferError
from ooctrain.execution.settings import Settings
from ooctrain.testing.random_traces import random_trace
from ooctrain.testing.run_list import Way, run_list

FILES = (Anywhere, Buffered, Short)
DEBUGS = LISTS.DEBUGS


def run_on_disk(folder, seed, file, debug):
    """Three steps of a random list with its slab in a file are three in-core steps."""
    rng = random.Random(seed)
    choice = choose_allocator(rng.choice(LISTS.ALLOCATORS), LISTS.ARENA, probe=lambda: "")

    def slab(size):
        return HostFile(Spill(str(folder)), size, file(), 2 * BLOCK_BYTES)

    way = Way(choice, rng.choice(["duplex", "shared"]), debug=debug, room=4, slab=slab)
    trace = random_trace(rng, calls=rng.randint(3, 8), max_bytes=20_000)
    schedule = random_schedule(trace, rng, granule=choice.granule, mischief=2.0)
    start, inputs = LISTS.three_steps(trace, seed)
    ran = run_list(trace, schedule, way, start, inputs)
    same = list(ran.persistent) == LISTS.expected(trace, start, inputs)
    assert same, f"seed {seed}: three steps are not three in-core steps"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("spill")


@settings(max_examples=4)
@given(st.integers(0, 2**32 - 1), st.sampled_from(FILES), DEBUGS)
@always([(1, Anywhere, Debug(poison=0x7F)), (2, Buffered, Debug(delay_us=300))])
@example(3, Short, Debug(synchronous=True))
def test_lists_with_their_slab_in_a_file_are_in_core_steps(folder, seed, file, debug):
    run_on_disk(folder, seed, file, debug)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1), st.sampled_from(FILES), DEBUGS)
def test_many_lists_with_their_slab_in_a_file_are_in_core_steps(folder, seed, file, debug):
    run_on_disk(folder, seed, file, debug)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A folder that is taken for one on a disk."""
    monkeypatch.setattr(FileCalls, "file_system", lambda self, folder: 0xEF53)
    return str(tmp_path)


def network():
    oc.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, NETWORKS.CLASSES),
    )  # fmt: skip


def train_on_disk(disk, how, model=None):
    """Three steps with the slab on disk have the bits of three steps in memory."""
    model = model or network()
    trace = oc.trace(model, (NETWORKS.BATCH, 3, 8, 8), threads=how.thread_count)
    start, scalars = initial_values(trace, model), {"lr": 0.05, "seed": 7}
    batches = NETWORKS.random_batches(3)
    prepared = NETWORKS.prepare_or_least(trace, replace(how, spill=Spill(disk)))
    if prepared is None:
        assert not how.allocator.startswith("va")  # the others fragment
        return
    found = out_of_core(prepared, replace(how, spill=Spill(disk)), start, batches, scalars)
    check_same_bits(found, in_core(trace, start, batches, scalars, how.thread_count))


def by(**words):
    return Settings(budget="20%", threads=1, time_limit_s=0.2, **words)


@pytest.mark.parametrize(
    "planner",
    all_but(sorted(oc.planners()), *(set(oc.planners()) - {"window"})),
)
def test_every_planner_trains_to_the_bit(disk, planner):
    train_on_disk(disk, by(planner=planner, debug=Debug(poison=0xFF, check_ledger=True)))


@pytest.mark.slow
@pytest.mark.parametrize("allocator", NETWORKS.ALLOCATORS)
def test_every_allocator_trains_to_the_bit(disk, allocator):
    train_on_disk(disk, by(planner="window", allocator=allocator, debug=Debug(check_ledger=True)))


@pytest.mark.slow
@settings(max_examples=25)
@given(NETWORKS.networks(), NETWORKS.ways())
def test_random_networks_train_to_the_bit(tmp_path_factory, model, how):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileCalls, "file_system", lambda self, folder: 0xEF53)
        folder = str(tmp_path_factory.mktemp("spill"))
        train_on_disk(folder, replace(how, link_bandwidth=None), model)


# A disk that fails.


def trainer_of(folder):
    return oc.Trainer(
        network(), budget="20%", planner="window", threads=1, spill=folder, optimizer="sgd"
    )


def test_training_goes_on_from_the_checkpoint_before_the_disk_failed(disk, tmp_path, monkeypatch):
    batches = NETWORKS.random_batches(4)
    with trainer_of(disk) as whole:
        expected = [whole.step(x, y) for x, y in batches]
        values = whole.state_arrays()
    path = str(tmp_path / "run.safetensors")
    failing = []
    write = FileCalls.write

    def at_last(self, file, data, offset):
        if failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, file, data, offset)

    monkeypatch.setattr(FileCalls, "write", at_last)
    with trainer_of(disk) as trainer:
        losses = [trainer.step(x, y) for x, y in batches[:2]]
        trainer.save(path)
        losses.append(trainer.step(*batches[2]))
        failing.append(True)
        with pytest.raises(TransferError) as found:
            trainer.step(*batches[3])
        assert found.value.code == "OOC-141"
        with pytest.raises(OoctrainError, match="lost when a step failed"):
            trainer.state_arrays()
        failing.clear()
        trainer.resume(path)
        losses[2:] = [trainer.step(x, y) for x, y in batches[2:]]
        found_values = trainer.state_arrays()
    assert losses == expected
    assert all(found_values[name].tobytes() == values[name].tobytes() for name in values)


def losses_of(path):
    return json.loads(path.read_text())["losses"]


@pytest.mark.slow
def test_the_command_says_what_failed_and_resumes_from_its_checkpoint(
    disk, tmp_path, monkeypatch, capsys
):
    words = [
        *("train", "lenet", "--batch", "16", "--budget", "30%", "--planner", "naive"),
        *("--threads", "1", "--steps", "6", "--spill", disk, "--spill-rate", "300MB"),
    ]
    whole, stopped, resumed = (tmp_path / f"{name}.json" for name in ("a", "b", "c"))
    saved = tmp_path / "run.safetensors"
    assert main([*words, "--json", str(whole)]) == 0
    said = capsys.readouterr().out
    assert "disk writes" in said
    assert "planned with 0.30 GB/s out" in said
    write, later = FileCalls.write, []

    def fails_later(self, file, data, offset):
        later.extend([1] * saved.exists())
        if len(later) > 5:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(self, file, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(FileCalls, "write", fails_later)
        often = ["--checkpoint", str(saved), "--checkpoint-steps", "2"]
        assert main([*words, *often, "--json", str(stopped)]) != 0
        assert "OOC-141" in capsys.readouterr().err
    done = losses_of(stopped)
    assert 2 <= len(done) < 6
    assert main([*words, "--resume", str(saved), "--json", str(resumed)]) == 0
    assert losses_of(resumed) == losses_of(whole)
    assert done == losses_of(whole)[: len(done)]


def test_a_full_disk_is_found_before_the_first_step(disk, monkeypatch):
    def full(self, file, size_bytes):
        if size_bytes > BLOCK_BYTES:  # the trial has a block
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileCalls, "reserve", full)
    model = network()
    with oc.Trainer(model, budget="20%", planner="window", threads=1, spill=disk) as trainer:
        before = {name: value.copy() for name, value in trainer.state_arrays().items()}
        with pytest.raises(oc.errors.ConfigError, match="no space") as found:
            trainer.step(*NETWORKS.random_batches(1)[0])
        assert found.value.code == "OOC-142"
        assert "wanted" in found.value.numbers
        after = trainer.state_arrays()
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)


def noting_closes(monkeypatch):
    """The files that have been given back, from now on."""
    closed, close = [], FileCalls.close

    def noted(self, file):
        closed.append(file)
        close(self, file)

    monkeypatch.setattr(FileCalls, "close", noted)
    return closed


def test_a_disk_that_fills_up_between_two_sessions_takes_no_space_from_the_second(
    disk, monkeypatch
):
    """An evaluation gave the space back, and the next step found the disk full (OOC-142)."""
    batches = NETWORKS.random_batches(3)
    with trainer_of(disk) as whole:
        expected = [whole.step(x, y) for x, y in batches]
    reserve, taken = FileCalls.reserve, []

    def full_after_the_first(self, file, size_bytes):
        if size_bytes > BLOCK_BYTES and taken and taken != [file]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken[:] = [file] if size_bytes > BLOCK_BYTES else taken
        reserve(self, file, size_bytes)

    monkeypatch.setattr(FileCalls, "reserve", full_after_the_first)
    closed = noting_closes(monkeypatch)
    with trainer_of(disk) as trainer:
        losses = [trainer.step(*batches[0])]
        closed.clear()  # the trial's file had perhaps the same number
        trainer.evaluate(batches[1:])
        losses += [trainer.step(x, y) for x, y in batches[1:]]
        assert taken[0] not in closed
    assert losses == expected
    assert taken[0] in closed


def test_a_trainer_that_has_its_space_needs_no_block_more(disk, monkeypatch):
    """A test step tried the folder out anew with a block, and found the disk full (OOC-142)."""
    batches, reserve, full = NETWORKS.random_batches(3), FileCalls.reserve, []

    def fills_up(self, file, size_bytes):
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(self, file, size_bytes)

    with trainer_of(disk) as whole:
        expected = [whole.step(*batches[0]), whole.evaluate(batches[1:]).loss]
    monkeypatch.setattr(FileCalls, "reserve", fills_up)
    with trainer_of(disk) as trainer:
        found = [trainer.step(*batches[0])]
        full.append(True)
        found.append(trainer.evaluate(batches[1:]).loss)
    assert found == expected


def test_a_trainer_that_nobody_closes_gives_its_file_back(disk, monkeypatch):
    closed = noting_closes(monkeypatch)
    trainer = trainer_of(disk)
    trainer.step(*NETWORKS.random_batches(1)[0])
    before = len(closed)
    del trainer
    gc.collect()
    assert len(closed) == before + 1


def test_a_larger_slab_takes_more_space_and_a_smaller_one_gives_none_back(disk, monkeypatch):
    kept, spill = KeptFile(), Spill(disk)
    file = kept.slab(spill, 3 * BLOCK_BYTES)
    assert kept.slab(spill, 5) is file
    assert (file.size_bytes, file.reserved_bytes) == (5, 3 * BLOCK_BYTES)
    file.close()
    assert kept.slab(spill, 9 * BLOCK_BYTES).reserved_bytes == 9 * BLOCK_BYTES
    file.put(8 * BLOCK_BYTES, np.arange(100, dtype=np.uint8))
    assert file.get(8 * BLOCK_BYTES, 100).tolist() == [*range(100)]

    def full(self, file, size_bytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(FileCalls, "reserve", full)
        with pytest.raises(oc.errors.ConfigError, match="no space") as found:
            kept.slab(spill, 10 * BLOCK_BYTES)
    assert found.value.code == "OOC-142"
    assert (file.size_bytes, file.reserved_bytes) == (9 * BLOCK_BYTES, 9 * BLOCK_BYTES)
    kept.close()
    assert kept.slab(spill, BLOCK_BYTES) is not file
    kept.close()


def test_what_a_step_writes_is_what_was_said(disk):
    x, y = NETWORKS.random_batches(1)[0]
    written = []
    with pytest.MonkeyPatch.context() as patch, trainer_of(disk) as trainer:
        copy = HostFile.copy

        def counted(slab, target, source, size_bytes):
            written.append(size_bytes if target >= slab.address else 0)
            copy(slab, target, source, size_bytes)

        patch.setattr(HostFile, "copy", counted)
        trainer.step(x, y)
        slab = trainer._residence.open.device._slab
        written.clear()
        before = slab.written_bytes
        trainer.step(x, y)
        assert sum(written) == trainer.prepared.host_written_bytes > 0
        on_disk, blocks = slab.written_bytes - before, 2 * BLOCK_BYTES * len(written)
        assert sum(written) <= on_disk <= sum(written) + blocks


# Memory, seen from outside.

PROGRAM = """
import ctypes, gc, json, os, sys
import numpy as np
import ooctrain as oc
from ooctrain.devices.spill import FileCalls
FileCalls.file_system = lambda self, folder: 0xEF53
folder = sys.argv[1] or None
rng = np.random.default_rng(0)

def pss():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024

def train(batch, look, **how):
    oc.manual_seed(0)
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    x, y = rng.standard_normal((batch, 3, 32, 32), np.float32), rng.integers(0, 10, batch)
    with oc.Trainer(model, planner="window", threads=2, **how) as trainer:
        trainer.step(x, y)
        gc.collect()
        look(trainer, [trainer.step(x, y) for _ in range(2)])

train(2, lambda *_: None)
gc.collect()
getattr(ctypes.CDLL(None), "malloc_trim", id)(0)
before = pss()
def look(trainer, losses):
    device = trainer._residence.open.device
    print(json.dumps({"grown": pss() - before, "slab": device.host_bytes, "losses": losses}))
train(64, look, budget="40%", spill=folder)
"""


def grown(folder):
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, timeout=300,
        check=False, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Pss is Linux's")
def test_the_process_is_smaller_by_the_slab(tmp_path):
    memory, disk = grown(""), grown(str(tmp_path))
    print(memory, disk)
    assert disk["losses"] == memory["losses"]
    saved = memory["grown"] - disk["grown"]
    assert memory["slab"] > 64 << 20
    assert saved > 0.8 * memory["slab"], "buffers and the page cache take little of it"
