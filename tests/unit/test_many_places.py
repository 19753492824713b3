"""The compiled placement of many blocks gives the offsets of the one in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ooctrain.alloc import many_places, static

span = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1]))
blocks = st.lists(st.tuples(st.integers(1, 9), st.lists(span, min_size=1, max_size=2)), min_size=1)
#: A block over many cells, one beside it, one that ends where another begins, one with a hole.
KNOWN = [(2, [(0, 40)]), (3, [(0, 4)]), (1, [(4, 8)]), (5, [(3, 5), (30, 31)]), (2, [(7, 40)]),
         (4, [(8, 9)]), (1, [(39, 40)])]  # fmt: skip


def by_numpy(sizes, spans):
    return list(static._place(range(len(sizes)), sizes, spans).values())


def interpret(patch):
    """Plain Python: a few blocks take less than to compile it."""
    for name in ("_fill", "_lowest"):
        function = getattr(many_places, name)
        patch.setattr(many_places, name, getattr(function, "py_func", function))


def check_small_cells(blocks):
    """Few blocks a cell, and spans that count as long early; without the compiler."""
    sizes, spans = [size for size, _ in blocks], [tuple(own) for _, own in blocks]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_places, "IN_A_CELL", 1)
        patch.setattr(many_places, "LONG", 2)
        interpret(patch)
        assert many_places.places_of_many(sizes, spans) == by_numpy(sizes, spans)


@settings(max_examples=30)
@given(blocks)
@example(KNOWN)
@example(KNOWN[::-1])
@example([(5, [(0, 2), (10, 12)]), (3, [(10, 12)])])
def test_cells_find_the_places_that_numpy_finds(blocks):
    check_small_cells(blocks)


@settings(max_examples=30)
@given(blocks)
@example(KNOWN)
def test_a_worse_order_is_given_up_and_a_better_one_is_not(blocks):
    sizes, spans = [size for size, _ in blocks], [tuple(own) for _, own in blocks]
    extent = max(o + s for o, s in zip(by_numpy(sizes, spans), sizes, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        interpret(patch)
        assert many_places.places_of_many(sizes, spans, extent) is None
        assert many_places.places_of_many(sizes, spans, extent + 1) == by_numpy(sizes, spans)


@pytest.mark.parametrize(
    "count", [300, pytest.param(static.MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_the_compiled_search_finds_them_for_many_blocks(monkeypatch, count):
    """Few blocks are placed without the compiler."""
    if count < static.MANY:
        monkeypatch.setattr(static, "MANY", count // 2)
        interpret(monkeypatch)
    rng = np.random.default_rng(5)
    begin = np.sort(rng.integers(0, 2 * count, count))
    lasting = np.minimum(rng.geometric(1 / 40, count), count)
    lasting[rng.random(count) < 0.003] = count // 3
    lives = [
        static.Lifetime(int(size), "", int(lo), int(lo + length))
        for size, lo, length in zip(rng.integers(1, 10**6, count), begin, lasting, strict=True)
    ]
    forecast = static.Forecast(tuple(lives), ((3, 200), (9, 9)))
    found = {
        order: static.pack(forecast, static.Granule(512), order, 1) for order in ("list", "size")
    }
    monkeypatch.setattr(static, "MANY", 10**9)
    for order, packing in found.items():
        assert static.pack(forecast, static.Granule(512), order, 1) == packing
