"""Tests that a driver really provides virtual addressing, before anything relies on it.

Attributes and versions say what should work, but containers, virtual GPUs and memory checkers may
refuse it all the same. So one piece of memory goes the whole way once: made, mapped at two
addresses, written through one, read through the other, given back. A failure raises
`VmmUnavailable` with the failed step, its error and an alternative. Read next: `cuda/driver.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from ooctrain.devices.driver_calls import VmmDriver, give_back
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DriverError, VmmUnavailable

_MARK = 0x5A


def probe(driver: VmmDriver) -> None:
    """Tries one granule of memory; leaves nothing behind.

    Args:
        driver: opened, and current in this thread.

    Raises:
        VmmUnavailable: a step failed.
    """
    if not driver.maps:
        raise _unavailable(driver, "attribute", "the device says that it has none")
    undo: list[Callable[[], None]] = []
    steps = ["granularity"]
    try:
        found = _round_trip(driver, steps, undo)
    except DriverError as error:
        raise _unavailable(driver, steps[-1], str(error.what), error) from error
    finally:
        for call in reversed(undo):
            give_back(call)
    if found != _MARK:
        raise _unavailable(driver, "read", f"byte {found:#x} was read where {_MARK:#x} was written")


def _round_trip(driver: VmmDriver, steps: list[str], undo: list[Callable[[], None]]) -> int:
    """The byte that was read through the second address.

    Args:
        steps: the name of each step is appended before it is tried.
        undo: what gives back what a step obtained is appended after it.
    """
    size = driver.granularity()
    steps.append("create")
    handle = driver.create(size)
    undo.append(lambda: driver.release(handle))
    addresses = [_mapped(driver, size, handle, steps, undo) for _ in range(2)]
    steps.append("copy")
    stream = driver.create_stream()
    undo.append(lambda: driver.destroy_stream(stream))
    host = driver.host_alloc(size)
    undo.append(lambda: driver.host_free(host))
    driver.fill(addresses[0], _MARK, size, stream)
    driver.copy_out(host, addresses[1], size, stream)
    driver.synchronize_stream(stream)
    return int(bytes_at(host, size)[-1])


def _mapped(
    driver: VmmDriver, size: int, handle: int, steps: list[str], undo: list[Callable[[], None]]
) -> int:
    """An address at which the handle appears."""
    steps.append("reserve")
    address = driver.reserve(size)
    undo.append(lambda: driver.address_free(address, size))
    steps.append("map")
    driver.map(address, size, handle)
    undo.append(lambda: driver.unmap(address, size))
    steps.append("set_access")
    driver.set_access(address, size)
    return address


def _unavailable(
    driver: VmmDriver, step: str, reason: str, error: DriverError | None = None
) -> VmmUnavailable:
    return VmmUnavailable(
        f"virtual addressing does not work on {driver.name}", call=error.call if error else step,
        status=error.status if error else 0, where=f"probe, step {step}", numbers=reason,
        fix="use --allocator best-fit",
    )  # fmt: skip
