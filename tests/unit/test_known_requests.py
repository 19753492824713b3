"""Laws of allocators ask what they asked, and each lie about an answer breaks the law that it did.

A client makes requests of an allocator, queues work on its blocks and looks at what it shows. Which
calls that are, of the allocator and of the driver, is known for a few lists of requests: a client
that queues less, or orders more than an executor does, would meet fewer faults. Then allocators lie
about one number, one block or one refusal at a time; which law notices it stands in a table, too.
`support/known.py` says why and how to write the tables anew.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from support import known
from support.known_numbers import numbers_in
from support.quick import every

from ooctrain.alloc.base import Block
from ooctrain.alloc.registry import choose_allocator
from ooctrain.errors import (
    ConfigError,
    DriverError,
    InvalidFree,
    OutOfDeviceMemory,
    PlanMismatch,
)
from ooctrain.testing import allocator_draws
from ooctrain.testing.allocator_client import WRONG_SIZES, Client
from ooctrain.testing.allocator_grounds import DriverGround, PlainGround, make_ground
from ooctrain.testing.allocator_laws import Ask, Broken, DrawnProgram, fragmenting, histories
from ooctrain.testing.check_allocator import (
    AllocatorFailure,
    broken_laws,
    check_allocator,
    find_broken,
    find_failure,
    run_requests,
    sweep_refusals,
)
from ooctrain.testing.fake_driver import FakeDriver
from ooctrain.units import Granule

PAGE, UNITS = 4096, 12
#: With ranges, and without.
RANGED = ("va:chunk=4KiB", "gmlake:chunk=4KiB", "va-paper:chunk=4KiB", "va-nnabla:chunk=4KiB")
WHOLE = (
    "best-fit",
    "first-fit",
    "buddy",
    "bump",
    "best-fit-caching:chunk=4KiB",
    "passthrough:chunk=4KiB",
)


def maker(name: str):
    return choose_allocator(name, 2 * UNITS * PAGE, binding=False).make


def program_of(seed: int, parts: bool) -> DrawnProgram:
    """Requests that a random number generator draws."""
    rng = random.Random(seed)
    ops = ["allocate"] * 6 + ["free"] * 4 + ["renew", "use", "use", "write", "work", "again",
           "nonsense", "largest", "refuse"]  # fmt: skip
    if parts:
        ops += ["reserve"] * 3 + ["claim"] * 6 + ["release"] * 4
    asked = []
    for _ in range(50):
        op = rng.choice(ops)
        value = rng.randint(1, 3 * PAGE) if op in ("allocate", "reserve") else rng.randint(0, 9)
        asked.append(Ask(op, value, rng.randrange(3), rng.randrange(6), rng.randint(1, 3)))
    return DrawnProgram(tuple(asked), tuple(rng.randrange(3) for _ in range(8)))


# What is drawn


class Drawn:
    """Stands where a strategy of Hypothesis does, whose draws differ between its versions: it draws
    by a plain generator of random numbers."""

    def __init__(self, draw):
        self.draw = draw

    def __or__(self, other):
        return Drawn(lambda rng: rng.choice((self, other)).draw(rng))


def one_of(*choices):
    found = choices[0] if isinstance(choices[0], list) else choices
    return Drawn(lambda rng: rng.choice(found).draw(rng))


def builds(make, *given, **named):
    return Drawn(lambda rng: make(
        *[one.draw(rng) for one in given], **{name: one.draw(rng) for name, one in named.items()}
    ))  # fmt: skip


STRATEGIES = SimpleNamespace(
    integers=lambda low, high: Drawn(lambda rng: rng.randint(low, high)),
    sampled_from=lambda values: Drawn(lambda rng: rng.choice(values)),
    booleans=lambda: Drawn(lambda rng: rng.random() < 0.5),
    none=lambda: Drawn(lambda rng: None),
    just=lambda value: Drawn(lambda rng: value),
    lists=lambda of, max_size: Drawn(
        lambda rng: [of.draw(rng) for _ in range(rng.randint(0, max_size))]
    ),
    tuples=lambda *given: Drawn(lambda rng: tuple(one.draw(rng) for one in given)),
    one_of=one_of, builds=builds, SearchStrategy=Drawn,
)  # fmt: skip


@pytest.mark.parametrize(
    "granule", [Granule(64), Granule(512, ranges=False), Granule(4096)], ids=str
)
def test_requests_are_drawn_as_they_were(granule, monkeypatch):
    monkeypatch.setattr(allocator_draws, "st", STRATEGIES)
    unit = max(granule.size_bytes, 1024)
    lists = [fragmenting(granule, unit), *histories(granule, unit)]
    rows: list[known.Row] = [(len(lists), *map(known.digest, (lists[0], lists[1:])))]
    for unit, units in ((4096, 12), (8192, 3)):
        strategy = allocator_draws.programs(granule, unit, units)
        found = [strategy.draw(random.Random(seed)) for seed in range(60)]
        ops = Counter(ask.op for program in found for ask in program.requests)
        rows.append((unit, units, known.digest(found), *sorted(ops.items())))
    known.check_rows("requests", f"drawn for {granule.size_bytes}", rows)


# What is asked


class NotingDriver(FakeDriver):
    """The strict fake, which writes down what it is asked."""

    def __init__(self, *arguments, **options):
        self.asked, self.slab = [], 0
        super().__init__(*arguments, **options)

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found) or name == "choose":
            return found

        def noting(*arguments, **options):
            of_the_host = name in ("copy_out", "host_free")  # where that lies is not known
            own = (arguments[0] - self.slab, *arguments[1:]) if of_the_host else arguments
            self.asked.append((name, own, sorted(options)))
            answer = found(*arguments, **options)
            if name == "host_alloc":
                self.slab = answer
            return answer

        return noting


class NotingAllocator:
    """Another one, which writes down what it is asked.

    Args:
        asked: where.
    """

    def __init__(self, inner, asked):
        self._inner, self._asked = inner, asked

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def noting(*arguments, **options):
            self._asked.append((name, [shown(one) for one in arguments], sorted(options)))
            return found(*arguments, **options)

        return noting


def shown(value):
    if isinstance(value, Block):
        return value.tag, value.address, value.requested_bytes, value.granted_bytes
    if isinstance(value, list):
        return [getattr(one, "number", one) for one in value]
    return value


PROGRAMS = {
    "fragments": lambda granule: fragmenting(granule, PAGE),
    **{f"drawn {seed}": (lambda granule, seed=seed: program_of(seed, granule.ranges))
       for seed in range(3)},
    **{f"history {number}": (lambda granule, number=number: histories(granule, PAGE)[number])
       for number in (1, 9, 17, -1)},
}  # fmt: skip


@pytest.mark.parametrize("name", [*RANGED[:3], *WHOLE[::2]])
def test_a_client_asks_what_it_asked(name):
    rows = []
    for what, program in PROGRAMS.items():
        for thorough in (True, False):
            turns = iter(drawn := program(maker_granule(name)).order)
            driver = NotingDriver(
                UNITS * PAGE,
                PAGE,
                choose=lambda able, turns=turns: able[next(turns, 0) % len(able)],
            )
            asked: list = []
            ground = DriverGround(driver, UNITS * PAGE, PAGE)
            client = Client(
                lambda memory, asked=asked: NotingAllocator(maker(name)(memory), asked), ground,
                thorough=thorough,
            )  # fmt: skip
            for request in program(client.allocator.granule).requests:
                client.serve(request)
            live = len(client.live)
            client.finish(backwards=not thorough)
            rows.append((what, thorough, live, len(asked), len(driver.asked), len(drawn),
                         known.digest(asked), known.digest(driver.asked)))  # fmt: skip
    known.check_rows("requests", name, rows)


def maker_granule(name: str) -> Granule:
    return maker(name)(make_ground("strict", UNITS * PAGE, PAGE).memory).granule


def test_memory_that_is_mapped_once_is_asked_what_it_was():
    class NotingGround(PlainGround):
        def __init__(self):
            super().__init__(UNITS * PAGE)
            self.asked: list = []

        def _inside(self, address, size_bytes):
            self.asked.append((address - self.memory.linear(), size_bytes))
            return super()._inside(address, size_bytes)

    rows = []
    for what, program in PROGRAMS.items():
        ground = NotingGround()
        client = Client(maker("best-fit"), ground)
        for request in program(client.allocator.granule).requests:
            client.serve(request)
        client.finish()
        rows.append((what, len(ground.asked), known.digest(ground.asked)))
    known.check_rows("requests", "plain", rows)


def test_what_lies_outside_of_a_plain_ground_is_an_error():
    ground = PlainGround(100)
    base = ground.memory.linear()
    ground.fill(base, 100, 3, 0)
    ground.expect(base + 40, 60, 3, 0, "right")
    assert ground.finish() == ""
    for address, size in ((base - 1, 5), (base + 41, 60), (base, 101)):
        with pytest.raises(AssertionError):
            ground.fill(address, size, 1, 0)
    ground.fill(base + 7, 2, 9, 1)
    ground.expect(base, 8, 3, 0, "wrong")
    ground.expect(base, 9, 9, 0, "later")
    assert ground.finish() == "wrong: 3 was written, 9 is read"
    assert (ground.take_back(), ground.held(), ground.aliases(), ground.close()) == (
        False, {}, 0, {}
    )  # fmt: skip


@pytest.mark.parametrize("name", [RANGED[2], WHOLE[0]])
def test_each_call_that_obtains_something_is_refused_once(name):
    backends = ("strict", "plain") if name in WHOLE[:4] else ("strict",)
    rows = [(one, sweep_refusals(maker(name), one)) for one in backends]
    known.check_rows("requests", f"refused {name}", rows)


def test_requests_are_read_as_they_were():
    lines = [str(ask) for seed in range(3) for ask in program_of(seed, True).requests]
    lines.append(str(Ask("punch", 5, 0, 0, 64)))
    known.check_rows("requests", "words", [(len(lines), known.digest(numbers_in(lines)))])


# Lies


class Lying:
    """Another allocator, whose answers `lies` change.

    Args:
        lies: {method: (the right method, its arguments) -> answer}.
        values: attributes that have other values.
    """

    def __init__(self, inner, lies, values=()):
        self._inner, self._lies, self._values = inner, lies, dict(values)

    def __getattr__(self, name):
        if name in self._values:
            return self._values[name]
        right = getattr(self._inner, name)
        return partial(self._lies[name], right) if name in self._lies else right


def lying(name: str, make_lies: Callable[[], dict], values=()):
    """Makes liars, each with lies of its own, which may count."""
    return lambda memory: Lying(maker(name)(memory), make_lies(), values)


def of_block(change):
    """A lie about a block."""

    def lie(right, *arguments):
        block = right(*arguments)
        change(block)
        return block

    return lie


def moved(by):
    def change(block):
        block.address += by

    return of_block(change)


def granted(by):
    def change(block):
        block.granted_bytes += by

    return of_block(change)


def from_the(number, lie):
    """A lie from the n-th call on."""
    count = itertools.count(1)

    def later(right, *arguments):
        return lie(right, *arguments) if next(count) >= number else right(*arguments)

    return later


def raising(error, when=lambda *arguments: True):
    def lie(right, *arguments):
        if when(*arguments):
            raise error
        return right(*arguments)

    return lie


def takes_instead(refusal, answer=None):
    """What should be refused is taken."""

    def lie(right, *arguments):
        try:
            return right(*arguments)
        except refusal:
            return answer

    return lie


def refuses_as(refusal, error):
    """What is refused is refused with another error."""

    def lie(right, *arguments):
        try:
            return right(*arguments)
        except refusal:
            raise error from None

    return lie


def serves(wrong):
    def lie(right, nbytes, tag=""):
        same = nbytes == wrong and type(nbytes) is type(wrong)
        return right(64, tag) if same else right(nbytes, tag)

    return lie


def in_snapshot(change):
    def lie(right):
        found = dict(right())
        change(found)
        return found

    return lie


#: How many liars of a kind have been made.
MADE = itertools.count()


def serves_again():
    """Where there is no place for a request, it gets that of the one before."""
    last = [FOREIGN]

    def lie(right, *arguments):
        with suppress(PlanMismatch):
            last[0] = right(*arguments)
        return last[0]

    return lie


def numbered(number):
    return lambda layout: layout.update(number=number)


def counted():
    count = itertools.count()
    return lambda layout: layout.update(number=next(count))


def at_the_first():
    """All blocks lie where the first one does, from the second on."""
    first: list[int] = []

    def change(block):
        first.append(block.address)
        block.address = first[0]

    return from_the(2, of_block(change))


def nothing(right, *arguments):
    return None


FOREIGN = Block(10**6, 64, 1, 64, "foreign")
SHORT = OutOfDeviceMemory("no")
ODD = DriverError("odd", call="map", status=1)
LIES: dict[str, Callable[[], dict]] = {
    "an address that is not aligned": lambda: {"allocate": moved(8)},
    "an address that is": lambda: {"allocate": moved(64)},
    "no address": lambda: {"allocate": of_block(lambda b: setattr(b, "address", 0))},
    "the place of the first": lambda: {"allocate": at_the_first()},
    "a granule more": lambda: {"allocate": granted(PAGE)},
    "a byte less": lambda: {"allocate": granted(-1)},
    "refuses all": lambda: {"allocate": raising(SHORT)},
    "refuses what is small": lambda: {"allocate": raising(SHORT, lambda n, tag="": n == PAGE)},
    "refuses the largest": lambda: {
        "allocate": raising(SHORT, lambda n, tag="": n is not None and n > 2 * PAGE)
    },
    "breaks": lambda: {"allocate": from_the(3, raising(KeyError("x")))},
    "breaks as a wrong setting": lambda: {"allocate": from_the(3, raising(ConfigError("x")))},
    "an odd call of the driver": lambda: {"allocate": from_the(3, raising(ODD))},
    "other errors for wrong sizes": lambda: {
        "allocate": refuses_as(ConfigError, ZeroDivisionError())
    },
    "other errors for double frees": lambda: {"free": refuses_as(InvalidFree, KeyError(1))},
    "other errors where there is no room": lambda: {
        "allocate": refuses_as(OutOfDeviceMemory, MemoryError())
    },
    "double frees": lambda: {"free": takes_instead(InvalidFree)},
    "frees nothing": lambda: {"free": from_the(2, nothing)},
    "closes and names a block": lambda: {
        "close": lambda right: [*right(), Block(1, 64, 1, 1, "x")]
    },
    "never closes": lambda: {"close": lambda right: []},
    "closes and names nothing": lambda: {"close": lambda right: (right(), [])[1]},
    "a check that fails": lambda: {"check": raising(AssertionError("x 7"))},
    "a check that fails in the end": lambda: {"check": from_the(40, raising(AssertionError()))},
    "a snapshot that is no data": lambda: {"snapshot": in_snapshot(lambda s: s.update(base=b"1"))},
    "another snapshot": lambda: {"snapshot": in_snapshot(numbered(next(MADE)))},
    "a snapshot that counts": lambda: {"snapshot": in_snapshot(counted())},
    "reserves something": lambda: {"reserve": granted(PAGE)},
    "claims nothing": lambda: {"map_range": nothing},
    "claims what is claimed": lambda: {"map_range": takes_instead(ConfigError)},
    "claims are wrong": lambda: {"map_range": raising(ConfigError("x"))},
    "claims break": lambda: {"map_range": raising(ValueError("x"))},
    "claims have no room": lambda: {"map_range": raising(SHORT)},
    "releases nothing": lambda: {"unmap_range": nothing},
    "releases what is not held": lambda: {"unmap_range": takes_instead(ConfigError)},
    "releases are wrong": lambda: {"unmap_range": raising(ConfigError("x"))},
    "releases wait for nothing": lambda: {
        "unmap_range": lambda right, block, lo, hi, after=(): right(block, lo, hi)
    },
    "frees wait for nothing": lambda: {"free": lambda right, block, after=(): right(block)},
    **{
        f"serves {wrong!r}": (lambda wrong=wrong: {"allocate": serves(wrong)})
        for wrong in WRONG_SIZES
    },
}


def of_stats(name, by, first):
    def lie(right):
        found = right()
        return replace(found, **{name: getattr(found, name) + by})

    return lambda: {"stats": from_the(first, lie)}


#: What laws look at of them.
BOOKS = (
    "requested_bytes", "granted_bytes", "pending_bytes", "cached_bytes", "reserved_bytes",
    "largest_bytes", "peak_requested_bytes", "peak_granted_bytes", "peak_reserved_bytes", "maps",
    "host_waits",
)  # fmt: skip
LIES |= {
    f"{name} {by:+d} from call {first}": of_stats(name, by, first)
    for name in BOOKS for by in (1, -1) for first in (1, 30)
}  # fmt: skip


def broken_by(make, granule: Granule, backend: str = "strict") -> tuple[str, str]:
    """The law that the first list breaks, and the numbers of the complaint."""
    for what in ("fragments", "drawn 0", "history 1"):
        try:
            run_requests(make, PROGRAMS[what](granule), backend)
        except Broken as broken:
            return f"{what}: {broken.law}", known.digest(numbers_in([str(broken)]))
        except Exception as error:
            return f"{what}: {type(error).__name__}", ""
    return "none", ""


BATCHES = [list(LIES)[first : first + 12] for first in range(0, len(LIES), 12)]


@pytest.mark.parametrize("name", ["va:chunk=4KiB", "best-fit"])
@pytest.mark.parametrize("batch", every(range(len(BATCHES)), 2))
def test_a_lie_breaks_the_law_that_it_did(name, batch):
    granule = maker_granule(name)
    of_parts = ("reserves", "claims", "releases", "maps", "host_waits", "frees wait")
    told = [lie for lie in BATCHES[batch] if granule.ranges or not lie.startswith(of_parts)]
    rows = [(lie, *broken_by(lying(name, LIES[lie]), granule)) for lie in told]
    known.check_rows("liars", f"{name} {batch}", rows)


@pytest.mark.parametrize("name", ["stalloc", "first-fit"])
def test_a_lie_of_what_is_planned_breaks_the_law_that_it_did(name):
    """Of allocators that are given all requests before the first."""
    granule = maker_granule(name)
    lies = {
        "takes no plan": lambda: {"load_plan": raising(SHORT)},
        "forgets its plan": lambda: {"load_plan": nothing},
        "takes half of its plan": lambda: {
            "load_plan": lambda right, plan: right(replace(plan, lifetimes=plan.lifetimes[::2]))
        },
        "serves all": lambda: {"allocate": takes_instead(PlanMismatch, FOREIGN)},
        "serves it where it foresaw another": lambda: {"allocate": serves_again()},
        **{lie: LIES[lie] for lie in (
            "an address that is", "the place of the first", "a granule more", "frees nothing",
            "refuses what is small", "another snapshot", "a snapshot that counts",
            "peak_reserved_bytes -1 from call 1", "peak_reserved_bytes +1 from call 1",
        )},
    }  # fmt: skip
    rows = [(lie, *broken_by(lying(name, make), granule)) for lie, make in lies.items()]
    known.check_rows("liars", f"{name}, planned", rows)


def test_a_plan_that_does_not_fit_changes_nothing():
    coming = [ask for _ in range(30) for ask in (Ask("allocate", 3 * PAGE), Ask("free", 0))]
    program = DrawnProgram(tuple(coming))
    fine = lying("first-fit", lambda: {"load_plan": raising(SHORT)})
    assert run_requests(fine, program) == 60
    make = lying(
        "first-fit", lambda: {"load_plan": raising(SHORT), "snapshot": in_snapshot(counted())}
    )
    with pytest.raises(Broken) as broken:
        run_requests(make, program)
    assert broken.value.law == "P8"


@pytest.mark.parametrize(("name", "lies", "law"), [
    ("first-fit", lambda: {"check": raising(AssertionError("x"))}, "P16"),
    ("first-fit", lambda: {"check": raising(AssertionError())}, "P16"),
    ("va:chunk=4KiB", lambda: {"allocate": moved(1 << 22)}, "P5"),
    ("passthrough:chunk=4KiB", lambda: {"free": lambda right, block, after=(): right(block)}, "P5"),
    ("va:chunk=4KiB", lambda: {"allocate": raising(RuntimeError("x"))}, ""),
])  # fmt: skip
def test_an_error_that_is_no_law_s_is_told_as_one(name, lies, law):
    failure = find_failure(lying(name, lies), 1, 0, ["strict"], shortest=False)
    assert failure is not None
    assert failure.law == law
    assert ("unexpected" in failure.what) == (not law)


def test_memory_that_linux_maps_once_is_one_piece():
    for name in ("passthrough:chunk=64KiB", "va-paper:chunk=64KiB"):
        granule = Granule(1 << 16, ranges=False)
        for what in ("fragments", "drawn 0"):
            program = PROGRAMS[what](granule)
            assert run_requests(maker(name), program, "memfd") == len(program.requests)


def test_a_lie_to_memory_that_linux_maps_is_noticed_too():
    rows = []
    for lie in (
        "never closes",
        "closes and names nothing",
        "closes and names a block",
        "a byte less",
    ):
        make = lying("va:chunk=64KiB", LIES[lie])
        rows.append((lie, *broken_by(make, Granule(1 << 16), "memfd")))
    known.check_rows("liars", "memfd", rows)


@pytest.mark.parametrize(
    "name", ["va:chunk=4KiB", "va-paper:chunk=4KiB", "best-fit", "first-fit", "buddy"]
)
def test_who_calls_itself_another_one_is_held_to_its_laws(name):
    rows = [
        (other, *broken_by(lying(name, dict, [("name", other)]), maker_granule(name)))
        for other in ("va", "va-paper", "va-nnabla", "gmlake", "best-fit", "passthrough", "x")
        if (other == "best-fit") == (name in WHOLE) or other in ("passthrough", "x")
    ]
    known.check_rows("liars", f"{name} by another name", rows)


LAYOUTS = {
    "a hole more": lambda s: s["holes"].append([s["top"], 64]),
    "a hole less": lambda s: s.update(holes=s["holes"][1:]),
    "a hole in two": lambda s: s.update(holes=[
        half for lo, n in s["holes"] for half in ([lo, n // 2], [lo + n // 2, n - n // 2])
    ]),
    "a higher top": lambda s: s.update(top=s["top"] + 64),
    "a lower base": lambda s: s.update(base=s["base"] - 64),
    "a hole that is wider": lambda s: s.update(holes=[[lo, n + 1] for lo, n in s["holes"]]),
    "holes the other way round": lambda s: s.update(holes=s["holes"][::-1]),
    "a block less": lambda s: s.update(blocks=list(s["blocks"])[1:]),
}  # fmt: skip


def test_a_layout_that_is_another_breaks_the_laws_of_best_fit():
    rows = [
        (
            lie,
            *broken_by(
                lying("best-fit", lambda c=change: {"snapshot": in_snapshot(c)}),
                Granule(64, ranges=False),
            ),
        )
        for lie, change in LAYOUTS.items()
    ]
    known.check_rows("liars", "layouts", rows)


@pytest.mark.parametrize("lie", [
    "double frees", "requested_bytes +1 from call 1", "breaks",
])  # fmt: skip
def test_all_laws_that_a_lie_breaks_are_found(lie):
    make = lying("best-fit", LIES[lie])
    found = broken_laws(make, 1, 0, ["strict", "plain"])
    assert found.lists % 2 == 0
    known.check_rows("liars", f"all of {lie}", [
        (found.lists, found.cut, " ".join(sorted(found.found))),
    ])  # fmt: skip
    law = next(iter(found.found))
    failure = find_broken(make, law, 1, 0, ["strict"])
    assert failure is not None
    assert (failure.law, failure.backend, failure.code) == (law, "strict", "OOC-292")
    assert len(failure.where.splitlines()) == 1 + len(failure.requests)
    with pytest.raises(AllocatorFailure):
        check_allocator(make, examples=1, backends=("strict",))
