"""Drivers that stand in for a GPU's answer long rows of calls as they did, wrong calls included.

The strict fake and the driver of this machine's memory are the ground that allocators and devices
are tried on; one that takes a wrong call would hide every mistake that it is there to find. Calls
are drawn, right ones and nearly right ones, over what has been obtained so far; each answer, each
refusal and what is held afterwards is known. Addresses are told as places within what was obtained.
`support/known.py` says why and how to write the tables anew.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import numpy as np
import pytest
from support import known

from ooctrain.devices.cpu.host_vm import PAGE_BYTES, HostCalls, why_no_virtual_memory
from ooctrain.devices.raw_bytes import bytes_at
from ooctrain.errors import DriverError
from ooctrain.testing.fake_driver import FakeDriver, Violation
from ooctrain.testing.host_driver import HostDriver

CALLS = 260


class Rows:
    """Draws calls and writes down what comes of them.

    Args:
        driver: fresh.
        page: its granule.
        seed: of the calls.
    """

    def __init__(self, driver, page: int, seed: int):
        self.driver, self.page, self.rng = driver, page, random.Random(seed)
        self.ranges: list[tuple[int, int]] = []
        self.handles: list[int] = []
        self.sizes: dict[int, int] = {}  # of handles
        self.mapped: list[tuple[int, int]] = []
        self.streams: list[int] = []
        self.events: list[int] = []
        self.hosts: list[tuple[int, int]] = []
        self.rows: list[tuple] = []
        self.counts: Counter = Counter()

    def pages(self, most: int = 3) -> int:
        """A size: whole granules, mostly."""
        return self.rng.choice([0, -1, 1, 1, 1, 1, 1, 1]) if self.rng.random() < 0.06 else (
            self.page * self.rng.randint(1, most)
        )  # fmt: skip

    def place(self) -> tuple[int, tuple]:
        """An address, and what it is."""
        if not self.ranges or self.rng.random() < 0.03:
            return self.page * 7, ("nowhere",)
        which = self.rng.randrange(len(self.ranges))
        address, size = self.ranges[which]
        inside = self.rng.choice([0, 0, self.page, 2 * self.page, size - self.page])
        inside += self.rng.choice([0] * 30 + [1, self.page])
        inside %= size  # what lies behind is not known
        return address + inside, (which, inside)

    def used(self) -> tuple[int, int, tuple]:
        """A mapped range or a part of it, mostly, and what it is."""
        if not self.mapped or self.rng.random() < 0.1:
            address, where = self.place()
            return address, self.pages(), where
        which = self.rng.randrange(len(self.mapped))
        address, size = self.mapped[which]
        return address, size, ("mapped", which)

    def one(self, known_ones: list, bogus: int) -> tuple[int, object]:
        """A number of those that are known, or of none."""
        if not known_ones or self.rng.random() < 0.04:
            return bogus, "none"
        which = self.rng.randrange(len(known_ones))
        return known_ones[which], which

    def host(self, size: int) -> tuple[int, tuple]:
        if not self.hosts or self.rng.random() < 0.03:
            return 64, ("nowhere",)
        which = self.rng.randrange(len(self.hosts))
        address, whole = self.hosts[which]
        inside = self.rng.choice([0, 0, 8, whole - size, whole - size + 1])
        return address + max(0, inside), (which, inside)

    def call(self, name: str, shown: tuple, *arguments: object) -> object:
        """Makes a call, and writes down how it ended."""
        try:
            found = getattr(self.driver, name)(*arguments)
        except (DriverError, Violation) as error:
            ended = type(error).__name__, getattr(error, "call", ""), getattr(error, "status", "")
            self.rows.append((name, shown, *ended))
            self.counts[name, "refused"] += 1
            raise
        self.counts[name, "done"] += 1
        plain = found if isinstance(found, bool | tuple | None) else ""
        held = self.driver.held()
        self.rows.append((name, shown, plain, *held.values(), self.driver.memory_info()))
        return found

    def turn(self, kind: str) -> None:
        """One call of a kind."""
        rng, call = self.rng, self.call
        if kind in ("reserve", "create", "allocate", "host_alloc"):
            size = (
                self.pages(5)
                if kind != "host_alloc"
                else rng.choice([0, 64, self.page, 3 * self.page])
            )
            found = call(kind, (size,), size)
            if kind == "create":
                self.handles.append(found)
                self.sizes[found] = size
            else:
                (self.hosts if kind == "host_alloc" else self.ranges).append((found, size))
        elif kind == "create_stream":
            self.streams.append(call(kind, ()))
        elif kind == "create_event":
            timing = rng.random() < 0.7
            self.events.append(call(kind, (timing,), timing))
        elif kind in ("address_free", "free", "host_free"):
            known_ones = self.hosts if kind == "host_free" else self.ranges
            which = rng.randrange(len(known_ones)) if known_ones else 0
            address, size = known_ones[which] if known_ones else (self.page, self.page)
            less = rng.choice([0] * 8 + [self.page, 1])
            given = (address, size - less) if kind == "address_free" else (address + less,)
            call(kind, (which, less), *given)
            known_ones.remove((address, size))  # the system may give its addresses again
            self.mapped = [one for one in self.mapped if not 0 <= one[0] - address < size]
        elif kind == "release":
            handle, which = self.one(self.handles, 999_999)
            call(kind, (which,), handle)
        elif kind == "map":
            (address, where), (handle, which) = self.place(), self.one(self.handles, 999_999)
            size, offset = self.pages(), rng.choice([0] * 20 + [self.page, 1])
            if rng.random() < 0.9:
                size = self.sizes.get(handle, size)
            call(kind, (where, which, size, offset), address, size, handle, offset)
            self.mapped.append((address, size))
        elif kind in ("set_access", "unmap"):
            address, size, where = self.used()
            call(kind, (where, size), address, size)
            if kind == "unmap":
                self.mapped = [one for one in self.mapped if one[0] != address]
        elif kind in ("fill", "copy_in", "copy_out"):
            address, size, where = self.used()
            size = rng.choice([8, 64, self.page, size, size, size + rng.choice([0, 0, 0, 8])])
            size = 0 if rng.random() < 0.02 else size
            stream, which = self.one(self.streams, 77)
            if kind == "fill":
                byte = rng.randrange(256)
                call(kind, (where, size, which, byte), address, byte, size, stream)
            else:
                host, at = self.host(size)
                pair = (address, host) if kind == "copy_in" else (host, address)
                call(kind, (where, size, which, at), *pair, size, stream)
        elif kind in ("record_event", "wait_event"):
            (stream, s), (event, e) = self.one(self.streams, 77), self.one(self.events, 88)
            pair = (event, stream) if kind == "record_event" else (stream, event)
            call(kind, (s, e), *pair)
        elif kind in ("stream_done", "synchronize_stream", "destroy_stream"):
            stream, which = self.one(self.streams, 77)
            call(kind, (which,), stream)
            if kind == "destroy_stream":
                self.streams.remove(stream)
        elif kind in ("event_done", "synchronize_event", "destroy_event"):
            event, which = self.one(self.events, 88)
            call(kind, (which,), event)
            if kind == "destroy_event":
                self.events.remove(event)
        elif kind == "elapsed_us":
            (first, a), (last, b) = self.one(self.events, 88), self.one(self.events, 88)
            call(kind, (a, b), first, last)
        else:
            call(kind, ())

    def bytes_of_hosts(self) -> list[str]:
        """What copies brought, of what is still there."""
        return [known.digest(bytes_at(a, n).tolist()) for a, n in self.hosts]


KINDS = (
    ("reserve", 5), ("create", 8), ("host_alloc", 3), ("create_stream", 3), ("create_event", 4),
    ("map", 26), ("set_access", 22), ("fill", 16), ("copy_in", 8), ("copy_out", 10), ("unmap", 6),
    ("release", 4), ("address_free", 2), ("host_free", 1), ("record_event", 8), ("wait_event", 6),
    ("stream_done", 3), ("synchronize_stream", 3), ("event_done", 4), ("synchronize_event", 3),
    ("destroy_stream", 1), ("destroy_event", 1), ("elapsed_us", 4), ("make_current", 1),
    ("granularity", 1),
)  # fmt: skip
OF_THE_FAKE = (
    *KINDS,
    ("allocate", 3),
    ("free", 2),
    ("step", 12),
    ("mappings", 1),
    ("capability", 1),
)


def run(rows: Rows, kinds) -> None:
    names, weights = zip(*kinds, strict=True)
    for _ in range(CALLS):
        kind = rows.rng.choices(names, weights)[0]
        try:
            rows.turn(kind)
        except (DriverError, Violation):
            continue


def fresh_fake(seed: int) -> tuple[FakeDriver, int]:
    page = (4096, 2 << 20)[seed % 5 == 4]
    order = random.Random(seed)
    return FakeDriver(40 * page, page, choose=lambda able: order.choice(able)), page


@pytest.mark.parametrize("seed", range(10))
def test_the_fake_answers_as_it_did(seed):
    driver, page = fresh_fake(seed)
    rows = Rows(driver, page, seed)
    run(rows, OF_THE_FAKE)
    lasting = driver.lasting
    driver.lasting = 0
    with_work = len(driver.queues.pending())
    try:
        driver.drain()
        drained = "done"
    except Violation as error:
        drained = known.digest(error.fix)
    seen = [
        driver.read(address, min(size, page)).tolist()[:64] for address, size, open_ in
        driver.mappings() if open_ and not driver.lasting
    ]  # fmt: skip
    done = sum(n for (_, how), n in rows.counts.items() if how == "done")
    refused = sum(n for (_, how), n in rows.counts.items() if how == "refused")
    known.check_rows("drivers", f"fake {seed}", [
        (done, refused, int(lasting), with_work, drained, driver.queues.pieces_done,
         known.digest(rows.rows), known.digest(seen), known.digest(sorted(driver.calls.items()))),
    ])  # fmt: skip


@pytest.mark.skipif(
    bool(why_no_virtual_memory()) or PAGE_BYTES != 4096, reason="Linux maps no pages of 4 KiB here"
)
@pytest.mark.parametrize("seed", range(6))
def test_this_machines_memory_answers_as_it_did(seed):
    driver = HostDriver(40 * PAGE_BYTES)
    rows = Rows(driver, PAGE_BYTES, seed)
    try:
        run(rows, KINDS)
        done = sum(n for (_, how), n in rows.counts.items() if how == "done")
        refused = sum(n for (_, how), n in rows.counts.items() if how == "refused")
        known.check_rows("drivers", f"host {seed}", [
            (done, refused, driver.used_bytes(), known.digest(rows.rows)),
        ])  # fmt: skip
    finally:
        driver.close()
    assert driver.used_bytes() == 0
    assert {k: n for k, n in driver.held().items() if k in ("handles", "reservations", "host")} == {
        "handles": 0, "reservations": 0, "host": 0,
    }  # fmt: skip
    for call in ("make_current", "reserve", "create"):
        with pytest.raises(DriverError) as caught:
            getattr(driver, call)(*[PAGE_BYTES] * (call != "make_current"))
        assert caught.value.call == call


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="Linux maps no memory here")
def test_a_file_that_gets_no_memory_is_closed():
    class Refusing(HostCalls):
        """No memory is left."""

        def make_file(self, size_bytes: int) -> int:
            self.file = super().make_file(size_bytes)
            return self.file

        def allocate(self, file: int, size_bytes: int) -> None:
            raise DriverError("no memory", call="allocate")

    calls = Refusing()
    with pytest.raises(DriverError):
        HostDriver(PAGE_BYTES, calls)
    with pytest.raises(OSError, match="file descriptor"):
        os.fstat(calls.file)


@pytest.mark.skipif(bool(why_no_virtual_memory()), reason="Linux maps no memory here")
def test_the_time_between_two_events_is_that_of_the_clock():
    driver = HostDriver(PAGE_BYTES)
    stream, first, last = driver.create_stream(), driver.create_event(), driver.create_event()
    before = time.perf_counter_ns()
    driver.record_event(first, stream)
    begun = time.perf_counter_ns()
    time.sleep(0.03)
    ending = time.perf_counter_ns()
    driver.record_event(last, stream)
    after = time.perf_counter_ns()
    found_us = driver.elapsed_us(first, last)
    driver.close()
    assert (ending - begun) / 1000 <= found_us <= (after - before) / 1000


def test_memory_in_one_piece_is_not_unmapped():
    driver = FakeDriver(1 << 20, 4096)
    address = driver.allocate(5000)
    with pytest.raises(DriverError) as caught:
        driver.unmap(address, 8192)
    assert caught.value.call == "cuMemUnmap"
    driver.free(address)
    assert not any(driver.held().values())


def test_a_kernel_uses_what_it_names_and_one_address_of_each_piece():
    driver = FakeDriver(1 << 20, 4096)
    stream = driver.create_stream()
    base, handle = driver.reserve(5 * 4096), driver.create(4096)
    for place in (0, 2):
        driver.map(base + place * 4096, 4096, handle)
    driver.set_access(base, 4096)
    ran: list[str] = []
    driver.launch(stream, [(base, 4096)], lambda: ran.append("one"))
    assert driver.step(stream)
    driver.set_access(base + 2 * 4096, 4096)
    driver.write(base + 10, np.arange(5, dtype=np.uint8))
    assert driver.read(base + 2 * 4096 + 10, 5).tolist() == [0, 1, 2, 3, 4]
    assert driver.handles_at(base + 2 * 4096 + 10, 5) == [handle]
    driver.launch(stream, [(base, 8), (base + 2 * 4096 + 8, 8)], lambda: ran.append("two"))
    with pytest.raises(Violation) as caught:
        driver.step()
    assert "one mapping" in caught.value.fix
    assert ran == ["one"]
    driver.launch(stream, [(base, 4097)], lambda: ran.append("three"))
    with pytest.raises(Violation):
        driver.drain()
    assert ran == ["one"]
    assert driver.lasting
    with pytest.raises(DriverError):
        driver.create_stream()
