"""Our allocators as Numba's memory manager, over the fake driver; and what stands between."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import deque

import pytest

from ooctrain.alloc import numba_plugin
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.numba_plugin import DEFAULT_STREAM, DeferredFree
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.devices.cuda.driver_memory import DriverMemory
from ooctrain.errors import ConfigError, DriverError, InvalidFree, OutOfDeviceMemory
from ooctrain.testing.fake_driver import FakeDriver

PAGE = 4096


def test_it_has_no_names_but_its_own():
    with pytest.raises(AttributeError, match="no attribute 'anything'"):
        _ = numba_plugin.anything


def make_driver(_ordinal: int = 0) -> FakeDriver:
    driver = FakeDriver(16 * PAGE, PAGE)
    driver.queues.streams[DEFAULT_STREAM] = deque()
    return driver


@pytest.fixture
def driver():
    return make_driver()


@pytest.fixture(params=["best-fit", "va"])
def deferred(request, driver):
    memory = DriverMemory(driver, 8 * PAGE)
    make = BestFit if request.param == "best-fit" else VirtualAddressing
    return DeferredFree(driver, make(memory) if make is BestFit else make(memory, PAGE))


# Addresses, freed once they are not in use.


def test_memory_is_used_again_only_after_the_work_that_was_queued(deferred, driver):
    address = deferred.allocate(4 * PAGE)
    driver.fill(address, 1, 4 * PAGE, DEFAULT_STREAM)
    deferred.give_back(address)
    other = deferred.allocate(4 * PAGE)
    assert other != address  # its fill has not run
    driver.drain()
    deferred.give_back(other)
    assert deferred.allocate(4 * PAGE) == address


def test_short_memory_waits_for_work_and_no_further(deferred, driver):
    address = deferred.allocate(8 * PAGE)
    driver.fill(address, 1, PAGE, DEFAULT_STREAM)
    deferred.give_back(address)
    assert deferred.free_bytes() == 8 * PAGE
    deferred.allocate(8 * PAGE)
    assert not driver.queues.pending()
    with pytest.raises(OutOfDeviceMemory):
        deferred.allocate(1)


def test_a_refused_request_changes_nothing(deferred):
    address = deferred.allocate(5 * PAGE)
    with pytest.raises(OutOfDeviceMemory):
        deferred.allocate(4 * PAGE)
    with pytest.raises(ConfigError):
        deferred.allocate(0)
    deferred.give_back(address)
    assert deferred.allocate(8 * PAGE)


def test_what_is_given_back_twice_is_found_at_the_next_claim(deferred):
    address = deferred.allocate(PAGE)
    deferred.give_back(address)
    deferred.give_back(address)
    with pytest.raises(InvalidFree, match="twice"):
        deferred.allocate(PAGE)
    assert deferred.allocate(8 * PAGE), "what was given back rightly is not lost"


def test_nothing_is_recycled_while_it_is_paused(deferred):
    address = deferred.allocate(8 * PAGE)
    deferred.give_back(address)
    with deferred.paused(), pytest.raises(OutOfDeviceMemory):
        deferred.allocate(PAGE)
    assert deferred.allocate(PAGE)


def test_closing_names_what_is_live_and_returns_the_events(deferred, driver):
    kept, gone = deferred.allocate(PAGE), deferred.allocate(2 * PAGE)
    deferred.give_back(gone)
    assert [block.address for block in deferred.close()] == [kept]
    assert driver.held()["events"] == 0


# Numba's side of it.


class Device:
    id = 0


class Context:
    """What the plug-in sees of Numba's context."""

    device = Device()


@pytest.fixture
def cuda():
    module = pytest.importorskip("numba.cuda")
    if not hasattr(module, "set_memory_manager"):
        pytest.skip("Numba's CUDA simulator has no memory managers")
    return module


@pytest.fixture
def plugin(cuda):
    from ooctrain.alloc.numba_plugin import memory_manager

    drivers = []

    def open_driver(ordinal: int) -> FakeDriver:
        drivers.append(make_driver(ordinal))
        return drivers[-1]

    manager = memory_manager("va:chunk=4KiB", "32KiB", open_driver)
    context = Context()
    instance = manager(context=context)
    instance.drivers, instance.kept_context = drivers, context
    return instance


