"""Bands for a device budget next to a host budget: some run again, the others are moved.

A segment whose forward calls run again stores its border and the rows that bands keep. One whose
calls run once stores all that backward reads, and takes longer where that travels for longer than
it is computed. Both memories together hold what all segments store, and the device alone the room
of the one at work. So one dynamic programme over segments, kinds and heights finds the least time,
and only its result is written out and planned. What `choose.py` offers knows neither budget, so
that the least budget of all offers is the same for all; this finds only faster plans. So does
`sparing`: where room is left, the last layer of a segment need not run again either.

A planner that may move parameters, too, keeps nothing on the device but what the call at work
needs. For such a planner a step has to be tiled only where single calls are wider than the budget:
VGG-19's ten first layers, in a quarter of its memory, and not the others behind them. So
`few_tilings` counts nothing that lasts against the budget, and calls as well as work.

Source: ours. Read next: `banded.py`, which tries these once another choice has fitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ooctrain.rewrite.tile.choose import best_way, movable_choices
from ooctrain.rewrite.tile.offers import Offer, OperatorTimes
from ooctrain.rewrite.tile.operators import Operators
from ooctrain.rewrite.tile.segment_costs import SegmentChoice, choices_of
from ooctrain.sched.budget import lasting_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.units import format_bytes

#: Shares of both budgets that are tried: estimates are less exact than a ledger.
SHARES = (1.0, 0.85)
#: Likewise for what is too wide alone: what is barely narrow enough leaves no room for more.
SHARES_OF_WIDE = (1.0, 0.75, 0.5)


def mixed_tilings(operators: Operators, times: OperatorTimes, question: Question) -> list[Offer]:
    """The fastest by estimate, and one that needs less; none where nothing keeps to the budgets."""
    table = {
        ends: [kind for choice in choices for kind in _kinds(choice)]
        for ends, choices in choices_of(operators, times, question.machine).items()
    }
    device = question.budget_bytes - lasting_bytes(operators.trace)
    host, found = host_bytes(question), dict[tuple[str, ...], Offer]()
    for share in SHARES:
        room = int(device * share)
        way = best_way(table, room, room + (int(host * share) if host is not None else 1 << 62))
        if way and way.names:
            kept = sum(choice.kept_bytes for choice in way.choices)
            why = (
                f"the least time of all whose segments need {format_bytes(room)} at work, and "
                f"store no more than fits there and on the host"
            )
            offer = Offer(way.names, times.work(way.extra_ns), kept, question.budget_bytes, why=why)
            found.setdefault(way.names, offer)
    return list(found.values())


def few_tilings(operators: Operators, times: OperatorTimes, question: Question) -> list[Offer]:
    """The least work whose segments have room, and the fewest calls in bands; each once. None where
    nothing has to be tiled.

    The work is an estimate of computing and of borders. On a slow link a border costs more than
    bands of all that lies behind it, and yet a list without those bands is faster.
    """
    table = movable_choices(choices_of(operators, times, question.machine))
    work_ns = {choice.name: choice.extra_ns for choices in table.values() for choice in choices}
    places = {call.name: place for place, call in enumerate(operators.calls)}
    fewest = {
        ends: [replace(choice, extra_ns=_calls_in_bands(choice, places)) for choice in choices]
        for ends, choices in table.items()
    }
    found = dict[tuple[str, ...], Offer]()
    for share, (what, costs) in itertools.product(
        SHARES_OF_WIDE, {"least work": table, "fewest calls in bands": fewest}.items()
    ):
        room = int(question.budget_bytes * share)
        way = best_way(costs, room, room)
        if way and way.names:
            kept = sum(choice.kept_bytes for choice in way.choices)
            why = f"the {what} of all whose calls need {format_bytes(room)} one by one"
            work = times.work(sum(work_ns[name] for name in way.names))
            offer = Offer(way.names, work, kept, question.budget_bytes, "all", why)
            found.setdefault(way.names, offer)
    return list(found.values())


def _calls_in_bands(choice: SegmentChoice, places: Mapping[str, int]) -> float:
    """Forward calls of a segment for each image; 0 where it is as it was."""
    if not choice.name:
        return 0.0
    _, bands, first, last = choice.name.split(":")
    return float(int(bands) * (places[last] + 1 - places[first]))


def sparing(operators: Operators, times: OperatorTimes, offer: Offer) -> Offer | None:
    """The same offer, but the last layer with weights of each segment that runs again does not.

    Its result is stored instead, which is more than what the segment would store behind a pooling;
    what follows it in the segment runs once, in as many bands. None: no such layer.
    """
    places = {call.name: place for place, call in enumerate(operators.calls)}
    names, saved_ns = list[str](), 0
    for name in offer.rewrites:
        kind, bands, *ends = name.split(":")
        if kind != "bands_again" or any(end not in places for end in ends):
            names.append(name)
            continue
        first, last = (places[end] for end in ends)
        layers = [place for place in range(first, last) if _has_weights(operators, place)]
        if not layers:
            names.append(name)
            continue
        layer = layers[-1]
        begin, end = operators.calls[layer].name, operators.calls[layer + 1].name
        names += [f"bands_again:{bands}:{ends[0]}:{begin}", f"bands:{bands}:{end}:{ends[1]}"]
        saved_ns += times.forward[layer]
    if not saved_ns:
        return None
    why = "what the last layers of its segments make is stored, so these layers run once"
    work = offer.work - saved_ns / times.total
    return replace(offer, rewrites=tuple(names), work=work, moves="borders", why=why)


def _has_weights(operators: Operators, place: int) -> bool:
    return any(not operators.flows(v) for v in operators.calls[place].ins)


def host_bytes(question: Question) -> int | None:
    """What may be stored on the host besides the inputs; None: as much as one likes."""
    budget = question.host_budget_bytes
    if budget is None:
        budget = question.machine.host_bytes
    inputs = (v.nbytes for v in question.trace.variables if v.kind == "input")
    return None if budget is None else budget - sum(inputs)


def _kinds(choice: SegmentChoice) -> Iterator[SegmentChoice]:
    """A way to run a segment, and, if it computes bands again, the same that keeps all it made."""
    yield choice
    if choice.once_bytes:
        yield replace(
            choice, name=choice.name.replace("bands_again:", "bands:"),
            extra_ns=choice.once_ns + choice.late_ns, stored_bytes=choice.once_bytes,
        )  # fmt: skip
