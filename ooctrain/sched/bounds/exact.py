"""The exact optimum of tiny steps, by search: the reference for every planner and every bound.

For a trace of a few calls over a few bytes and a budget, the search finds the least makespan of any
schedule, in us. With whole microseconds, whole bytes and one byte per microsecond, no event is
needed between two ticks, so a shortest path over the states at the ticks is the optimum (A*, by the
compute time still to come). A state says of each value how many bytes are only on the device, on
both sides, only on the host. Memory is given up only when something needs it, since keeping costs
nothing. Swapped byte by byte this is the fractional problem, value by value the whole-tensor one.

It is meant to be obviously right, not fast: some 8 calls of 3 bytes are its limit. Source: paper
002's problem 1, extended by recomputation. Read next: `lp_bound.py`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ooctrain.errors import ConfigError
from ooctrain.step.trace import Trace

NS_PER_US = 1000
Job = tuple[int, int]
Copy = tuple[int, int, int]
Held = tuple[int, int, int]  # bytes of a value: device only, both sides, host only
IDLE = (-1, 0)
QUIET = (-1, 0, 0)


@dataclass(frozen=True, slots=True)
class _State:
    """What is the case at a tick.

    Args:
        done: how many calls have run for the first time.
        job: (call, us still to run); `IDLE`.
        out, back: (value, bytes, us to go) of the transfers; `QUIET`.
        held: state of each value.
    """

    done: int
    job: Job
    out: Copy
    back: Copy
    held: tuple[Held, ...]


def exact_makespan_us(
    trace: Trace, budget_bytes: int, *, duplex: bool = False, recompute: bool = False,
    partial: bool = True, most_states: int = 300_000,
) -> int | None:  # fmt: skip
    """The least time from the first instruction to the end of the last call.

    Args:
        trace: with own durations in whole us, without `reuse` and without persistent values.
        duplex: whether both directions of the link work at once, each one byte per us.
        recompute: whether pure calls may run again.
        partial: whether bytes move one by one, else values as a whole.
        most_states: how many are looked at.

    Returns:
        The makespan; None if no schedule fits the budget.

    Raises:
        ConfigError: the trace is of another kind, or too large for the search.
    """
    return _Search(trace, budget_bytes, duplex, recompute, partial).run(most_states)


class _Search:
    def __init__(
        self, trace: Trace, budget_bytes: int, duplex: bool, recompute: bool, partial: bool
    ):
        if any(c.reuse or c.duration_ns is None or c.duration_ns % NS_PER_US for c in trace.calls):
            raise ConfigError(
                "the exact search takes only whole microseconds, and no storage that is reused",
                fix="times of whole microseconds; share_storage left out",
            )
        if any(variable.persistent for variable in trace.variables):
            raise ConfigError(
                "the exact search takes no persistent values",
                fix="a step of inputs, activations and gradients alone",
            )
        self.trace, self.budget_bytes = trace, budget_bytes
        self.duplex, self.recompute, self.partial = duplex, recompute, partial
        self.size = [variable.nbytes for variable in trace.variables]
        self.duration = [(call.duration_ns or 0) // NS_PER_US for call in trace.calls]
        self.touched = [frozenset(call.touched()) for call in trace.calls]
        self.last_use = [uses[-1] if uses else -1 for uses in trace.uses]

    def run(self, most_states: int) -> int | None:
        to_come = [0, *itertools.accumulate(reversed(self.duration))][::-1]
        start = _State(0, IDLE, QUIET, QUIET, tuple(
            (0, 0, size if producer is None else 0)
            for size, producer in zip(self.size, self.trace.producer, strict=True)
        ))  # fmt: skip
        best = {start: 0}
        order = itertools.count()
        queue = [(to_come[0], next(order), start)]
        while queue:
            estimate, _, state = heapq.heappop(queue)
            time_us = best[state]
            if estimate > time_us + self._to_come(state, to_come):
                continue
            if state.done == len(self.duration):
                return time_us
            if len(best) > most_states:
                raise ConfigError(
                    "the step is too large for an exact search",
                    fix="fewer stages, or the bound of sched/bounds/lp_bound.py",
                )
            for after, took_us in self._followers(state):
                if time_us + took_us < best.get(after, 1 << 60):
                    best[after] = time_us + took_us
                    estimate = best[after] + self._to_come(after, to_come)
                    heapq.heappush(queue, (estimate, next(order), after))
        return None

    def _to_come(self, state: _State, to_come: list[int]) -> int:
        """The compute time still to come, at least."""
        running, left = state.job
        first = running >= state.done and state.job != IDLE
        return to_come[state.done + 1] + left if first else to_come[state.done] + left

    def _followers(self, state: _State) -> Iterator[tuple[_State, int]]:
        """States a tick later, or at once where a call takes no time."""
        for job, out, back in self._choices(state):
            begun = _State(state.done, job, out, back, state.held)
            for held in self._with_room(state, begun):
                after = _State(state.done, job, out, back, held)
                if job != IDLE and job[1] == 0:
                    yield self._finish_job(after), 0
                elif (job, out, back) != (IDLE, QUIET, QUIET):
                    yield self._tick(after), 1

    def _choices(self, state: _State) -> Iterator[tuple[Job, Copy, Copy]]:
        """(job, out, back) for the next tick: what goes on goes on, the rest is free."""
        jobs = [state.job] if state.job != IDLE else [IDLE, *self._startable(state)]
        outs = [state.out] if state.out != QUIET else [QUIET, *self._sendable(state)]
        backs = [state.back] if state.back != QUIET else [QUIET, *self._fetchable(state)]
        for job, out, back in itertools.product(jobs, outs, backs):
            if self.duplex or out == QUIET or back == QUIET:
                yield job, out, back

    def _startable(self, state: _State) -> Iterator[Job]:
        calls = range(state.done) if self.recompute else ()
        for call in [*calls, state.done]:
            again = call < state.done
            if again and not (self.trace.calls[call].pure and self._lacks(state, call)):
                continue
            if all(self._on_device(state, v) == self.size[v] for v in self.trace.calls[call].ins):
                yield call, self.duration[call]

    def _lacks(self, state: _State, call: int) -> bool:
        outs = self.trace.calls[call].outs
        return any(sum(state.held[v]) < self.size[v] for v in outs)

    def _sendable(self, state: _State) -> Iterator[Copy]:
        for v, (alone, _, _) in enumerate(state.held):
            if alone and self.last_use[v] >= state.done and self._whole(state, v):
                size = 1 if self.partial else alone
                yield v, size, size

    def _fetchable(self, state: _State) -> Iterator[Copy]:
        for v, (_, _, away) in enumerate(state.held):
            if away and self.last_use[v] >= state.done and not self._is_written(state, v):
                size = 1 if self.partial else away
                yield v, size, size

    def _whole(self, state: _State, v: int) -> bool:
        return self.partial or state.held[v][0] == self.size[v]

    def _is_written(self, state: _State, v: int) -> bool:
        return state.job != IDLE and v in self.trace.calls[state.job[0]].outs

    def _on_device(self, state: _State, v: int) -> int:
        return state.held[v][0] + state.held[v][1]

    # Memory.

    def _with_room(self, state: _State, begun: _State) -> Iterator[tuple[Held, ...]]:
        """What is held after giving up just enough for what begins; several ways, or none."""
        needed = sum(alone + both for alone, both, _ in begun.held) + begun.back[1]
        if begun.job != IDLE:
            call = self.trace.calls[begun.job[0]]
            needed += call.workspace_bytes
            needed += sum(self.size[v] - self._on_device(begun, v) for v in call.outs)
        excess = needed - self.budget_bytes
        if excess <= 0:
            yield begun.held
            return
        spare = [found for v in range(len(begun.held)) if (found := self._spare(begun, v))]
        after = [*itertools.accumulate(lost + kept for _, lost, kept in reversed(spare))][::-1]
        yield from self._give_up(begun, list(begun.held), spare, [*after, 0], excess)

    def _give_up(
        self, state: _State, held: list[Held], spare: Sequence[tuple[int, int, int]],
        total: Sequence[int], excess: int,
    ) -> Iterator[tuple[Held, ...]]:  # fmt: skip
        """All ways to take at least `excess` bytes from the spare ones, none of them wasteful."""
        if excess <= 0:
            yield tuple(held)
        elif total[0] >= excess:
            v, lost, kept = spare[0]
            before = held[v]
            for alone, both in self._shares(lost, kept, excess):
                left = self.last_use[v] >= state.done or self.recompute
                away = before[2] + both if left else 0
                held[v] = (before[0] - alone, before[1] - both, away)
                rest = excess - alone - both
                yield from self._give_up(state, held, spare[1:], total[1:], rest)
            held[v] = before

    def _shares(self, lost: int, kept: int, excess: int) -> Iterator[tuple[int, int]]:
        if not self.partial:
            yield from ((0, 0), (lost, kept))
            return
        for alone in range(min(lost, excess) + 1):
            for both in range(min(kept, excess - alone) + 1):
                yield alone, both

    def _spare(self, state: _State, v: int) -> tuple[int, int, int] | None:
        """(value, bytes that are nowhere else, bytes that the host has too) that may go."""
        alone, both, _ = state.held[v]
        if not alone + both:
            return None
        if state.job != IDLE and v in self.touched[state.job[0]]:
            return None
        producer = self.trace.producer[v]
        lasting = producer is None or not self.trace.calls[producer].pure
        dead = self.last_use[v] < state.done
        lost = alone if dead or (self.recompute and not lasting) else 0
        lost = max(0, lost - (state.out[1] if state.out[0] == v else 0))
        if not self.partial and lost < alone:
            return None
        return (v, lost, both) if lost + both else None

    # Time.

    def _tick(self, state: _State) -> _State:
        held = list(state.held)
        out, back, job = state.out, state.back, state.job
        if out != QUIET:
            out = (out[0], out[1], out[2] - 1)
            if not out[2]:
                alone, both, away = held[out[0]]
                held[out[0]] = (alone - out[1], both + out[1], away)
                out = QUIET
        if back != QUIET:
            back = (back[0], back[1], back[2] - 1)
            if not back[2]:
                alone, both, away = held[back[0]]
                held[back[0]] = (alone, both + back[1], away - back[1])
                back = QUIET
        if job != IDLE:
            job = (job[0], job[1] - 1)
        after = _State(state.done, job, out, back, tuple(held))
        return self._finish_job(after) if job != IDLE and not job[1] else after

    def _finish_job(self, state: _State) -> _State:
        call = state.job[0]
        done = max(state.done, call + 1)
        held = list(state.held)
        for v in self.trace.calls[call].outs:
            _, both, away = held[v]
            both, away = both + away, 0  # the host's bytes are on the device again too
            held[v] = (self.size[v] - both, both, away)
        if not self.recompute:
            held = [kept if self.last_use[v] >= done else (0, 0, 0) for v, kept in enumerate(held)]
        return _State(done, IDLE, state.out, state.back, tuple(held))
