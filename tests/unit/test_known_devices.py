"""What devices ask of their driver, call by call, and which of many odd requests they refuse.

The driver here writes down what it is asked and answers what it is told to; the requests are drawn,
many of them one piece too long, or one too far. `support/known.py` says why the answers stand in a
table; that what is asked is right, `test_driver.py` and `test_fake_driver.py` hold.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from support import known

from ooctrain.devices.cpu.host_vm import (
    PAGE_BYTES,
    VirtualArena,
    whole_pages,
    why_no_virtual_memory,
)
from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda.driver import CudaDriver
from ooctrain.devices.cuda.driver_memory import DriverMemory, PlainMemory
from ooctrain.errors import OoctrainError


class Functions(dict[str, Callable[..., int]]):
    """The bound functions of a library that notes its calls, and answers with one status."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.status = {"": 0}
        super().__init__({symbol: self._function(symbol) for symbol in abi.SYMBOLS})

    def _function(self, symbol: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.notes.append(f"{symbol}({', '.join(map(self._spelled, arguments))})")
            return self.status.get(symbol, self.status[""])

        return call

    def _spelled(self, argument: Any) -> str:
        """An argument; a place for a result gets the number of calls so far."""
        target = getattr(argument, "_obj", argument)
        if isinstance(target, ctypes.Structure):
            return bytes(target).hex()
        if isinstance(target, ctypes.Array):
            target.value = b"a device"
            return f"text of {len(target)}"
        if target is argument or isinstance(target, ctypes.c_char_p):
            return repr(argument) if target is argument else "name"
        target.value = len(self.notes) + 100
        return type(target).__name__


CALLS: dict[str, Callable[[CudaDriver], object]] = {
    "make_current": CudaDriver.make_current, "attribute": lambda d: d.attribute(5),
    "maps": lambda d: d.maps, "capability": CudaDriver.capability,
    "granularity": CudaDriver.granularity, "memory_info": CudaDriver.memory_info,
    "reserve": lambda d: (d.reserve(64), d.reserve(32, 9)),
    "address_free": lambda d: d.address_free(1, 2), "create": lambda d: d.create(3),
    "release": lambda d: d.release(4), "map": lambda d: d.map(1, 2, 3, 4),
    "set_access": lambda d: d.set_access(1, 2), "unmap": lambda d: d.unmap(1, 2),
    "allocate": lambda d: d.allocate(9), "free": lambda d: d.free(8),
    "host_alloc": lambda d: d.host_alloc(7), "host_free": lambda d: d.host_free(6),
    "create_stream": CudaDriver.create_stream, "destroy_stream": lambda d: d.destroy_stream(5),
    "stream_done": lambda d: d.stream_done(5), "event_done": lambda d: d.event_done(4),
    "synchronize_stream": lambda d: d.synchronize_stream(3),
    "create_event": lambda d: (d.create_event(), d.create_event(timing=True)),
    "destroy_event": lambda d: d.destroy_event(2), "record_event": lambda d: d.record_event(1, 2),
    "wait_event": lambda d: d.wait_event(1, 2), "elapsed_us": lambda d: d.elapsed_us(1, 2),
    "synchronize_event": lambda d: d.synchronize_event(1),
    "copy_in": lambda d: d.copy_in(1, 2, 3, 4), "copy_out": lambda d: d.copy_out(1, 2, 3, 4),
    "fill": lambda d: d.fill(1, 2, 3, 4),
    "function": lambda d: (d.function(b"a", "f"), d.function(b"a", "f"), d.function(b"a", "g")),
    "launch": lambda d: d.launch(1, (2, 3, 4), 5, 6, None),
    "begin_capture": lambda d: d.begin_capture(1), "end_capture": lambda d: d.end_capture(2),
    "launch_graph": lambda d: d.launch_graph(1, 2), "destroy_graph": lambda d: d.destroy_graph(3),
    "close": lambda d: (d.close(), d.close()), "opened": lambda d: (d.version, d.name),
}  # fmt: skip
STATUS = (abi.SUCCESS, abi.OUT_OF_MEMORY, abi.NOT_READY, abi.ILLEGAL_ADDRESS, abi.INVALID_CONTEXT,
          abi.DEINITIALIZED, 998)  # fmt: skip


def outcome(make: Callable[[], object]) -> tuple[object, ...]:
    try:
        return (make(),)
    except OoctrainError as error:
        about = (getattr(error, name, None) for name in ("call", "status", "lost"))
        return type(error).__name__, error.code, *about


@pytest.mark.parametrize("name", CALLS)
def test_a_driver_is_asked_as_it_was(name):
    rows = []
    for status in STATUS:
        functions = Functions()
        driver = CudaDriver(functions, 3)
        if name != "opened":
            functions.notes.clear()
        functions.status[""] = status
        rows.append((status, *outcome(lambda d=driver: CALLS[name](d)), *functions.notes))
    known.check_rows("driver", name, rows)


@pytest.mark.parametrize("symbol", ["cuDeviceGet", "cuDeviceGetName", "cuDevicePrimaryCtxRetain"])
def test_a_device_that_cannot_be_opened_is_refused_as_it_was(symbol):
    functions = Functions()
    functions.status[symbol] = 101
    rows = [(*outcome(lambda: CudaDriver(functions)), *functions.notes)]
    known.check_rows("driver", f"{symbol} fails", rows)


class Pieces:
    """A driver of virtual memory that maps anything, and fails at each call so often."""

    def __init__(self, parts: bool, fails: int):
        self.parts, self.fails, self.notes, self.last = parts, fails, [], 4096

    def granularity(self) -> int:
        return 8

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*given: int) -> int:
            self.notes.append(f"{name}{given}")
            if self.fails and len(self.notes) % self.fails == 0 and name in ("map", "set_access"):
                raise abi_failure(name)
            self.last += 1024
            return self.last

        return call


