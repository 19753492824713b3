"""A trainer's prepared steps: those used last are kept, each under all of its keys."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from ooctrain.execution.step_cache import MOST_INSTRUCTIONS, MOST_REMEMBERED, StepCache


def a_step(instructions):
    return SimpleNamespace(
        plan=SimpleNamespace(schedule=SimpleNamespace(instructions=instructions))
    )


class ByDefinition:
    """[(key, step)], that which was used last behind the others."""

    def __init__(self):
        self.used = []

    def find(self, key):
        found = [pair for pair in self.used if pair[0] == key]
        self.used = [pair for pair in self.used if pair[0] != key] + found
        return found[0][1] if found else None

    def know(self, key, step):
        if all(pair[0] != key for pair in self.used):
            self.used.append((key, step))
        while (
            len(self.steps()) > MOST_REMEMBERED
            and sum(len(step.plan.schedule.instructions) for step in self.steps())
            > MOST_INSTRUCTIONS
        ):
            oldest = self.used[0][1]
            self.used = [pair for pair in self.used if pair[1] is not oldest]

    def steps(self):
        return list({id(step): step for _, step in self.used}.values())


@pytest.mark.parametrize("seed", range(8))
def test_the_steps_used_last_are_kept_as_many_as_are_few_or_short(seed):
    rng, cache, truth = random.Random(seed), StepCache(lambda: None), ByDefinition()
    per_step = MOST_INSTRUCTIONS // MOST_REMEMBERED
    lost = 0
    for number in range(400):
        if rng.random() < 0.5 or not truth.used:
            step = a_step(range(rng.choice((10, per_step // 2, per_step, 3 * per_step))))
            keys = [(number,), (number, "too")][: rng.randint(1, 2)]
        else:
            step, keys = rng.choice(truth.used)[1], [(number,)]
        for key in keys:
            cache.know(key, step)
            truth.know(key, step)
        asked = (rng.randrange(number + 1),)
        found = cache.find(asked)
        assert found is truth.find(asked)
        lost += found is None
    assert 40 < lost < 360
    for number in range(400):
        for key in ((number,), (number, "too")):
            assert cache.find(key) is truth.find(key)


def test_just_as_many_as_may_be_are_kept():
    cache = StepCache(lambda: None)
    exactly = [a_step(range(MOST_INSTRUCTIONS // 40)) for _ in range(40)]
    for number, step in enumerate(exactly):
        cache.know((number,), step)
    assert all(cache.find((number,)) is step for number, step in enumerate(exactly))
    cache.know((40,), a_step(range(1)))
    assert [cache.find((number,)) is None for number in range(41)] == [True] + 40 * [False]
