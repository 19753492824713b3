"""What to keep, to send and to run again, found together: the dynamic program of pofo.

The search finds the fastest row of blocks for a chain in slots, given rotor's table. The first
sweep cuts the chain into blocks. A block is either one stage of which all is kept, or a run of
stages of which only the input is kept. The value that a block reads stays, or is sent out and comes
back for its backward part. As in paper 002, F and B are walked together, and three numbers
determine how earlier decisions delay later ones: the memory held, the bytes still to be sent, the
bytes still to be fetched before the backward part of the stage before. Rotor differentiates a run
of stages in a fixed amount of memory, and this amount is part of the decision. In the last block,
where the loss is, the sweep turns.

The optimum is that of this class: each value that is kept in the first sweep stays or leaves as a
whole, in ascending order, and comes back in descending order; copies may pause and take turns;
nothing comes back before all has been sent and the sweep turns; while a run is differentiated all
other bytes held are counted with its peak; nothing that is made again is sent.

Source: Beaumont, Eyraud-Dubois and Shilova, Efficient combination of rematerialization and
offloading for training DNNs (2021); the states are paper 002's. Departure: if there are too many
states, those are followed from which rotor alone would be done soonest. Read next:
`sched/planners/rotor.py`, `sched/planners/dynprog/dynprog_search.py`; `pofo.py` makes plans of the
blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import add
from typing import NamedTuple

import numpy as np

from ooctrain.sched.planners.dynprog.dynprog_search import SlotChain
from ooctrain.sched.planners.rotor import CostTable
from ooctrain.step.chain import NS_PER_US


@dataclass(frozen=True, slots=True)
class StageBlock:
    """Stages that the first sweep treats alike.

    Args:
        first, last: its stages.
        slots: in which rotor differentiates them; None: one stage of which all is kept.
        offloaded: whether what its first stage reads is on the host in between.
    """

    first: int
    last: int
    slots: int | None = None
    offloaded: bool = False


@dataclass(frozen=True, slots=True)
class BlockSolution:
    """The least time in the class, and the blocks that take it; the last of them holds the loss."""

    makespan_us: float
    blocks: tuple[StageBlock, ...]


class _States(NamedTuple):
    """States before a stage, column by column; sizes in slots.

    Args:
        held: on the device when the stage may start, its input and what is still to be sent
            included.
        unsent: the part of `held` that is still to be sent.
        unfetched: what must be fetched before the backward part of the stage before.
        input_size: of what the stage reads: all that the stage before saved, or its output alone.
        time_us: of all forward and backward parts that are settled.
        before: the row of the state that it comes from, among those followed from that block's
            first stage.
        move: the number, in `BlockSearch.moves`, of the block that leads from there to here.
    """

    held: np.ndarray
    unsent: np.ndarray
    unfetched: np.ndarray
    input_size: np.ndarray
    time_us: np.ndarray
    before: np.ndarray
    move: np.ndarray

    def take(self, rows: np.ndarray) -> _States:
        """Some of the rows."""
        return _States(*(column[rows] for column in self))


class BlockSearch:
    """The dynamic program.

    Args:
        chain: what to plan; `memory` and sizes in the slots of `table`.
        output: |a_i| in slots: what a stage hands over if nothing else of it is kept.
        table: rotor's, of the same chain.
        most_states: how many are followed from each stage.
        most_amounts: how many amounts of memory are tried for each run of stages. The result is the
            optimum if neither number cuts anything off.

    Cost: O(stages^2 amounts states), in NumPy.
    """

    def __init__(
        self, chain: SlotChain, output: Sequence[int], table: CostTable, most_states: int,
        most_amounts: int,
    ):  # fmt: skip
        # Late: they load Numba, which planning otherwise does without.
        from ooctrain.sched.search import blocks, dominance

        self.blocks, self.dominance = blocks, dominance
        self.chain, self.output, self.table = chain, output, table
        self.most_states, self.most_amounts = most_states, most_amounts
        self.stages = len(chain.forward_us)
        own = list(map(add, chain.forward_us, chain.backward_us))
        self.at_least_us = [math.fsum(own[i:]) for i in range(self.stages)]
        self.moves: list[StageBlock] = []
        self.reached: list[list[_States]] = [[] for _ in range(self.stages + 1)]
        self.followed: list[_States] = []
        self.best_us, self.best_end = math.inf, (0, 0, StageBlock(0, 0))  # stage, row, last block
        # amounts(first, last): [(slots, us)] for these stages, and rotor's times in them.
        self.amounts = cache(self._amounts)

    def solve(self, known_us: float = math.inf) -> BlockSolution | None:
        """The optimum; None where nothing in the class fits in less than `known_us`."""
        self.best_us = known_us
        input_size, nothing = np.array([float(self.chain.x[0])]), np.zeros(1)
        none = np.zeros(1, int)
        self.reached[0].append(
            _States(input_size, nothing, nothing, input_size, nothing, none, none)
        )
        for stage in range(self.stages):
            states, ends = self._worth_following(stage)
            self.followed.append(states)
            if len(states.held):
                self._remember(stage, ends)
                for offloaded in (False, True):
                    self._keep_all(stage, states, offloaded)
                    self._run_on(stage, states, offloaded)
        return None if self.best_us == known_us else BlockSolution(self.best_us, self._blocks())

    # The blocks that a state may continue with.

    def _keep_all(self, i: int, states: _States, offloaded: bool) -> None:
        """Stage i is a block of its own, and all that it saves is kept."""
        chain = self.chain
        if i + 1 == self.stages:
            return  # the last block is for `_endings`
        after = self._forward(
            states, i, chain.x[i + 1], beside=chain.x[i + 1], sends_input=offloaded
        )
        peak = chain.y[i] + chain.y[i + 1] + chain.x[i + 1] + chain.extra_backward[i]
        took_us = chain.backward_us[i]
        self._backward([StageBlock(i, i, None, offloaded)], states, after, [peak], [took_us])

    def _run_on(self, first: int, states: _States, offloaded: bool) -> None:
        """Stages first .. last keep nothing but what the first of them reads, for any last."""
        after, passing = states, 0
        for last in range(first, self.stages - 1):
            made = self.output[last + 1]
            after = self._forward(
                after, last, made - passing, beside=made,
                sends_input=offloaded and last == first,
            )  # fmt: skip
            own_us = self.at_least_us[first] - self.at_least_us[last + 1]
            soonest_us, limit_us = float(after.time_us.min()), self._limit_us(last)
            if not soonest_us + own_us < limit_us:
                return
            passing = made
            ways = [way for way in self.amounts(first, last) if soonest_us + way[1] < limit_us]
            if ways:
                blocks = [StageBlock(first, last, amount, offloaded) for amount, _ in ways]
                self._backward(blocks, states, after, *zip(*ways, strict=True))

    def _forward(
        self, states: _States, i: int, grows: int, *, beside: int, sends_input: bool
    ) -> _States:
        """F_i, which makes `beside` slots beside what is held; `grows` of them remain, others'
        subtracted. What cannot be takes infinitely long.
        """
        chain, work_us = self.chain, self.chain.forward_us[i]
        leaving = states.input_size if sends_input else np.zeros_like(states.held)
        taken, sent = float(beside + chain.extra_forward[i]), float(int(work_us * chain.out_rate))
        work = self.blocks.StageWork(taken, float(grows), sent, work_us)
        capacity = self.blocks.Capacity(float(chain.memory), chain.out_rate)
        held, unsent, time_us = self.blocks.forward(states, leaving, work, capacity)
        return states._replace(held=held, unsent=unsent, time_us=time_us)

    def _backward(
        self, blocks: Sequence[StageBlock], states: _States, after: _States, peaks: Sequence[int],
        took_us: Sequence[float],
    ) -> None:  # fmt: skip
        """The backward part of a block, in several ways: with `peaks` slots beside what is held
        before it.
        """
        chain, last = self.chain, blocks[0].last
        each_way = self.blocks.Ways(np.array(peaks, float), np.array(took_us, float))
        capacity = self.blocks.Capacity(float(chain.memory), chain.in_rate)
        ways, rows, unfetched, time_us = self.blocks.backward(
            states, after.time_us, each_way, capacity, self._limit_us(last)
        )
        if not len(rows):
            return
        if blocks[0].offloaded:
            unfetched += states.input_size[rows]
        kept = chain.x if blocks[0].slots is None else self.output
        self.reached[last + 1].append(
            _States(
                after.held[rows], after.unsent[rows], unfetched,
                np.full(len(rows), float(kept[last + 1])), time_us, rows, ways + len(self.moves),
            )
        )  # fmt: skip
        self.moves += blocks

    def _limit_us(self, last: int) -> float:
        """What a state after a stage may have taken, to be done sooner than the best."""
        return self.best_us - self.at_least_us[last + 1]

    def _endings(self, first: int, states: _States) -> tuple[np.ndarray, np.ndarray]:
        """(us, slots): the least time of all if the last block begins here, by state. In it all is
        sent, then fetched, as far as there is room beside it.
        """
        chain, kept = self.chain, states.held - states.unsent
        best_us, best_slots = np.full(len(kept), np.inf), np.zeros(len(kept), int)
        for slots, cost_us in self.amounts(first, self.stages - 1):
            late_out = np.maximum(0, kept + states.unsent + slots - chain.memory)
            late_in = np.maximum(0, kept + states.unfetched + slots - chain.memory)
            idle_us = late_out / chain.out_rate + late_in / chain.in_rate
            copies_us = (states.unsent - late_out) / chain.out_rate
            copies_us += (states.unfetched - late_in) / chain.in_rate
            time_us = states.time_us + idle_us + np.maximum(cost_us, copies_us)
            better = (kept + slots <= chain.memory) & (time_us < best_us)
            best_us, best_slots = (
                np.where(better, time_us, best_us),
                np.where(better, slots, best_slots),
            )
        return best_us, best_slots

    def _remember(self, first: int, ends: tuple[np.ndarray, np.ndarray]) -> None:
        """The best ending so far."""
        time_us, slots = ends
        row = int(np.argmin(time_us))
        if time_us[row] < self.best_us:
            self.best_us = float(time_us[row])
            self.best_end = (first, row, StageBlock(first, self.stages - 1, int(slots[row])))

    def _amounts(self, first: int, last: int) -> list[tuple[int, float]]:
        """(slots, us): amounts of memory for stages first .. last, and rotor's times in them."""
        slots, cost_ns = self.table.amounts(first, last, self.chain.memory)
        chosen = _spread(len(slots), self.most_amounts)
        return list(
            zip(slots[chosen].tolist(), (cost_ns[chosen] / NS_PER_US).tolist(), strict=True)
        )

    # The states.

    def _worth_following(self, stage: int) -> tuple[_States, tuple[np.ndarray, np.ndarray]]:
        """None that another is at least as good as; of very many those that could end soonest. And
        their endings.
        """
        parts = self.reached[stage]
        if not parts:
            return _States(*np.zeros((7, 0))), (np.zeros(0), np.zeros(0, int))
        states = _States(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        ends_us, ends_slots = self._endings(stage, states)
        rows = np.lexsort((states.time_us, ends_us))[: 4 * self.most_states]
        rows = rows[np.argsort(states.time_us[rows], kind="stable")]
        rows = rows[self._undominated(states.take(rows))]
        rows = rows[np.argsort(ends_us[rows], kind="stable")[: self.most_states]]
        return states.take(rows), (ends_us[rows], ends_slots[rows])

    def _undominated(self, states: _States) -> np.ndarray:
        """Rows that no earlier row is at least as good as; rows are in order of their time.

        As good is: no more kept, no more unsent, no more unfetched, the same input to come.
        """
        return self.dominance.undominated(
            states.held - states.unsent, states.unsent, states.unfetched, states.input_size
        )

    def _blocks(self) -> tuple[StageBlock, ...]:
        """The way back from the best end."""
        stage, row, block = self.best_end
        blocks = [block]
        while stage:
            states = self.followed[stage]
            block, row = self.moves[int(states.move[row])], int(states.before[row])
            blocks.append(block)
            stage = block.first
        return tuple(reversed(blocks))


@cache
def _spread(count: int, most: int) -> np.ndarray:
    """Up to `most` of the numbers 0 .. count - 1, evenly, both ends among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
