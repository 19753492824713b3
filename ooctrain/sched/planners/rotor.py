"""rotor: the optimal way to recompute a chain of unlike stages.

With x_s at hand and m slots of memory, stages s .. t are differentiated in one of two ways: keep
all of s, do s + 1 .. t in the memory that is left, then B_s; or run on to some stage q keeping only
x_q, do q .. t, and start again at s for s .. q - 1, with all memory free. C(s, t, m) is the lesser;
the table is the plan for every budget at once. The planner takes the fastest of these
recomputations that fits. Sources: Beaumont et al., Optimal checkpointing for heterogeneous chains:
how to train deep neural networks with limited memory (2019), theorem 1. Departure: memory is
counted in slots, rounded up, so what the table promises fits; the list's own ledger then says what
it really takes. Read next: `prefix.py`, which also offloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ooctrain.sched.planning.chain_runs import ChainStep, Kind, fastest_that_fits
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.planner import check_whole_numbers
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan

#: How many sweeps of different cost are tried.
MOST_CHOICES = 24
#: The table of a longer chain is too large (its bytes grow with the square of the stages, its time
#: with their cube), so stages are joined until there are this many.
MOST_STAGES = 150


@dataclass(frozen=True, slots=True)
class Rotor:
    """The dynamic program of rotor over slots of the chain's peak.

    Args:
        slots: how finely memory is counted.

    Cost: O(stages^3 slots), in NumPy, for at most `MOST_STAGES` stages.
    """

    name = "rotor"

    slots: int = 500

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"slots": self.slots})

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least over all sweeps that the table holds."""
        view = chain_view(question.trace, question.machine, question.granule, MOST_STAGES)
        return self.plan_chain(question, view)

    def plan_chain(self, question: Question, view: ChainView) -> Plan:
        """`plan`, for callers that already have the view of the trace as a chain."""
        table = CostTable(view, self.slots)
        return fastest_that_fits(self.name, question, view, map(list, table.sweeps(MOST_CHOICES)))


