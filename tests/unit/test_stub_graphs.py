"""Graphs over the stub driver: what is captured is done when it is launched, in the captured order.

The rules are those of cuda.h; numbers are its errors.
"""

from __future__ import annotations

import ctypes
import threading

import pytest
from doubles.stub_driver import Stub, why_no_stub

from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DriverError

pytestmark = pytest.mark.skipif(bool(why_no_stub()), reason=why_no_stub())
SIZE = 4096


class Bench:
    """Two streams, an event, device memory, pinned memory."""

    def __init__(self, **options):
        self.stub = Stub(total_bytes=1 << 24, **options)
        self.driver = driver = self.stub.open()
        self.one, self.two = driver.create_stream(), driver.create_stream()
        self.event, self.back = driver.create_event(timing=True), driver.create_event(timing=True)
        self.at, self.host = driver.allocate(SIZE), driver.host_alloc(SIZE)

    def fork(self):
        self.driver.record_event(self.event, self.one)
        self.driver.wait_event(self.two, self.event)

    def join(self):
        self.driver.record_event(self.back, self.two)
        self.driver.wait_event(self.one, self.back)

    def refused(self, status, call, *arguments):
        with pytest.raises(DriverError) as caught:
            call(*arguments)
        assert caught.value.status == status, (caught.value, self.stub.why)


@pytest.fixture(params=[0, 1], ids=["at once", "late"])
def bench(request):
    made = Bench(late=request.param)
    yield made
    made.stub.reset()


def test_what_is_captured_is_done_when_it_is_launched_and_as_often(bench):
    driver = bench.driver
    driver.begin_capture(bench.one)
    driver.fill(bench.at, 7, SIZE, bench.one)
    bench.fork()
    driver.copy_out(bench.host, bench.at, SIZE, bench.two)
    bench.join()
    driver.fill(bench.at, 9, SIZE, bench.one)
    graph = driver.end_capture(bench.one)
    driver.synchronize_stream(bench.one)
    assert not (bytes_at(bench.host, SIZE) == 7).all()
    for _ in range(3):
        bytes_at(bench.host, SIZE)[:] = 1
        driver.launch_graph(graph, bench.one)
        driver.synchronize_stream(bench.one)
        assert (bytes_at(bench.host, SIZE) == 7).all()
        driver.copy_out(bench.host, bench.at, SIZE, bench.one)
        driver.synchronize_stream(bench.one)
        assert (bytes_at(bench.host, SIZE) == 9).all()
    driver.destroy_graph(graph)
    assert (bench.stub.number("graphs"), bench.stub.number("execs")) == (0, 0)
    bench.refused(1, driver.launch_graph, graph, bench.one)


def test_a_missing_wait_shows_when_work_is_late():
    bench = Bench(late=1)
    driver = bench.driver
    driver.begin_capture(bench.one)
    bench.fork()
    driver.fill(bench.at, 7, SIZE, bench.one)
    driver.copy_out(bench.host, bench.at, SIZE, bench.two)  # does not wait for the fill
    bench.join()
    graph = driver.end_capture(bench.one)
    driver.launch_graph(graph, bench.one)
    driver.synchronize_stream(bench.one)
    assert not (bytes_at(bench.host, SIZE) == 7).all()


def test_captures_end_as_they_should_or_are_refused(bench):
    driver = bench.driver
    bench.refused(900, driver.begin_capture, 0)
    bench.refused(401, driver.end_capture, bench.one)
    driver.begin_capture(bench.one)
    bench.fork()
    bench.refused(903, driver.end_capture, bench.two)
    bench.refused(901, driver.end_capture, bench.one)
    driver.begin_capture(bench.one)
    bench.fork()
    driver.fill(bench.at, 7, SIZE, bench.two)
    bench.refused(904, driver.end_capture, bench.one)
    driver.begin_capture(bench.one)
    bench.refused(401, driver.begin_capture, bench.one)
    bench.refused(901, driver.end_capture, bench.one)
    driver.begin_capture(bench.one)
    driver.destroy_graph(driver.end_capture(bench.one))  # an empty one


