"""The public tests of the assignment.

They try the law of `--law`, else of `adapters.py` in this folder; `--law-seed` decides the arenas.
Read next: README.md.
"""

import random

import pytest

from ooctrain.testing.law_by_hand import HoleArena, random_arena, refusal_of, told_apart


class Overlaps(HoleArena):
    """A third block lies on the first byte of the arena."""

    def place(self, hole, size):
        return 0 if len(self.blocks) == 2 and 0 not in self.blocks else hole[0]


class Grows(HoleArena):
    """A block may end behind the arena."""

    def takes(self, hole, size):
        return super().takes(hole, size) or (sum(hole) == self.size and hole[1] + 1 == size)


class Forgets(HoleArena):
    """What is given back is a hole for itself and never melts."""

    def touch(self, hole, block):
        return False


class Refuses(HoleArena):
    """Nothing is served once something was given back."""

    def give_back(self, block):
        super().give_back(block)
        self.pick = None

    def takes(self, hole, size):
        return self.pick is not None and super().takes(hole, size)


class Loses(HoleArena):
    """What a block leaves of a hole is lost if it is one byte."""

    def leave(self, rest):
        if rest[1] > 1:
            super().leave(rest)


@pytest.fixture
def seed(request):
    """Of the arenas."""
    return request.config.getoption("law_seed")


def stops(law, kind, seed, least):
    """Of ten broken arenas the law tells at least `least` from their right twins."""
    found = told_apart(law, kind, f"{seed}/{kind.__name__}")
    assert found >= least, (
        f"of ten arenas in each of which {kind.__doc__[0].lower()}{kind.__doc__[1:-1]}, your law "
        f"tells {found} from a right arena of the same size, and {least} are asked for"
    )


def test_right_arenas_pass(law, seed):
    for number in range(10):
        arena = random_arena(random.Random(f"{seed}/right/{number}"))
        alarm = refusal_of(law, arena, number)
        assert not alarm, f"a right arena of {arena.size} bytes is stopped: {alarm}"


def test_a_block_beyond_the_end_is_seen(law, seed):
    stops(law, Grows, seed, 10)


def test_blocks_on_each_other_are_seen(law, seed):
    stops(law, Overlaps, seed, 8)


def test_holes_that_do_not_melt_are_seen(law, seed):
    stops(law, Forgets, seed, 10)


def test_a_wrong_refusal_is_seen(law, seed):
    stops(law, Refuses, seed, 10)


def test_a_lost_byte_is_seen(law, seed):
    stops(law, Loses, seed, 8)
