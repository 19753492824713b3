"""Simulated annealing over what is kept, offloaded and computed again, compiled.

From a first `Kept` the search returns the best one met. Each move (`moves.py`) is priced in full:
the runs that follow (`expand.py`), the bytes that Belady's rule sends to the host where they do not
fit (`evict.py`), and the makespan of all that (`play.py`). So every `Kept` has a makespan, and the
makespan alone decides. Random numbers are our own: the same seed gives the same plan everywhere.
Source: Kirkpatrick, Gelatt and Vecchi (1983). Read next: `search.py`, which says from where it
begins, and with which moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.evict import Shortage, evict_within
from ooctrain.sched.search.expand import expand
from ooctrain.sched.search.jit import compiled, inner
from ooctrain.sched.search.kept import Kept, SeenGaps, copy, look
from ooctrain.sched.search.moves import MoveChange, draw, move, undo
from ooctrain.sched.search.play import play
from ooctrain.sched.search.tables import INPUT

#: The cost of what is not a schedule: beyond every makespan, and less the closer it is.
IMPOSSIBLE = 1e30


class Cooling(NamedTuple):
    """Moves `first` to `stop`, `stop` not included, of a search of `total`.

    Args:
        heat: the first temperature, as a share of the makespan; it falls to 0 at `total`.
    """

    first: int
    stop: int
    total: int
    heat: float


class Annealing(NamedTuple):
    """Where a search stands.

    Args:
        now: what the next move changes, in place.
        cost: its cost, in ns.
        best, best_cost: the best met so far.
        random: state of the random numbers.
        seen, change: room to work in.
    """

    now: Kept
    cost: float
    best: Kept
    best_cost: float
    random: int
    seen: SeenGaps
    change: MoveChange


@compiled
def evaluate(t, kept, limits):
    """Makespan of what is kept in ns, or a cost beyond `IMPOSSIBLE`."""
    return _price(t, expand(t, kept.until), kept.stays, limits)


@inner
def _price(t, step, stays, limits):
    """Makespan of a step in ns, or a cost beyond `IMPOSSIBLE`.

    Args:
        stays: for each slot, whether what can leave in it stays while others can.
    """
    if not step.ok:
        return 4 * IMPOSSIBLE
    budget_bytes, host_bytes = limits.budget_bytes, limits.host_bytes
    room = np.full(step.runs.size + 1 if host_bytes >= 0 else 0, host_bytes, np.int64)
    short = Shortage(budget_bytes, limits.chunk_bytes, limits.grain_bytes, room, t.origin == INPUT)
    evicted, lack = evict_within(step, t.granted, stays, short)
    if lack > 0:
        return IMPOSSIBLE * (1 + lack / (lack + budget_bytes + 1))
    makespan = play(t, step, evicted, limits)
    return float(makespan) if makespan >= 0 else 2 * IMPOSSIBLE


@inner
def _is_taken(state, worse, temperature):
    """(next state, whether a move is taken): always if it is no worse, and else the more seldom the
    worse it is and the lower the temperature, in the same unit. Source: Metropolis et al. (1953).
    """
    state, die = draw(state, 1 << 30)
    return state, worse <= 0 or die < (1 << 30) * np.exp(-worse / max(temperature, 1e-12))


@compiled
def anneal(t, walk, field, mix, limits, cooling):
    """Some moves of a search.

    Args:
        t: Tables.
        walk: Annealing so far; it is changed.
        field, mix: what moves may change, and which moves there are.
        limits: SearchLimits.
        cooling: which of the search's moves they are.

    Returns:
        Annealing.
    """
    now, best, seen, change = walk.now, walk.best, walk.seen, walk.change
    cost, best_cost, state = walk.cost, walk.best_cost, np.uint64(walk.random)
    is_seen = False
    for turn in range(cooling.first, cooling.stop):
        if mix.gaps and not is_seen:
            look(t, now, expand(t, now.until), seen)
            is_seen = True
        state, moved = move(state, field, mix, now, seen, change)
        if not moved:
            continue
        found = evaluate(t, now, limits)
        temperature = cooling.heat * (1 - turn / cooling.total)
        state, taken = _is_taken(state, (found - cost) / max(cost, 1.0), temperature)
        if not taken:
            undo(now, change)
            continue
        cost, is_seen = found, is_seen and not change.numbers[0]
        if cost < best_cost:
            for own in range(now.until.shape[0]):
                copy(now.until[own], best.until[own])
            copy(now.stays, best.stays)
            best_cost = cost
    return Annealing(now, cost, best, best_cost, np.int64(state), seen, change)  # type: ignore[arg-type]
