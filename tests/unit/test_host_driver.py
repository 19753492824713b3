"""The host driver: CUDA's rules over memfd, parts of handles, limits, forks, the probe."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from doubles.refusing_driver import ACQUIRING, RefusingDriver

from ooctrain.devices.cpu.host_vm import PAGE_BYTES, HostCalls, why_no_virtual_memory
from ooctrain.devices.cuda.driver_abi import ILLEGAL_ADDRESS
from ooctrain.devices.cuda.driver_memory import DriverMemory
from ooctrain.devices.probe import probe
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import ConfigError, DriverError, VmmUnavailable
from ooctrain.testing.host_driver import HostDriver

pytestmark = pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no memfd here")
PAGES = 16
TOTAL = PAGES * PAGE_BYTES


@pytest.fixture
def driver():
    driver = HostDriver(TOTAL)
    yield driver
    driver.close()


def refused(call, *arguments) -> DriverError:
    with pytest.raises(DriverError) as caught:
        call(*arguments)
    return caught.value


def mapped(driver: HostDriver, pages: int) -> tuple[int, int]:
    size = pages * PAGE_BYTES
    address, handle = driver.reserve(size), driver.create(size)
    driver.map(address, size, handle)
    driver.set_access(address, size)
    return address, handle


# Rules that Linux does not have.


def test_a_map_goes_onto_reserved_unmapped_addresses_only(driver):
    address, handle = mapped(driver, 2)
    ours = bytes_at(address, 2 * PAGE_BYTES)
    ours[:] = 5
    other = driver.create(PAGE_BYTES)
    for place in (address, address + PAGE_BYTES, address + 2 * PAGE_BYTES, address + 1, 0):
        assert refused(driver.map, place, PAGE_BYTES, other).status == 1
    assert refused(driver.map, address, 3 * PAGE_BYTES, handle).status == 1
    assert (ours == 5).all()


def test_a_part_of_a_handle_is_mapped_and_unmapped(driver):
    assert driver.parts
    handle, address = driver.create(4 * PAGE_BYTES), driver.reserve(4 * PAGE_BYTES)
    whole, _ = driver.reserve(4 * PAGE_BYTES), driver.map(address, PAGE_BYTES, handle, PAGE_BYTES)
    driver.map(whole, 4 * PAGE_BYTES, handle)
    bytes_at(address, 1)[0] = 9
    assert bytes_at(whole + PAGE_BYTES, 1)[0] == 9
    driver.unmap(whole, PAGE_BYTES)
    assert bytes_at(whole + PAGE_BYTES, 1)[0] == 9
    assert refused(driver.unmap, whole, 4 * PAGE_BYTES).status == 1
    assert refused(driver.set_access, whole, 4 * PAGE_BYTES).status == 1
    assert refused(driver.map, whole, PAGE_BYTES, handle, 4 * PAGE_BYTES).status == 1


def test_memory_is_free_again_when_neither_mapped_nor_referenced(driver):
    address, handle = mapped(driver, PAGES)
    assert refused(driver.create, PAGE_BYTES).status == 2
    driver.release(handle)
    assert refused(driver.release, handle).status == 1
    assert driver.memory_info() == (0, TOTAL)
    bytes_at(address, TOTAL)[:] = 1  # still mapped
    driver.unmap(address, TOTAL)
    assert driver.memory_info() == (TOTAL, TOTAL)
    assert driver.create(TOTAL) != handle


def test_a_hole_between_handles_is_found_again(driver):
    handles = [driver.create(4 * PAGE_BYTES) for _ in range(4)]
    driver.release(handles[1])
    driver.release(handles[2])
    assert driver.create(8 * PAGE_BYTES)
    assert refused(driver.create, PAGE_BYTES).status == 2


def test_a_reservation_is_freed_exactly_and_empty(driver):
    address, _ = mapped(driver, 2)
    assert refused(driver.address_free, address, 2 * PAGE_BYTES).status == 1
    driver.unmap(address, 2 * PAGE_BYTES)
    assert refused(driver.address_free, address, PAGE_BYTES).status == 1
    driver.address_free(address, 2 * PAGE_BYTES)
    assert driver.held()["reservations"] == 0


def test_what_would_kill_the_process_is_refused(driver):
    address, stream = driver.reserve(2 * PAGE_BYTES), driver.create_stream()
    driver.map(address, PAGE_BYTES, driver.create(PAGE_BYTES))
    host = driver.host_alloc(2 * PAGE_BYTES)
    assert refused(driver.fill, address + 1, 0, PAGE_BYTES, stream).status == 700
    assert refused(driver.copy_in, address, host, 2 * PAGE_BYTES, stream).status == 700
    assert refused(driver.copy_out, host, address + 8 * PAGE_BYTES, 1, stream).status == 1
    assert refused(driver.copy_in, address, host + PAGE_BYTES, PAGE_BYTES + 1, stream).status
    assert refused(driver.fill, address, 0, 1, stream + 1000).status == 400
    driver.fill(address + 1, 3, PAGE_BYTES - 1, stream)
    driver.copy_in(address + 5, host + 5, 7, stream)
    driver.host_free(host)
    assert refused(driver.copy_in, address, host, 1, stream).status == 1
    assert refused(driver.host_free, host).status == 1


# The system.


def test_all_memory_is_held_from_the_start_to_the_end(driver):
    assert driver.used_bytes() == TOTAL
    address, handle = mapped(driver, PAGES)
    bytes_at(address, TOTAL)[:] = 1
    driver.unmap(address, TOTAL)
    driver.release(handle)
    assert driver.used_bytes() == TOTAL
    driver.close()
    driver.close()
    assert driver.used_bytes() == 0
    assert not any(driver.held().values())
    assert refused(driver.create, PAGE_BYTES).status == 4


def test_an_unmapped_range_is_covered_and_nobody_lands_in_it(driver):
    address, handle = mapped(driver, PAGES)
    driver.unmap(address, TOTAL)
    others = [driver.reserve(PAGE_BYTES) for _ in range(50)]
    assert not any(address <= other < address + TOTAL for other in others)
    driver.map(address, TOTAL, handle)


def test_a_forked_child_neither_writes_our_bytes_nor_uses_the_driver(driver):
    address, _ = mapped(driver, 1)
    covered, handle = mapped(driver, 1)
    driver.unmap(covered, PAGE_BYTES)
    driver.map(covered, PAGE_BYTES, handle)  # mapped anew: kept from children anew
    for place in (address, covered):
        bytes_at(place, 1)[0] = 1
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            if refused(driver.create, PAGE_BYTES).status != 3:
                os._exit(1)
            bytes_at(place, 1)[0] = 99
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert bytes_at(place, 1)[0] == 1


def test_an_unmapped_page_ends_the_process_that_reads_it():
    code = (
        "from ooctrain.testing.host_driver import HostDriver\n"
        "from ooctrain.devices.raw_bytes import bytes_at\n"
        "d = HostDriver(1 << 20); a = d.reserve(1 << 20); d.map(a, 1 << 20, d.create(1 << 20))\n"
        "print(bytes_at(a, 1)[0], flush=True); d.unmap(a, 1 << 20); print(bytes_at(a, 1)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0\n"
    assert done.returncode == -signal.SIGSEGV


class Refusing(HostCalls):
    """The n-th call of a kind is refused by the system."""

    def __init__(self, name: str, after: int = 0):
        super().__init__()
        self.name, self.after = name, after

    def _counts(self, name: str) -> None:
        self.after -= name == self.name
        if name == self.name and self.after == -1:
            raise DriverError(f"{name} failed", call=name, status=errno.ENOMEM)

    def reserve(self, size_bytes, hint=0):
        self._counts("reserve")
        return super().reserve(size_bytes, hint)

    def place(self, address, size_bytes, file, offset):
        super().place(address, size_bytes, file, offset)
        self._counts("place")  # after the fact: half done


def test_a_refused_mapping_leaves_its_addresses_inaccessible_and_free(driver):
    driver._calls = Refusing("place")
    address, handle = driver.reserve(PAGE_BYTES), driver.create(PAGE_BYTES)
    assert refused(driver.map, address, PAGE_BYTES, handle).call == "place"
    assert driver.held()["mappings"] == 0
    assert refused(driver.set_access, address, PAGE_BYTES).status == 1
    driver.map(address, PAGE_BYTES, handle)
    bytes_at(address, PAGE_BYTES)[:] = 1


@pytest.mark.parametrize("name", ["reserve", "place"])
def test_memory_over_it_is_as_before_after_any_refusal(name):
    for after in range(3):
        driver = HostDriver(TOTAL, Refusing(name, after))
        memory = DriverMemory(driver, TOTAL)
        addresses = []
        for _ in range(2):
            try:
                addresses.append(memory.reserve(TOTAL))
                memory.map(addresses[-1], 0, TOTAL)
            except DriverError:
                assert driver.held()["mappings"] == (len(addresses) - (name == "place")) * PAGES
        memory.close()
        assert not any(driver.held().values())
        driver.close()


def test_more_memory_than_there_is_is_refused_before_it_is_taken():
    with pytest.raises(ConfigError, match="more memory than this machine has free"):
        HostDriver(1 << 50)


def test_the_kernels_limit_of_mappings_is_said(driver):
    """Alternate pages of two handles cannot be joined, so that each is a mapping of its own."""
    raw = driver._calls
    address = raw.reserve(200_000 * PAGE_BYTES)

    def place_all():
        for page in range(0, 200_000, 2):
            raw.place(address + page * PAGE_BYTES, PAGE_BYTES, driver._file, 0)

    error = refused(place_all)
    assert error.status == errno.ENOMEM
    assert "max_map_count" in error.fix
    raw.give_back(address, 200_000 * PAGE_BYTES)


def test_elsewhere_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    error = refused(HostDriver, TOTAL)
    assert isinstance(error, VmmUnavailable)
    assert "darwin" in str(error)
    assert "best-fit" in error.fix


def test_a_system_that_forbids_memfd_is_said(monkeypatch):
    def forbidden(*_arguments):
        raise OSError(errno.EPERM, "forbidden")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    error = refused(HostDriver, TOTAL)
    assert isinstance(error, VmmUnavailable)
    assert error.status == errno.EPERM


# The probe.


def test_the_probe_leaves_nothing_behind(driver):
    probe(driver)
    assert not any(driver.held().values())


def test_the_probe_names_the_step_that_fails_and_leaves_nothing_behind():
    steps = ["create", *2 * ["reserve", "map", "set_access"], "copy", "copy"]
    for after, step in enumerate(steps):
        fake = RefusingDriver(TOTAL, PAGE_BYTES)
        fake.fail(after, 801, ACQUIRING)
        error = refused(probe, fake)
        assert isinstance(error, VmmUnavailable)
        assert (error.where, error.status) == (f"probe, step {step}", 801)
        assert "best-fit" in error.fix
        assert not any(fake.held().values())


def test_the_probe_names_the_step_that_broke_the_device():
    class Breaking(RefusingDriver):
        def synchronize_stream(self, stream):
            self.lasting = ILLEGAL_ADDRESS  # every call fails from now on
            super().synchronize_stream(stream)

    error = refused(probe, Breaking(TOTAL, PAGE_BYTES))
    assert isinstance(error, VmmUnavailable)
    assert (error.where, error.status) == ("probe, step copy", ILLEGAL_ADDRESS)


def test_the_probe_sees_memory_that_is_not_shared(driver):
    class Forgetful(HostDriver):
        def map(self, address, size_bytes, handle, offset=0):
            super().map(address, size_bytes, self.create(size_bytes), 0)

    wrong = Forgetful(TOTAL)
    with pytest.raises(VmmUnavailable, match="host") as caught:
        probe(wrong)
    assert "0x5a was written" in caught.value.numbers
    wrong.close()