def test_nobody_waits_for_what_is_being_captured(bench):
    driver = bench.driver
    for call in (
        lambda: driver.synchronize_stream(bench.one), lambda: driver.stream_done(bench.one),
        lambda: driver.destroy_stream(bench.one),
    ):  # fmt: skip
        driver.begin_capture(bench.one)
        bench.refused(900, call)
        bench.refused(901, driver.end_capture, bench.one)
    driver.begin_capture(bench.one)
    driver.record_event(bench.event, bench.one)
    for call in (driver.event_done, driver.synchronize_event):
        bench.refused(907, call, bench.event)
    bench.refused(907, driver.elapsed_us, bench.event, bench.event)
    driver.destroy_graph(driver.end_capture(bench.one))
    bench.refused(907, driver.synchronize_event, bench.event)
    driver.record_event(bench.event, bench.one)
    driver.synchronize_event(bench.event)


def test_a_capture_stays_by_itself(bench):
    driver = bench.driver
    driver.record_event(bench.event, bench.two)
    driver.begin_capture(bench.one)
    bench.refused(905, driver.wait_event, bench.one, bench.event)
    bench.refused(901, driver.end_capture, bench.one)
    driver.begin_capture(bench.one)
    driver.begin_capture(bench.two)
    driver.record_event(bench.event, bench.one)
    bench.refused(902, driver.wait_event, bench.two, bench.event)
    for stream in (bench.one, bench.two):
        bench.refused(901, driver.end_capture, stream)
    bench.refused(907, driver.wait_event, bench.two, bench.event)
    memory = (ctypes.c_ubyte * SIZE)()
    driver.begin_capture(bench.one)
    bench.refused(900, driver.copy_in, bench.at, ctypes.addressof(memory), SIZE, bench.one)
    bench.refused(901, driver.end_capture, bench.one)


def test_a_strict_capture_forbids_what_a_relaxed_one_allows(bench):
    library, driver = bench.stub.library, bench.driver
    stream, graph = ctypes.c_void_p(bench.one), ctypes.c_void_p()
    assert library.cuStreamBeginCapture_v2(stream, 0) == 0
    bench.refused(900, driver.allocate, SIZE)
    assert library.cuStreamEndCapture(stream, ctypes.byref(graph)) == 901
    assert library.cuStreamBeginCapture_v2(stream, 1) == 0
    found = []
    elsewhere = threading.Thread(
        target=lambda: found.append(
            [driver.make_current(), library.cuStreamEndCapture(stream, ctypes.byref(graph))]
        )
    )
    elsewhere.start()
    elsewhere.join()
    assert found == [[None, 908]]
    assert library.cuStreamEndCapture(stream, ctypes.byref(graph)) == 901
    driver.begin_capture(bench.one)
    driver.free(driver.allocate(SIZE))
    driver.destroy_graph(driver.end_capture(bench.one))


def test_a_graph_that_is_queued_uses_its_memory(bench):
    driver = bench.driver
    granule = driver.granularity()
    place, handle = driver.reserve(granule), driver.create(granule)
    driver.map(place, granule, handle)
    driver.set_access(place, granule)
    driver.begin_capture(bench.one)
    driver.fill(place, 3, granule, bench.one)
    graph = driver.end_capture(bench.one)
    driver.launch_graph(graph, bench.one)
    driver.destroy_graph(graph)
    driver.synchronize_stream(bench.one)
    assert (bytes_at(place, granule) == 3).all()
    driver.begin_capture(bench.one)
    driver.fill(place, 3, granule, bench.one)
    graph = driver.end_capture(bench.one)
    driver.unmap(place, granule)

    def launch():
        driver.launch_graph(graph, bench.one)
        driver.synchronize_stream(bench.one)

    bench.refused(700, launch)
