"""Simulated annealing over what to drop and what to hold, compiled.

In: `Tables`, a first choice, a budget, a link. Out: the best choice met. The one idea: a move flips
a value, a pair, or a run of neighbours between keep, drop and drop again; memory that is still
short is offloaded by Belady's rule, so that every choice has a makespan, and that alone decides.
The random numbers are our own (splitmix64): the same seed gives the same plan everywhere. Source:
the recipe of the planner notes, section 3. Read next: `../combined.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.evict import evict
from ooctrain.sched.search.expand import DROP_AGAIN, expand
from ooctrain.sched.search.jit import compiled
from ooctrain.sched.search.play import play

#: The cost of a choice that is no schedule: beyond every makespan, and less the closer it is.
IMPOSSIBLE = 1e30


class Walk(NamedTuple):
    """Where a search stands.

    Args:
        choice, held: for each variable, as `expand` reads them.
        cost: of the choice, in ns.
        best_choice, best_held, best_cost: the best met so far.
        random: state of the random numbers.
    """

    choice: np.ndarray
    held: np.ndarray
    cost: float
    best_choice: np.ndarray
    best_held: np.ndarray
    best_cost: float
    random: int


@compiled
def evaluate(t, choice, held, budget_bytes, chunk_bytes, link):
    """Makespan of a choice in ns, or a cost beyond `IMPOSSIBLE`."""
    step = expand(t, choice, held)
    if not step.ok:
        return 4 * IMPOSSIBLE
    evicted, lack = evict(step, t.granted, budget_bytes, chunk_bytes)
    if lack > 0:
        return IMPOSSIBLE * (1 + lack / (lack + budget_bytes + 1))
    makespan = play(t, step, evicted, budget_bytes, chunk_bytes, link)
    return float(makespan) if makespan >= 0 else 2 * IMPOSSIBLE


@compiled
def draw(state, below):
    """(next state, a number in [0, below)): splitmix64."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, np.int64((z >> np.uint64(11)) % np.uint64(below))


@compiled
def move(state, choice, held, values, saved):
    """Changes one value, two, or a run of up to six neighbours, in place; returns the state.

    Args:
        values: those that may be changed, in order of production.
        saved: for each variable, whether it is dropped or kept (True), or held or not.
    """
    state, kind = draw(state, 10)
    state, first = draw(state, values.size)
    count = 1
    if kind >= 8:
        state, more = draw(state, 6)
        count = min(values.size - first, 2 + more)
    state, turned = draw(state, 3)
    for step in range(2 if 6 <= kind < 8 else count):
        if kind < 8 and step:
            state, first = draw(state, values.size)
        var = values[first + step] if kind >= 8 else values[first]
        if not saved[var]:
            if kind < 8:
                held[var] = not held[var]
        elif kind >= 8:
            choice[var] = turned
        else:
            choice[var] = (choice[var] + 1 + turned % 2) % (DROP_AGAIN + 1)
    return state


@compiled
def anneal(t, walk, values, saved, budget_bytes, chunk_bytes, link, first, count, total, heat):
    """Evaluations `first` to `first + count` of a search of `total`.

    Args:
        walk: Walk so far; not changed.
        values, saved: as `move` reads them.
        heat: the first temperature, as a share of the makespan; it falls to 0 at `total`.

    Returns:
        Walk.
    """
    choice, held, cost = walk.choice.copy(), walk.held.copy(), walk.cost
    best_choice, best_held, best_cost = walk.best_choice, walk.best_held, walk.best_cost
    state = np.uint64(walk.random)
    for turn in range(first, first + count):
        other, other_held = choice.copy(), held.copy()
        state = move(state, other, other_held, values, saved)
        found = evaluate(t, other, other_held, budget_bytes, chunk_bytes, link)
        temperature = heat * (1 - turn / total)
        state, die = draw(state, 1 << 30)
        worse = (found - cost) / max(cost, 1.0)
        if worse <= 0 or die < (1 << 30) * np.exp(-worse / max(temperature, 1e-12)):
            choice, held, cost = other, other_held, found
            if cost < best_cost:
                best_choice, best_held, best_cost = choice.copy(), held.copy(), cost
    return Walk(choice, held, cost, best_choice, best_held, best_cost, np.int64(state))  # type: ignore[arg-type]


def first_walk(
    t, choice: np.ndarray, held: np.ndarray, budget_bytes: int, chunk_bytes: int, link, seed: int
) -> Walk:
    """A search that has not begun.

    Args:
        t: Tables.
        choice, held: where it begins.
        seed: of its random numbers.
    """
    cost = evaluate(t, choice, held, budget_bytes, chunk_bytes, link)
    return Walk(choice, held, cost, choice.copy(), held.copy(), cost, seed)
