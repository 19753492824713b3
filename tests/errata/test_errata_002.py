"""Errata of paper 002 (optimal offloading of a chain): printed formulas are run and seen to fail.

The chains have at most four activations, small integers, bandwidth 1 byte per time unit. On such
chains the truth is found without any formula, by walking every
schedule in unit time steps (`Search`); a printed formula that disagrees with it is wrong, the
corrected one must agree. Source: paper 002, sections 3 and 5. The table of all errata is
docs/errata.md; the id of an erratum is part of its test's name.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from ooctrain.sched.planners.dynprog import (
    Rounding,
    SlotChain,
    idle_us,
    in_slots,
    solve,
)
from ooctrain.sched.planning.chain_view import chain_view
from ooctrain.step.chain import chain as trace_of
from ooctrain.step.machine import Machine


@dataclass(frozen=True)
class Chain:
    """Paper 002's chain: x and y have L + 2 sizes (x_0 .. x_{L+1}), all others L + 1 entries."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    time_f: tuple[int, ...]
    time_b: tuple[int, ...]
    extra_f: tuple[int, ...]
    extra_b: tuple[int, ...]

    @property
    def last(self) -> int:
        """The paper's L: F_0 .. F_L and B_0 .. B_L."""
        return len(self.time_f) - 1

    @property
    def compute(self) -> int:
        """Total time of all operations."""
        return sum(self.time_f) + sum(self.time_b)


# --------------------------------------------------------------------------------------------------
# -------
# The truth: every schedule in unit time steps.
# --------------------------------------------------------------------------------------------------
# -------


class Search:
    """Shortest schedule of a chain for fixed offloading decisions, one byte per time unit.

    A state is (operations done, time left of the one that runs, bytes sent and bytes fetched per
    offloaded activation). Sent bytes are released at once and transfers may pause (Problem 2);
    `ordered` sends in order of increasing index and fetches in order of decreasing index.
    """

    def __init__(
        self, chain: Chain, memory: int, offloaded: tuple[int, ...], ordered: bool
    ) -> None:
        self.chain, self.memory, self.offloaded, self.ordered = chain, memory, offloaded, ordered

    def makespan(self) -> float:
        """Fewest time units until all is done; infinity where no schedule exists."""
        nothing = (0,) * len(self.offloaded)
        states = set(self._instantly((0, 0, nothing, nothing)))
        total = 2 * (self.chain.last + 1)
        seen = set(states)
        for time in itertools.count():
            if any(done == total for done, *_ in states):
                return time
            after = {new for state in states for new in self._one_unit(state)}
            states = {new for state in after for new in self._instantly(state)} - seen
            seen |= states
            if not states:
                return math.inf
        raise AssertionError("unreachable")

    def _instantly(self, state: tuple) -> Iterator[tuple]:
        """The state itself and those reached by starting operations, which may take no time."""
        yield state
        done, left, sent, fetched = state
        if left == 0 and self._may_start(done, sent, fetched):
            duration = self._duration(done)
            if duration:
                yield (done, duration, sent, fetched)
            else:
                yield from self._instantly((done + 1, 0, sent, fetched))

    def _one_unit(self, state: tuple) -> Iterator[tuple]:
        """States one time unit later: nothing, one byte out or one byte in."""
        done, left, sent, fetched = state
        for new_sent, new_fetched in self._transfers(done, left, sent, fetched):
            if self._used(done, left > 0, new_sent, new_fetched) <= self.memory:
                yield (done + (left == 1), max(left - 1, 0), new_sent, new_fetched)

    def _transfers(self, done: int, left: int, sent: tuple, fetched: tuple) -> Iterator[tuple]:
        yield sent, fetched
        sizes = [self.chain.x[i] for i in self.offloaded]
        out = [k for k, i in enumerate(self.offloaded) if sent[k] < sizes[k] and i <= done]
        back = [k for k in range(len(sizes)) if sent[k] == sizes[k] > fetched[k]]
        if self.ordered:
            unsent = [k for k in range(len(sizes)) if sent[k] < sizes[k]]
            out = [k for k in out if k == unsent[0]]
            absent = [k for k in range(len(sizes)) if fetched[k] < sizes[k]]
            back = [k for k in back if k == absent[-1] and not unsent]
        for k in out:
            yield (*sent[:k], sent[k] + 1, *sent[k + 1 :]), fetched
        for k in back:
            yield sent, (*fetched[:k], fetched[k] + 1, *fetched[k + 1 :])

    def _duration(self, done: int) -> int:
        last = self.chain.last
        return self.chain.time_f[done] if done <= last else self.chain.time_b[2 * last + 1 - done]

    def _may_start(self, done: int, sent: tuple, fetched: tuple) -> bool:
        last = self.chain.last
        if done > 2 * last + 1:
            return False
        forward = done <= last
        reads = (done,) if forward else (2 * last + 1 - done, 2 * last + 2 - done)
        for k, i in enumerate(self.offloaded):
            away = sent[k] > 0 and fetched[k] < self.chain.x[i]
            never = not forward and fetched[k] < self.chain.x[i]
            if i in reads and (away or never):
                return False
        return self._used(done, True, sent, fetched) <= self.memory

    def _used(self, done: int, running: bool, sent: tuple, fetched: tuple) -> int:
        """Bytes on the device while operation `done` runs, or waits to."""
        chain, last = self.chain, self.chain.last
        forward = done <= last
        newest = done if forward else min(2 * last + 2 - done, last + 1)
        used = sum(chain.x[: newest + 1]) + sum(fetched) - sum(sent)
        # What was offloaded is back, and freed, once its own backward operation has run.
        used -= sum(fetched[k] - sent[k] for k, i in enumerate(self.offloaded) if i > newest)
        if not forward and done > last + 1:
            used += chain.y[2 * last + 2 - done]
        if running and forward:
            used += chain.x[done + 1] + chain.extra_f[done]
        elif running:
            i = 2 * last + 1 - done
            used += chain.y[i] + chain.extra_b[i] + (chain.y[last + 1] if done == last + 1 else 0)
        return used


