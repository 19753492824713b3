"""Planted bugs of exact packing: a packing that overlaps, a false proof, or a better one missed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from support.cut_rectangles import SIDE, cut
from support.quick import all_but
from unit import test_exact_places as LAWS
from zoo.planting import plant

from ooctrain.alloc import exact_packing

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
    "a section falls too high": (
        "_falls_in_place", "_height(board.falling, count) > capacity",
        "_height(board.falling, count) >= capacity",
    ),
    "the least due counts for none": (
        "_falls_in_place", "first + total > capacity", "last + total > capacity",
    ),
    "of two pieces only one is searched": ("_pieces", "waiting = row", "pass"),
    "pieces that wait are forgotten once there are new ones": (
        "_pieces", "waiting = frame[WAITING]", "waiting = np.int64(-1)"
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
        found = exact_packing.places_within(sizes, spans, capacity, 20_000)
        assert (found.offsets is not None) == fits
        if found.offsets is not None:
            assert LAWS.apart(sizes, spans, found.offsets)
            assert min(found.offsets) >= 0
            assert found.extent_bytes <= capacity
        else:
            assert found.proved
    assert not exact_packing.places_within(sizes, spans, least, 1).proved
    alive = LAWS.most_alive(sizes, [own for _, own in blocks])
    for low, high in ((alive, sum(sizes) + 1), (least - 1, least + 1)):
        lowered = exact_packing.exact_places(sizes, spans, low, high, 20_000)
        assert (lowered.extent_bytes, lowered.proved) == (least, True)
        assert lowered.offsets is not None
        assert LAWS.apart(sizes, spans, lowered.offsets)
    hurried = exact_packing.exact_places(sizes, spans, least, least + 1, 2)
    assert not hurried.proved or hurried.offsets is not None


CASES = [
    LAWS.HARD, TOWERS, [(2, (0, 4)), (2, (0, 4)), (3, (2, 6)), (1, (3, 8))],
    [(5, (0, 2)), (3, (1, 4)), (4, (3, 6)), (2, (5, 8)), (5, (7, 9)), (1, (0, 9))],
    [(1024, (0, 4)), (2048, (2, 6)), (1, (0, 2)), (1, (1, 5)), (1024, (5, 9)), (1, (4, 8))],
]  # fmt: skip


#: Rectangles that were cut to pieces, by seed and number of pieces; they fill it again.
CUTS = [(0, 16), (1, 9), (57, 16), (72, 16), (75, 16)]


def put_together(seed, count):
    """The pieces of a rectangle are packed into it again."""
    blocks = cut(seed, count)
    sizes, spans = [size for size, _ in blocks], [(own,) for _, own in blocks]
    found = exact_packing.places_within(sizes, spans, SIDE, 1500)
    assert found.offsets is not None
    assert found.extent_bytes == SIDE
    assert LAWS.apart(sizes, spans, found.offsets)


def all_held():
    """How many cases hold the laws: all, or a law fails."""
    for blocks in CASES:
        held(blocks)
    for seed, count in CUTS:
        put_together(seed, count)
    return len(CASES)


def test_the_cases_hold_without_a_bug(monkeypatch):
    LAWS.interpret(monkeypatch)
    assert all_held() == len(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    LAWS.interpret(monkeypatch)
    function, piece, wrong = BUGS[bug]
    source = inspect.getsource(getattr(exact_packing, function)).partition("\n")[2]  # no decorator
    assert source.count(piece) == 1, piece
    names: dict[str, Any] = {}
    exec(source.replace(piece, wrong), vars(exact_packing), names)
    monkeypatch.setattr(exact_packing, function, names[function])
    if function == "search":
        for module in (exact_packing, exact_packing):
            monkeypatch.setattr(module, "search", names[function])
    with pytest.raises((AssertionError, IndexError)):
        all_held()


#: Of what lowers a packing: {what: (owner, function, text, text with the bug)}
OF_THE_DESCENT = {
    "blocks lie upon those at the bottom": (
        exact_packing, "exact_places", "i: floor + offset", "i: offset",
    ),
    "small blocks do not see the large ones": (
        exact_packing, "_fill", "if i in placed)", "if i in ())",
    ),
    "a proof is taken for more than it says": (
        exact_packing.Descent, "_ask", "self.low = capacity + 1", "self.low = capacity + 2",
    ),
    "what was cut short is taken for a proof": (
        exact_packing.Descent, "_ask", "if status == NONE:", "if status != FOUND:",
    ),
    "one capacity is never asked for": (
        exact_packing.Descent, "run", "self.low + (self.high - self.low) * share // 100",
        "self.low + 1 + (self.high - self.low - 1) * share // 100",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", all_but(OF_THE_DESCENT, *[*OF_THE_DESCENT][1:]))
def test_bug_of_the_descent(bug, monkeypatch):
    LAWS.interpret(monkeypatch)
    plant(monkeypatch, *OF_THE_DESCENT[bug])
    with pytest.raises((AssertionError, IndexError)):
        all_held()
