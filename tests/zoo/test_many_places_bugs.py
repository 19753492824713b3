"""Planted bugs of the placement of many blocks: each is killed by the law of its cells."""

from __future__ import annotations

import inspect

import pytest
from unit import test_many_places

from ooctrain.alloc import many_places

BUGS = {
    "a span's last cell is forgotten": (
        "range(begin // width, end // width + 1)", "range(begin // width, end // width)",
    ),
    "long spans are kept nowhere": ("longs += 1", "pass"),
    "what lies higher is taken for the top": ("if stop > reached:", "if True:"),
    "a gap that is a byte too small": (
        "if start < reached + size:", "if start < reached + size - 1:"
    ),
    "what was passed once is not looked at again": (
        "reached, moved = stop, True", "reached = stop"
    ),
    "the first span only": (
        "for own in range(first[block], first[block + 1]):\n            low",
        "for own in range(first[block], first[block] + 1):\n            low",
    ),
    "an order is given up that may be better": (
        "reached + sizes[block] >= below", "reached + 2 * sizes[block] >= below"
    ),
    "a cell forgets those before": (
        "own, heads[cell], nodes\n", "own, -1, nodes\n"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    piece, wrong = BUGS[bug]
    owner = "_lowest" if piece in text_of("_lowest") else "_fill"
    source = text_of(owner)
    assert source.count(piece) == 1, piece
    names = dict(vars(many_places))
    exec(text_of("_lowest") + text_of("_fill"), names)
    exec(source.replace(piece, wrong), names)

    def fill(*given):
        names["LONG"] = many_places.LONG
        return names["_fill"](*given)

    monkeypatch.setattr(many_places, "_fill", fill)
    with pytest.raises(AssertionError):
        all_held()


def text_of(function):
    """A compiled function as plain Python."""
    text = inspect.getsource(inspect.unwrap(getattr(many_places, function)))
    return text.partition("\n")[2]  # no decorator


def all_held():
    """The laws of the cells and of what is given up."""
    test_many_places.test_cells_find_the_places_that_numpy_finds()
    test_many_places.test_a_worse_order_is_given_up_and_a_better_one_is_not()
