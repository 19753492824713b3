"""pofo: the optimum of its class by exhaustive search, and never worse than either half alone.

The truth is found without a formula: every row of blocks, every way to differentiate a run of
stages, and for each of them every schedule in unit time steps (`shortest`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.errors import Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import resolve_budget
from ooctrain.sched.planners.dynprog import DynProg, SlotChain, in_slots
from ooctrain.sched.planners.pofo import BlockSearch, Pofo, gaps_around
from ooctrain.sched.planners.rotor import CostTable, Rotor
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.decisions import movable_gaps
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import droppable, rematerialise
from ooctrain.sched.schedule import SwapOut
from ooctrain.sched.search.pofo_blocks import undominated
from ooctrain.sched.verify import verify
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace
from ooctrain.testing.check_planner import check_planner
from ooctrain.testing.random_traces import FakeOp, random_trace

UNIT = Machine("unit", 1, 1, link_bytes_per_us=1)
PCIE = oc.machine("v100-pcie")


def chain_with_intermediates(rng: random.Random, stages: int) -> Trace:
    """Stages that save more than their outputs, of up to 3 bytes and 3 us."""
    builder = TraceBuilder()

    def value(name: str, size: int, kind: str = "activation") -> int:
        return builder.variable(name, (size,), "uint8", kind)

    def call(name: str, ins, outs, phase: str, most_us: int = 3) -> None:
        builder.call(
            name, FakeOp(name), ins, outs, phase=phase, workspace_bytes=rng.randint(0, 1),
            duration_ns=1000 * rng.randint(0, most_us),
        )  # fmt: skip

    outputs = [value("a0", rng.randint(1, 3), "state")]
    inner = []
    for i in range(stages):
        outputs.append(value(f"a{i + 1}", rng.randint(1, 3)))
        inner.append(value(f"s{i + 1}", rng.randint(1, 3)))
        call(f"F{i}", (outputs[i],), (outputs[i + 1], inner[i]), "forward")
    gradient = value("y", 1, "grad")
    call("loss", (outputs[-1],), (gradient,), "loss", 0)
    for i in reversed(range(stages)):
        made = value(f"y{i}", rng.randint(0, 2), "grad")
        call(f"B{i}", (outputs[i], outputs[i + 1], inner[i], gradient), (made,), "backward")
        gradient = made
    return builder.build()


def output_bytes(view: ChainView) -> list[int]:
    sizes = (0 if s.output is None else view.trace.variables[s.output].nbytes for s in view.stages)
    return [*sizes]


# ---------------------------------------------------------------- the truth


@dataclass(frozen=True)
class Part:
    """A block: what it does in the first sweep and after the turn.

    Args:
        forward: (us, bytes beside the inputs of blocks, bytes that stay until the next operation).
        back_us, back_bytes: of its backward part; waits_bytes: beside the inputs while it waits.
        input_bytes: of what it reads; offloaded: whether that leaves.
    """

    forward: tuple[tuple[int, int, int], ...]
    back_us: int
    back_bytes: int
    waits_bytes: int
    input_bytes: int
    offloaded: bool


class Truth:
    """All of the class, for one chain and one amount of memory; one byte passes the link per us."""

    def __init__(self, chain: SlotChain, output: list[int]):
        self.c, self.a, self.last = chain, [0, *output], len(chain.forward_us) - 1
        self.f = [int(us) for us in chain.forward_us]
        self.b = [int(us) for us in chain.backward_us]

    def sweeps(self, s: int, t: int) -> set[tuple[int, int]]:
        """(us, bytes) of every way to differentiate stages s .. t from the input of s."""
        c, found = self.c, set()
        own = [c.y[t + 1] + c.x[s + 1] + c.extra_forward[s],
               c.y[s] + c.y[s + 1] + c.x[s + 1] + c.extra_backward[s]]  # fmt: skip
        for us, held in self.sweeps(s + 1, t) if s < t else {(0, 0)}:
            found.add((self.f[s] + us + self.b[s], max(*own, c.x[s + 1] + held)))
        for q in range(s + 1, t + 1):
            way = [c.y[t + 1] + self.a[k + 1] + c.extra_forward[k] + (self.a[k] if k > s else 0)
                   for k in range(s, q)]  # fmt: skip
            for us, held in self.sweeps(q, t):
                for us_before, held_before in self.sweeps(s, q - 1):
                    peak = max(*way, self.a[q] + held, held_before)
                    found.add((sum(self.f[s:q]) + us + us_before, peak))
        return {
            one for one in found
            if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in found)
        }  # fmt: skip

    def rows(self, i: int = 0, input_bytes: int | None = None) -> Iterator[tuple[Part, ...]]:
        """Every row of blocks from stage i on."""
        c = self.c
        reads = c.x[0] if input_bytes is None else input_bytes
        for us, held in self.sweeps(i, self.last):
            yield (Part((), us, held, 0, reads, False),)
        for leaves in (False, True):
            if i < self.last:
                x, y = c.x[i + 1], c.y[i + 1]
                kept = Part(((self.f[i], x + c.extra_forward[i], 0),), self.b[i],
                            c.y[i] + y + x + c.extra_backward[i], x + y, reads, leaves)  # fmt: skip
                for rest in self.rows(i + 1, x):
                    yield (kept, *rest)
            for t in range(i, self.last):
                way = tuple(
                    (self.f[k],
                     (self.a[k] if k > i else 0) + self.a[k + 1] + c.extra_forward[k],
                     self.a[k + 1] if k < t else 0)
                    for k in range(i, t + 1)
                )  # fmt: skip
                for us, held in self.sweeps(i, t):
                    run = Part(way, us, held, c.y[t + 1], reads, leaves)
                    for rest in self.rows(t + 1, self.a[t + 1]):
                        yield (run, *rest)

    def optimum(self) -> float:
        return min(Walk(row, self.c.memory).shortest() for row in self.rows())


@dataclass(frozen=True)
class Operation:
    """One of a row: its time, bytes while it runs and while it waits beside the inputs of blocks,
    how many inputs have been made and are done with, and its block if it is the first of it.
    """

    us: int
    bytes: int
    waits_bytes: int
    made: int
    done: int
    block: int | None


class Walk:
    """Every schedule of one row of blocks. A state is (operations done, us left of the one that
    runs, bytes sent, bytes fetched): the order of the copies is given.
    """

    def __init__(self, row: tuple[Part, ...], memory: int):
        self.memory, self.count = memory, len(row)
        self.inputs = [part.input_bytes for part in row]
        self.leaving = [part.input_bytes if part.offloaded else 0 for part in row]
        self.operations = list(self._operations(row))

    def _operations(self, row: tuple[Part, ...]) -> Iterator[Operation]:
        for number, part in enumerate(row):
            waits = 0
            for place, (us, held, stays) in enumerate(part.forward):
                block = None if place else number
                yield Operation(us, held, waits, number + 1, 0, block)
                waits = stays
        for done, part in enumerate(reversed(row)):
            yield Operation(part.back_us, part.back_bytes, part.waits_bytes, self.count, done,
                            self.count - 1 - done)  # fmt: skip

    def shortest(self) -> float:
        states, seen = {(0, 0, 0, 0)}, set()
        for time in range(10_000):
            reached = set(self._begun(states))
            if any(done == len(self.operations) for done, *_ in reached):
                return time
            states = {after for state in reached for after in self._a_unit_later(state)} - seen
            seen |= states
            if not states:
                return math.inf
        raise AssertionError("unreachable")

    def _begun(self, states) -> Iterator[tuple[int, int, int, int]]:
        """The states, and those in which the next operations have begun, or were done at once."""
        pending = list(states)
        while pending:
            state = pending.pop()
            yield state
            done, left, sent, fetched = state
            if not left and self._may_start(state):
                us = self.operations[done].us
                pending.append((done, us, sent, fetched) if us else (done + 1, 0, sent, fetched))

    def _may_start(self, state: tuple[int, int, int, int]) -> bool:
        done, _, sent, fetched = state
        if done == len(self.operations):
            return False
        operation = self.operations[done]
        if operation.block is not None:
            forward = not self._has_turned(done)
            if forward and sent > sum(self.leaving[: operation.block]):
                return False
            if not forward and fetched < sum(self.leaving[operation.block :]):
                return False
        return self._used(state, operation.bytes) <= self.memory

    def _has_turned(self, done: int) -> bool:
        return done >= len(self.operations) - self.count

    def _used(self, state: tuple[int, int, int, int], beside: int) -> int:
        done, _, sent, fetched = state
        operation = self.operations[done]
        present = self.inputs[: min(operation.made, self.count - operation.done)]
        return sum(present) - sent + fetched + beside

    def _a_unit_later(self, state) -> Iterator[tuple[int, int, int, int]]:
        done, left, sent, fetched = state
        made = self.operations[done].made
        moves = [(sent, fetched)]
        if sent < sum(self.leaving[:made]):
            moves.append((sent + 1, fetched))
        if sent == sum(self.leaving) > fetched and self._has_turned(done):
            moves.append((sent, fetched + 1))
        for now_sent, now_fetched in moves:
            operation = self.operations[done]
            beside = operation.bytes if left else operation.waits_bytes
            during = self._used((done, left, sent, now_fetched), beside)
            if now_fetched == fetched or during <= self.memory:
                yield (done + (left == 1), max(left - 1, 0), now_sent, now_fetched)


# ---------------------------------------------------------------- the search


def search_of(view: ChainView, memory: int) -> BlockSearch:
    """With a byte for a slot, and nothing cut off."""
    table = CostTable(view, max(1, view.peak()[0]))
    assert table.slot_bytes == 1
    return BlockSearch(in_slots(view, memory, UNIT, 1), output_bytes(view), table, 10**6, 10**6)


def compare_with_truth(rng: random.Random, stages: int) -> tuple[float, float]:
    """(the optimum, the least time of rotor or of sending alone)."""
    view = chain_view(chain_with_intermediates(rng, stages), UNIT)
    assert len(view) == stages
    least, most = view.minimum()[0] - 3, view.peak()[0] - 1
    memory = min(rng.randint(least, most), rng.randint(least, most))
    truth = Truth(in_slots(view, memory, UNIT, 1), output_bytes(view))
    best = truth.optimum()
    found = search_of(view, memory).solve()
    assert (math.inf if found is None else found.makespan_us) == best
    rows = list(truth.rows())
    one_way = [
        row for row in rows
        if len(row) == 1 or not (any(part.offloaded for part in row) and _runs_again(row, truth))
    ]  # fmt: skip
    return best, min((Walk(row, memory).shortest() for row in one_way), default=math.inf)


def _runs_again(row: tuple[Part, ...], truth: Truth) -> bool:
    total = sum(us for part in row for us, *_ in part.forward) + sum(part.back_us for part in row)
    return total > sum(truth.f) + sum(truth.b)


@pytest.mark.slow
def test_the_blocks_are_the_fastest_of_all_in_the_class():
    rng = random.Random(11)
    better = feasible = 0
    for _ in range(160):
        best, one_way = compare_with_truth(rng, rng.choice((2, 3, 3, 4)))
        assert best <= one_way
        feasible += best < math.inf
        better += best < one_way
    assert feasible >= 100
    assert better >= 20  # both together beat each of them alone


# ---------------------------------------------------------------- plans


@pytest.fixture(scope="module")
def resnet() -> Trace:
    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    return apply_rewrites(oc.trace(model, (128, 3, 32, 32)), ("fuse", "share_storage"))


def makespan_us(planner, trace: Trace, budget_bytes: int, machine: Machine) -> float:
    try:
        return planner.plan(Question(trace, budget_bytes, machine)).makespan_us
    except Infeasible:
        return math.inf


def test_the_laws_of_planners_hold():
    assert check_planner(Pofo(), examples=6, seed=5, time_limit_s=20) >= 2


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_never_slower_than_rotor_and_dynprog(seed):
    rng = random.Random(seed)
    trace = chain_with_intermediates(rng, 6)
    view = chain_view(trace, UNIT)
    for budget_bytes in range(view.minimum()[0] - 4, view.peak()[0] + 1, 2):
        alone = [makespan_us(p, trace, budget_bytes, UNIT) for p in (Rotor(), DynProg())]
        found = makespan_us(Pofo(), trace, budget_bytes, UNIT)
        assert found <= min(alone)


def test_a_plan_keeps_what_the_blocks_promise():
    """Where the list of the blocks fits, it takes no longer than the class allows."""
    rng, kept = random.Random(3), 0
    for _ in range(12):
        view = chain_view(chain_with_intermediates(rng, 4), UNIT)
        memory = rng.randint(view.minimum()[0], view.peak()[0])
        found = search_of(view, memory).solve()
        plan = Pofo().plan(Question(view.trace, memory, UNIT))
        verify(plan, view.trace, memory, UNIT)
        kept += plan.makespan_us <= found.makespan_us
    assert kept == 12


@pytest.mark.parametrize("share", ["60%", "80%"])
def test_offloading_takes_much_of_the_time_that_recomputation_costs(resnet, share):
    """The paper: the possibility to offload removes one third of the overhead."""
    budget_bytes = resolve_budget(resnet, share)
    plan = Pofo().plan(Question(resnet, budget_bytes, PCIE))
    verify(plan, resnet, budget_bytes, PCIE)
    assert any(isinstance(item, SwapOut) for item in plan.schedule)
    in_core = makespan_us(Pofo(), resnet, resolve_budget(resnet, "100%"), PCIE)
    over = plan.makespan_us - in_core
    assert over <= 0.67 * (makespan_us(Rotor(), resnet, budget_bytes, PCIE) - in_core)


def test_the_minimum_is_exact_and_below_what_either_half_needs(resnet):
    def least(planner) -> int:
        with pytest.raises(Infeasible) as refused:
            planner.plan(Question(resnet, 0, PCIE))
        return refused.value.minimum_bytes

    mine = least(Pofo())
    verify(Pofo().plan(Question(resnet, mine, PCIE)), resnet, mine, PCIE)
    with pytest.raises(Infeasible) as refused:
        Pofo().plan(Question(resnet, mine - 1, PCIE))
    assert refused.value.minimum_bytes == mine
    assert refused.value.witness_call in {call.name for call in resnet.calls}
    assert mine <= min(least(Rotor()), least(DynProg()))


def test_the_minimum_is_that_of_dynprog_where_no_stage_fits_beside_its_gradient_again():
    trace = oc.chain([4] * 4, [4] * 4, [2] * 3, [3] * 3, [20] * 3, [0] * 3)
    least = {}
    for planner in (Pofo(), DynProg(), Rotor()):
        with pytest.raises(Infeasible) as refused:
            planner.plan(Question(trace, 0, PCIE))
        least[planner.name] = refused.value.minimum_bytes
    assert least["pofo"] == least["dynprog"] == 4 + 4 + 20 < least["rotor"]
    verify(Pofo().plan(Question(trace, least["pofo"], PCIE)), trace, least["pofo"], PCIE)


def test_what_stays_is_what_no_earlier_state_is_as_good_as():
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 6, (300, 3)).astype(float)
    kind = rng.integers(0, 2, 300).astype(float)
    stays = [
        row
        for row in range(300)
        if not ((rows[:row] <= rows[row]).all(axis=1) & (kind[:row] == kind[row])).any()
    ]
    assert 2 < len(stays) < 100
    assert undominated(*np.ascontiguousarray(rows.T), kind).tolist() == stays


@pytest.mark.parametrize("seed", range(40))
def test_gaps_around_the_turn_are_those_movable_gaps_that_span_it(seed):
    rng = random.Random(seed)
    trace = random_trace(rng, calls=12)
    dropped = [v for v in droppable(trace) if rng.random() < 0.5]
    runs = rematerialise(trace, dropped)
    variables = {v.id for v in trace.variables if rng.random() < 0.7}
    turn = rng.randint(0, len(runs))
    spanning = {
        gap
        for gap in movable_gaps(trace, runs)
        if gap.var in variables and gap.after < turn <= gap.before
    }
    found = list(gaps_around(trace, runs, variables, turn))
    assert len(found) == len(set(found))
    assert set(found) == spanning


def test_where_nothing_can_be_sooner_no_block_is_thought_of():
    """Not even one that runs its stages again: it takes what they take in the least."""
    step = oc.chain([8] * 5, [8] * 5, [2] * 4, [3] * 4, [0] * 4, [0] * 4)
    search = search_of(chain_view(step, UNIT), 100)
    asked = []
    search.amounts = lambda first, last: asked.append((first, last)) or []
    assert search.solve(search.at_least_us[0]) is None
    assert not search.moves
    assert {last for _, last in asked} <= {search.stages - 1}  # the endings
