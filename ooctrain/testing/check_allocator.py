"""The laws of an allocator, for one of the library or of a user.

The same requests run over every back end: the strict fake (which does its work as late as allowed
and in any order), this machine's memory, and a plain arena, under a client that remembers
everything. Lists in which allocators have gone wrong before are tried as well as drawn ones; and
each call that obtains something from the driver is refused once, at each point of a run. The result
is the number of request lists that passed, or an `AllocatorFailure` with the law and the shortest
failing list that Hypothesis could find. For an allocator that is given all requests before the
first, a list of allocate and free is a forecast of itself: the addresses of its blocks, over two
rounds, are compared with the result of the lifetimes alone (S1 to S5). Source: docs/allocators.md,
"The laws"; paper 004, section 4.4. Read next: `allocator_laws.py` for the laws,
`allocator_client.py`, `../alloc/base.py`.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ooctrain.alloc.base import Allocator, Block, innermost
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.static import Forecast, Lifetime, Plannable, most_alive
from ooctrain.devices.cpu.host_vm import why_no_virtual_memory
from ooctrain.errors import (
    ConfigError,
    DriverError,
    OoctrainError,
    OutOfDeviceMemory,
    PlanMismatch,
    unknown_name,
)
from ooctrain.testing.allocator_client import Client
from ooctrain.testing.allocator_grounds import Ground, make_ground
from ooctrain.testing.allocator_laws import (
    Broken,
    DrawnProgram,
    Verdicts,
    fragmenting,
    histories,
    hold,
    judged,
)
from ooctrain.testing.fake_driver import Violation
from ooctrain.units import Granule

Make = Callable[[Any], Allocator]
BACKENDS = ("strict", "memfd", "plain", "cuda")
UNITS = 12
_PAGE_BYTES = 4096
_ROUNDS = 2  # in which a forecast is served


class AllocatorFailure(OoctrainError, AssertionError):
    """An allocator breaks a law.

    Attributes:
        law: its number, such as "P8"; "" for an error that no law names.
        requests: the shortest failing list that was found.
        program: the same, with the order of queued work; `run_requests` repeats it.
        backend: on which it fails.
    """

    default_code = "OOC-292"

    def __init__(self, what: str, *, law: str, program: DrawnProgram, backend: str, **details: str):
        super().__init__(what, **details)
        self.law, self.program, self.backend = law, program, backend
        self.requests = program.requests


def check_allocator(
    make: Make | str, *, examples: int = 100, seed: int = 0,
    backends: Sequence[str] = ("strict", "memfd", "plain"),
) -> int:  # fmt: skip
    """Holds an allocator to the laws, on every back end that it can stand on.

    Args:
        make: the allocator's class, a function that takes the memory, or a name with parameters
            ("va:chunk=4KiB", "file.py:Class").
        examples: how many random lists of requests are tried.
        seed: seed of the lists; the same seed tries the same ones.
        backends: "strict", the fake driver; "memfd", this machine's memory mapped by Linux;
            "plain", memory without mapping, for allocators without ranges; "cuda", a GPU's memory.

    Returns:
        The number of lists tried on each.

    Raises:
        AllocatorFailure: a law is broken.
        ConfigError: an unknown back end, or the allocator can use none of them.
    """
    if isinstance(make, str):
        make = choose_allocator(make, 2 * UNITS * _PAGE_BYTES, binding=False).make
    failure = find_failure(make, examples, seed, backends)
    if failure is not None:
        raise failure
    return examples


def broken_laws(
    make: Make, examples: int, seed: int, backends: Sequence[str]
) -> Verdicts:  # fmt: skip
    """All laws that do not hold, with what was found first; "" for errors that no law names.

    No law ends a run, so each is judged though others are broken, too.
    """
    verdicts = Verdicts()
    with judged(verdicts):
        find_failure(make, examples, seed, backends, shortest=False, verdicts=verdicts)
    return verdicts


def find_broken(
    make: Make, law: str, examples: int, seed: int, backends: Sequence[str]
) -> AllocatorFailure | None:
    """The failure of one law on the shortest list that can be found, as if the others held."""
    verdicts = Verdicts((law,))
    with judged(verdicts):
        return find_failure(make, examples, seed, backends, verdicts=verdicts)


def find_failure(
    make: Make, examples: int, seed: int, backends: Sequence[str], *, shortest: bool = True,
    verdicts: Verdicts | None = None,
) -> AllocatorFailure | None:  # fmt: skip
    """What `check_allocator` raises, or None.

    Args:
        shortest: whether to look for the shortest list, which takes most of the time.
        verdicts: what is done where a law does not hold; None: the first one is the failure.
    """
    # Not at the top: only a search needs Hypothesis, checking a planner does not.
    import hypothesis

    from ooctrain.testing.allocator_draws import programs

    usable = _usable(make, backends)
    failing: list[tuple[DrawnProgram, str, Exception]] = []
    granule, unit, _ = _sizes(make)

    def passes(program: DrawnProgram) -> None:
        for backend in usable:
            if verdicts is not None:
                verdicts.lists += 1
            try:
                run_requests(make, program, backend)
            except Exception as error:
                if _is_noted(error, verdicts):
                    continue
                failing.append((program, backend, error))
                raise

    lists = programs(granule, unit, UNITS)
    tried = hypothesis.settings(
        max_examples=examples, database=None, deadline=None, print_blob=False,
        report_multiple_bugs=False, suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, *[hypothesis.Phase.shrink] * shortest),
        verbosity=hypothesis.Verbosity.quiet,
    )(hypothesis.seed(seed)(hypothesis.given(lists)(passes)))  # fmt: skip

    def known_histories() -> None:
        for program in histories(granule, unit):
            passes(program)

    def sweep() -> None:
        for backend in usable:
            failing.append((fragmenting(granule, unit), backend, AssertionError()))
            try:
                sweep_refusals(make, backend)
            except Exception as error:
                if not _is_noted(error, verdicts):
                    raise

    try:
        # The lists first, where a short one is wanted: those of the others are as long as they are.
        for part in (
            (tried, known_histories, sweep) if shortest else (known_histories, sweep, tried)
        ):
            part()
    except Exception as error:
        program, backend, cause = failing[-1]
        failure = _failure(program, backend, cause if str(cause) else error, seed)
        failure.__cause__ = error
        return failure
    return None


def _is_noted(error: Exception, verdicts: Verdicts | None) -> bool:
    """Whether an error only ends its own list, since its law is not tried; it is noted then."""
    if verdicts is None:
        return False
    broken = _as_broken(error)
    law = broken.law if isinstance(broken, Broken) else ""
    if law in verdicts.tried:
        return False
    verdicts.cut += not law
    verdicts.note(law, str(broken) if law else f"an unexpected error, {error!r}")
    return True


def run_requests(make: Make, program: DrawnProgram, backend: str = "strict") -> int:
    """Runs one list of requests; use it to repeat what `check_allocator` found.

    Returns:
        How many requests that were, all served as the laws demand.

    Raises:
        Broken: a law is broken.
    """
    if isinstance(innermost(_sample(make)), Plannable):
        run_planned(make, program, lambda: _ground(make, program, backend))
    client = _client(make, program, backend)
    for request in program.requests:
        client.serve(request)
    layout = client.allocator.snapshot()
    if backend == "memfd":
        client.abandon()
        return len(program.requests)
    last = client.finish()
    if backend == "strict":
        again = _client(make, program, backend, thorough=False)
        for request in program.requests:
            again.serve(request)
        hold("P15", again.allocator.snapshot() == layout, "two runs gave two layouts")
        hold("P12", again.finish(backwards=True) == last, "the order of frees is still seen")
    return len(program.requests)


def sweep_refusals(make: Make, backend: str = "strict") -> int:
    """Refuses each obtaining call of a run once: the first, the second, until none is left.

    Returns:
        How many calls were refused, one in each run.

    Raises:
        Broken: a refusal left something behind, or the same request was not served afterwards.
    """
    granule, unit, _ = _sizes(make)
    program = fragmenting(granule, unit)
    for number in itertools.count():
        ground = _ground(make, program, backend, number)
        before = ground.held()
        try:
            client = Client(make, ground)
        except DriverError:
            hold("P8", ground.held() == before, "the constructor leaves something behind")
            client = Client(make, ground)
        for request in program.requests:
            client.serve(request)
        untouched = ground.take_back()
        client.finish()
        if untouched or backend == "plain":  # which asks nothing of a driver
            return number
    raise AssertionError("unreachable")


def _usable(make: Make, backends: Sequence[str]) -> list[str]:
    """The back ends that the allocator can stand on. Raises ConfigError: none, or no such one."""
    for backend in backends:
        if backend not in BACKENDS:
            raise unknown_name("no back end is called", backend, BACKENDS, "one of these")
    usable = [b for b in backends if b != "memfd" or not why_no_virtual_memory()]
    sample = _sample(make)
    if sample.granule.ranges or getattr(sample, "needs_virtual_memory", False):
        usable = [backend for backend in usable if backend != "plain"]
    if not usable:
        raise ConfigError(
            f"{sample.name} can be tried on none of {', '.join(backends) or 'no back ends'}",
            code="OOC-108", fix='"strict" is there for every allocator',
        )  # fmt: skip
    return usable


def _sample(make: Make) -> Allocator:
    return make(DryMemory(2 * UNITS * _PAGE_BYTES))


def _sizes(make: Make) -> tuple[Granule, int, int]:
    """(granule, bytes that requests are about multiples of, bytes of a page of the fake)."""
    granule = _sample(make).granule
    size = granule.size_bytes
    unit = -(-_PAGE_BYTES // size) * size
    return granule, unit, size if granule.ranges else unit


def _ground(
    make: Make, program: DrawnProgram, backend: str, refuse_at: int | None = None
) -> Ground:
    _, unit, page = _sizes(make)
    return make_ground(backend, UNITS * unit, page, program.order, refuse_at)


def _client(make: Make, program: DrawnProgram, backend: str, *, thorough: bool = True) -> Client:
    return Client(make, _ground(make, program, backend), thorough=thorough and backend == "strict")


def _as_broken(error: Exception) -> Exception:
    """An error as a law's, if one names it."""
    if isinstance(error, Violation):
        return Broken("P5", error.what)
    if isinstance(error, AssertionError) and not isinstance(error, Broken):
        line = traceback.extract_tb(error.__traceback__)[-1].line
        return Broken("P16", f"check() fails: {str(error) or line}")
    return error


