"""The stub driver in C held against the strict fake in Python: the same calls, the same answers.

The rules are written and tested in the fake. Here every call goes to both drivers, with handles of
its own for each, stale ones and wrong sizes included; an action is a name and three numbers that
choose what it is done to. The first action to which the two answer differently is returned. Where
the fake raises `Violation` (a GPU would go on with wrong data) the stub must end in an error.
Read next: `ooctrain/testing/fake_driver.py`, `tests/doubles/stub/stub.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from doubles.stub_driver import Stub

from ooctrain.errors import DriverError
from ooctrain.testing.fake_driver import FakeDriver, Violation

PAGE, PAGES = 4096, 12
VIOLATION = -1
Action = tuple[str, int, int, int]
Pair = tuple[int, int]  # the same thing in the fake and in the stub


class Over(Exception):
    """The context is broken, as it should be: nothing more can be compared."""


class TwoDrivers:
    """Both drivers, and pairs of handles that either of them has ever given out."""

    def __init__(self, stub: Stub):
        self.stub = stub
        stub.reset(total_bytes=PAGES * PAGE, granularity=PAGE)
        self.fake, self.real = FakeDriver(PAGES * PAGE, PAGE), stub.open()
        self.known: dict[str, list[Pair]] = {
            kind: [] for kind in ("place", "handle", "memory", "host", "stream", "event")
        }

    def do(self, action: Action) -> None:
        """One action on both. Raises AssertionError: they answer otherwise; Over."""
        name, i, j, k = action
        getattr(self, name)(i, j, k)

    # What is obtained.

    def reserve(self, i: int, j: int, k: int) -> None:
        self._obtain("place", lambda d, _: d.reserve(_size(i)))

    def create(self, i: int, j: int, k: int) -> None:
        self._obtain("handle", lambda d, _: d.create(_size(i)))

    def allocate(self, i: int, j: int, k: int) -> None:
        self._obtain("memory", lambda d, _: d.allocate(i % 4 * PAGE))

    def host_alloc(self, i: int, j: int, k: int) -> None:
        self._obtain("host", lambda d, _: d.host_alloc(i % 4 * PAGE))

    def create_stream(self, i: int, j: int, k: int) -> None:
        self._obtain("stream", lambda d, _: d.create_stream())

    def create_event(self, i: int, j: int, k: int) -> None:
        self._obtain("event", lambda d, _: d.create_event(timing=bool(i % 2)))

    # What is given back.

    def address_free(self, i: int, j: int, k: int) -> None:
        self._on(("place", i), lambda d, a: d.address_free(a, _size(j)))

    def release(self, i: int, j: int, k: int) -> None:
        self._on(("handle", i), lambda d, a: d.release(a))

    def unmap(self, i: int, j: int, k: int) -> None:
        place = i % 3 * PAGE
        if self._on(("place", j), lambda d, a: d.unmap(a + place, _size(k))) == VIOLATION:
            raise Over

    def free(self, i: int, j: int, k: int) -> None:
        self.synchronize(0, 0, 0)  # CUDA waits here, and the fake refuses
        self._on(("memory", i), lambda d, a: d.free(a))

    def host_free(self, i: int, j: int, k: int) -> None:
        self.synchronize(0, 0, 0)
        self._on(("host", i), lambda d, a: d.host_free(a))

    def destroy_stream(self, i: int, j: int, k: int) -> None:
        self._on(("stream", i), lambda d, a: d.destroy_stream(a))

    def destroy_event(self, i: int, j: int, k: int) -> None:
        self._on(("event", i), lambda d, a: d.destroy_event(a))

    # Mappings.

    def map(self, i: int, j: int, k: int) -> None:
        place, size, part = i % 3 * PAGE, _size(k), k // 8 % 2 * PAGE
        self._on(("place", i // 3), ("handle", j), lambda d, a, h: d.map(a + place, size, h, part))

    def set_access(self, i: int, j: int, k: int) -> None:
        place = i % 3 * PAGE
        self._on(("place", j), lambda d, a: d.set_access(a + place, _size(k)))

    # Work.

    def copy_in(self, i: int, j: int, k: int) -> None:
        self._copy(i, j, k, lambda d, a, h, size, s: d.copy_in(a, h, size, s))

    def copy_out(self, i: int, j: int, k: int) -> None:
        self._copy(i, j, k, lambda d, a, h, size, s: d.copy_out(h, a, size, s))

    def fill(self, i: int, j: int, k: int) -> None:
        kind, size = ("place", "memory")[i % 2], _size(k)
        self._on((kind, i // 2), ("stream", j), lambda d, a, s: d.fill(a, 7, size, s))

    def record_event(self, i: int, j: int, k: int) -> None:
        self._on(("event", i), ("stream", j), lambda d, e, s: d.record_event(e, s))

    def wait_event(self, i: int, j: int, k: int) -> None:
        self._on(("event", i), ("stream", j), lambda d, e, s: d.wait_event(s, e))

    def elapsed(self, i: int, j: int, k: int) -> None:
        self._on(("event", i), ("event", j), lambda d, a, b: d.elapsed_us(a, b) * 0)

    def memory_info(self, i: int, j: int, k: int) -> None:
        self._both(lambda d, _: sum(d.memory_info()), ())

    def synchronize(self, i: int, j: int, k: int) -> None:
        """All work is done in both."""
        self.fake.drain()
        assert self.stub.library.cuCtxSynchronize() == 0, self.stub.why

    # How.

    def _copy(self, i: int, j: int, k: int, call: Callable[..., object]) -> None:
        size, kind = _size(k), ("place", "memory")[k // 8 % 2]
        hosts = self.known["host"]
        live = [pair for pair in hosts if pair[0] in self.fake.host]
        if live:
            # What is not pinned at all CUDA copies too, while the host waits; the fake forbids it.
            pair = live[i % len(live)]
            most = self.fake.host[pair[0]].size
            self._on(
                (kind, j), ("stream", j // 4),
                lambda d, a, s: call(d, a, pair[d is self.real], min(size, most), s),
            )  # fmt: skip

    def _on(self, *wanted: Any) -> int:
        """A call on handles that are known; nothing, where none is."""
        *choices, call = wanted
        if not all(self.known[kind] for kind, _ in choices):
            return 0
        pairs = [self.known[kind][at % len(self.known[kind])] for kind, at in choices]
        return self._both(lambda d, which: call(d, *(pair[which] for pair in pairs)), pairs)

    def _obtain(self, kind: str, call: Callable[[Any, int], int]) -> None:
        found: list[int] = []
        if self._both(lambda d, which: found.append(call(d, which)), kind) == 0:
            fake, real = found
            # An address that is given out again is stale no more, and perhaps in one of both only.
            stale = [pair for pair in self.known[kind] if pair[0] != fake and pair[1] != real]
            self.known[kind] = [*stale, (fake, real)]

    def _both(self, call: Callable[[Any, int], object], what: object) -> int:
        answers = [_answer(lambda d=d, n=n: call(d, n)) for n, d in enumerate(self._drivers())]
        (fake, said), (real, found) = answers
        alike = real > 0 if fake == VIOLATION else real == fake and said == found
        assert alike, (
            f"the fake says {fake} ({said}), the stub {real} ({found}; {self.stub.why}) to {what}"
        )
        return fake

    def _drivers(self) -> tuple[Any, Any]:
        return self.fake, self.real


def check_alike(stub: Stub, actions: Sequence[Action]) -> None:
    """Runs actions on both. Raises AssertionError: they answer otherwise, or count otherwise."""
    both = TwoDrivers(stub)
    try:
        for action in actions:
            both.do(action)
        both.synchronize(0, 0, 0)
    except Over:
        return
    held = both.fake.held()
    counted = {
        "handles": "references", "bytes": "used_bytes", "streams": "streams", "events": "events",
        "host": "host",
    }  # fmt: skip
    assert {ours: stub.number(theirs) for ours, theirs in counted.items()} == {
        ours: held[ours] for ours in counted
    }


def _size(number: int) -> int:
    """Mostly whole pages, sometimes nothing or a part of one."""
    return (number % 8) * PAGE if number % 8 < 4 else (1, 1, 2, 1)[number % 4] * PAGE + number % 2


def _answer(call: Callable[[], object]) -> tuple[int, object]:
    try:
        found = call()
    except Violation:
        return VIOLATION, None
    except DriverError as error:
        return error.status, None
    return 0, found if isinstance(found, (int, float)) else None


#: Names of all actions.
NAMES = tuple(
    name for name, value in vars(TwoDrivers).items() if not name.startswith("_") and name != "do"
    and callable(value)
)  # fmt: skip
