"""Laws that ask nothing of an arena, in every way that is known: a hunt gives them next to nothing.

A law without a question can still count its calls, know the clock, a file, its own numbers or what
it saw before. All that is tried here with more than a submission has: one object that remembers all
arenas of the hunt. `ooctrain/course/hunt.py` says why none of it helps.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import nullcontext
from statistics import mean

import pytest

from ooctrain.course import hunt as HUNT
from ooctrain.course.hunt import BUGS
from ooctrain.course.remote import RemoteLaw
from ooctrain.course.rubric import Hunt
from ooctrain.course.submitted import law_of
from ooctrain.testing.law_by_hand import HoleArena, refusal_of, told_apart

DRAWS, RUNS = 2, 25
#: What a law may expect that stops a single arena, of 24 broken and 24 right ones, and no more.
MOST_SHARE = 0.06


def key(arena, rng):
    return (arena.size, rng.getstate()[1][:4])


#: {what it knows: (memory, arena, random numbers) -> whether the arena is stopped}
BLIND = {
    "nothing": lambda seen, arena, rng: False,
    "everything is broken": lambda seen, arena, rng: True,
    "the number of the call": lambda seen, arena, rng: len(seen) % 2,
    "the other number of the call": lambda seen, arena, rng: len(seen) % 2 == 0,
    "the first half": lambda seen, arena, rng: len(seen) < 24,
    "one call alone": lambda seen, arena, rng: len(seen) == 7,
    "the last call": lambda seen, arena, rng: len(seen) == 47,
    "what came before": lambda seen, arena, rng: key(arena, rng) in seen,
    "what did not come before": lambda seen, arena, rng: key(arena, rng) not in seen,
    "what came just before": lambda seen, arena, rng: seen[-1:] == [key(arena, rng)],
    "the size": lambda seen, arena, rng: arena.size % 2,
    "a small size": lambda seen, arena, rng: arena.size < 30,
    "the random numbers": lambda seen, arena, rng: rng.random() < 0.5,
    "rarely a random number": lambda seen, arena, rng: rng.random() < 0.04,
    "numbers of its own": lambda seen, arena, rng: random.random() < 0.04,
    "the clock": lambda seen, arena, rng: time.monotonic_ns() // 1000 % 24 == 0,
    "an address": lambda seen, arena, rng: id(arena) // 64 % 24 == 0,
}  # fmt: skip


class Blind:
    """A law with a memory."""

    name = "blind"

    def __init__(self, stops):
        self.stops, self.seen = stops, []

    def check(self, arena, rng):
        size = type("Asked", (), {"size": arena.size})  # nothing else of an arena can be seen
        stopped = self.stops(self.seen, size, rng)
        self.seen.append(key(size, rng))
        assert not stopped, "stopped"


@pytest.mark.parametrize("known", BLIND)
def test_a_law_that_asks_nothing_gets_nothing(known):
    order = random.Random(7)
    shares = []
    for seed in range(RUNS):
        law = Blind(BLIND[known])
        found = HUNT.hunt_with(lambda law=law: nullcontext(law), DRAWS, seed, order)
        shares.append(sum(one.killed for one in found) / sum(one.draws for one in found))
    print(f"{known}: {mean(shares):.4f} of the points")
    assert mean(shares) <= MOST_SHARE


class Books:
    """A law that asks."""

    name = "books"

    def check(self, arena, rng):
        live = {}
        for _ in range(60):
            if live and rng.random() < 0.4:
                offset = rng.choice(sorted(live))
                arena.free(offset)
                del live[offset]
            else:
                self.one(arena, live, rng.randint(1, rng.choice((3, arena.size))))
        for offset in sorted(live):
            arena.free(offset)
        assert arena.allocate(arena.size) == 0, "the whole arena is refused"

    def one(self, arena, live, size):
        offset = arena.allocate(size)
        ends = [0, *(edge for lo in sorted(live) for edge in (lo, lo + live[lo])), arena.size]
        room = max(hi - lo for lo, hi in zip(ends[::2], ends[1::2], strict=True))
        if offset is None:
            assert room < size, f"{size} bytes are refused, and {room} are free"
            return
        assert 0 <= offset <= arena.size - size, "a block sticks out"
        for lo, old in live.items():
            assert offset + size <= lo or lo + old <= offset, "blocks overlap"
        live[offset] = size


def test_a_law_that_asks_gets_what_it_kills_and_the_same_each_time():
    def points():
        found = HUNT.hunt_with(lambda: nullcontext(Books()), DRAWS, 0, random.SystemRandom())
        return [one.killed for one in found]

    assert points() == points()
    assert sum(points()) > DRAWS * len(BUGS) / 2


def test_both_sides_of_a_pair_are_asked_the_same_question():
    """So no table of a known seed's arenas tells which is which."""
    asked = []
    HUNT.hunt_with(lambda: nullcontext(Blind(lambda *seen: asked.append(key(*seen[1:])))), 1, 0,
              random.Random(1))  # fmt: skip
    assert len(asked) == 2 * len(BUGS)
    assert all(asked.count(one) == 2 for one in asked)


def test_one_false_alarm_ends_the_hunt():
    class Once(Books):
        def check(self, arena, rng):
            super().check(arena, rng)
            assert rng.random() < 0.9, "a right arena is stopped now and then"

    found = HUNT.hunt_with(lambda: nullcontext(Once()), DRAWS, 0, random.Random(1))
    assert sum(one.killed for one in found) == 0
    assert all(one.why for one in found)


def test_the_handouts_tests_mix_broken_and_right_arenas():
    class Broken(HoleArena):
        """It is."""

    for known in BLIND:
        assert told_apart(Blind(BLIND[known]), Broken, 0) <= 7, known


CARRIES = """
import os, pathlib, random, sys, tempfile

class Law:
    name = "carries"
    seen = []

    def check(self, arena, rng):
        sys.seen = getattr(sys, "seen", 0) + 1
        random.seen = getattr(random, "seen", 0) + 1
        Law.seen.append(arena.size)
        here = pathlib.Path("seen")
        old = here.read_text() if here.exists() else ""
        here.write_text(old + "x")
        assert not (sys.seen > 1 or random.seen > 1 or len(Law.seen) > 1 or old), "seen before"
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a cage")
def test_nothing_is_carried_from_arena_to_arena(tmp_path):
    path = tmp_path / "carries.py"
    path.write_text(CARRIES)
    found = HUNT.hunted(Hunt(1, 60), f"{path}:Law", 60, 0)
    assert all(one.killed == 0 and one.why.startswith("alive") for one in found)
    with law_of(f"{path}:Law", 60) as law:  # which would have seen it
        assert isinstance(law, RemoteLaw)
        assert not refusal_of(law, HoleArena(24, min), 0)
        assert refusal_of(law, HoleArena(24, min), 0)