def _failure(program: DrawnProgram, backend: str, error: Exception, seed: int) -> AllocatorFailure:
    error = _as_broken(error)
    law = error.law if isinstance(error, Broken) else ""
    what = str(error) if law else f"unexpected {error!r}"
    listed = "\n".join(f"{n:3d}. {r}" for n, r in enumerate(program.requests, 1))
    order = f"; work in the order {program.order}" if program.order else ""
    return AllocatorFailure(
        what, law=law, program=program, backend=backend,
        where=f"backend {backend}, after{order}\n{listed}",
        fix=f"repeat it by run_requests(make, failure.program, {backend!r}) or seed={seed}; "
        "ooctrain/testing/allocator_laws.py states the laws",
    )  # fmt: skip


# Allocators that are given all requests before the first: S1 to S5


@dataclass(frozen=True, slots=True)
class _Event:
    """Block `number` begins or ends; `time` counts the blocks begun before."""

    number: int
    begins: bool
    time: int


def run_planned(make: Make, program: DrawnProgram, make_ground: Callable[[], Ground]) -> None:
    """Foresees a program's whole blocks, and serves them twice.

    Args:
        make_ground: gives fresh memory for each of two allocators that must do the same.

    Raises:
        Broken: a law is broken.
    """
    events, forecast = _foresee(program)
    first = _serve(make, make_ground(), events, forecast)
    hold("S3", first == _serve(make, make_ground(), events, forecast), "two packings differ")


