"""The cuda device over the strict fake driver: hand-written lists, in every order of the queues.

The kernels are the cpu's, run when the fake's streams get to them; what is tested is the device.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from doubles.cpu_kernels import CpuKernels
from doubles.refusing_driver import ACQUIRING, RefusingDriver
from support.hand_lists import (
    AWAY,
    CHUNK,
    HALVES,
    IN_CORE,
    NEW,
    RECOMPUTED,
    SWAPPED,
    A,
    G,
    N,
    S,
    W,
    X,
    make_list,
    small_step,
)

from ooctrain.alloc.registry import choose_allocator
from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.device import CudaDevice
from ooctrain.devices.cuda.device_array import DeviceArray
from ooctrain.devices.cuda.feed import Feed
from ooctrain.devices.cuda.staging import Staging
from ooctrain.devices.cuda.streams import CudaStreams
from ooctrain.devices.interface import Debug
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.devices.thread_streams import COMPUTE, IN, OUT
from ooctrain.errors import ConfigError, DriverError, OoctrainError, OutOfDeviceMemory
from ooctrain.execution.executor import Session, host_extent_bytes
from ooctrain.execution.placement import reserved_peak
from ooctrain.testing.fake_driver import Violation
from ooctrain.testing.fake_gpu import queue

ALLOCATORS = (
    "va:chunk=4KiB",
    "best-fit",
    "buddy",
    "first-fit",
    "va-paper:chunk=4KiB",
    "va-nnabla:chunk=4KiB",
    "gmlake:chunk=4KiB",
    "stalloc",
    "best-fit-caching",
    "passthrough",
)
LISTS = {
    "in-core": IN_CORE, "swapped": SWAPPED, "recomputed": RECOMPUTED, "away": AWAY,
    "halves": HALVES,
}  # fmt: skip
AWAY_START = ((), ((X, 0, S), (W, 0, S)))
TOTAL = 64 * S
PROGRESS = random.Random(2)
cpu_kernels = CpuKernels


def orders():
    """Which of the streams that can go on goes on: the first, the last, or any."""
    drawn = random.Random(7)
    return {"oldest": min, "newest": max, "any": drawn.choice, "other": random.Random(8).choice}


class Bench:
    """A session on a cuda device of exactly the reserved peak, with w = 1."""

    def __init__(
        self, instructions, allocator="va:chunk=4KiB", *, wanted=(G,), choose=min, quick=False,
        slab=int, **options,
    ):  # fmt: skip
        self.trace = small_step()
        start = AWAY_START if instructions is AWAY else None
        self.schedule = make_list(self.trace, instructions, start)
        choice = choose_allocator(allocator, 32 * S, probe=lambda: "")
        reserved = reserved_peak(self.schedule, self.trace, choice)
        extent = slab(host_extent_bytes(self.trace, self.schedule, 64 if slab is int else 4096))
        self.driver = RefusingDriver(TOTAL, CHUNK, choose)
        self.device = CudaDevice(
            self.driver, cpu_kernels, reserved, extent, piece_bytes=choice.piece_bytes, **options
        )
        if quick:
            self.device.streams._jitter = self.go_on
        self.allocator = choice.make(self.device.memory)
        values = {W: np.ones(N, np.float32)}
        self.session = Session(
            self.trace, self.schedule, self.device, self.allocator, values, wanted
        )

    def go_on(self, _stream):
        """Between two pieces that are queued, a GPU has done some that were queued before."""
        for _ in range(PROGRESS.randrange(5)):
            self.driver.step()

    def step(self, x, lr=0.25):
        return self.session.run_step({X: np.full(N, x, np.float32)}, {"lr": lr})

    def close(self):
        self.session.close()
        self.device.close()
        assert not any(self.driver.held().values()), self.driver.held()


@pytest.mark.parametrize(
    "quick", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["late", "quick"]
)
@pytest.mark.parametrize("order", orders())
@pytest.mark.parametrize(
    ("name", "allocator"),
    # The others cannot move parts of a variable.
    [(n, a) for n in LISTS for a in ALLOCATORS if n != "halves" or a == "va:chunk=4KiB"],
)
def test_three_steps_by_hand_in_every_order_of_the_queues(name, allocator, order, quick):
    run = Bench(LISTS[name], allocator, choose=orders()[order], quick=quick)
    w = np.float32(1)
    for x in (0.5, 2.0, -1.0):
        gradient = 3 * (np.float32(x) + w)
        w -= np.float32(0.25) * gradient
        assert (run.step(x).outputs[G] == gradient).all()
        assert (run.session.read(W) == w).all()
        run.allocator.check()
    run.close()


@pytest.mark.parametrize("order", orders())
@pytest.mark.parametrize("link", ["duplex", "shared"])
@pytest.mark.parametrize(
    "debug",
    [Debug(poison=0xFF, check_ledger=True), Debug(poison=0x7F), Debug(synchronous=True),
     Debug(delay_us=10)],
    ids=["fresh", "freed", "synchronous", "delays"],
)  # fmt: skip
def test_debug_modes_and_links_change_no_bit(debug, link, order):
    run = Bench(SWAPPED, "best-fit", choose=orders()[order], debug=debug, link=link)
    for x in (0.5, -2.0):
        assert (run.step(x, lr=0.0).outputs[G] == 3 * (np.float32(x) + 1)).all()
    run.close()


def test_wanted_values_are_those_of_their_moment_though_copied_later():
    for choose in orders().values():
        run = Bench(SWAPPED, wanted=(W, NEW, A, X), choose=choose)
        for x, w in ((0.5, 1.0), (1.0, 1 - 0.25 * 4.5)):
            outputs = run.step(x).outputs
            assert (outputs[W] == w).all()  # read last by the update, which overwrites it
            assert (outputs[NEW] == np.float32(w) - 0.25 * 3 * (x + w)).all()
            assert (outputs[A] == x + w).all()
            assert (outputs[X] == x).all()
        run.close()


def test_the_outputs_of_a_step_do_not_change_in_the_next():
    run = Bench(IN_CORE, wanted=(G, A))
    first = run.step(0.5).outputs
    kept = {v: value.copy() for v, value in first.items()}
    run.step(7.0)
    assert all((first[v] == kept[v]).all() for v in kept)
    run.close()


def test_issue_waits_for_nothing_until_the_step_ends():
    """The whole list is queued before anything of it must be done."""
    run = Bench(SWAPPED)
    done_before = run.driver.queues.pieces_done
    seen = []
    synchronize = run.device.streams.synchronize

    def look():
        seen.append(run.driver.queues.pieces_done)
        synchronize()

    run.device.streams.synchronize = look
    run.session.run_step({X: np.ones(N, np.float32)}, {"lr": 0.1})
    assert seen[0] == done_before
    assert run.device.streams.host_waits == 0
    run.close()


class Unordered(CudaStreams):
    """Streams that do not wait for each other."""

    def _queue_waits(self, stream, waits):
        pass


class Forgetful(CudaStreams):
    """Streams that take a wait of the last step for one of this step."""

    def restart(self):
        kept = self._awaited
        spans = super().restart()
        self._awaited = kept
        return spans


class CapturesElsewhere(CudaDevice):
    """Wanted values are copied by the copy stream, at whatever moment that is."""

    def capture(self, address, size_bytes):
        streams = self.streams
        return self._staging.capture(address, size_bytes, streams.handles[OUT], streams.era)


class SpoilsAtOnce(CudaDevice):
    """Host memory is spoilt when its last copy has been queued, not when it is done."""

    def fill_host(self, offset, size_bytes, byte):
        self.host(offset, size_bytes)[:] = byte


class FillsElsewhere(CudaDevice):
    """Freed memory is spoilt by a stream that has not waited for its last use."""

    def fill(self, address, size_bytes, byte):
        self._driver.fill(address, byte, size_bytes, self.streams.handles[IN])


class ReadsAtOnce(Staging):
    """Values are taken from the pinned memory before the copy is done."""

    def read(self, address, size_bytes, stream):
        piece = self._pinned()
        self._driver.copy_out(piece.address, address, size_bytes, stream)
        return bytes_at(piece.address, size_bytes).copy()


BUGS = {
    "Unordered": ("ooctrain.devices.cuda.device.CudaStreams", Unordered),
    "Forgetful": ("ooctrain.devices.cuda.device.CudaStreams", Forgetful),
    "ReadsAtOnce": ("ooctrain.devices.cuda.device.Staging", ReadsAtOnce),
    "CapturesElsewhere": (f"{__name__}.CudaDevice", CapturesElsewhere),
    "SpoilsAtOnce": (f"{__name__}.CudaDevice", SpoilsAtOnce),
    "FillsElsewhere": (f"{__name__}.CudaDevice", FillsElsewhere),
}


def survives(choose, quick):
    """Whether three steps are right, swapping, poisoned, in this order of the queues."""
    run = Bench(SWAPPED, wanted=(G, A), choose=choose, quick=quick, debug=Debug(poison=0x7F))
    w = np.float32(1)
    for x in (0.5, 2.0, -1.0):
        try:
            outputs = run.step(x).outputs
            value = run.session.read(W)
        except OoctrainError:
            return False
        gradient = 3 * (np.float32(x) + w)
        right = (outputs[G] == gradient).all() and (outputs[A] == np.float32(x) + w).all()
        w -= np.float32(0.25) * gradient
        if not (right and (value == w).all()):
            return False
    run.close()
    return True


def test_the_honest_device_survives_every_order():
    assert all(survives(choose, quick) for choose in orders().values() for quick in (False, True))


@pytest.mark.filterwarnings("ignore:overflow")  # of what poison is computed from
@pytest.mark.parametrize("bug", BUGS)
def test_a_device_with_one_mistake_is_found_out_in_some_order(bug, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    ways = [(choose, quick) for choose in orders().values() for quick in (False, True)]
    assert not all(survives(choose, quick) for choose, quick in ways)


def test_a_broken_mapping_waits_on_the_host_for_its_last_use():
    """`passthrough` unmaps at every free: the host waits, is counted, and no rule is broken."""
    for choose in orders().values():
        run = Bench(SWAPPED, "passthrough", choose=choose)
        run.step(0.5)
        assert run.device.streams.host_waits > 0
        assert run.device.streams.waited_ns > 0
        stats = run.allocator.stats()
        assert stats.host_waits >= run.device.streams.host_waits
        run.close()


def test_the_timeline_comes_from_the_streams_own_events():
    run = Bench(SWAPPED)
    timeline = run.step(1.0).timeline
    named = [(e.stream, e.name) for e in sorted(timeline.events, key=lambda e: e.index)]
    assert named == [
        ("H", "x"), ("C", "f.a"), ("D", "a"), ("C", "f.c"), ("D", "w"), ("H", "a"), ("C", "f.g"),
        ("H", "w"), ("C", "update"),
    ]  # fmt: skip
    assert (timeline.bytes_out, timeline.bytes_in) == (2 * S, 3 * S)
    by_index = {event.index: event for event in timeline.events}
    # The fake's clock counts pieces of work: what waits for another begins after its end.
    for index, after in ((1, 0), (3, 1), (4, 1), (8, 3), (9, 8), (13, 12)):
        assert by_index[index].start_us >= by_index[after].end_us > by_index[after].start_us
    run.close()


@pytest.mark.parametrize("order", orders())
def test_inputs_travel_by_themselves_and_each_step_finds_its_own(order):
    """Five pieces by two blocks of pinned memory: the host waits for three, the step for all."""
    run = Bench(IN_CORE, choose=orders()[order])
    device, queues = run.device, run.driver.queues
    device._feed = Feed(run.driver, device.streams, piece_bytes=-(-S // 5))
    address, found = run.session.placement.address(W), {}
    wait, waited = run.driver.synchronize_event, []
    run.driver.synchronize_event = lambda event: waited.append(event) or wait(event)
    for x in (1, 2, 3):
        done = queues.pieces_done
        device.feed(address, np.full(S * 2 // 5, x, np.uint8))
        assert queues.pieces_done == done
        waited.clear()
        device.feed(address, np.full(S, x, np.uint8))
        assert len(waited) == 5  # two for the blocks of the feed before
        device.streams.submit(
            COMPUTE, (0, 0, 0), lambda: found.update(y=device.capture(address, S))
        )
        device.streams.synchronize()
        assert (found["y"] == x).all()
        device.streams.restart()
    run.close()


class Early(Feed):
    """Streams that do not wait for the input."""

    def _let_wait(self, event):
        pass


class Hasty(Feed):
    """Pinned memory that is written anew while it is still copied."""

    def _wait_for(self, place):
        pass


@pytest.mark.parametrize("bug", [Early, Hasty])
def test_bugs_in_the_way_of_inputs_are_found(monkeypatch, bug):
    monkeypatch.setattr(sys.modules[__name__], "Feed", bug)
    law = test_inputs_travel_by_themselves_and_each_step_finds_its_own
    assert any(fails(law, name) for name in orders())


def fails(law, *arguments):
    try:
        law(*arguments)
    except AssertionError:
        return True
    return False


def test_times_are_read_only_when_somebody_asks_and_are_those_of_their_step():
    run, asked = Bench(SWAPPED), []
    elapsed = run.driver.elapsed_us
    run.driver.elapsed_us = lambda *events: asked.append(events) or elapsed(*events)
    kept, at_once = [run.step(x) for x in (1.0, 2.0)], Bench(SWAPPED)
    assert not asked
    expected = [list(at_once.step(x).spans) for x in (1.0, 2.0)]
    assert [list(result.spans) for result in reversed(kept)] == expected[::-1]
    events = run.driver.held()["events"]
    for x in range(5):
        run.step(float(x))  # nobody keeps these, so that their events are free again
    assert run.driver.held()["events"] == events
    last, before = run.step(1.0), len(asked)
    run.close()
    assert len(asked) > before  # nobody can ask later
    assert [span.tag for span in last.spans] == [span.tag for span in expected[0]]
    at_once.close()


def test_events_and_pinned_blocks_are_made_in_the_first_step_only():
    run = Bench(SWAPPED, wanted=(G, A))
    run.step(0.5)
    made = {call: run.driver.calls[call] for call in ("cuEventCreate", "cuMemHostAlloc")}
    for _ in range(3):
        run.step(0.5)
    assert {call: run.driver.calls[call] for call in made} == made
    run.close()


def test_the_host_slab_is_one_pinned_piece_of_the_planned_size():
    run = Bench(SWAPPED)
    slab = run.device.host(0, 1 << 40)
    assert slab.size == run.device.host_bytes == run.session.program.slots.extent_bytes
    run.close()


# What is refused, and what is left then.


@pytest.mark.parametrize("piece", [None, CHUNK])
def test_every_refusal_of_the_driver_leaves_nothing_behind(piece):
    count = 5 if piece is None else 8  # streams, the arena or its pieces, the slab
    for after in range(count):
        driver = RefusingDriver(TOTAL, CHUNK)
        driver.fail(after, status=999)
        with pytest.raises(DriverError) as caught:
            CudaDevice(driver, cpu_kernels, 4 * CHUNK, 2 * CHUNK, piece_bytes=piece)
        assert caught.value.status == 999
        assert not any(driver.held().values()), (after, driver.held())
    driver = RefusingDriver(TOTAL, CHUNK)
    CudaDevice(driver, cpu_kernels, 4 * CHUNK, 2 * CHUNK, piece_bytes=piece).close()
    assert sum(driver.calls[call] for call in ACQUIRING) == count


@pytest.mark.parametrize("piece", [None, CHUNK])
def test_a_budget_larger_than_the_free_memory_is_refused_with_both_numbers(piece):
    driver = RefusingDriver(TOTAL, CHUNK)
    with pytest.raises(OutOfDeviceMemory, match="less free memory than the budget") as caught:
        CudaDevice(driver, cpu_kernels, TOTAL + CHUNK, piece_bytes=piece)
    assert (caught.value.free_bytes, caught.value.budget_bytes) == (TOTAL, TOTAL + CHUNK)
    assert "nvidia-smi" in caught.value.fix
    assert not any(driver.held().values())


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemAlloc_v2"])
def test_memory_that_is_gone_between_asking_and_taking_is_said_alike(call):
    driver = RefusingDriver(TOTAL, CHUNK)
    driver.fail(0, abi.OUT_OF_MEMORY, (call,))
    piece = CHUNK if call == "cuMemCreate" else None
    with pytest.raises(OutOfDeviceMemory):
        CudaDevice(driver, cpu_kernels, 4 * CHUNK, piece_bytes=piece)
    assert not any(driver.held().values())


def test_pinned_memory_that_the_host_does_not_give_is_said():
    driver = RefusingDriver(TOTAL, CHUNK)
    driver.fail(0, abi.OUT_OF_MEMORY, ("cuMemHostAlloc",))
    with pytest.raises(ConfigError, match="pinned memory") as caught:
        CudaDevice(driver, cpu_kernels, 4 * CHUNK, CHUNK)
    assert "--host-budget" in caught.value.fix
    assert not any(driver.held().values())


def test_a_kernel_that_uses_unmapped_memory_ends_the_session_and_closing_stays_quiet():
    run = Bench(SWAPPED)
    honest = run.device._kernels.launch

    def astray(op, ins, outs, workspace, scalars):
        honest(
            op, [DeviceArray(64, ins[0].shape, ins[0].dtype), *ins[1:]], outs, workspace, scalars
        )

    run.device._kernels.launch = astray
    with pytest.raises(Violation, match="not mapped"):
        run.step(0.5)
    with pytest.raises(OoctrainError, match="this session has stopped"):
        run.step(0.5)
    run.session.close()
    run.device.close()


@pytest.mark.parametrize("call", ["cuLaunchKernel", "cuEventRecord", "cuStreamSynchronize"])
@pytest.mark.parametrize("status", sorted(abi.LOST))
def test_an_error_that_lasts_is_the_one_that_comes_out_and_closing_adds_none(status, call):
    run = Bench(SWAPPED)
    run.step(0.5)
    run.driver.fail(2, status, (call,))
    first = f"{call} failed: {abi.ERRORS[status][0]} \\({status}\\)"

    def steps():
        with ExitStack() as held:
            held.callback(run.device.close)
            held.callback(run.session.close)
            for _ in range(3):
                run.step(0.5)

    with pytest.raises(DriverError, match=first) as caught:
        steps()
    assert caught.value.fix


def test_after_a_fork_the_device_says_so_and_closing_it_does_nothing():
    run = Bench(IN_CORE)
    child = os.fork()
    if not child:
        code = 1
        try:
            run.step(0.5)
        except DriverError as error:
            run.device.close()
            code = 0 if error.status == abi.NOT_INITIALIZED and "spawn" in error.fix else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run.step(0.5)
    run.close()


# Streams and staging by themselves.


@pytest.fixture
def driver():
    return RefusingDriver(TOTAL, CHUNK)


def test_a_stream_waits_for_a_piece_once_and_not_for_itself(driver):
    streams = CudaStreams(driver)
    first = streams.submit(OUT, (0, 0, 0), lambda: None)
    before = driver.calls["cuStreamWaitEvent"]
    second = streams.submit(COMPUTE, (0, first, 0), lambda: None)
    streams.submit(COMPUTE, (second, first, 0), lambda: None)
    streams.submit(IN, (0, 0, 0), lambda: None)
    assert driver.calls["cuStreamWaitEvent"] == before + 1


def test_an_event_is_reached_when_its_pieces_are_and_for_ever_after_a_restart(driver):
    streams = CudaStreams(driver)
    streams.submit(OUT, (0, 0, 0), lambda: None)
    event, later = streams.event((0, 1, 0)), None
    assert not event.done()
    event.wait()
    assert event.done()
    streams.submit(IN, (0, 0, 0), lambda: None)
    later = streams.event((0, 0, 1))
    assert not later.done()
    streams.synchronize()
    streams.restart()
    assert later.done()
    assert streams.submit(IN, (0, 0, 0), lambda: None) == 1
    assert later.done()


def test_work_that_raises_is_not_counted_and_keeps_no_event(driver):
    streams = CudaStreams(driver)

    def fail():
        raise ArithmeticError("this kernel always fails")

    with pytest.raises(ArithmeticError):
        streams.submit(COMPUTE, (0, 0, 0), fail)
    assert streams.submitted == [0, 0, 0]
    streams.abandon(ArithmeticError())
    streams.close()
    assert not any(driver.held().values())


@pytest.mark.parametrize("size", [1, 99, 100, 101, 350])
def test_values_of_any_size_pass_through_the_staging_memory(driver, size):
    address = driver.allocate(CHUNK)
    staging, stream = Staging(driver, piece_bytes=100), driver.create_stream()
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    staging.write(address + 7, data, stream)
    assert (staging.read(address + 7, size, stream) == data).all()
    staging.close()
    assert driver.held()["host"] == 0


def test_a_captured_value_is_that_of_its_place_in_the_stream(driver):
    address, stream = driver.allocate(CHUNK), driver.create_stream()
    staging = Staging(driver)
    driver.fill(address, 1, CHUNK, stream)
    first = staging.capture(address, 8, stream, era=0)
    driver.fill(address, 2, CHUNK, stream)
    second = staging.capture(address, 16, stream, era=0)
    driver.synchronize_stream(stream)
    assert (first == 1).all()
    assert (second == 2).all()
    third = staging.capture(address, 32, stream, era=1)  # in the place of the first, and larger
    driver.synchronize_stream(stream)
    assert (third == 2).all()
    assert driver.held()["host"] == 2
    staging.close()


def test_memory_in_one_piece_is_given_and_taken_back_by_the_fake(driver):
    address, stream = driver.allocate(10), driver.create_stream()
    driver.fill(address, 3, 10, stream)
    with pytest.raises(Violation, match="free of"):
        driver.free(address)
    driver.synchronize_stream(stream)
    driver.free(address)
    assert driver.held()["bytes"] == 0
    with pytest.raises(DriverError):
        driver.free(address)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        driver.free(driver.reserve(CHUNK))


def test_arrays_on_the_same_bytes_share_them_in_a_fake_kernel(driver):
    address, stream = driver.allocate(CHUNK), driver.create_stream()
    driver.fill(address, 0, CHUNK, stream)
    one = DeviceArray(address + 4, (6,), np.dtype(np.float32))
    other = DeviceArray(address + 12, (2, 3), np.dtype(np.float32))

    def kernel(arrays):
        arrays[0][:] = np.arange(6)
        assert (arrays[1] == [[2, 3, 4], [5, 0, 0]]).all()
        arrays[1][1, 2] = 9

    queue(driver, stream, [one, other], kernel, "test")
    driver.synchronize_stream(stream)
    assert driver.read(address, 36).view(np.float32).tolist() == [0, 0, 1, 2, 3, 4, 5, 0, 9]
