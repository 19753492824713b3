"""The search for packings tries what it tried: many small problems, of every kind.

`test_exact_places.py` says what must be true of a packing, and knows a few problems in detail. Here
are many, of blocks that live once or twice, of few sizes or of many, that stay all the time or are
alike; of each it is known what is found, what is proved, and how many blocks are tried for it, as
Python, since so few are tried sooner than a search is compiled. `support/known.py` says why.
"""

from __future__ import annotations

import random

import pytest
from support import known

from ooctrain.alloc import exact_packing, static
from ooctrain.alloc.exact_packing import exact_places, places_within
from ooctrain.alloc.static import Forecast, Lifetime, most_alive, pack
from ooctrain.units import Granule

Problem = tuple[list[int], list[tuple[tuple[int, int], ...]]]


@pytest.fixture(autouse=True)
def without_the_compiler(monkeypatch):
    for name, function in list(vars(exact_packing).items()):
        monkeypatch.setattr(exact_packing, name, getattr(function, "py_func", function))


def problem(kind: str, seed: int) -> Problem:
    """Sizes and spans of some blocks."""
    rng = random.Random(f"{kind}/{seed}")
    count, times = rng.randint(12, 30), rng.randint(6, 14)
    most = 4 if kind == "few sizes" else 30
    sizes, spans = [], []
    for _ in range(count):
        begin = rng.randrange(times)
        end = begin + rng.randint(1, 5)
        own = [(begin, end)]
        if kind == "twice" and rng.random() < 0.5:
            later = end + rng.randint(1, 3)
            own.append((later, later + rng.randint(1, 3)))
        if kind == "steady" and rng.random() < 0.25:
            own = [(0, times + 9)]
        sizes.append(rng.randint(1, most))
        spans.append(tuple(own))
        if kind == "twins" and rng.random() < 0.5:
            sizes.append(sizes[-1])
            spans.append(spans[-1])
    return sizes, spans


KINDS = ("many sizes", "few sizes", "twice", "steady", "twins")


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_tried_is_tried_again(kind):
    rows = []
    for seed in range(14):
        sizes, spans = problem(kind, seed)
        alive = max(
            sum(size for size, own in zip(sizes, spans, strict=True)
                if any(a <= time < b for a, b in own))
            for time in range(40)
        )  # fmt: skip
        for more in (-1, 0, 1, 3):
            found = places_within(sizes, spans, alive + more, 250)
            rows.append((seed, more, found.extent_bytes, found.proved, found.nodes,
                         known.digest(found.offsets)))  # fmt: skip
        found = exact_places(sizes, spans, alive, sum(sizes), 500)
        rows.append((seed, "exact", found.extent_bytes, found.proved, found.nodes,
                     known.digest(found.offsets)))  # fmt: skip
    known.check_rows("manifold", kind, rows)


@pytest.mark.parametrize("order", ["list", "size"])
def test_forecasts_are_packed_as_they_were(order):
    assert static
    rows = []
    for seed in range(12):
        sizes, spans = problem("many sizes", 100 + seed)
        lives = tuple(
            Lifetime(100 * size, f"b{n % 5}", *own[0], parameter=n % 4 == 0)
            for n, (size, own) in enumerate(zip(sizes, spans, strict=True))
        )
        for granule, pools in ((Granule(512), 1), (Granule(64), 2)):
            found = pack(Forecast(lives), granule, order, pools)
            alive = most_alive([granule.granted(life.nbytes) for life in lives],
                               [(life.begin, life.end) for life in lives])  # fmt: skip
            rows.append((seed, pools, found.pools, found.least_bytes, found.extent_bytes, alive,
                         known.digest(found.offsets)))  # fmt: skip
    known.check_rows("manifold", f"forecasts by {order}", rows)
