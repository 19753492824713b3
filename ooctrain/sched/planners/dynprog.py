"""dynprog: which activations to offload, all or nothing, by dynamic programming.

The planner walks the chain with F_i and B_i together, and keeps for each state that can arise the
least idle time on the way to it. The gaps of the best set are then lowered as soon as possible. The
set is optimal among schedules that send in ascending and fetch in descending order and may pause a
transfer; the plan then moves whole activations, which can add a little idle time.

Source: paper 002, section 5.2 and algorithm 1, repaired (docs/errata.md, 002-*: Delta+ in the
feasibility tests, ex^B in (6), y_{j+1} in (9), sizes up; amounts that move as asked). Departures:
short chains are solved in bytes instead of slots; where rounding to slots leaves no feasible state
everything is offloaded; if there are too many states, those with the least idle time are followed;
both rates of the link are kept apart, and on a duplex link both directions may work at once between
the phases. Read next: `sched/planners/belady.py`, which moves parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from ooctrain.errors import ConfigError
from ooctrain.sched.planning.chain_view import ChainView, chain_view
from ooctrain.sched.planning.planner import check_whole_numbers
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.swap import swap_plan
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import Machine

#: How an amount that moves in a given time becomes whole slots.
Rounding = Literal["down", "nearest", "up"]
State = tuple[int, int, int]  # (M_F, D_F, D_B) in slots
#: On ten networks from ResNet-18 to DenseNet-201 (30 to 90 %, batch 32, v100-pcie) 20000 find no
#: less idle time; 1000 find up to 23 % more.
MOST_STATES = 4000


@dataclass(frozen=True, slots=True)
class DynProg:
    """Paper 002's DYNPROG on the chain of a trace.

    Args:
        slots: how many slots the memory is counted in (the paper's S).
        exact_stages: chains of at most this many stages are counted in bytes.
        most_states: how many states are followed from each stage; the paper follows all.
        transfers: how slots that move during a call are rounded: "down" promises no room that is
            not there, so that its idle time is never too low; "nearest" and "up" may. All are safe,
            since what was decided is planned to the byte. Paper 002 does not say which it took.

    Cost: O(states) for each stage: at most 2^stages in bytes, and `most_states`.
    """

    name = "dynprog"

    slots: int = 500
    exact_stages: int = 11
    most_states: int = MOST_STATES
    transfers: Rounding = "down"

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"slots": self.slots, "most_states": self.most_states})
        check_whole_numbers(self.name, {"exact_stages": self.exact_stages}, least=0)
        if self.transfers not in get_args(Rounding):
            raise ConfigError(
                f"dynprog has no rounding {self.transfers!r} of transfers", code="OOC-106",
                fix=f"transfers is one of {', '.join(get_args(Rounding))}",
            )  # fmt: skip

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the chain's own."""
        view = chain_view(question.trace, question.machine, question.granule)
        return self.plan_chain(question, view)

    def plan_chain(self, question: Question, view: ChainView) -> Plan:
        """`plan`, for callers that already have the view of the trace as a chain."""
        view.check_budget(self.name, question.budget_bytes)
        memory_bytes = question.budget_bytes - view.pinned_bytes
        slot_bytes = 1.0 if len(view) <= self.exact_stages else memory_bytes / self.slots
        slotted = in_slots(view, memory_bytes, question.machine, slot_bytes, self.transfers)
        solution = solve(slotted, self.most_states)
        notes = {"offloaded": len(view), **view.notes(), "slot_bytes": slot_bytes}
        chosen: Sequence[int] = range(len(view))
        if solution is not None:
            chosen = solution.offloaded
            notes |= {"offloaded": len(chosen), "idle_us": solution.idle_us}
        return swap_plan(self.name, question, view.gaps(chosen), notes)


# Algorithm 1 over a chain in slots. Three numbers determine how the decisions so far will delay the
# later stages: M_F, the memory held when F_i may start; D_F, bytes still to be sent then (if
# negative: how long the link has been idle, in bytes it could have moved); D_B, the same for what
# must be fetched before B_{i-1} starts. The least idle time for each such state is kept. States are
# columns of numbers, so that a stage is decided for thousands of them in one vector operation.


@dataclass(frozen=True, slots=True)
class SlotChain:
    """A chain in slots, times in us.

    Args:
        x, y, extra_forward, extra_backward: sizes, as in `ChainView`.
        forward_us, backward_us: u_F, u_B.
        out_rate, in_rate: slots per us.
        duplex: whether both directions work at once.
        transfers: how the slots that move during a call are rounded.
    """

    x: tuple[int, ...]
    y: tuple[int, ...]
    extra_forward: tuple[int, ...]
    extra_backward: tuple[int, ...]
    forward_us: tuple[float, ...]
    backward_us: tuple[float, ...]
    memory: int
    out_rate: float
    in_rate: float
    duplex: bool = False
    transfers: Rounding = "down"

    def moved(self, during_us: float, rate: float) -> int:
        """Slots that the link moves in a time at a rate."""
        slots = during_us * rate
        if self.transfers == "nearest":
            return round(slots)
        return math.ceil(slots) if self.transfers == "up" else int(slots)


class States(NamedTuple):
    """States before a stage, column by column; sizes in slots.

    Args:
        held: M_F.
        due_out, due_in: D_F, D_B.
        idle_us: the least idle time on the way to the state.
        before: the row that it comes from, among the states before the stage before.
        offloaded: whether that stage's x_i was offloaded.
    """

    held: np.ndarray
    due_out: np.ndarray
    due_in: np.ndarray
    idle_us: np.ndarray
    before: np.ndarray
    offloaded: np.ndarray

    @classmethod
    def start(cls, chain: SlotChain, rows: int) -> States:
        """The state before stage 0, repeated."""
        nothing = np.zeros(rows, np.int64)
        held = nothing + chain.x[0]
        return cls(held, nothing, nothing, np.zeros(rows), nothing, np.zeros(rows, bool))

    def take(self, rows: np.ndarray) -> States:
        """Some of the rows."""
        return States(*(column[rows] for column in self))

    def of_row(self, row: int) -> State:
        """The three numbers of one row."""
        return int(self.held[row]), int(self.due_out[row]), int(self.due_in[row])


@dataclass(frozen=True, slots=True)
class OffloadSolution:
    """The least idle time, and the i whose x_i are offloaded for it."""

    idle_us: float
    offloaded: tuple[int, ...]


def in_slots(
    view: ChainView, memory_bytes: int, machine: Machine, slot_bytes: float,
    transfers: Rounding = "down",
) -> SlotChain:  # fmt: skip
    """A chain counted in slots: sizes rounded up, the memory down, what moves as `transfers`."""

    def up(sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(-int(-size // slot_bytes) for size in sizes)

    return SlotChain(
        x=up(view.x),
        y=up(view.y),
        extra_forward=up(view.extra_forward),
        extra_backward=up(view.extra_backward),
        forward_us=tuple(ns / 1000 for ns in view.forward_ns),
        backward_us=tuple(ns / 1000 for ns in view.backward_ns),
        memory=int(memory_bytes // slot_bytes),
        out_rate=machine.out_bytes_per_us / slot_bytes,
        in_rate=machine.in_bytes_per_us / slot_bytes,
        duplex=machine.link == "duplex",
        transfers=transfers,
    )


def solve(chain: SlotChain, most_states: int = MOST_STATES) -> OffloadSolution | None:
    """Algorithm 1; None where no state is feasible.

    Every prefix is tried first: states that idle longer than the best of them are not followed.

    Args:
        most_states: how many states are kept for each stage, those with the least idle time; the
            result is the optimum unless some had to go.

    Cost: O(stages x (stages + states)).
    """
    best = _best_prefix(chain)
    known = math.inf if best is None else best.idle_us
    layers = [States.start(chain, 1)]
    for i in range(len(chain.forward_us)):
        stays, leaves = _steps(chain, i, layers[-1])
        reached = _alternating(stays, leaves) if chain.x[i] else stays
        layers.append(_worth_following(reached, known, most_states))
    ends = _ends_us(chain, layers[-1])
    if not ends or min(ends) > known:
        return best

    def preference(row: int) -> tuple[float, int, State]:
        # Of equals the one that offloads least: what a state keeps is M_F less what has yet to
        # leave.
        held, due_out, due_in = layers[-1].of_row(row)
        return ends[row], max(0, due_out) - held, (held, due_out, due_in)

    found = min(range(len(ends)), key=preference)
    return OffloadSolution(ends[found], tuple(_decisions(layers, found)))


def idle_us(chain: SlotChain, offloaded: Sequence[int]) -> float:
    """The idle time of one set of decisions; infinite if they do not fit. Cost: O(stages)."""
    chosen = np.isin(np.arange(len(chain.forward_us)), list(offloaded))
    return _idle_us_of(chain, chosen.reshape(1, -1))[0]


def _idle_us_of(chain: SlotChain, offloaded: np.ndarray) -> list[float]:
    """`idle_us` for each row of decisions: [set, i], whether x_i is offloaded."""
    states = States.start(chain, len(offloaded))
    for i in range(len(chain.forward_us)):
        stays, leaves = _steps(chain, i, states)
        # A stage without bytes offers nothing to offload.
        chosen = offloaded[:, i] & (chain.x[i] > 0)
        states = States(*(np.where(chosen, *ways) for ways in zip(leaves, stays, strict=True)))
    return _ends_us(chain, states)


def _best_prefix(chain: SlotChain) -> OffloadSolution | None:
    stages = len(chain.forward_us)
    idle = _idle_us_of(chain, np.tri(stages + 1, stages, -1, dtype=bool))  # row k: x_0 .. x_{k-1}
    length = min(range(stages + 1), key=lambda k: idle[k])
    return None if idle[length] == math.inf else OffloadSolution(idle[length], tuple(range(length)))


def _worth_following(reached: States, known_us: float, most_states: int) -> States:
    """Of equal states the first that idles least; none that idles longer than is known to be
    enough; of very many those that idle least.
    """
    within = (reached.idle_us <= known_us) & (reached.idle_us < np.inf)
    states = reached.take(np.flatnonzero(within))
    if not len(states.held):
        return states
    order = np.lexsort((states.idle_us, states.due_in, states.due_out, states.held))
    held, due_out, due_in, idle, *_ = states.take(order)
    differs = (np.diff(held) != 0) | (np.diff(due_out) != 0) | (np.diff(due_in) != 0)
    firsts = np.flatnonzero(np.append(True, differs))
    if len(firsts) > most_states:
        soonest = firsts[np.argsort(idle[firsts], kind="stable")]
        return states.take(order[soonest[:most_states]])
    # In the order in which they were reached, which decides between equals later on.
    reached_first = np.minimum.reduceat(order, firsts)
    return states.take(order[firsts[np.argsort(reached_first)]])


def _steps(chain: SlotChain, i: int, states: States) -> tuple[States, States]:
    """The states before stage i + 1 if x_i stays, and if it is offloaded, row by row. What does not
    fit idles forever.
    """
    held, due_out, due_in = states[:3]
    to_send, to_fetch = np.maximum(0, due_out), np.maximum(0, due_in)
    memory_b = chain.y[i] + to_fetch + held - to_send
    need_f = held + chain.extra_forward[i] + chain.x[i + 1]
    need_b = memory_b + chain.extra_backward[i] + chain.x[i + 1] + chain.y[i + 1]
    fits = (need_f - to_send <= chain.memory) & (need_b - to_fetch <= chain.memory)
    wait_f = np.maximum(0, need_f - chain.memory)  # (1)
    wait_b = np.maximum(0, need_b - chain.memory)  # (6)
    waited_us = wait_f / chain.out_rate + wait_b / chain.in_rate
    idle = np.where(fits, states.idle_us + waited_us, np.inf)
    sent = wait_f + chain.moved(chain.forward_us[i], chain.out_rate)
    fetched = wait_b + chain.moved(chain.backward_us[i], chain.in_rate)
    made, size = held + chain.x[i + 1], chain.x[i]
    rows, yes = np.arange(len(held)), np.ones(len(held), bool)
    stays = States(
        made - np.minimum(to_send, sent),  # (5)
        due_out - sent,  # (4)
        due_in - fetched,  # (8)
        idle, rows, ~yes,
    )  # fmt: skip
    leaves = States(
        made - np.minimum(to_send + size, sent),  # (3)
        to_send + size - sent,  # (2)
        size + np.maximum(0, due_in - fetched),  # (7)
        idle, rows, yes,
    )  # fmt: skip
    return stays, leaves


def _alternating(stays: States, leaves: States) -> States:
    """The rows of both in turn."""
    return States(*(np.stack(both, axis=1).ravel() for both in zip(stays, leaves, strict=True)))


def _ends_us(chain: SlotChain, states: States) -> list[float]:
    """The idle time of each state after the last stage, until the end of the step."""
    idle = states.idle_us.tolist()
    return [us + _idle_between(chain, states.of_row(row)) for row, us in enumerate(idle)]


def _idle_between(chain: SlotChain, state: State) -> float:
    """epsilon_G, the idle us between F_L and B_L: equations (9) and (10)."""
    memory_f, due_f, due_b = state
    send_us, fetch_us = due_f / chain.out_rate, due_b / chain.in_rate
    if due_f > 0 and due_b > 0:
        return max(send_us, fetch_us) if chain.duplex else send_us + fetch_us
    waits = [0.0, send_us + fetch_us]
    if due_f > 0:
        for j, before_us in _before(chain.backward_us, -fetch_us):
            need = chain.extra_backward[j] + chain.y[j] + chain.y[j + 1] - sum(chain.x[j + 2 :])
            waits.append((need + memory_f - chain.memory) / chain.out_rate - before_us)
    elif due_b > 0:
        # y_{L+1} belongs to B_L's extra memory, so that nothing has to be subtracted here.
        memory_b = chain.y[-1] + due_b + memory_f
        for j, before_us in _before(chain.forward_us, -send_us):
            need = chain.extra_forward[j] - sum(chain.x[j + 2 :]) - chain.y[-1]
            waits.append((need + memory_b - chain.memory) / chain.in_rate - before_us)
    return max(waits)


def _before(durations_us: Sequence[float], idle_us: float) -> Iterator[tuple[int, float]]:
    """(j, U_j) for the operations that start while the link idles, from the turning point on."""
    before_us = 0.0
    for j in reversed(range(len(durations_us))):
        if before_us >= idle_us:
            return
        yield j, before_us
        before_us += durations_us[j]


def _decisions(layers: Sequence[States], row: int) -> list[int]:
    """The way back through the layers: the i that were offloaded, ascending."""
    offloaded = []
    for i in reversed(range(len(layers) - 1)):
        states = layers[i + 1]
        if states.offloaded[row]:
            offloaded.append(i)
        row = int(states.before[row])
    return offloaded[::-1]
