"""What may be away from the device: a value between two of its uses, and what it takes to be back.

Each life of a value is cut at its uses into items; an item says during which calls its bytes may be
away, from when on they can be sent out, and how long it would take to compute them again. The price
of computing again is a floor: the calls that must run whatever a list keeps. Sizes are shares of
the budget, times shares of the compute time of the step. Read next: `fluid_program.py`, which
writes columns and rows for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ooctrain.sched.planning.decisions import BEFORE_THE_STEP, Life, lives, runs_once
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Covered:
    """The lists that a bound is about.

    Args:
        recompute: whether calls may run again.
        resident: only lists that leave persistent variables where they are.
        host_budget_bytes: only lists that keep to it; None: as much host memory as they like.
    """

    recompute: bool = True
    resident: bool = False
    host_budget_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """A value between two of its uses, during which its bytes may be away from the device.

    Args:
        var, life: the variable, and the place of its life in `FluidItems.lives`.
        opens: the first call during which they may be away (0: from the start).
        needed: the call at which they must be back; the number of calls: never.
        size: as a share of the budget.
        ready: the first call during which they may be on their way out.
        again: compute time to get all of them back, as a share of the step's; None: impossible.
        fixed: whether they are away at the start, as inputs are.
    """

    var: int
    life: int
    opens: int
    needed: int
    size: float
    ready: int
    again: float | None
    fixed: bool = False


class FluidItems:
    """The items of a step.

    Args:
        budget_bytes: of which sizes are shares.
        duration: of each call, as a share of the step's.

    Attributes:
        lives: of all values, where each call runs once.
    """

    def __init__(self, trace: Trace, budget_bytes: int, duration: Sequence[float]):
        self.trace, self.budget_bytes, self.duration = trace, budget_bytes, duration
        self.lives = lives(trace, runs_once(trace))
        self.lasting = frozenset(trace.end_variables.values())

    def of(self, covered: Covered) -> Iterator[Item]:
        """The items of the lists that a bound is about, life after life."""
        for number, life in enumerate(self.lives):
            size = self.trace.variables[life.var].nbytes / self.budget_bytes
            persistent = self.trace.variables[life.var].persistent
            if not size or (persistent and covered.resident):
                continue
            again = self._again(life) if covered.recompute else None
            # Bytes of a source may have been sent in place of the value's.
            written = min(self._chain(life.var)) if again else life.uses[0]
            for after, before in pairwise(life.uses):
                if before - after > 1 or after == BEFORE_THE_STEP:
                    fixed = after == BEFORE_THE_STEP and not persistent
                    opens = after + 1
                    yield Item(life.var, number, opens, before, size, written + 1, again, fixed)

    def _again(self, life: Life) -> float | None:
        """The share of compute time that a life's value takes to get back; None: impossible.

        A call that runs again makes all of its outputs, so only the largest is charged for it.
        """
        producer = self.trace.producer[life.var]
        if producer is None or not self.trace.calls[producer].pure:
            return None
        if self._largest(producer) != life.var:
            return 0.0
        return sum(self.duration[call] for call in self._chain(life.var))

    def _chain(self, var: int) -> list[int]:
        """The calls that must run if a value is computed again: its producer, and the producers
        of those of its sources that no other call reads.

        A list may instead have kept such a source, on the device or on the host. But the source is
        at least as large as the value, so keeping the value itself would have been no worse.
        """
        chain, values = [], [var]
        while values:
            producer = self.trace.producer[values.pop()]
            if producer is not None:
                chain.append(producer)
                sources = dict.fromkeys(self.trace.calls[producer].ins)
                values += [s for s in sources if self._stands_for(s, producer, var)]
        return chain

    def _stands_for(self, source: int, reader: int, var: int) -> bool:
        """Whether keeping a source is no better than keeping the value computed from it."""
        made = self.trace.producer[source]
        return (
            made is not None
            and self._largest(made) == source
            and set(self.trace.uses[source]) <= {made, reader}
            and source not in self.lasting
            and self.trace.variables[source].nbytes >= self.trace.variables[var].nbytes
        )

    def _largest(self, call: int) -> int:
        """The largest output of a call; the first of equals."""
        outs = self.trace.calls[call].outs
        return max(outs, key=lambda out: (self.trace.variables[out].nbytes, -out))