def _foresee(program: DrawnProgram) -> tuple[list[_Event], Forecast]:
    """The begins and ends of whole blocks, and the lifetimes that they make."""
    events: list[_Event] = []
    sizes: list[int] = []
    live: list[int] = []
    for request in program.requests:
        if request.op == "allocate":
            events.append(_Event(len(sizes), True, len(sizes)))
            live.append(len(sizes))
            sizes.append(request.value)
        elif request.op == "free" and live:
            number = live.pop(request.value % len(live))
            events.append(_Event(number, False, len(sizes)))
    events += [_Event(number, False, len(sizes)) for number in live]
    end = {event.number: event.time for event in events if not event.begins}
    return events, Forecast(tuple(
        Lifetime(size, f"b{i}", i, end[i], parameter=size % 3 == 0)
        for i, size in enumerate(sizes)
    ))  # fmt: skip


def _serve(
    make: Make, ground: Ground, events: list[_Event], forecast: Forecast
) -> list[list[tuple[int, int]]]:
    """(offset, bytes) of each block in each round."""
    allocator = make(ground.memory)
    planned = innermost(allocator)
    assert isinstance(planned, Plannable)
    seen: list[list[tuple[int, int]]] = []
    if _load(allocator, planned, forecast):
        seen = [_round(allocator, ground, events, forecast) for _ in range(_ROUNDS)]
        _check_extent(allocator, forecast)
        for places in seen:
            _check_places(allocator, forecast, places)
    allocator.close()
    ground.close()
    return seen


