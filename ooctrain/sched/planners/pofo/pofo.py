"""pofo: offloading and recomputation of a chain, decided together.

Recomputation costs the processor and offloading costs the link, so both together make room at less
cost than either alone. The first sweep sends as much as the link can carry meanwhile; of the rest
it keeps checkpoints, from which rotor differentiates stage by stage. The decisions are those of a
dynamic program (`pofo_search.py`, which states the class in which they are optimal); their bytes
and time are found from the list that results. The plan is the fastest of the best row of blocks,
rotor's plan without a link, and dynprog's plan without recomputation.

Source: Beaumont, Eyraud-Dubois and Shilova, Efficient combination of rematerialization and
offloading for training DNNs (2021). Departures: a stage is what `sched/planning/chain_view.py`
makes one, branches and all; values travel in pieces, and are fetched before the turn where there is
room; where rounding to slots promises too little or too much, amounts of memory a little smaller
are tried. Read next: `sched/planners/combined.py`, which has no chain and searches instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.planners.dynprog.dynprog import DynProg
from ooctrain.sched.planners.dynprog.dynprog_search import SlotChain, in_slots
from ooctrain.sched.planners.pofo.pofo_search import BlockSearch, StageBlock
from ooctrain.sched.planners.rotor import CostTable, Rotor
from ooctrain.sched.planning.chain_runs import ChainStep, Kind, Lift, letting_go
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.decisions import Decisions, Gap
from ooctrain.sched.planning.fastest import fastest_of
from ooctrain.sched.planning.lower import lower_timed
from ooctrain.sched.planning.parameters import check_whole_numbers
from ooctrain.sched.planning.planner import infeasible, make_plan
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import Liveness
from ooctrain.sched.planning.swap import in_pieces, piece_bytes
from ooctrain.sched.schedule import BYTES, Granule, Plan, Run
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

#: The tables grow with the cube of the stages, so a longer chain's are joined.
MOST_STAGES = 120
#: How often the search is asked: the chain counts what a stage needs for the whole of the stage, so
#: that the list of its blocks often leaves room, which the next one may use.
ROUNDS = 3
#: And how much more it is promised where it finds nothing better than what is known.
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

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of rotor's, of dynprog's, and of sending the
        input of every stage and running every stage again.
        """
        question = Question(trace, budget_bytes, machine, granule)
        chain = _Chain.of(question, chain_view(trace, machine, granule, MOST_STAGES))
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
            raise min(refusals, key=lambda refusal: refusal.minimum_bytes)
        return fastest_of(self.name, plans, map(chain.way, found), host_budget_bytes)

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
        return cls(question, view, Lift(view), Liveness(view.trace, question.granule))

    def in_slots(self, slot_bytes: float, share: float) -> SlotChain:
        """The chain for the search, with a share of the memory."""
        memory_bytes = int(share * (self.question.budget_bytes - self.view.pinned_bytes))
        return in_slots(self.view, memory_bytes, self.question.machine, slot_bytes)

    def output_slots(self, slot_bytes: float) -> list[int]:
        """|a_i|: what crosses into stage i; of the chain's input all is read again."""
        variables, granted = self.view.trace.variables, self.question.granule.granted
        outputs = [stage.output for stage in self.view.stages]
        sizes = [0 if v is None else granted(variables[v].nbytes) for v in outputs]
        return [-int(-size // slot_bytes) for size in (self.view.x[0], *sizes)]

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
        pieces = (piece for gap in decisions.gaps for piece in in_pieces(gap, step, granule))
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