def test_numba_accepts_the_plug_in(cuda):
    """It makes one without a context and asks for its version; nothing is opened for that."""
    from numba.cuda.cudadrv import driver as numba_driver

    from ooctrain.alloc import numba_plugin

    before = numba_driver._memory_manager
    try:
        cuda.set_memory_manager(numba_plugin._numba_memory_manager)
        assert numba_driver._memory_manager is numba_plugin._numba_memory_manager
    finally:
        numba_driver._memory_manager = before


def test_it_has_all_that_the_interface_asks_for(cuda, plugin):
    names = cuda.BaseCUDAMemoryManager.__abstractmethods__
    assert {"memalloc", "get_memory_info", "interface_version", "reset"} <= names
    assert not type(plugin).__abstractmethods__
    assert plugin.interface_version == 1


def test_pointers_own_their_memory(plugin):
    plugin.initialize()
    plugin.initialize()
    assert len(plugin.drivers) == 1
    pointer = plugin.memalloc(5 * PAGE)
    assert pointer.size == 5 * PAGE
    assert int(getattr(pointer.device_pointer, "value", pointer.device_pointer)) > 2**32
    assert plugin.get_memory_info() == (3 * PAGE, 8 * PAGE)
    with pytest.raises(OutOfDeviceMemory):
        plugin.memalloc(4 * PAGE)
    del pointer
    gc.collect()
    assert plugin.get_memory_info().free == 8 * PAGE
    assert plugin.memalloc(8 * PAGE).size == 8 * PAGE


def test_freeing_twice_is_numbas_error_and_does_not_reach_us(plugin):
    pointer = plugin.memalloc(PAGE)
    pointer.free()
    with pytest.raises(RuntimeError, match="dead memory"):
        pointer.free()
    assert plugin.memalloc(PAGE)


def test_a_reset_gives_all_back_and_late_finalizers_do_no_harm(plugin):
    plugin.reset()  # may come first
    pointer = plugin.memalloc(PAGE)
    plugin.reset()
    assert not any(plugin.drivers[0].held()[key] for key in ("handles", "reservations", "events"))
    other = plugin.memalloc(8 * PAGE)
    del pointer
    gc.collect()
    with pytest.raises(OutOfDeviceMemory):
        plugin.memalloc(PAGE)
    assert other.size == 8 * PAGE


def test_cleanup_can_be_deferred(plugin):
    pointer = plugin.memalloc(8 * PAGE)
    with plugin.defer_cleanup():
        del pointer
        gc.collect()
        with pytest.raises(OutOfDeviceMemory):
            plugin.memalloc(PAGE)
    assert plugin.memalloc(PAGE)


def test_there_are_no_handles_for_other_processes(plugin):
    with pytest.raises(DriverError, match="between processes"):
        plugin.get_ipc_handle(plugin.memalloc(PAGE))


def test_the_budget_without_one_is_a_share_of_what_is_free(cuda):
    from ooctrain.alloc.numba_plugin import memory_manager

    manager = memory_manager("best-fit", None, make_driver)
    assert manager(context=Context()).get_memory_info().total == 12 * PAGE


@pytest.mark.slow
def test_the_module_is_light_until_it_is_asked():
    code = (
        "import sys, ooctrain.alloc.numba_plugin as p; assert 'numba' not in sys.modules\n"
        "assert not hasattr(p, 'nothing')\n"
        "print(p._numba_memory_manager.__name__, 'numba.cuda' in sys.modules)\n"
    )
    environment = {**os.environ, "OOCTRAIN_NUMBA_ALLOCATOR": "best-fit"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stdout == "OoctrainMemoryManager True\n", done.stderr


@pytest.mark.gpu
def test_numba_arrays_live_in_our_memory_on_a_gpu():
    """In a process of its own: the manager is chosen before the first context."""
    code = (
        "import numpy as np\nfrom numba import cuda\n"
        "data = np.arange(1 << 20, dtype=np.float32)\n"
        "for _ in range(50):\n"
        "    array = cuda.to_device(data); assert (array.copy_to_host() == data).all()\n"
        "info = cuda.current_context().get_memory_info(); print(info.total)\n"
    )
    environment = {
        **os.environ, "NUMBA_CUDA_MEMORY_MANAGER": "ooctrain.alloc.numba_plugin",
        "OOCTRAIN_NUMBA_BUDGET": "64MiB",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stdout == f"{64 << 20}\n", done.stderr
