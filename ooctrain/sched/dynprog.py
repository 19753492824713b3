"""dynprog: which activations to offload, all or nothing, by dynamic programming.

In: a trace, a budget, a machine. Out: the gaps of the best set, lowered as soon as possible. The
one idea: walk the chain with F_i and B_i side by side. To know how decisions so far will delay what
follows, three numbers are enough: M_F, the memory held when F_i may start; D_F, bytes still to be
sent then (if negative: how long the link has been idle, in bytes it could have moved); D_B, the
same for what must be fetched before B_{i-1} starts. The least idle time for each such state is
kept. Optimal among schedules that send in ascending and fetch in descending order and may pause a
transfer; the plan then moves whole activations, which can cost a little again.

Source: paper 002, section 5.2 and algorithm 1, repaired (docs/errata.md, 002-*: Delta+ in the
feasibility tests, ex^B in (6), y_{j+1} in (9), sizes up and transferred amounts down). Departures:
both rates of the link are told apart, and on a duplex link both directions may work at once between
the phases; short chains are solved in bytes instead of slots; where rounding to slots leaves no
feasible state everything is offloaded; of very many states those with the least idle time are
followed. Read next: `belady.py`, which moves parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ooctrain.cost import Machine
from ooctrain.errors import ConfigError
from ooctrain.sched.chain_view import ChainView, chain_view
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.sched.swap import swap_plan
from ooctrain.trace import Trace

State = tuple[int, int, int]  # (M_F, D_F, D_B) in slots
Layer = dict[State, tuple[float, State, bool]]  # {state: (idle us, state before, x_i offloaded)}
#: On ten networks from ResNet-18 to DenseNet-201 (30 to 90 %, batch 32, v100-pcie) 20000 find no
#: less idle time; 1000 find up to 23 % more.
MOST_STATES = 4000


@dataclass(frozen=True, slots=True)
class DynProg:
    """Paper 002's DYNPROG on the chain of a trace.

    Args:
        slots: the memory is counted in so many slots (the paper's S).
        exact_stages: chains of at most this many stages are counted in bytes.
        most_states: so many states are followed from each stage; the paper follows all.

    Cost: O(states) for each stage: at most 2^stages in bytes, and `most_states`.
    """

    slots: int = 500
    exact_stages: int = 11
    most_states: int = MOST_STATES

    def __post_init__(self) -> None:
        for name in ("slots", "most_states"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"dynprog: {name}={value!r} is not positive", code="OOC-105")

    @property
    def name(self) -> str:
        """The planner's name in tables."""
        return "dynprog"

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the chain's own."""
        view = chain_view(trace, machine, granule)
        view.check_budget(self.name, budget_bytes)
        memory_bytes = budget_bytes - view.pinned_bytes
        slot_bytes = 1.0 if len(view) <= self.exact_stages else memory_bytes / self.slots
        slotted = in_slots(view, memory_bytes, machine, slot_bytes)
        solution = solve(slotted, self.most_states)
        notes = {"offloaded": len(view), "stages": len(view), "slot_bytes": slot_bytes}
        chosen: Sequence[int] = range(len(view))
        if solution is not None:
            chosen = solution.offloaded
            notes |= {"offloaded": len(chosen), "idle_us": solution.idle_us}
        return swap_plan(
            self.name, trace, view.gaps(chosen), budget_bytes, machine, granule, host_budget_bytes,
            notes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlotChain:
    """A chain in slots, times in us.

    Args:
        x, y, extra_forward, extra_backward: sizes, as in `ChainView`.
        forward_us, backward_us: u_F, u_B.
        memory: of the device.
        out_rate, in_rate: slots per us.
        duplex: whether both directions work at once.
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


@dataclass(frozen=True, slots=True)
class Solution:
    """The least idle time, and the i whose x_i are offloaded for it."""

    idle_us: float
    offloaded: tuple[int, ...]


def in_slots(view: ChainView, memory_bytes: int, machine: Machine, slot_bytes: float) -> SlotChain:
    """A chain counted in slots, sizes rounded up."""

    def up(sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(-int(-size // slot_bytes) for size in sizes)

    return SlotChain(
        up(view.x), up(view.y), up(view.extra_forward), up(view.extra_backward),
        tuple(ns / 1000 for ns in view.forward_ns), tuple(ns / 1000 for ns in view.backward_ns),
        int(memory_bytes // slot_bytes), machine.out_bytes_per_us / slot_bytes,
        machine.in_bytes_per_us / slot_bytes, machine.link == "duplex",
    )  # fmt: skip


def solve(chain: SlotChain, most_states: int = MOST_STATES) -> Solution | None:
    """Algorithm 1; None where no state is feasible.

    Every prefix is tried first: states that idle longer than the best of them are not followed.

    Args:
        chain: what to offload of.
        most_states: so many states are kept for each stage, those with the least idle time; the
            result is the optimum unless some had to go.

    Cost: O(stages x (stages + states)).
    """
    best = _best_prefix(chain)
    known = math.inf if best is None else best.idle_us
    start = (chain.x[0], 0, 0)
    layers: list[Layer] = [{start: (0.0, start, False)}]
    for i in range(len(chain.forward_us)):
        following: Layer = {}
        for state, (idle, _, _) in layers[-1].items():
            for reached, waited, offloaded in _steps(chain, i, state):
                total = idle + waited
                if total <= known and (reached not in following or total < following[reached][0]):
                    following[reached] = (total, state, offloaded)
        layers.append(_with_least_idle(following, most_states))
    final = {s: entry[0] + _idle_between(chain, s) for s, entry in layers[-1].items()}
    if not final or min(final.values()) > known:
        return best
    # Of equals the one that offloads least: what a state keeps is M_F less what has yet to leave.
    found = min(final, key=lambda state: (final[state], max(0, state[1]) - state[0], state))
    return Solution(final[found], tuple(_decisions(layers, found)))


def idle_us(chain: SlotChain, offloaded: Sequence[int]) -> float:
    """The idle time of one set of decisions; infinite if they do not fit. Cost: O(stages)."""
    state, idle = (chain.x[0], 0, 0), 0.0
    for i in range(len(chain.forward_us)):
        # The last step offers to offload; a stage without bytes offers nothing to offload.
        steps = list(_steps(chain, i, state))
        if not steps:
            return math.inf
        state, waited, _ = steps[-1 if i in offloaded else 0]
        idle += waited
    return idle + _idle_between(chain, state)


def _best_prefix(chain: SlotChain) -> Solution | None:
    prefixes = [range(k) for k in range(len(chain.forward_us) + 1)]
    idle, length = min((idle_us(chain, prefix), len(prefix)) for prefix in prefixes)
    return None if idle == math.inf else Solution(idle, tuple(range(length)))


def _with_least_idle(layer: Layer, most_states: int) -> Layer:
    if len(layer) <= most_states:
        return layer
    kept = sorted(layer, key=lambda state: (layer[state][0], state))[:most_states]
    return {state: layer[state] for state in kept}


def _steps(chain: SlotChain, i: int, state: State) -> Iterator[tuple[State, float, bool]]:
    """(state before stage i + 1, idle us around F_i and B_i, whether x_i is offloaded)."""
    memory_f, due_f, due_b = state
    to_send, to_fetch = max(0, due_f), max(0, due_b)
    memory_b = chain.y[i] + to_fetch + memory_f - to_send
    need_f = memory_f + chain.extra_forward[i] + chain.x[i + 1]
    need_b = memory_b + chain.extra_backward[i] + chain.x[i + 1] + chain.y[i + 1]
    if need_f - to_send > chain.memory or need_b - to_fetch > chain.memory:
        return
    wait_f, wait_b = max(0, need_f - chain.memory), max(0, need_b - chain.memory)  # (1), (6)
    idle_us = wait_f / chain.out_rate + wait_b / chain.in_rate
    sent = wait_f + int(chain.forward_us[i] * chain.out_rate)
    fetched = wait_b + int(chain.backward_us[i] * chain.in_rate)
    held = memory_f + chain.x[i + 1]
    size = chain.x[i]
    yield (held - min(to_send, sent), due_f - sent, due_b - fetched), idle_us, False  # (5) (4) (8)
    if size:
        kept = held - min(to_send + size, sent)  # (3)
        later = size + max(0, due_b - fetched)  # (7)
        yield (kept, to_send + size - sent, later), idle_us, True  # (2)


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


def _decisions(layers: Sequence[Layer], state: State) -> list[int]:
    """The way back through the layers: the i that were offloaded, ascending."""
    offloaded = []
    for i in reversed(range(len(layers) - 1)):
        _, before, taken = layers[i + 1][state]
        if taken:
            offloaded.append(i)
        state = before
    return offloaded[::-1]
