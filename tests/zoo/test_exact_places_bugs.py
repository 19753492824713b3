"""Planted bugs of exact packing: a packing that overlaps, a false proof, or a better one missed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from unit import test_exact_places as LAWS

from ooctrain.alloc import exact_places, exact_search, packing_descent

#: {what: (function, text, text with the bug)}
BUGS = {
    "a block rests on what it does not meet": (
        "_place", "if board.low[other] < top:", "if True:"
    ),
    "blocks beside what is placed are not raised": (
        "_place", "_set(board, blocks + other, top)", "pass"
    ),
    "the search goes back half of the way": (
        "_undo", "range(board.reached[0] - 1, reached - 1, -1)",
        "range(board.reached[0] - 1, reached, -1)",
    ),
    "what was placed last may not be equalled": (
        "_is_before", "low or (own == low and rank[block] < since_rank)", "low or own == low",
    ),
    "no block lies where another would end": (
        "_next", "board.low[block] + sections.size[block])",
        "board.low[block] + sections.size[block] - 1)",
    ),
    "a twin waits for ever": (
        "_next", "if twin >= 0 and board.offset[twin] < 0:", "if twin >= 0:"
    ),
    "a block passed over is raised by those that end below its top only": (
        "_raised", "board.due[other] < top", "board.due[other] + sections.size[other] < top"
    ),
    "a section falls too high": (
        "_falls_in_place", "_height(board.falling, count) > capacity",
        "_height(board.falling, count) >= capacity",
    ),
    "the least due counts for none": (
        "_falls_in_place", "first + total > capacity", "last + total > capacity",
    ),
    "of two pieces only one is searched": ("_pieces", "waiting = row", "pass"),
    "a failed piece is taken for the end": (
        "search", "if now < 0:", "if now <= 0:"
    ),
    "a search that was cut short is a proof": (
        "search", "return CUT_SHORT, tried", "return NONE, tried"
    ),
    "a border is one section off": (
        "_borders", "cuts[found] = section + 1", "cuts[found] = section + 2"
    ),
    "the lowest of a section pushes the others too high": (
        "_is_lowest", "board.due[block] + sections.size[block]",
        "board.due[block] + sections.size[block] + 1",
    ),
    "what failed within another order is forgotten to be the same": (
        "_key", "low += 1", "low += 0"
    ),
}  # fmt: skip
#: Two towers under a roof, whose pieces are searched apart; and one of them does not fit.
TOWERS = [
    (1, (0, 9)), (3, (0, 3)), (4, (1, 4)), (2, (2, 4)), (3, (5, 7)), (4, (6, 9)), (2, (6, 8)),
]  # fmt: skip


def held(blocks):
    """The laws, on a few blocks."""
    sizes, spans = [size for size, _ in blocks], [(own,) for _, own in blocks]
    least = LAWS.least_extent(sizes, spans)
    for capacity, fits in ((least, True), (least + 1, True), (least - 1, False)):
        found = exact_places.places_within(sizes, spans, capacity, 20_000)
        assert (found.offsets is not None) == fits
        if found.offsets is not None:
            assert LAWS.apart(sizes, spans, found.offsets)
            assert min(found.offsets) >= 0
            assert found.extent_bytes <= capacity
        else:
            assert found.proved
    assert not exact_places.places_within(sizes, spans, least, 1).proved
    lowered = exact_places.exact_places(sizes, spans, 0, sum(sizes) + 1, 20_000)
    assert (lowered.extent_bytes, lowered.proved) == (least, True)
    assert lowered.offsets is not None
    assert LAWS.apart(sizes, spans, lowered.offsets)


CASES = [
    LAWS.HARD, TOWERS, [(2, (0, 4)), (2, (0, 4)), (3, (2, 6)), (1, (3, 8))],
    [(5, (0, 2)), (3, (1, 4)), (4, (3, 6)), (2, (5, 8)), (5, (7, 9)), (1, (0, 9))],
]  # fmt: skip


def all_held():
    """How many cases hold the laws: all, or a law fails."""
    for blocks in CASES:
        held(blocks)
    return len(CASES)


def test_the_cases_hold_without_a_bug(monkeypatch):
    LAWS.interpret(monkeypatch)
    assert all_held() == len(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    LAWS.interpret(monkeypatch)
    function, piece, wrong = BUGS[bug]
    source = inspect.getsource(getattr(exact_search, function)).replace("@compiled\n", "")
    assert source.count(piece) == 1, piece
    names: dict[str, Any] = {}
    exec(source.replace(piece, wrong), vars(exact_search), names)
    monkeypatch.setattr(exact_search, function, names[function])
    if function == "search":
        for module in (exact_places, packing_descent):
            monkeypatch.setattr(module, "search", names[function])
    with pytest.raises((AssertionError, IndexError)):
        all_held()