# --------------------------------------------------------------------------------------------------
# -------
# The formulas of section 5.2, corrected; a test replaces one of them by what is printed.
# --------------------------------------------------------------------------------------------------
# -------


def positive(delta: float) -> float:
    """Delta+ of the paper."""
    return max(0.0, delta)


@dataclass(frozen=True)
class Formulas:
    """The places in which the print differs from what is right; the defaults are right."""

    extra_in_eq6: Callable[[Chain, int], int] = lambda chain, i: chain.extra_b[i]
    subtracted_in_tests: Callable[[float], float] = positive
    delta_in_memory: Callable[[float], float] = positive
    other_gradient_in_eq9: Callable[[Chain, int], int] = lambda chain, j: chain.y[j + 1]
    absent_in_eq10: Callable[[Chain], int] = lambda chain: chain.y[chain.last + 1]
    sent: Callable[[float], float] = lambda amount: amount


RIGHT = Formulas()


def formula_makespan(
    chain: Chain, memory: int, offloaded: tuple[int, ...], f: Formulas = RIGHT
) -> float:
    """Makespan of the ordered no-wait schedule by equations (1) to (10); inf where infeasible."""
    m_f, d_f, d_b, idle = float(chain.x[0]), 0.0, 0.0, 0.0
    for i in range(chain.last + 1):
        m_b = chain.y[i] + f.delta_in_memory(d_b) + m_f - f.delta_in_memory(d_f)
        need_f = m_f + chain.extra_f[i] + chain.x[i + 1]
        need_b = m_b + chain.extra_b[i] + chain.x[i + 1] + chain.y[i + 1]
        tests = (need_f - f.subtracted_in_tests(d_f), need_b - f.subtracted_in_tests(d_b))
        if max(tests) > memory:
            return math.inf
        wait_f = positive(need_f - memory)  # (1)
        wait_b = positive(need_b - chain.extra_b[i] + f.extra_in_eq6(chain, i) - memory)  # (6)
        room_f, room_b = f.sent(wait_f + chain.time_f[i]), f.sent(wait_b + chain.time_b[i])
        if i in offloaded:
            m_f += chain.x[i + 1] - min(positive(d_f) + chain.x[i], room_f)  # (3)
            d_f = positive(d_f) + chain.x[i] - room_f  # (2)
            d_b = chain.x[i] + positive(d_b - room_b)  # (7)
        else:
            m_f += chain.x[i + 1] - min(positive(d_f), room_f)  # (5)
            d_f, d_b = d_f - room_f, d_b - room_b  # (4), (8)
        idle += wait_f + wait_b
    return chain.compute + idle + _idle_between(chain, memory, m_f, d_f, d_b, f)


