"""The strict fake: every rule of virtual memory management, one by one, and memory made over it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from doubles.refusing_driver import ACQUIRING, RefusingDriver

from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.devices.cuda.driver_memory import DriverMemory
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import ConfigError, DriverError, OutOfDeviceMemory
from ooctrain.testing.fake_driver import FRESH_BYTE, Violation

PAGE = 4096
INVALID_VALUE, OUT_OF_MEMORY = 1, 2


@pytest.fixture
def driver():
    return RefusingDriver(8 * PAGE, PAGE)


def mapped(driver: RefusingDriver, pages: int = 1) -> tuple[int, list[int]]:
    """(address, handles) of a reservation with a handle on each page, accessible."""
    address = driver.reserve(pages * PAGE)
    handles = [driver.create(PAGE) for _ in range(pages)]
    for place, handle in enumerate(handles):
        driver.map(address + place * PAGE, PAGE, handle)
    driver.set_access(address, pages * PAGE)
    return address, handles


def refused(call, *arguments) -> DriverError:
    with pytest.raises(DriverError) as caught:
        call(*arguments)
    return caught.value


# Virtual memory.


@pytest.mark.parametrize("size", [0, -PAGE, 1, PAGE + 1])
def test_sizes_are_whole_granules(driver, size):
    assert refused(driver.reserve, size).status == INVALID_VALUE
    assert refused(driver.create, size).status == INVALID_VALUE
    assert not any(driver.held().values())


def test_physical_memory_ends(driver):
    handles = [driver.create(4 * PAGE), driver.create(4 * PAGE)]
    error = refused(driver.create, PAGE)
    assert (error.status, error.call) == (OUT_OF_MEMORY, "cuMemCreate")
    assert driver.memory_info() == (0, 8 * PAGE)
    driver.release(handles[0])
    assert driver.memory_info() == (4 * PAGE, 8 * PAGE)


def test_a_hint_is_ignored_and_no_address_comes_again(driver):
    first = driver.reserve(PAGE)
    assert driver.reserve(PAGE, hint=first + PAGE) != first + PAGE
    driver.address_free(first, PAGE)
    assert driver.reserve(PAGE) > first + PAGE


def test_a_map_goes_onto_reserved_unmapped_addresses_only(driver):
    address, handle = driver.reserve(2 * PAGE), driver.create(2 * PAGE)
    assert refused(driver.map, address + PAGE, 2 * PAGE, handle).status == INVALID_VALUE
    assert refused(driver.map, address + 1, 2 * PAGE, handle).status == INVALID_VALUE
    assert refused(driver.map, address, PAGE, handle).status == INVALID_VALUE  # half a handle
    assert refused(driver.map, address, 2 * PAGE, handle + 1).status == INVALID_VALUE
    driver.map(address, 2 * PAGE, handle)
    other = driver.create(PAGE)
    assert "mapped already" in refused(driver.map, address + PAGE, PAGE, other).numbers
    assert driver.mappings() == [(address, 2 * PAGE, False)]


def test_a_map_over_the_tail_of_a_free_gap_is_seen(driver):
    address = driver.reserve(3 * PAGE)
    driver.map(address + 2 * PAGE, PAGE, driver.create(PAGE))
    wide = driver.create(3 * PAGE)
    assert refused(driver.map, address, 3 * PAGE, wide).status == INVALID_VALUE


def test_a_handle_appears_at_two_addresses_but_no_work_may_use_both(driver):
    one, (handle,) = mapped(driver)
    two = driver.reserve(PAGE)
    driver.map(two, PAGE, handle)
    driver.set_access(two, PAGE)
    stream = driver.create_stream()
    driver.fill(one, 7, PAGE, stream)
    driver.synchronize_stream(stream)
    assert driver.read(two, 1) == 7
    assert driver.handles_at(one, PAGE) == driver.handles_at(two, PAGE) == [handle]
    driver.launch(stream, [(one, 4), (two + 8, 4)], lambda: None, "add")
    with pytest.raises(Violation, match="add uses handle"):
        driver.synchronize_stream(stream)
    driver.release(handle)
    driver.unmap(one, PAGE)
    assert driver.used_bytes == PAGE  # still mapped
    driver.unmap(two, PAGE)
    assert driver.used_bytes == 0


def test_a_part_of_a_handle_cannot_be_mapped(driver):
    address, handle = driver.reserve(2 * PAGE), driver.create(2 * PAGE)
    assert "whole handle" in refused(driver.map, address, PAGE, handle, PAGE).numbers


def test_access_is_needed_after_every_map(driver):
    address, (handle,) = mapped(driver)
    assert (driver.read(address, PAGE) == FRESH_BYTE).all()
    driver.unmap(address, PAGE)
    driver.map(address, PAGE, handle)
    with pytest.raises(Violation, match="no access"):
        driver.read(address, 1)


def test_access_is_set_over_whole_mappings_only(driver):
    address = driver.reserve(3 * PAGE)
    driver.map(address, 2 * PAGE, driver.create(2 * PAGE))
    for start, size in ((address, 3 * PAGE), (address, PAGE), (address + PAGE, PAGE)):
        assert refused(driver.set_access, start, size).status == INVALID_VALUE
    driver.map(address + 2 * PAGE, PAGE, driver.create(PAGE))
    driver.set_access(address, 3 * PAGE)
    assert [access for _, _, access in driver.mappings()] == [True, True]
    assert driver.calls["cuMemSetAccess"] == 4


def test_unmap_takes_whole_mappings_only(driver):
    address = driver.reserve(2 * PAGE)
    handle = driver.create(2 * PAGE)
    assert refused(driver.unmap, address, 2 * PAGE).status == INVALID_VALUE
    driver.map(address, 2 * PAGE, handle)
    for start, size in ((address, PAGE), (address + PAGE, PAGE), (address, 0)):
        assert refused(driver.unmap, start, size).status == INVALID_VALUE
    driver.unmap(address, 2 * PAGE)
    assert driver.held()["reservations"] == 1
    driver.map(address, 2 * PAGE, handle)


def test_memory_is_freed_when_neither_mapped_nor_referenced(driver):
    address, (handle,) = mapped(driver)
    driver.release(handle)
    assert driver.used_bytes == PAGE  # still mapped
    driver.read(address, PAGE)
    with pytest.raises(Violation, match="no reference"):
        driver.release(handle)
    driver.unmap(address, PAGE)
    assert driver.used_bytes == 0
    with pytest.raises(Violation, match="no reference"):
        driver.release(handle)


def test_a_released_handle_cannot_be_mapped_again(driver):
    _, (handle,) = mapped(driver)
    driver.release(handle)
    assert refused(driver.map, driver.reserve(PAGE), PAGE, handle).status == INVALID_VALUE


def test_a_reservation_is_freed_exactly_and_empty(driver):
    address, _ = mapped(driver, 2)
    assert "mapped in" in refused(driver.address_free, address, 2 * PAGE).numbers
    with pytest.raises(Violation, match="over 2 mappings"):
        driver.unmap(address, 2 * PAGE)
    driver.unmap(address, PAGE)
    assert "mapped in" in refused(driver.address_free, address, 2 * PAGE).numbers
    driver.unmap(address + PAGE, PAGE)
    assert refused(driver.address_free, address, PAGE).status == INVALID_VALUE
    assert refused(driver.address_free, address + PAGE, PAGE).status == INVALID_VALUE
    driver.address_free(address, 2 * PAGE)
    assert refused(driver.address_free, address, 2 * PAGE).status == INVALID_VALUE


# Work.


def test_work_is_done_no_sooner_than_somebody_waits(driver):
    address, _ = mapped(driver)
    stream, event = driver.create_stream(), driver.create_event()
    driver.fill(address, 1, PAGE, stream)
    driver.record_event(event, stream)
    driver.fill(address, 2, PAGE, stream)
    assert not driver.event_done(event)
    assert driver.read(address, 1) == FRESH_BYTE
    driver.synchronize_event(event)
    assert driver.event_done(event)
    assert driver.read(address, 1) == 1
    assert not driver.stream_done(stream)
    driver.synchronize_stream(stream)
    assert driver.read(address, 1) == 2


def test_the_order_between_streams_is_chosen_and_waits_are_kept():
    asked = []

    def last(streams):
        asked.append(tuple(streams))
        return streams[-1]

    driver = RefusingDriver(8 * PAGE, PAGE, choose=last)
    address, _ = mapped(driver)
    one, two, event = driver.create_stream(), driver.create_stream(), driver.create_event()
    driver.fill(address, 1, PAGE, one)
    driver.record_event(event, one)
    driver.wait_event(two, event)
    driver.fill(address, 2, PAGE, two)
    driver.fill(address, 3, PAGE, one)
    driver.drain()
    assert driver.read(address, 1) == 3
    assert asked[0] == (one,)  # the second stream could not go on
    assert (one, two) in asked


def test_a_wait_is_for_the_record_at_that_time(driver):
    one, two, event = driver.create_stream(), driver.create_stream(), driver.create_event()
    ran = []
    driver.wait_event(two, event)  # never recorded: nothing to wait for
    driver.record_event(event, one)
    assert driver.step(two)
    driver.wait_event(two, event)
    assert not driver.step(two)
    driver.launch(one, [], lambda: ran.append("one"))
    driver.record_event(event, one)
    driver.step(one)
    assert driver.step(two)  # the second record is not waited for
    assert not ran
    assert not driver.event_done(event)


def test_work_on_what_was_unmapped_before_it_ran_is_a_violation(driver):
    address, _ = mapped(driver)
    stream = driver.create_stream()
    driver.fill(address, 1, PAGE, stream)
    with pytest.raises(Violation, match="while fill is still to use it"):
        driver.unmap(address, PAGE)
    driver.synchronize_stream(stream)
    driver.unmap(address, PAGE)
    assert refused(driver.fill, address, 1, PAGE, stream).status == INVALID_VALUE


def test_a_stream_wait_does_not_let_the_host_unmap(driver):
    address, _ = mapped(driver)
    one, two, event = driver.create_stream(), driver.create_stream(), driver.create_event()
    driver.fill(address, 1, PAGE, one)
    driver.record_event(event, one)
    driver.wait_event(two, event)
    with pytest.raises(Violation, match="wait on the host"):
        driver.unmap(address, PAGE)


def test_a_kernel_on_unmapped_memory_ends_the_process_for_good(driver):
    stream = driver.create_stream()
    address = driver.reserve(PAGE)
    driver.launch(stream, [(address, 4)], lambda: None, "conv1")
    with pytest.raises(Violation, match="conv1 uses"):
        driver.synchronize_stream(stream)
    assert refused(driver.create_stream).status == 700
    assert refused(driver.create, PAGE).status == 700


def test_handles_of_streams_and_events_come_again(driver):
    stream, event = driver.create_stream(), driver.create_event()
    driver.destroy_stream(stream)
    driver.destroy_event(event)
    assert refused(driver.stream_done, stream).status == 400
    assert refused(driver.event_done, event).status == 400
    assert driver.create_stream() == stream
    assert driver.create_event() == event


def test_a_destroyed_streams_work_is_still_done(driver):
    stream, event = driver.create_stream(), driver.create_event()
    ran = []
    driver.launch(stream, [], lambda: ran.append(1))
    driver.record_event(event, stream)
    driver.destroy_stream(stream)
    driver.synchronize_event(event)
    assert ran == [1]


def test_time_is_measured_between_reached_events_with_timing_only(driver):
    stream = driver.create_stream()
    plain, start, end = (driver.create_event(timing) for timing in (False, True, True))
    for event in (plain, start, end):
        driver.record_event(event, stream)
    assert refused(driver.elapsed_us, start, end).status == 600
    driver.drain()
    assert driver.elapsed_us(start, end) == 1
    assert refused(driver.elapsed_us, plain, end).status == 400


def test_copies_want_pinned_memory_until_they_are_done(driver):
    address, _ = mapped(driver, 2)
    stream, host = driver.create_stream(), driver.host_alloc(2 * PAGE)
    pageable = np.zeros(PAGE, np.uint8)
    with pytest.raises(Violation, match="not pinned"):
        driver.copy_in(address, pageable.ctypes.data, PAGE, stream)
    bytes_at(host, 2 * PAGE)[:] = np.arange(2 * PAGE, dtype=np.uint16).astype(np.uint8)
    driver.copy_in(address + 100, host, 2 * PAGE - 100, stream)  # across two mappings
    with pytest.raises(Violation, match="host_free"):
        driver.host_free(host)
    driver.synchronize_stream(stream)
    expected = bytes_at(host, 2 * PAGE - 100)
    assert (driver.read(address + 100, 2 * PAGE - 100) == expected).all()
    driver.host_free(host)
    assert refused(driver.host_free, host).status == INVALID_VALUE


# Contexts and faults.


def test_each_thread_makes_the_context_current(driver):
    found = []

    def other():
        found.append(refused(driver.create_stream).status)
        driver.make_current()
        found.append(driver.create_stream())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found[0] == 201
    assert found[1] in driver.queues.streams


def test_after_close_everything_is_refused(driver):
    driver.close()
    assert refused(driver.create, PAGE).status == 4


def test_the_nth_call_fails_once_and_without_effect(driver):
    driver.fail(1, OUT_OF_MEMORY, calls={"cuMemCreate"})
    handle = driver.create(PAGE)
    driver.reserve(PAGE)
    error = refused(driver.create, PAGE)
    assert (error.status, error.numbers) == (OUT_OF_MEMORY, "injected")
    assert driver.used_bytes == PAGE
    assert driver.create(PAGE) != handle
    driver.fail(0, 800)
    driver.release(handle)  # gives back: not among the calls that fail by default
    assert refused(driver.host_alloc, 1).status == 800
    assert not driver.clear_fault()


# Memory over a driver.


def test_memory_of_whole_pieces_is_created_at_once_and_given_back(driver):
    memory = DriverMemory(driver, 5 * PAGE + 1, 2 * PAGE)
    assert memory.size_bytes == memory.used_bytes() == driver.used_bytes == 4 * PAGE
    assert memory.linear() == memory.linear()
    memory.reserve(2 * PAGE)
    for wrong in (PAGE, 0, -2 * PAGE):
        with pytest.raises(DriverError, match="not whole pieces"):
            memory.reserve(wrong)
    memory.close()
    memory.close()
    assert not any(driver.held().values())


@pytest.mark.parametrize("piece", [0, -PAGE, PAGE + 1, 100])
def test_a_piece_is_a_multiple_of_the_granularity(driver, piece):
    with pytest.raises(ConfigError, match="granularity"):
        DriverMemory(driver, 4 * PAGE, piece)


def test_a_budget_without_a_whole_piece_is_refused(driver):
    with pytest.raises(ConfigError, match="no whole piece"):
        DriverMemory(driver, PAGE - 1)


def test_a_budget_larger_than_the_device_leaves_nothing_behind(driver):
    with pytest.raises(DriverError) as caught:
        DriverMemory(driver, 9 * PAGE)
    assert caught.value.status == OUT_OF_MEMORY
    assert not any(driver.held().values())


def test_a_mapping_replaces_what_is_there_and_leaves_other_mappings_alone(driver):
    memory = DriverMemory(driver, 4 * PAGE)
    one, two = memory.reserve(2 * PAGE), memory.reserve(2 * PAGE)
    memory.map(one, 0, 2 * PAGE)
    memory.map(two, PAGE, 2 * PAGE)  # piece 1 is now at two addresses
    first, shared = driver.handles_at(one, 2 * PAGE)
    assert driver.handles_at(two, PAGE) == [shared]
    memory.map(one, 3 * PAGE, PAGE)  # replaces piece 0
    assert driver.handles_at(one, 2 * PAGE)[0] not in (first, shared)
    memory.unmap(one, PAGE)
    memory.unmap(one, 2 * PAGE)  # half of it is not mapped any more
    assert [address for address, _, _ in driver.mappings()] == [two, two + PAGE]
    assert all(access for _, _, access in driver.mappings())


@pytest.mark.parametrize(
    ("offset", "size"), [(1, PAGE), (0, PAGE + 1), (0, 0), (4 * PAGE, PAGE), (-PAGE, PAGE)]
)
def test_only_whole_pieces_within_the_memory_are_mapped(driver, offset, size):
    memory = DriverMemory(driver, 4 * PAGE)
    address = memory.reserve(8 * PAGE)
    with pytest.raises(DriverError):
        memory.map(address, offset, size)
    assert driver.mappings() == []


def test_a_map_that_fails_anywhere_leaves_nothing_half_mapped():
    for failing in range(6):
        driver = RefusingDriver(8 * PAGE, PAGE)
        memory = DriverMemory(driver, 4 * PAGE)
        address = memory.reserve(4 * PAGE)
        driver.fail(failing)
        if failing == 5:  # four maps and one set_access: the sweep is complete
            memory.map(address, 0, 4 * PAGE)
            assert driver.clear_fault()
            return
        refused(memory.map, address, 0, 4 * PAGE)
        assert driver.mappings() == []
        memory.map(address, 0, 4 * PAGE)
        assert len(driver.mappings()) == 4
        memory.close()
        assert not any(driver.held().values())
    pytest.fail("the sweep over failing calls does not end")


@pytest.mark.parametrize("make", [BestFit, lambda memory: VirtualAddressing(memory, PAGE)])
def test_an_allocator_whose_making_fails_anywhere_leaves_nothing_behind(make):
    for failing in range(100):
        driver = RefusingDriver(8 * PAGE, PAGE)
        driver.fail(failing)
        memory = None
        try:
            memory = DriverMemory(driver, 4 * PAGE)
            make(memory)
        except DriverError:
            assert driver.calls.total() > failing
        else:
            assert driver.clear_fault()
            assert driver.calls.total() >= failing
            return
        finally:
            if memory is not None:
                memory.close()
            assert not any(driver.held().values())
    pytest.fail("the sweep over failing calls does not end")


def test_va_serves_what_best_fit_cannot():
    """The case of paper 000, section 4: enough is free, but in two pieces."""
    outcomes = {}
    for make in (BestFit, lambda memory: VirtualAddressing(memory, PAGE)):
        driver = RefusingDriver(8 * PAGE, PAGE)
        allocator = make(DriverMemory(driver, 8 * PAGE))
        blocks = [allocator.allocate(2 * PAGE) for _ in range(4)]
        allocator.free(blocks[0])
        allocator.free(blocks[2])
        try:
            wide = allocator.allocate(4 * PAGE)
            assert driver.read(wide.address, 4 * PAGE).size == 4 * PAGE
            outcomes[allocator.name] = "fits"
        except OutOfDeviceMemory as error:
            outcomes[allocator.name] = "pieces" if "fragmentation" in str(error) else "full"
    assert outcomes == {"best-fit": "pieces", "va": "fits"}


def test_the_calls_that_may_fail_are_those_that_obtain_something():
    assert "cuMemMap" in ACQUIRING
    assert not {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemFreeHost"} & ACQUIRING
