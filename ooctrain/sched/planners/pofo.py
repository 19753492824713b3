"""pofo: offloading together with recomputation of a chain, by one dynamic program.

Recomputation costs the processor and offloading costs the link, so both together make room at less
cost than either alone. The first sweep sends as much as the link can carry meanwhile; of the rest
it keeps checkpoints, from which rotor differentiates stage by stage. `BlockSearch` decides; bytes
and time are found from the list that results. Rotor's plan without a link and dynprog's without
recomputation are special cases, which slots of memory may round away: they take part as they are.

The program's optimum is that of this class: each value that is kept in the first sweep stays or
leaves as a whole, in ascending order, and comes back in descending order; copies may pause and take
turns; nothing comes back before all has been sent and the sweep turns; while a run is
differentiated all other bytes held are counted with its peak; nothing that is made again is sent.

Source: Beaumont, Eyraud-Dubois and Shilova, Efficient combination of rematerialization and
offloading for training DNNs (2021); the states are paper 002's. Departures: a stage is what
`sched/planning/chain_view.py` makes one, branches and all; values travel in pieces, and are fetched
before the turn where there is room; where rounding to slots promises too little or too much,
amounts of memory a little smaller are tried; if there are too many states, those are followed from
which rotor alone would be done soonest. Read next: `sched/search/pofo_blocks.py`, the inner loops;
`sched/planners/combined.py`, which has no chain and searches instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import add
from typing import NamedTuple

import numpy as np

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.planners.dynprog import DynProg, SlotChain, in_slots
from ooctrain.sched.planners.rotor import CostTable, Rotor
from ooctrain.sched.planning.chain_runs import ChainStep, Kind, Lift, letting_go
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.decisions import Decisions, Gap
from ooctrain.sched.planning.fastest import fastest_of
from ooctrain.sched.planning.lower import lower_timed
from ooctrain.sched.planning.planner import check_whole_numbers, infeasible, least_of, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.planning.swap import piece_bytes
from ooctrain.sched.schedule import Plan, Run
from ooctrain.step.chain import NS_PER_US
from ooctrain.step.trace import Trace

#: The tables grow with the cube of the stages, so a longer chain's are joined.
MOST_STAGES = 120
#: Number of searches: the chain counts what a stage needs for the whole of the stage, so that the
#: list of its blocks often leaves room, which the next search may use.
ROUNDS = 3
#: Factor of the room that the next search gets, where one finds nothing better than is known.
MORE = 1.15


@dataclass(frozen=True, slots=True)
class Pofo:
    """The dynamic program over slots of the chain's peak.

    Args:
        slots: how finely memory is counted.
        most_states: how many states are followed from each stage.
        most_amounts: how many amounts of memory are tried for each run of stages.

    Cost: O(stages^3 slots + stages^2 amounts states), in NumPy, for at most `MOST_STAGES` stages.
    """

    name = "pofo"

    slots: int = 250
    most_states: int = 200
    most_amounts: int = 5

    def __post_init__(self) -> None:
        parameters = {
            "slots": self.slots, "most_states": self.most_states, "most_amounts": self.most_amounts,
        }  # fmt: skip
        check_whole_numbers(self.name, parameters)

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of rotor's, of dynprog's, and of sending the
        input of every stage and running every stage again.
        """
        budget_bytes = question.budget_bytes
        view = chain_view(question.trace, question.machine, question.granule, MOST_STAGES)
        chain = _Chain.of(replace(question, host_budget_bytes=None), view)
        plans, refusals = self._halves(chain)
        table = CostTable(chain.view, self.slots)
        found: list[Decisions] = []
        frugal = chain.decisions(with_least_memory(table), table)
        if frugal is not None:
            least, witness = chain.least_budget(frugal)
            refusals.append(infeasible(self.name, budget_bytes, least, witness))
            if least <= budget_bytes:
                known_us = min((plan.makespan_us for plan in plans), default=math.inf)
                found = self._better(chain, table, known_us) or [frugal]
        if not plans and not found:
            raise least_of(refusals)
        return fastest_of(self.name, plans, map(chain.way, found), question.host_budget_bytes)

    def _halves(self, chain: _Chain) -> tuple[list[Plan], list[Infeasible]]:
        """What rotor does without the link, and dynprog without running anything again, unless even
        its bound is above the former.
        """
        asked = chain.question
        bound = lower_bound(asked.trace, asked.budget_bytes, asked.machine, recompute=False)
        plans, refusals = list[Plan](), list[Infeasible]()
        try:
            plans.append(Rotor().plan_chain(asked, chain.view))
        except Infeasible as refusal:
            refusals.append(refusal)
        if not plans or plans[0].makespan_us > bound.makespan_us:
            try:
                plans.append(DynProg().plan_chain(asked, chain.view))
            except Infeasible as refusal:
                refusals.append(refusal)
        return plans, refusals

    def _better(self, chain: _Chain, table: CostTable, known_us: float) -> list[Decisions]:
        """What the search finds in less time than is known, where it fits the bytes."""
        found: list[Decisions] = []
        budget_bytes = chain.question.budget_bytes
        output, share = chain.output_slots(table.slot_bytes), 1.0
        for _ in range(ROUNDS):
            slots = chain.in_slots(table.slot_bytes, share)
            search = BlockSearch(slots, output, table, self.most_states, self.most_amounts)
            solution = search.solve(known_us)
            if solution is None:
                share *= MORE
                continue
            both = (chain.decisions(solution.blocks, table, let_go) for let_go in (True, False))
            possible = [decisions for decisions in both if decisions is not None]
            needed = [chain.least_budget(decisions)[0] for decisions in possible]
            fitting = [n <= budget_bytes for n in needed]
            found += [decisions for decisions, fits in zip(possible, fitting, strict=True) if fits]
            share *= budget_bytes / min(needed, default=budget_bytes)
        return found