def _load(allocator: Allocator, planned: Plannable, forecast: Forecast) -> bool:
    """Whether the packing fits; if not, nothing has changed."""
    before = allocator.snapshot()
    try:
        planned.load_plan(forecast)
    except OutOfDeviceMemory:
        sizes = sum(planned.granule.granted(life.nbytes) for life in forecast.lifetimes)
        hold("S2", sizes > allocator.budget_bytes, f"{sizes} B in all do not fit")
        hold("P8", allocator.snapshot() == before, "a plan that does not fit changed something")
        return False
    return True


def _round(
    allocator: Allocator, ground: Ground, events: list[_Event], forecast: Forecast
) -> list[tuple[int, int]]:
    base = allocator.snapshot()["base"]
    live: dict[int, Block] = {}
    places = [(0, 0)] * len(forecast.lifetimes)
    for event in events:
        if event.begins:
            life = forecast.lifetimes[event.number]
            _refuses_others(allocator, life)
            try:
                block = live[event.number] = allocator.allocate(life.nbytes, life.tag)
            except (PlanMismatch, OutOfDeviceMemory) as error:
                raise Broken("S1", f"{life.tag} has no place: {error.what}") from error
            places[event.number] = (block.address - base, block.granted_bytes)
            if getattr(allocator, "serves_unforeseen", False):
                _serves_apart(allocator, life.nbytes, life.tag)  # once more than foreseen
            ground.fill(block.address, life.nbytes, event.number % 250 + 1, 0)
        else:
            block = live.pop(event.number)
            mark = event.number % 250 + 1
            ground.expect(block.address, block.requested_bytes, mark, 0, block.tag)
            allocator.free(block)
        allocator.check()
    problem = ground.finish()
    hold("P4", not problem, problem)
    return places


def _refuses_others(allocator: Allocator, life: Lifetime) -> None:
    """Another size or name than the foreseen one has no place; or one that belongs to no block."""
    before = allocator.snapshot()
    for nbytes, tag in ((life.nbytes + 1, life.tag), (life.nbytes, "unforeseen")):
        if getattr(allocator, "serves_unforeseen", False):
            _serves_apart(allocator, nbytes, tag)
            hold("S5", allocator.snapshot() == before, "what was not foreseen left a trace")
            continue
        try:
            allocator.allocate(nbytes, tag)
        except PlanMismatch:
            hold("S5", allocator.snapshot() == before, "what was refused changed something")
            continue
        hold("S5", False, f"{nbytes} B for {tag!r} are served, {life.tag!r} was foreseen")


def _serves_apart(allocator: Allocator, nbytes: int, tag: str) -> None:
    """What was not foreseen lies behind the plan, or there is no room."""
    extent = sum(allocator.snapshot()["pools"])
    try:
        block = allocator.allocate(nbytes, tag)
    except OutOfDeviceMemory:
        return
    offset = block.address - allocator.snapshot()["base"]
    hold("S5", offset >= extent, f"{tag!r}, not foreseen, lies at {offset} in a plan of {extent} B")
    allocator.free(block)


def _check_extent(allocator: Allocator, forecast: Forecast) -> None:
    sizes = [allocator.granule.granted(life.nbytes) for life in forecast.lifetimes]
    least = most_alive(sizes, [(life.begin, life.end) for life in forecast.lifetimes])
    extent = allocator.stats().peak_reserved_bytes
    if getattr(allocator, "serves_unforeseen", False):
        extent = sum(allocator.snapshot()["pools"])  # what was not foreseen lies behind
    hold("S2", least <= extent <= sum(sizes), f"{extent} B, not from {least} to {sum(sizes)} B")


def _check_places(allocator: Allocator, forecast: Forecast, places: list[tuple[int, int]]) -> None:
    """S1: blocks that live at one time share no byte. S4: no block floats."""
    floors = {0, *allocator.snapshot()["pools"][:1]}
    for i, (offset, size) in enumerate(places):
        life = forecast.lifetimes[i]
        beside = [
            place
            for j, place in enumerate(places)
            if j != i and forecast.lifetimes[j].begin < life.end
            and life.begin < forecast.lifetimes[j].end
        ]  # fmt: skip
        apart = all(offset + size <= other or other + n <= offset for other, n in beside)
        hold("S1", apart, f"{life.tag} at {offset} meets one that lives when it does")
        stands = offset in floors or any(other + n == offset for other, n in beside)
        hold("S4", stands, f"{life.tag} at {offset} stands on nothing that lives when it does")
