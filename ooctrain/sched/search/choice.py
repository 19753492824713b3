"""The door to the compiled search: choices as sets of variables, evaluations counted.

In: a trace, a budget. Out: `Choice`s. The one idea: everything compiled works on arrays; everything
outside works on sets of variables. Read next: `tables.py`, `anneal.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ooctrain.cost import Machine
from ooctrain.sched.recompute import piece_bytes
from ooctrain.sched.rematerialise import droppable
from ooctrain.sched.schedule import Granule
from ooctrain.sched.search.anneal import IMPOSSIBLE, anneal, evaluate, first_walk
from ooctrain.sched.search.expand import DROP, DROP_AGAIN
from ooctrain.sched.search.play import Link
from ooctrain.sched.search.tables import tables_of
from ooctrain.trace import Trace

#: The first temperature, as a share of the makespan.
HEAT = 0.003
#: Evaluations between two looks at the clock.
BLOCK = 250
#: More evaluations than this for each value that can be changed find nothing new.
ENOUGH = 100
#: How many starts are worth annealing.
STARTS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """What `rematerialise` takes, by variable ids ascending."""

    dropped: tuple[int, ...]
    again: tuple[int, ...] = ()
    held: tuple[int, ...] = ()


class Search:
    """Choices for one trace, budget and machine.

    Attributes:
        evaluations: how many have been made so far.
    """

    def __init__(self, trace: Trace, budget_bytes: int, machine: Machine, granule: Granule):
        self._tables = tables_of(trace, machine, granule)
        self._link = Link(
            machine.link == "shared", round(machine.latency_us * 1000),
            float(machine.out_bytes_per_us), float(machine.in_bytes_per_us),
        )  # fmt: skip
        self._budget_bytes = budget_bytes
        chunk = granule.granted(piece_bytes(budget_bytes, machine)) if granule.ranges else 0
        self._chunk_bytes = chunk
        self._saved = np.zeros(len(trace.variables), np.bool_)
        self._saved[list(droppable(trace))] = True
        self._values = np.array(_changeable(trace), np.int64)
        self.evaluations = 0

    def best_first(self, choices: Iterable[Iterable[int]]) -> list[Choice]:
        """The most promising of some sets of values to drop."""
        costs = {}
        for dropped in choices:
            choice, held = self._arrays(Choice(tuple(sorted(dropped))))
            costs[tuple(sorted(dropped))] = self._cost(choice, held)
        best = sorted(costs, key=lambda dropped: (costs[dropped], dropped))[:STARTS]
        return [Choice(dropped) for dropped in best]

    def improve(
        self, start: Choice, evaluations: int, *, seed: int, deadline: float | None
    ) -> Choice:
        """The best choice met while annealing.

        Args:
            start: where it begins.
            evaluations: how many choices are tried at most.
            seed: of the random numbers.
            deadline: of `time.monotonic()`; the search ends there.
        """
        choice, held = self._arrays(start)
        limits = (self._budget_bytes, self._chunk_bytes, self._link)
        walk = first_walk(self._tables, choice, held, *limits, seed)
        if not self._values.size:
            return start
        evaluations = min(evaluations, ENOUGH * self._values.size)
        for first in range(0, evaluations, BLOCK):
            if deadline is not None and time.monotonic() >= deadline:
                break
            count = min(BLOCK, evaluations - first)
            walk = anneal(
                self._tables, walk, self._values, self._saved, *limits,
                first, count, evaluations, HEAT,
            )  # fmt: skip
            self.evaluations += count
        if walk.best_cost >= IMPOSSIBLE:
            return start
        return _choice(walk.best_choice, walk.best_held)

    def _cost(self, choice: np.ndarray, held: np.ndarray) -> float:
        self.evaluations += 1
        return evaluate(
            self._tables, choice, held, self._budget_bytes, self._chunk_bytes, self._link
        )

    def _arrays(self, start: Choice) -> tuple[np.ndarray, np.ndarray]:
        choice = np.zeros(self._saved.size, np.int8)
        held = np.zeros(self._saved.size, np.bool_)
        choice[list(start.dropped)] = DROP
        choice[list(start.again)] = DROP_AGAIN
        held[list(start.held)] = True
        return choice, held


def _changeable(trace: Trace) -> list[int]:
    """Activations of pure forward calls: dropped or kept if they are read in the backward pass,
    else held or not.
    """
    found = []
    for variable in trace.variables:
        producer = trace.producer[variable.id]
        if producer is not None and variable.kind == "activation" and variable.nbytes:
            call = trace.calls[producer]
            if call.pure and call.phase == "forward":
                found.append(variable.id)
    return found


def _choice(choice: np.ndarray, held: np.ndarray) -> Choice:
    return Choice(
        tuple(np.flatnonzero(choice).tolist()),
        tuple(np.flatnonzero(choice == DROP_AGAIN).tolist()),
        tuple(np.flatnonzero(held).tolist()),
    )
