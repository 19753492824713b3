"""The cpu device: streams in order, waits, failures, copies at a set bandwidth, debug modes."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooctrain.devices.cpu.copy_engine import CopyEngine, CopyLink
from ooctrain.devices.cpu.device import CpuDevice
from ooctrain.devices.cpu.host_vm import open_arena
from ooctrain.devices.interface import FRESH_POISON, Debug
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.devices.thread_streams import COMPUTE, IN, OUT, Streams
from ooctrain.errors import ConfigError, TransferError

SIZE = 1 << 16
#: A wait that takes longer hangs.
PATIENCE_S = 5


@pytest.fixture
def streams():
    streams = Streams()
    yield streams
    streams.close()


def make_device(link=None, **options):
    """A device whose copies are plain ones; `link`: settings of the link."""
    copies = CopyLink(copy_bytes=ctypes.memmove, **(link or {}))
    return CpuDevice(SIZE, SIZE, link=copies, **options)


# Streams


def test_a_stream_works_in_order_and_waits_for_points_of_the_others(streams):
    log = []
    streams.submit(OUT, (2, 0, 0), lambda: log.append("out"))
    streams.submit(COMPUTE, (0, 0, 0), lambda: log.append("first"))
    streams.submit(COMPUTE, (0, 0, 0), lambda: log.append("second"))
    streams.submit(IN, (0, 1, 0), lambda: log.append("in"))
    streams.submit(COMPUTE, (0, 1, 1), lambda: log.append("third"))
    streams.synchronize()
    assert log == ["first", "second", "out", "in", "third"]
    assert streams.done == [3, 1, 1]


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2]))
def test_random_lists_of_work_keep_every_wait(seed, copies):
    """Each piece looks whether all that it waits for is done; waits point backwards only."""
    rng = random.Random(seed)
    streams = Streams(copies)
    broken = []
    for number in range(40):
        waits = tuple(rng.randint(0, count) for count in streams.submitted)

        def work(waits=waits, number=number):
            if not streams.reached(waits):
                broken.append(number)

        streams.submit(rng.randrange(streams.count), waits, work, number)
        if rng.random() < 0.3:
            streams.advance(rng.randint(0, 3))
    streams.synchronize()
    spans = streams.restart()
    streams.close()
    assert not broken
    assert sorted(span.tag for span in spans) == list(range(40))


def test_only_the_walker_computes_and_only_the_threads_copy(streams):
    where = {}
    for stream in (COMPUTE, OUT, IN):

        def work(stream=stream):
            where[stream] = threading.get_ident()

        streams.submit(stream, (0, 0, 0), work)
    streams.synchronize()
    assert where[COMPUTE] == threading.get_ident()
    assert len(set(where.values())) == 3


def test_any_thread_walks_after_it_has_said_so():
    """An event of a copy that waits for compute work: only the walker can do that."""
    device, done = make_device(), []

    def walk():
        device.attach()
        device.streams.submit(COMPUTE, (0, 0, 0), lambda: done.append("compute"))
        device.streams.submit(OUT, (1, 0, 0), lambda: done.append("out"))
        device.streams.event((0, 1, 0)).wait()

    for _ in range(2):
        thread = threading.Thread(target=walk, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        hangs = thread.is_alive()
        device.streams.advance(0)  # so that it ends even then
        thread.join()
        assert not hangs
        device.streams.restart()
    assert done == ["compute", "out"] * 2
    device.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc here")
def test_a_device_that_nobody_closes_leaves_no_thread_and_no_file():
    def things():
        return [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]

    before = things()
    for _ in range(5):
        device = CpuDevice(SIZE, SIZE)
        device.memory.linear()
        device.streams.submit(IN, (0, 0, 0), lambda: None)
        device.streams.synchronize()
        del device
    gc.collect()
    assert things() <= before


def test_advance_leaves_the_last_pieces_in_the_queue(streams):
    done = []
    for number in range(5):
        streams.submit(COMPUTE, (0, 0, 0), lambda number=number: done.append(number))
    assert done == []
    streams.advance(2)
    assert done == [0, 1, 2]


def test_waiting_for_a_copy_that_waits_for_us_computes_first(streams):
    streams.submit(COMPUTE, (0, 0, 0), lambda: None)
    streams.submit(OUT, (1, 0, 0), lambda: None)
    event = streams.event((0, 1, 0))
    assert not event.done()
    event.wait()
    assert event.done()


def test_an_event_of_an_earlier_era_is_reached(streams):
    streams.submit(OUT, (0, 0, 0), lambda: None)
    event = streams.event((0, 1, 0))
    streams.synchronize()
    streams.restart()
    assert streams.done == [0, 0, 0]
    assert event.done()
    event.wait()


def test_a_failing_copy_is_named_skips_the_rest_and_blocks_nobody(streams):
    done = []

    def fail():
        raise OSError("the link is cut")

    streams.submit(OUT, (0, 0, 0), fail)
    streams.submit(COMPUTE, (0, 1, 0), lambda: done.append("compute"))
    streams.submit(IN, (1, 0, 0), lambda: done.append("in"))
    with pytest.raises(TransferError, match="the link is cut") as caught:
        streams.synchronize()
    assert "stream out" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert done == []


def test_a_failing_kernel_raises_its_own_error(streams):
    streams.submit(COMPUTE, (0, 0, 0), lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        streams.synchronize()


def test_an_interrupt_reaches_the_walker_and_the_rest_is_skipped(streams):
    done = []

    def interrupt():
        raise KeyboardInterrupt

    streams.submit(COMPUTE, (0, 0, 0), interrupt)
    streams.submit(OUT, (1, 0, 0), lambda: done.append("out"))
    with pytest.raises(KeyboardInterrupt):
        streams.advance(0)
    streams.abandon(KeyboardInterrupt())
    assert done == []


# Copy engine


class Clock:
    """A clock whose sleeps take 60 us too long, as those of Linux do."""

    def __init__(self):
        self.now = 10**9

    def sleep(self, seconds):
        self.now += round(seconds * 1e9) + 60_000


@pytest.mark.parametrize("size", [2_000, 50_000, 1_000_000])
def test_the_mean_bandwidth_is_what_was_set_although_sleeps_are_too_long(size):
    clock = Clock()
    engine = CopyEngine(lambda *_: None, now_ns=lambda: clock.now, sleep=clock.sleep)
    begin = clock.now
    for number in range(1, 200):
        engine.copy(0, 0, size, 400.0)
        assert clock.now - begin >= number * size * 1000 / 400
    assert clock.now - begin <= number * size * 1000 / 400 + 60_000


def test_latency_counts_for_each_copy_and_idle_time_is_not_saved_up():
    clock = Clock()
    engine = CopyEngine(lambda *_: None, 3000, now_ns=lambda: clock.now, sleep=clock.sleep)
    engine.copy(0, 0, 1)
    clock.now += 10**7
    begin = clock.now
    engine.copy(0, 0, 1)
    engine.copy(0, 0, 1)
    assert 6_000_000 <= clock.now - begin <= 6_060_000


def test_a_link_faster_than_the_processor_copies_adds_nothing():
    clock = Clock()

    def slow_copy(*_):
        clock.now += 5_000_000

    engine = CopyEngine(slow_copy, now_ns=lambda: clock.now, sleep=clock.sleep)
    begin = clock.now
    for _ in range(3):
        engine.copy(0, 0, 1000, 1.0)
    assert clock.now - begin == 15_000_000


def test_a_device_that_has_stopped_waits_for_no_slow_link():
    clock, stopped = Clock(), []

    def sleep(seconds):
        clock.sleep(seconds)
        stopped.append(True)

    engine = CopyEngine(
        lambda *_: None, now_ns=lambda: clock.now, sleep=sleep, stopped=lambda: bool(stopped)
    )
    begin = clock.now
    engine.copy(0, 0, 10**9, 1.0)
    assert clock.now - begin < 100_000_000  # of 1000 s


def test_real_sleeps_are_never_too_short():
    engine = CopyEngine(lambda *_: None)
    begin = time.perf_counter_ns()
    for _ in range(20):
        engine.copy(0, 0, 50_000, 50.0)
    assert time.perf_counter_ns() - begin >= 20 * 1_000_000


# Device


@pytest.mark.parametrize("link", ["duplex", "shared"])
def test_bytes_go_out_and_come_back(link):
    device = make_device({"kind": link})
    address = device.memory.linear()
    data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    device.write(address, data)
    streams, last = device.streams, device.streams.count - 1
    streams.submit(OUT, (0,) * streams.count, lambda: device.copy_out(address + 7, 3, 1000))
    waits = [0] * streams.count
    waits[OUT] = 1
    streams.submit(last, waits, lambda: device.copy_in(address + 20_000, 3, 1000))
    streams.synchronize()
    assert (device.host(3, 1000) == data[7:1007]).all()
    assert (device.read(address + 20_000, 1000) == data[7:1007]).all()
    assert (device.read(address, 20_000) == data[:20_000]).all()
    device.close()


def both_ways_seconds(link):
    """Time of 20 ms of copies out beside 20 ms of copies in."""
    device = make_device({"kind": link, "out_bytes_per_us": 1.0, "in_bytes_per_us": 1.0})
    address, streams = device.memory.linear(), device.streams
    start = time.perf_counter()
    for _ in range(4):
        nothing = (0,) * streams.count
        streams.submit(OUT, nothing, lambda: device.copy_out(address, 0, 5000))
        streams.submit(
            streams.count - 1, nothing, lambda: device.copy_in(address + 8192, 8192, 5000)
        )
    streams.synchronize()
    seconds = time.perf_counter() - start
    device.close()
    return seconds


def test_a_shared_link_takes_the_sum_and_a_duplex_link_the_longer():
    assert both_ways_seconds("shared") >= 0.040
    # Of many tries one suffices: a busy machine makes each of them longer, and none shorter.
    assert any(both_ways_seconds("duplex") < 0.0395 for _ in range(60))


def test_directions_have_bandwidths_of_their_own():
    device = make_device({"out_bytes_per_us": 0.1, "in_bytes_per_us": 10.0})
    address = device.memory.linear()

    def seconds(copy):
        start = time.perf_counter()
        copy(address, 0, 3000)
        return time.perf_counter() - start

    assert seconds(device.copy_out) >= 0.030 - 1e-6
    # Of many tries one suffices, as above.
    assert any(seconds(device.copy_in) < 0.030 for _ in range(60))
    device.close()


def test_views_are_arrays_over_the_devices_own_memory():
    device = make_device()
    address = device.memory.linear() + 128
    view = device.view(address, (2, 3, 4), "float32")
    view[...] = 5
    assert (bytes_at(address, 96).view(np.float32) == 5).all()
    assert device.view(0, (3, 0), "int64").shape == (3, 0)
    device.fill(address, 96, FRESH_POISON)
    assert np.isnan(view).all()
    device.close()


def test_the_arena_is_the_budget_and_hidden_memfd_gives_a_plain_one():
    device = CpuDevice(10 * 4096, 0, link=CopyLink(copy_bytes=ctypes.memmove))
    assert device.memory.used_bytes() == 10 * 4096
    device.close()
    plain = make_device(open_memory=partial(open_arena, probe=lambda: "hidden by a test"))
    assert not plain.memory.ranges
    assert plain.memory.used_bytes() == SIZE
    plain.close()


def test_delays_are_drawn_from_the_seed():
    def draws(seed):
        device = make_device(debug=Debug(delay_us=2000, delay_seed=seed))
        for _ in range(6):
            device.streams.submit(OUT, (0, 0, 0), lambda: None)
        start = time.perf_counter()
        device.streams.synchronize()
        seconds = time.perf_counter() - start
        device.close()
        return seconds

    for seed in (1, 5):
        generator = random.Random(f"{seed}:{OUT}")
        assert sum(generator.random() for _ in range(6)) * 0.002 <= draws(seed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"link": {"kind": "simplex"}}, "neither 'shared' nor 'duplex'"),
        ({"link": {"out_bytes_per_us": 0.0}}, "bandwidth must be positive"),
        ({"link": {"in_bytes_per_us": -1.0}}, "bandwidth must be positive"),
        ({"link": {"in_bytes_per_us": float("nan")}}, "bandwidth must be positive"),
        ({"link": {"latency_us": -1.0}}, "latency not negative"),
        ({"threads": 0}, "threads"),
    ],
)
def test_impossible_devices_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        make_device(**options)


def test_more_memory_than_there_is_is_refused():
    with pytest.raises(ConfigError, match="the arena and the host slab"):
        CpuDevice(1 << 30, 1 << 55)


def test_the_default_copy_is_the_compiled_kernel():
    device = CpuDevice(SIZE, SIZE)
    address = device.memory.linear()
    data = np.random.default_rng(1).integers(0, 256, 12_345, np.uint8)
    device.write(address + 1, data)
    device.copy_out(address + 1, 5, data.size)
    device.copy_in(address + 20_003, 5, data.size)
    assert (device.read(address + 20_003, data.size) == data).all()
    device.close()


@pytest.mark.parametrize("options", [{"poison": 256}, {"poison": -1}, {"delay_us": -1.0}])
def test_impossible_debug_modes_are_refused(options):
    with pytest.raises(ConfigError):
        Debug(**options)