def with_least_memory(table: CostTable) -> list[StageBlock]:
    """Of every stage only the input is kept, and that on the host."""
    last = table.stages - 1
    return [StageBlock(i, i, table.slots, offloaded=i < last) for i in range(last + 1)]


def steps_of(blocks: Sequence[StageBlock], table: CostTable) -> Iterator[ChainStep]:
    """The operations that blocks mean: one sweep, in which the last block turns, and back."""
    for block in blocks[:-1]:
        yield ChainStep(Kind.ALL if block.slots is None else Kind.CHECKPOINT, block.first)
        yield from (ChainStep(Kind.NONE, stage) for stage in range(block.first + 1, block.last + 1))
    for block in reversed(blocks):
        if block.slots is None:
            yield ChainStep(Kind.BACKWARD, block.first)
        else:
            yield from table.steps(block.first, block.last, block.slots)


def gaps_around(
    trace: Trace, runs: Sequence[Run], variables: Collection[int], turn: int
) -> Iterator[Gap]:
    """The gaps of some variables from their last use before position `turn` to the next one, if
    they have not been computed again meanwhile; what `movable_gaps` finds there.
    """
    movable = frozenset(
        v for v in variables if v not in trace.carries and trace.variables[v].nbytes
    )
    last_use: dict[int, int] = {}
    for position, run in enumerate(runs):
        call = trace.calls[run.call]
        for v in sorted(movable.intersection(call.ins)):
            if position < turn:
                last_use[v] = position
            elif v in last_use:
                after = last_use.pop(v)
                if position - after > 1:
                    yield Gap(v, 0, trace.variables[v].nbytes, after, position)
        for source in call.reuse.values():
            last_use.pop(source, None)
        for v in movable.intersection(call.outs if run.keep is None else run.keep):
            last_use.pop(v, None)
            if position < turn:
                last_use[v] = position


