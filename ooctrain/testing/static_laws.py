"""The laws of allocators that are told all requests before the first: S1 to S5.

A program of allocate and free is a forecast of itself. The addresses of its blocks, over two
rounds, are compared with the result of the lifetimes alone; a difference raises `Broken`. Source:
docs/allocators.md, "The laws"; paper 004, section 4.4. Read next: `../alloc/static.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ooctrain.alloc.base import Allocator, Block
from ooctrain.alloc.static import Forecast, Lifetime, Plannable, most_alive, plannable
from ooctrain.errors import OutOfDeviceMemory, PlanMismatch
from ooctrain.testing.allocator_grounds import Ground
from ooctrain.testing.allocator_laws import Broken, hold
from ooctrain.testing.allocator_requests import DrawnProgram

Make = Callable[[Any], Allocator]
_ROUNDS = 2


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
    planned = plannable(allocator)
    assert planned is not None
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
    """Another size or name than the foreseen one has no place; or one that is nobody's."""
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
