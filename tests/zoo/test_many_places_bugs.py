"""Planted bugs of the placement of many blocks: each is killed by the law of its cells."""

from __future__ import annotations

import inspect

import pytest
from unit import test_many_places

from ooctrain.alloc import many_places

BUGS = {
    "a span's last cell is forgotten": (
        "range(begin // width, max(end - 1, begin) // width + 1)",
        "range(begin // width, max(end - 1, begin) // width)",
    ),
    "long spans are kept nowhere": ("longs += 1", "pass"),
    "what lies higher is taken for the top": ("max(reached, stops[place])", "stops[place]"),
    "a gap that is a byte too small": (
        "starts[place] - reached >= sizes[block]", "starts[place] - reached >= sizes[block] - 1"
    ),
    "the first span only": (
        "for own in range(first[block], first[block + 1]):\n            low",
        "for own in range(first[block], first[block] + 1):\n            low",
    ),
    "a cell forgets those before": (
        "own, heads[cell], nodes\n", "own, -1, nodes\n"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    piece, wrong = BUGS[bug]
    source = inspect.getsource(many_places._fill.py_func).replace("@compiled\n", "")
    assert source.count(piece) == 1, piece
    names = dict(vars(many_places))
    exec(source.replace(piece, wrong), names)

    def fill(*given):
        names["LONG"] = many_places.LONG
        names["_fill"](*given)

    monkeypatch.setattr(many_places, "_fill", fill)
    with pytest.raises(AssertionError):
        test_many_places.test_cells_find_the_places_that_numpy_finds()