def abi_failure(name: str) -> OoctrainError:
    functions = Functions()
    driver = CudaDriver(functions)
    functions.status[""] = abi.OUT_OF_MEMORY
    with pytest.raises(OoctrainError) as caught:
        driver.unmap(1, 2)
    return caught.value


def asked(memory: Any, random: Random, piece: int) -> tuple[object, ...]:
    """An odd request: (what, outcome)."""
    bases = sorted(memory.bases)
    base = random.choice([*bases, 0]) if bases else 0
    name = random.choice(["reserve", "map", "map", "map", "unmap", "release", "linear"])
    if memory.one_at_a_time:
        name = "reserve" if not bases else "unmap" if name in ("reserve", "linear") else name
    odd = random.choice([0, 0, 0, 0, 0, 1, -1])
    pieces = [random.randint(-1, 5) for _ in range(3)]
    place, offset, size = pieces[0] * piece + odd, pieces[1] * piece, pieces[2] * piece
    given = {
        "reserve": (size + odd,), "map": (base + place, offset, size), "release": (base + odd,),
        "unmap": (base + place, size), "linear": (),
    }[name]  # fmt: skip
    found = outcome(lambda: getattr(memory.of, name)(*given))
    if name == "reserve" and len(found) == 1:
        memory.bases.add(found[0])
    if name == "release" and len(found) == 1:
        memory.bases.discard(given[0])
    number = bases.index(base) if base in bases else None
    where = bases.index(found[0]) if found[0] in bases else len(found) > 1 and found[1:]
    return name, number, pieces, odd, where, memory.of.used_bytes()


class Asked:
    """A memory and the addresses that it has reserved; of the system's own one at a time, for it
    chooses which lie side by side."""

    def __init__(self, of: Any, one_at_a_time: bool = False):
        self.of, self.bases, self.one_at_a_time = of, set(), one_at_a_time


@pytest.mark.parametrize("fails", [0, 5])
@pytest.mark.parametrize("parts", [True, False])
def test_memory_of_a_driver_is_mapped_and_refused_as_it_was(parts, fails):
    driver, random, rows = Pieces(parts, fails), Random(fails), []
    memory = Asked(DriverMemory(driver, 45, 8))
    for number in range(60):
        rows.append((*asked(memory, random, 8), *driver.notes))
        driver.notes.clear()
        if number == 40:
            memory.of.close()
            memory.bases.clear()
            memory = Asked(DriverMemory(driver, 36))
    for size, piece in ((7, 8), (8, 8), (20, 16), (64, 12), (64, 0), (64, -8), (9, None)):
        made = outcome(lambda s=size, p=piece: DriverMemory(driver, s, p).size_bytes)
        rows.append((size, piece, *made))
    rows.append(("sizes", memory.of.size_bytes, memory.of.granularity_bytes))
    plain = PlainMemory(driver, 99)
    rows += [outcome(plain.linear), (plain.used_bytes(),), outcome(plain.close),
             outcome(plain.linear), (plain.used_bytes(),), outcome(plain.close)]  # fmt: skip
    known.check_rows("mapped", f"{'parts' if parts else 'whole'} {fails}", rows)


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="no virtual memory here")
@pytest.mark.parametrize("at_once", [True, False])
def test_a_virtual_arena_maps_and_refuses_as_it_did(at_once):
    arena, random, rows = VirtualArena(4 * PAGE_BYTES + 1, at_once=at_once), Random(8), []
    memory = Asked(arena, one_at_a_time=True)
    for _ in range(60):
        row = asked(memory, random, PAGE_BYTES)
        rows.append((*row, arena.map_calls, arena.unmap_calls))
    arena.discard_all()
    rows.append(("empty", arena.used_bytes(), arena.size_bytes))
    arena.allocate()
    rows.append(("full", arena.used_bytes(), whole_pages(1), whole_pages(4096), whole_pages(0)))
    arena.close()
    rows.append(("closed", arena.used_bytes(), *outcome(arena.allocate)))
    known.check_rows("mapped", f"arena, at once: {at_once}", rows)