def _idle_between(
    chain: Chain, memory: int, m_f: float, d_f: float, d_b: float, f: Formulas
) -> float:
    """epsilon_G, section 5.2.2."""
    last = chain.last
    if d_f > 0 and d_b > 0:
        return d_f + d_b
    freed = lambda j: sum(chain.x[j + 2 :])  # noqa: E731  the x_i with i > j + 1
    if d_f > 0:  # (9)
        waits = [0.0, d_f + d_b]
        for j in range(last + 1):
            before = sum(chain.time_b[j + 1 :])
            need = chain.extra_b[j] + chain.y[j] + f.other_gradient_in_eq9(chain, j) - freed(j)
            if before < -d_b:
                waits.append(need + m_f - memory - before)
        return max(waits)
    if d_b > 0:  # (10)
        m_b = chain.y[last + 1] + d_b + m_f - positive(d_f) - f.absent_in_eq10(chain)
        waits = [0.0, d_b + d_f]
        for j in range(last + 1):
            before = sum(chain.time_f[j + 1 :])
            if before < -d_f:
                waits.append(chain.extra_f[j] - freed(j) + m_b - memory - before)
        return max(waits)
    return 0.0


def random_chain(rng: random.Random, last: int) -> Chain:
    """A chain of small integers."""
    draw = lambda n, top: tuple(rng.randint(0, top) for _ in range(n))  # noqa: E731
    return Chain(
        tuple(rng.randint(1, 5) for _ in range(last + 2)), draw(last + 2, 3),
        draw(last + 1, 5), draw(last + 1, 6), draw(last + 1, 2), draw(last + 1, 3),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# -------
# The errata.
# --------------------------------------------------------------------------------------------------
# -------


def test_corrected_formulas_equal_the_search_on_random_chains() -> None:
    rng = random.Random(5)
    compared = 0
    for _ in range(60):
        chain = random_chain(rng, rng.choice((1, 2)))
        memory = peak_bytes(chain) - rng.randint(1, 6)
        for offloaded in decisions(chain):
            truth = Search(chain, memory, offloaded, ordered=True).makespan()
            assert formula_makespan(chain, memory, offloaded) == truth, (chain, memory, offloaded)
            compared += truth < math.inf
    assert compared > 100


def decisions(chain: Chain) -> Iterator[tuple[int, ...]]:
    """All sets of offloaded activations."""
    for count in range(chain.last + 2):
        yield from itertools.combinations(range(chain.last + 1), count)


def peak_bytes(chain: Chain) -> int:
    """M_peak of section 3.2."""
    forward = [sum(chain.x[: i + 2]) + chain.extra_f[i] for i in range(chain.last + 1)]
    backward = [
        sum(chain.x[: i + 2]) + chain.extra_b[i] + chain.y[i] + chain.y[i + 1]
        for i in range(chain.last + 1)
    ]
    return max(forward + backward)


def test_002_bandwidth_unit() -> None:
    """Assumption (B) prints B|x_i| for the time of a transfer; B is bytes per time, so it is |x_i|
    / B.
    """
    bandwidth = 3
    # x_0 must leave before F_0 may write x_1, and nothing takes time but the two transfers of x_0.
    sizes_bytes = (18, 3, 18)
    in_units_of_b = Chain(
        tuple(b // bandwidth for b in sizes_bytes), *[(0,) * n for n in (3, 2, 2, 2, 2)]
    )
    truth = Search(in_units_of_b, 7, (0,), ordered=True).makespan()
    assert 2 * sizes_bytes[0] / bandwidth == truth == 12
    machine = Machine("unit", 1, 1, link_bytes_per_us=bandwidth)
    assert sum(machine.transfer_ns(sizes_bytes[0], way) for way in ("out", "in")) == 1000 * truth
    assert 2 * bandwidth * sizes_bytes[0] != truth
    # Proposition 3, which divides by B, is a bound for the corrected assumption.
    assert 2 * (peak_bytes(in_units_of_b) - 7) <= truth


def test_002_no_wait() -> None:
    """Fixed decisions and order of transfers, all as early as possible: the step never ends."""
    # x_0 leaves during F_0. While F_1, which is small, runs, x_0 fits again, and F_2's output then
    # does not.
    chain = Chain((4, 1, 1, 4), (0, 0, 0, 0), (4, 4, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0))
    memory = 6
    assert Search(chain, memory, (0,), ordered=True).makespan() < math.inf
    assert _greedy_makespan(chain, memory, (0,), prefetch_after=0) == math.inf
    # In one total order of operations and transfers (here: fetch after F_2) no-wait is well
    # defined.
    assert _greedy_makespan(chain, memory, (0,), prefetch_after=3) < math.inf


def _greedy_makespan(
    chain: Chain, memory: int, offloaded: tuple[int, ...], prefetch_after: int
) -> float:
    """Every action starts as early as it can; fetches not before operation `prefetch_after` has
    started.
    """
    search = Search(chain, memory, offloaded, ordered=True)
    state = (0, 0, (0,) * len(offloaded), (0,) * len(offloaded))
    for time in range(1000):
        *_, state = search._instantly(state)
        if state[0] == 2 * (chain.last + 1):
            return time
        moves = list(search._one_unit(state))
        transfers = [m for m in moves[1:] if m[3] == state[3] or state[0] >= prefetch_after]
        later = (transfers or moves[:1])[-1]
        if later == state:
            return math.inf
        state = later
    return math.inf


def test_002_lemma_3() -> None:
    """An unordered schedule may be shorter than every ordered one."""
    chain = Chain((4, 6, 4, 6), (3, 0, 0, 0), (3, 1, 1), (5, 6, 7), (1, 1, 2), (1, 0, 0))
    assert Search(chain, 16, (0, 1), ordered=False).makespan() == 26
    assert Search(chain, 16, (0, 1), ordered=True).makespan() == 27
    # Algorithm 1 finds the best ordered schedule; the lemma is true of those.
    assert min(formula_makespan(chain, 16, chosen) for chosen in decisions(chain)) == 27
    found = solve(in_library(chain, 16))
    assert found is not None
    assert found.idle_us + chain.compute == 27


@pytest.mark.parametrize(
    ("printed", "chain", "memory", "offloaded"),
    [
        pytest.param(
            replace(RIGHT, extra_in_eq6=lambda chain, i: chain.extra_f[i]),
            Chain((1, 1, 1), (0, 1, 1), (0, 5), (0, 0), (0, 2), (1, 0)), 4, (0,),
            id="002_eq_6_prints_ex_f",
        ),
        pytest.param(
            replace(RIGHT, subtracted_in_tests=lambda delta: delta),
            Chain((1, 1, 2), (1, 0, 0), (2, 0), (0, 1), (2, 2), (1, 2)), 5, (0,),
            id="002_feasibility_prints_delta",
        ),
        pytest.param(
            replace(RIGHT, delta_in_memory=lambda delta: delta),
            Chain((1, 1, 2), (1, 0, 0), (2, 0), (0, 1), (2, 2), (1, 2)), 5, (0,),
            id="002_memory_identity_prints_delta",
        ),
        pytest.param(
            replace(RIGHT, other_gradient_in_eq9=lambda chain, j: chain.y[j - 1] if j else 0),
            Chain((2, 2, 2), (0, 2, 1), (1, 0), (0, 1), (1, 0), (1, 1)), 8, (0,),
            id="002_eq_9_prints_y_before",
        ),
        pytest.param(
            replace(RIGHT, absent_in_eq10=lambda chain: 0),
            Chain((1, 1, 1), (0, 1, 1), (0, 5), (0, 0), (0, 2), (1, 0)), 4, (0, 1),
            id="002_eq_10_counts_the_last_gradient",
        ),
    ],
)  # fmt: skip
def test_002_printed_formula(
    printed: Formulas, chain: Chain, memory: int, offloaded: tuple[int, ...]
) -> None:
    truth = Search(chain, memory, offloaded, ordered=True).makespan()
    assert truth < math.inf
    assert formula_makespan(chain, memory, offloaded) == truth
    assert formula_makespan(chain, memory, offloaded, printed) != truth
    assert idle_us(in_library(chain, memory), offloaded) + chain.compute == truth


def test_002_eq_9_bound_direction() -> None:
    """The constraints on epsilon_G are lower bounds (">="), the text calls them upper bounds."""
    chain, memory = Chain((2, 2, 2), (0, 2, 1), (1, 0), (0, 1), (1, 0), (1, 1)), 8
    idle = Search(chain, memory, (0,), ordered=True).makespan() - chain.compute
    # At the end of F_1: 6 bytes of x, one of which has left; B_1 adds y_2, y_1 and one byte of its
    # own.
    need = chain.extra_b[1] + chain.y[1] + chain.y[2]
    constraint = need + (sum(chain.x) - 1) - memory
    assert idle >= constraint > 0


def test_002_delta_b_definition() -> None:
    """Equation (7) counts x_{i-1}, .., x_0; the definition prints x_L, .., x_i."""
    chain = Chain((3, 2, 2), (0, 0, 0), (9, 9), (1, 1), (0, 0), (0, 0))
    offloaded = (0,)
    delta_b_1 = chain.x[0] + positive(0 - chain.time_b[0])  # (7) for i = 0
    printed = sum(chain.x[j] for j in range(1, chain.last + 1) if j in offloaded)
    corrected = sum(chain.x[j] for j in range(1) if j in offloaded)
    assert delta_b_1 == corrected == 3
    assert printed == 0


def test_002_delta_f_negative() -> None:
    """Delta_F < 0 is minus Av_F * B; the text prints Av_B."""
    chain = Chain((2, 2, 2), (0, 0, 0), (3, 1), (5, 7), (0, 0), (0, 0))
    delta_f_1 = 0 - chain.time_f[0]  # (4), nothing offloaded, bandwidth 1
    free_since_the_last_offload = chain.time_f[0]  # Av_F: the link was free while F_0 ran
    free_before_the_first_prefetch = chain.time_b[0]  # Av_B, a time of the backward phase
    assert delta_f_1 == -free_since_the_last_offload
    assert delta_f_1 != -free_before_the_first_prefetch


def test_002_slots_rounding() -> None:
    """Sizes are rounded up to slots; what a transfer moves in a given time must be rounded down."""
    slot = 10
    chain = Chain((20, 20, 20), (0, 0, 0), (15, 1), (40, 40), (0, 0), (0, 0))
    memory = 40
    truth = formula_makespan(chain, memory, (0,))
    down = formula_makespan(chain, memory, (0,), replace(RIGHT, sent=lambda b: b // slot * slot))
    up = formula_makespan(
        chain, memory, (0,), replace(RIGHT, sent=lambda b: math.ceil(b / slot) * slot)
    )
    assert down >= truth  # a promise that a schedule can keep
    assert up < truth  # F_1 would start before there is room
    idle = {}
    for way in ("down", "up"):
        found = solve(in_library(chain, memory, slot, way))
        assert found is not None
        idle[way] = found.idle_us
    assert idle["down"] + chain.compute >= truth > idle["up"] + chain.compute


def in_library(
    chain: Chain, memory: int, slot: float = 1.0, transfers: Rounding = "down"
) -> SlotChain:
    """A chain as the planner `dynprog` counts it, on a link of one byte per us."""
    machine = Machine("unit", 1, 1, link_bytes_per_us=1, link="shared")
    times, extra = (chain.time_f, chain.time_b), (chain.extra_f, chain.extra_b)
    view = chain_view(trace_of(chain.x, chain.y, *times, *extra), machine)
    return in_slots(view, memory, machine, slot, transfers)


def test_002_k_range() -> None:
    """k in [0, n] of the 3-partition instance leaves the chain; [0, m - 1] fills it."""
    m = 3
    n, last = 3 * m, 5 * m
    assert max(3 * m + 2 * k for k in range(n + 1)) > last
    assert max(3 * m + 2 * k + 2 for k in range(m)) == last


def test_002_three_partition_start() -> None:
    """x_i = u_i must hold from i = 0: the printed range 1 <= i < 3m loses u_0."""
    u = (1, 2, 3)
    assert sum(u[i] for i in range(1, 3)) < sum(u) == 6
    assert sum(u[i] for i in range(3)) == 6


@pytest.mark.parametrize(("shift", "expected"), [(1, 4), (2, 2)])
def test_002_three_partition_off_by_one(shift: int, expected: int) -> None:
    """With |x_{3m+2k+1}| = V (as printed) T = 2m is impossible; with |x_{3m+2k+2}| = V it is
    reached.
    """
    u, capacity = (1, 1, 1), 3  # m = 1, one time unit of the paper = V units here, bandwidth 1
    sizes = u + tuple(capacity if i == 3 + shift else 0 for i in range(3, 7))
    time_f = (0, 0, 0, capacity, 0, 0)
    time_b = (0, 0, 0, capacity, 0, 0)
    assert WholeSearch(sizes, time_f, time_b, memory=capacity).makespan() == expected * capacity


@pytest.mark.parametrize(
    ("u", "capacity", "solvable"),
    [
        pytest.param((3, 3, 4, 3, 3, 4), 10, True, marks=pytest.mark.slow),
        pytest.param((4, 4, 4, 4, 4, 6), 13, False, marks=pytest.mark.slow),
    ],
)
def test_002_three_partition_off_by_one_corrected_reduction(
    u: tuple[int, ...], capacity: int, solvable: bool
) -> None:
    m = 2
    sizes = u + tuple(capacity if i in (8, 10) else 0 for i in range(6, 12))
    time_f = tuple(capacity if i in (6, 8) else 0 for i in range(11))
    time_b = tuple(m * capacity if i == 6 else 0 for i in range(11))
    makespan = WholeSearch(sizes, time_f, time_b, memory=m * capacity).makespan()
    assert (makespan == 2 * m * capacity) is solvable


class WholeSearch:
    """Shortest schedule of Problem 1 with every |y_i| = 0: whole activations, one transfer at a
    time.

    Memory is released when a transfer has ended and claimed when it begins. A state is (operations
    done, time left, sets of activations on the host and on the device again, transfer under way and
    its time left).
    """

    def __init__(self, x: tuple[int, ...], time_f: tuple, time_b: tuple, memory: int) -> None:
        self.x, self.times, self.memory = x, time_f + time_b[::-1], memory
        self.half = len(time_f)

    def makespan(self) -> float:
        states = {(0, 0, frozenset(), frozenset(), None, 0)}
        for time in itertools.count():
            reached: set[tuple] = set()
            pending = list(states)
            while pending:
                state = pending.pop()
                if state not in reached:
                    reached.add(state)
                    pending += self._starts(state)
            if any(state[0] == len(self.times) for state in reached):
                return time
            states = {self._tick(state) for state in reached if state[1] or state[4] is not None}
            if not states:
                return math.inf
        raise AssertionError("unreachable")

    def _starts(self, state: tuple) -> Iterator[tuple]:
        done, left, out, back, moving, moving_left = state
        if left == 0 and done < len(self.times) and self._fits(state, running=True):
            reads = self._reads(done)
            if not any((i in out and i not in back) or i == moving for i in reads):
                after = (done + 1, 0) if self.times[done] == 0 else (done, self.times[done])
                yield (*after, out, back, moving, moving_left)
        if moving is None:
            for i in range(min(done, self.half - 1) + 1):
                if self.x[i] and i not in out and done < self.half:
                    yield (done, left, out, back, i, self.x[i])
                if i in out and i not in back and done >= self.half - 1:
                    new = (done, left, out, back | {i}, i, self.x[i])
                    if self._fits(new, running=left > 0):
                        yield new

    def _tick(self, state: tuple) -> tuple:
        done, left, out, back, moving, moving_left = state
        if moving_left == 1:
            out, moving = out | {moving}, None
        return (done + (left == 1), max(left - 1, 0), out, back, moving, max(moving_left - 1, 0))

    def _reads(self, done: int) -> tuple[int, ...]:
        i = 2 * self.half - 1 - done
        return (done,) if done < self.half else (i, i + 1)

    def _fits(self, state: tuple, running: bool) -> bool:
        done, _, out, back, *_ = state
        newest = done if done < self.half else 2 * self.half - done
        present = sum(self.x[i] for i in range(newest + 1) if i not in out or i in back)
        return present + (self.x[done + 1] if running and done < self.half else 0) <= self.memory