class CostTable:
    """C(s, t, m) for all m, and the sweeps it stands for.

    Args:
        slots: S; a slot is 1 / S of the chain's peak.

    Attributes:
        slot_bytes: bytes of a slot.
        cost_ns: [s, t, m]; infinite where m slots are too few.
    """

    def __init__(self, view: ChainView, slots: int):
        self.stages = len(view)
        # Rounding up may cost a slot for each value, so that keeping everything needs some more.
        self.slots = slots + 3 * self.stages
        self.slot_bytes = unit = max(1.0, (view.peak()[0] - view.pinned_bytes) / slots)
        self._all = [_slots(size, unit) for size in view.x]  # |x_i| with all that stage i - 1 saves
        self._output = [_slots(size, unit) for size in _output_bytes(view)]
        self._y = [_slots(size, unit) for size in view.y]
        self._extra_forward = [_slots(size, unit) for size in view.extra_forward]
        self._extra_backward = [_slots(size, unit) for size in view.extra_backward]
        self._own_ns = [f + b for f, b in zip(view.forward_ns, view.backward_ns, strict=True)]
        self._forward_until_ns = np.concatenate([[0], np.cumsum(view.forward_ns)])
        self._passing = [self._passing_from(s) for s in range(self.stages)]
        self.cost_ns = np.full((self.stages, self.stages, self.slots + 1), np.inf)
        for t in range(self.stages):
            rest = np.full((self.stages, self.slots + 1), np.inf)  # [q, m]: C(q, t, m - |a_q|)
            for s in reversed(range(t + 1)):
                self.cost_ns[s, t] = self._best(s, t, rest)
                rest[s] = self._with_less(self.cost_ns[s, t], self._output[s])

    def sweeps(self, most: int) -> Iterator[Iterator[ChainStep]]:
        """The steps for up to `most` amounts of memory, those of the highest cost last."""
        amounts, _ = self.amounts(0, self.stages - 1, self.slots)
        places = np.linspace(0, len(amounts) - 1, min(most, len(amounts))).round().astype(int)
        for place in np.unique(places):
            yield self.steps(0, self.stages - 1, int(amounts[place]))

    def amounts(self, s: int, t: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        """(slots, ns): the least memory, up to `most` slots, for each cost of stages s .. t; the
        lowest cost first. More memory never costs more.
        """
        costs = self.cost_ns[s, t, : most + 1]
        falls = np.flatnonzero(costs < np.append(np.inf, costs[:-1]))[::-1]
        return falls, costs[falls]

    def _passing_from(self, s: int) -> np.ndarray:
        """[q - s - 1]: slots that the sweep from x_s on to x_q takes on top of a gradient."""
        needs = [
            self._output[k + 1] + self._extra_forward[k] + (self._output[k] if k > s else 0)
            for k in range(s, self.stages - 1)
        ]
        return np.maximum.accumulate(np.array(needs, int))

    def _best(self, s: int, t: int, rest: np.ndarray) -> np.ndarray:
        """C(s, t, .): the lesser of keeping all of s and of any checkpoint."""
        costs = self._keeping(s, t)
        if s == t:
            return costs
        checkpoints = self._checkpoints(s, t, rest[s + 1 : t + 1], self.cost_ns[s, s:t])
        for row, needed in zip(checkpoints, self._needed(s, t).tolist(), strict=True):
            row[:needed] = np.inf
        return np.minimum(costs, checkpoints.min(axis=0))

    def _keeping(self, s: int, t: int) -> np.ndarray:
        """F_all(s), the rest in what is left, B(s)."""
        held = self._all[s + 1]
        needed = max(
            self._y[t + 1] + held + self._extra_forward[s],
            self._y[s] + self._y[s + 1] + held + self._extra_backward[s],
        )
        own = float(self._own_ns[s])
        rest = np.zeros(self.slots + 1) if s == t else self._with_less(self.cost_ns[s + 1, t], held)
        return np.where(np.arange(self.slots + 1) >= needed, own + rest, np.inf)

    def _checkpoints(self, s: int, t: int, after: np.ndarray, before: np.ndarray) -> np.ndarray:
        """[q - s - 1, m]: on to q, keeping x_q; then q .. t with it, which takes `after`; then s
        .. q - 1 with all memory, which takes `before`.
        """
        forward = self._forward_until_ns[s + 1 : t + 1] - self._forward_until_ns[s]
        costs = after + before
        costs += forward.reshape(-1, 1)
        return costs

    def _needed(self, s: int, t: int) -> np.ndarray:
        """[q - s - 1]: slots that it takes to run on to q while the gradient of t waits."""
        return self._y[t + 1] + self._passing[s][: t - s]

    def _with_less(self, costs: np.ndarray, held: int) -> np.ndarray:
        """The costs while `held` slots are taken."""
        left = np.full(self.slots + 1, np.inf)
        if held <= self.slots:
            left[held:] = costs[: self.slots + 1 - held]
        return left

    def steps(self, s: int, t: int, m: int) -> Iterator[ChainStep]:
        """The steps of C(s, t, m), which is finite."""
        if self._keeping(s, t)[m] == self.cost_ns[s, t, m]:
            yield ChainStep(Kind.ALL, s)
            if s < t:
                yield from self.steps(s + 1, t, m - self._all[s + 1])
            yield ChainStep(Kind.BACKWARD, s)
            return
        q = self._best_checkpoint(s, t, m)
        yield ChainStep(Kind.CHECKPOINT, s)
        yield from (ChainStep(Kind.NONE, k) for k in range(s + 1, q))
        yield from self.steps(q, t, m - self._output[q])
        yield from self.steps(s, q - 1, m)

    def _best_checkpoint(self, s: int, t: int, m: int) -> int:
        """The first q at which C(s, t, m) is attained."""
        after = [
            self.cost_ns[q, t, m - self._output[q]] if m >= self._output[q] else np.inf
            for q in range(s + 1, t + 1)
        ]
        before = self.cost_ns[s, s:t, m]
        costs = self._checkpoints(s, t, np.array(after).reshape(-1, 1), before.reshape(-1, 1))[:, 0]
        costs[self._needed(s, t) > m] = np.inf
        return s + 1 + int(costs.argmin())


def _slots(size_bytes: int, unit: float) -> int:
    return int(np.ceil(size_bytes / unit - 1e-9))


def _output_bytes(view: ChainView) -> list[int]:
    """|a_i|: what crosses into stage i; the chain's input is always there, so it costs nothing."""
    outputs = [stage.output for stage in view.stages]
    sizes = [0 if v is None else view.trace.variables[v].nbytes for v in outputs]
    return [0, *sizes]