@dataclass(frozen=True, slots=True)
class _Chain:
    """A chain, and what its blocks mean on a machine, within a budget."""

    question: Question
    view: ChainView
    lift: Lift
    liveness: Liveness

    @classmethod
    def of(cls, question: Question, view: ChainView) -> _Chain:
        """The chain of a view."""
        return cls(question, view, Lift(view), question.liveness)

    def in_slots(self, slot_bytes: float, share: float) -> SlotChain:
        """The chain for the search, with a share of the memory."""
        memory_bytes = int(share * (self.question.budget_bytes - self.view.pinned_bytes))
        return in_slots(self.view, memory_bytes, self.question.machine, slot_bytes)

    def output_slots(self, slot_bytes: float) -> list[int]:
        """What each stage hands over, |a_i| of the stage behind it."""
        variables, granted = self.view.trace.variables, self.question.granule.granted
        outputs = [stage.output for stage in self.view.stages]
        sizes = [0 if v is None else granted(variables[v].nbytes) for v in outputs]
        return [-int(-size // slot_bytes) for size in sizes]

    def decisions(
        self, blocks: Sequence[StageBlock], table: CostTable, let_go: bool = True
    ) -> Decisions | None:
        """Runs, and gaps around the turn for what is offloaded; None where a run would read what is
        gone for good.

        Args:
            let_go: inputs of stages go after their backward part, as rotor's table has it.
        """
        steps = steps_of(blocks, table)
        runs = self.lift.runs(letting_go(steps) if let_go else steps)
        try:
            self.liveness.resident_bytes(runs)
        except ConfigError:
            return None
        first = self.view.stages[-1].backward.start
        turn = next((p for p, run in enumerate(runs) if run.call >= first), len(runs))
        gaps = gaps_around(self.view.trace, runs, frozenset(self._sent(blocks)), turn)
        return Decisions(runs, tuple(gaps))

    def least_budget(self, decisions: Decisions) -> tuple[int, str]:
        """(bytes, call): the least budget for some decisions."""
        return self.liveness.least_budget(decisions.runs, decisions.gaps)

    def way(self, decisions: Decisions) -> tuple[float, Callable[[], Plan]]:
        """(us that they take where copies do not slow calls down, their plan); values travel in
        pieces.
        """
        trace, machine, granule = self.question.trace, self.question.machine, self.question.granule
        step = piece_bytes(self.question.budget_bytes, machine)
        pieces = (piece for gap in decisions.gaps for piece in gap.in_pieces(step, granule))
        in_parts = Decisions(decisions.runs, tuple(pieces))
        lowered = lower_timed(in_parts, trace, self.question.budget_bytes, machine, granule)
        notes = {
            **self.view.notes(),
            "runs_again": len(decisions.runs) - len(trace.calls),
            "offloaded": len({gap.var for gap in decisions.gaps}),
        }
        make = partial(make_plan, lowered.schedule, trace, machine, notes)
        return lowered.makespan_ns / 1000, make

    def _sent(self, blocks: Sequence[StageBlock]) -> Iterator[int]:
        """Variables of what blocks read and send out: all that the stage before saved, if all of it
        was kept.
        """
        before: StageBlock | None = None
        for block in blocks:
            if block.offloaded:
                if before is None or before.slots is None:
                    yield from self.view.variables(block.first)
                else:
                    output = self.view.stages[before.last].output
                    yield from () if output is None else (output,)
            before = block


# The dynamic program: the fastest row of blocks for a chain in slots, given rotor's table. A block
# is one stage of which all is kept, or a run of stages of which only the input is kept. The value
# that a block reads stays, or is sent out and comes back for its backward part. F and B are walked
# together, and three numbers determine how earlier decisions delay later ones: the memory held, the
# bytes still to be sent, the bytes still to be fetched before the backward part of the stage
# before. Rotor differentiates a run in a fixed amount of memory, which is part of the decision. In
# the last block, where the loss is, the sweep turns.


@dataclass(frozen=True, slots=True)
class StageBlock:
    """Stages that the first sweep treats alike.

    Args:
        slots: memory in which rotor differentiates them; None: one stage of which all is kept.
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
        input_size: size of what the stage reads: all that the stage before saved, or its output
        alone.
        time_us: total time of the forward and backward parts that are settled.
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
        output: what each stage hands over, in slots, if nothing else of it is kept.
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
        from ooctrain.sched.search import pofo_blocks

        self.compiled = pofo_blocks
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
            states, i, chain.x[i + 1], makes=chain.x[i + 1], sends_input=offloaded
        )
        peak = chain.y[i] + chain.y[i + 1] + chain.x[i + 1] + chain.extra_backward[i]
        took_us = chain.backward_us[i]
        self._backward([StageBlock(i, i, None, offloaded)], states, after, [peak], [took_us])

    def _run_on(self, first: int, states: _States, offloaded: bool) -> None:
        """Stages first .. last keep nothing but what the first of them reads, for any last."""
        after, passing = states, 0
        for last in range(first, self.stages - 1):
            made = self.output[last]
            after = self._forward(
                after, last, made - passing, makes=made,
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
        self, states: _States, i: int, grows: int, *, makes: int, sends_input: bool
    ) -> _States:
        """F_i, which makes `makes` slots on top of what is held; `grows` of them remain, others'
        subtracted. What cannot be takes infinitely long.
        """
        chain, work_us = self.chain, self.chain.forward_us[i]
        leaving = states.input_size if sends_input else np.zeros_like(states.held)
        taken, sent = float(makes + chain.extra_forward[i]), float(int(work_us * chain.out_rate))
        work = self.compiled.StageWork(taken, float(grows), sent, work_us)
        capacity = self.compiled.Capacity(float(chain.memory), chain.out_rate)
        held, unsent, time_us = self.compiled.forward(states, leaving, work, capacity)
        return states._replace(held=held, unsent=unsent, time_us=time_us)

    def _backward(
        self, blocks: Sequence[StageBlock], states: _States, after: _States, peaks: Sequence[int],
        took_us: Sequence[float],
    ) -> None:  # fmt: skip
        """The backward part of a block, in several ways: with `peaks` slots on top of what is held
        before it.
        """
        chain, last = self.chain, blocks[0].last
        each_way = self.compiled.Ways(np.array(peaks, float), np.array(took_us, float))
        capacity = self.compiled.Capacity(float(chain.memory), chain.in_rate)
        ways, rows, unfetched, time_us = self.compiled.backward(
            states, after.time_us, each_way, capacity, self._limit_us(last)
        )
        if not len(rows):
            return
        if blocks[0].offloaded:
            unfetched += states.input_size[rows]
        handed = chain.x[last + 1] if blocks[0].slots is None else self.output[last]
        self.reached[last + 1].append(
            _States(
                after.held[rows], after.unsent[rows], unfetched,
                np.full(len(rows), float(handed)), time_us, rows, ways + len(self.moves),
            )
        )  # fmt: skip
        self.moves += blocks

    def _limit_us(self, last: int) -> float:
        """What a state after a stage may have taken, to be done sooner than the best."""
        return self.best_us - self.at_least_us[last + 1]

    def _endings(self, first: int, states: _States) -> tuple[np.ndarray, np.ndarray]:
        """(us, slots): the least time of all if the last block begins here, by state. In it all is
        sent, then fetched, as far as memory allows.
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
        return self.compiled.undominated(
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
