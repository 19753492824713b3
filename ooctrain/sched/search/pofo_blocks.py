"""The inner loops of pofo's search, compiled: what a block of stages does to each of many states.

States before a block, column by column, in slots, become those after it. Copies that do not fit
delay the stage by the missing amount; all other copies under way move meanwhile. Of the states that
result, those are followed that no other is at least as good as. Source: paper 002, equations (1) to
(8), with the blocks of Beaumont, Eyraud-Dubois and Shilova, Efficient combination of
rematerialization and offloading for training DNNs (2021). Read next: `sched/planners/pofo.py`,
which says what the columns are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled


class StageWork(NamedTuple):
    """The forward part of a stage.

    Args:
        claims: slots that it takes on top of what is held.
        grows: how many of them remain.
        sends: slots that the link sends meanwhile.
        us: its time.
    """

    claims: float
    grows: float
    sends: float
    us: float


class Ways(NamedTuple):
    """Ways to run the backward part of a block: for each the slots on top of what is held, its
    time.
    """

    peaks: np.ndarray
    us: np.ndarray


class Capacity(NamedTuple):
    """The slots of the device, and those that the link moves in a us, in one direction."""

    memory: float
    rate: float


@compiled
def forward(states, leaving, work, capacity):
    """(held, unsent, us) after the forward part of a stage; what cannot be takes infinitely long.

    Args:
        states: with `held`, `unsent` and `time_us`, float64, for each state.
        leaving: float64, for each state: what is to be sent with what is unsent.
        work: StageWork.
        capacity: Capacity, on the way out.

    Cost: O(states).
    """
    held, unsent = states.held, states.unsent
    after_held, after_unsent = np.empty_like(held), np.empty_like(held)
    after_us = np.full_like(held, np.inf)
    for row in range(held.size):
        missing = max(0.0, held[row] + work.claims - capacity.memory)
        to_send, sent = unsent[row] + leaving[row], missing + work.sends
        after_held[row] = held[row] + work.grows - min(to_send, sent)
        after_unsent[row] = max(0.0, to_send - sent)
        if missing <= unsent[row]:
            after_us[row] = states.time_us[row] + (missing / capacity.rate + work.us)
    return after_held, after_unsent, after_us


@compiled
def backward(states, reached_us, ways, capacity, limit_us):
    """(way, row, unfetched, us) for each way to run the backward part of a block, and each state,
    that fit the memory and the time.

    Args:
        states: with `held`, `unsent` and `unfetched`, float64, for each state before the block.
        reached_us: float64, for each state: when its forward part is done.
        ways: Ways, float64.
        capacity: Capacity, on the way in.

    Cost: O(ways x states).
    """
    held, unsent, unfetched = states.held, states.unsent, states.unfetched
    memory, in_rate = capacity
    peaks, took_us = ways
    most = peaks.size * held.size
    chosen, rows = np.empty(most, np.int64), np.empty(most, np.int64)
    left, done_us = np.empty(most), np.empty(most)
    count = 0
    for way in range(peaks.size):
        for row in range(held.size):
            needed = held[row] - unsent[row] + peaks[way]
            missing = max(0.0, needed + unfetched[row] - memory)
            us = reached_us[row] + took_us[way] + missing / in_rate
            if needed <= memory and us < limit_us:
                fetched = missing + np.floor(took_us[way] * in_rate)
                chosen[count], rows[count] = way, row
                left[count], done_us[count] = max(0.0, unfetched[row] - fetched), us
                count += 1
    return chosen[:count], rows[:count], left[:count], done_us[:count]


# The states worth following come with the best first. A row need only be compared with the rows
# that stay: a row that excludes another is also at least as good as all that the other would
# exclude. Source: Kung, Luccio and Preparata, On finding the maxima of a set of vectors (1975), by
# its plain method.


@compiled
def undominated(kept, unsent, unfetched, kind):
    """Rows that no earlier row of their kind is at least as good as.

    Args:
        kept, unsent, unfetched: float64, for each row; less is better.
        kind: float64, for each row; only rows of one kind are compared.

    Cost: O(rows x rows that stay).
    """
    found = np.empty(kind.size, np.int64)
    count = 0
    for row in range(kind.size):
        place = 0
        while place < count:
            other = found[place]
            if (
                kind[other] == kind[row]
                and kept[other] <= kept[row]
                and unsent[other] <= unsent[row]
                and unfetched[other] <= unfetched[row]
            ):
                break
            place += 1
        if place == count:
            found[count] = row
            count += 1
    return found[:count]
