"""Planted bugs of planners: each is what a competent developer might have written.

`BUGS` is {name: (a function that plants it with pytest's monkeypatch, planner)}. All of them plan a
straight line of calls correctly. Forks, updates, updates that are not in place, repeated inputs,
workspaces, granules or tight budgets show the bug. Read next: `test_planner_bugs.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from ooctrain.errors import Infeasible
from ooctrain.sched.planners import lms as lms_module
from ooctrain.sched.planners import naive
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.sched.planners.lms import LevelGraph, Lms
from ooctrain.sched.planners.lru import _Cache
from ooctrain.sched.planners.naive import Naive
from ooctrain.sched.planners.window import SlidingWindow, Walk
from ooctrain.sched.planning import chain_view, list_writer
from ooctrain.sched.planning import list_writer as sequence
from ooctrain.sched.planning.list_writer import ListWriter
from ooctrain.sched.planning.lower import NEVER, AsapEngine
from ooctrain.sched.schedule import End, Free, Run
from ooctrain.step.machine import call_durations_ns
from ooctrain.step.trace import Trace

Plant = Callable[[pytest.MonkeyPatch], None]


def _method(owner: type, name: str) -> Callable[[Callable], Plant]:
    """Plants a function in place of a method."""
    return lambda function: lambda patch: patch.setattr(owner, name, function)


# ------------------------------------------------------------------ lives


def _last_use_is_the_first_reader(trace: Trace) -> list[int]:
    """Frees before the last reader of what is read twice."""
    last = [uses[:2][-1] if uses else -1 for uses in trace.uses]
    for variable in trace.end_variables.values():
        last[variable] = len(trace.calls)
    return last


def _updates_die_like_all_others(trace: Trace) -> list[int]:
    """Forgets that what has no reader may be next step's parameter."""
    last = [uses[-1] if uses else -1 for uses in trace.uses]
    for start, end in trace.end_variables.items():
        if start == end:
            last[end] = len(trace.calls)
    return last


def _plant_last_uses(function: Callable[[Trace], list[int]]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(list_writer, "last_uses", function)
        patch.setattr(sequence, "last_uses", function)

    return plant


def _free_dead_inputs_one_by_one(self: ListWriter, call_id: int) -> None:
    """Walks the inputs as they are written: x * x frees x twice."""
    call = self.trace.calls[call_id]
    dead = [v for v in call.ins + call.outs if self.is_dead(v, call_id) and v in self.resident]
    for variable in dead:
        self._move(Free, variable)
        self.ledger_bytes -= self.granted(variable)
        self.resident.discard(variable)


def _run_without_reuse(self: ListWriter, call_id: int) -> None:
    """Claims an output in place as if it were new, and leaves its input to be freed."""
    call = self.trace.calls[call_id]
    workspace = self.granule.granted(call.workspace_bytes)
    self._claim(sum(map(self.granted, call.outs)) + workspace)
    self._instructions += [Run(call_id), End(call_id)]
    self.ledger_bytes -= workspace
    self.resident.update(call.outs)


# ------------------------------------------------------------------ host copies

_RUN, _CANCEL = ListWriter.run, ListWriter.cancel_swap_out


def _run_keeps_the_copy_of_what_it_updates(self: ListWriter, call_id: int) -> None:
    """Takes the host copy of the storage for the copy of the value: an update leaves clean."""
    _RUN(self, call_id)
    for out, source in self.trace.calls[call_id].reuse.items():
        if source in self.hosted:
            self.hosted.add(out)


def _cancel_leaves_the_copy_valid(self: ListWriter, variable: int) -> None:
    """Takes the copy off the list, but not out of the books: the next eviction drops the value."""
    _CANCEL(self, variable)
    self.hosted.add(variable)


# ------------------------------------------------------------------ budgets


def _granted_is_asked(self: ListWriter, variable: int) -> int:
    """Forgets to round by the granule."""
    return self.trace.variables[variable].nbytes


def _enter_beside_what_leaves(self: Walk, root: int) -> None:
    """Prefetches into bytes that a swap-out has not yet given back."""
    size, variable = self.sequence.size_bytes[root], self.version[root]
    if root in self.leaving:
        del self.leaving[root]
        self.leaving_bytes -= size
        self.writer.cancel_swap_out(variable)
    elif variable in self.writer.hosted:
        self.writer.swap_in(variable)
    else:
        self.reserved.add(root)
        return
    self.present_bytes += size


_STEP = Walk.step


def _step_without_workspace(self: Walk, call) -> None:
    """Makes room for the outputs only."""
    known, self.sequence.workspace_bytes = (
        self.sequence.workspace_bytes,
        [0] * len(self.sequence.workspace_bytes),
    )
    _STEP(self, call)
    self.sequence.workspace_bytes = known


def _peak_without_workspace(self: ListWriter, call_id: int) -> None:
    """Counts the workspace after its peak: the least that is reported is too small."""
    call = self.trace.calls[call_id]
    self._running = call.name
    self._claim(sum(self.granted(out) for out in call.outs if out not in call.reuse))
    self._instructions += [Run(call_id), End(call_id)]
    self.resident.difference_update(call.reuse.values())
    self.resident.update(call.outs)


class LimitsMissingHost(Naive):
    """Knows the host budget only by name."""

    def plan(self, question):
        return super().plan(replace(question, host_budget_bytes=None))


class MinimumPlusSlack(Naive):
    """Adds a safety margin to the minimum, and refuses what would do."""

    def plan(self, question):
        try:
            return super().plan(question)
        except Infeasible as refusal:
            if refusal.minimum_bytes:
                refusal.minimum_bytes += 1
            raise


# ------------------------------------------------------------------ purity, scale, claims


class RemembersDurations(KeepAll):
    """Uses the machine's profile as a cache."""

    def plan(self, question):
        question.machine.profile[f"{question.trace.fingerprint}"] = 1.0
        return super().plan(question)


class StartsWhereItEnded(SlidingWindow):
    """Begins its search with the window that it tried last: the second plan is another one."""

    def plan(self, question):
        size = next(self.sizes)
        return replace(SlidingWindow(), size=size).plan(question)

    sizes = itertools.cycle((0.5, 1.5, 4.0))


def _small_ones_stay(writer: ListWriter, variable: int, call, stays) -> None:
    """Does not move what is not worth a transfer, in bytes that somebody has measured once."""
    if writer.is_dead(variable, call.id):
        writer.free(variable)
    elif variable not in stays and writer.granted(variable) > 16:
        writer.swap_out(variable)
        writer.free(variable)


class ClaimsItsOwnEstimate(KeepAll):
    """Fills in the makespan from the calls' durations: inputs cost nothing."""

    def plan(self, question):
        plan = super().plan(question)
        return replace(
            plan, makespan_us=sum(call_durations_ns(question.trace, question.machine)) / 1000
        )


# ------------------------------------------------------------------ the engine


def _reserve_only_now(self: AsapEngine, piece) -> bool:
    """Looks whether the bytes fit now, not in the calls up to their use: a prefetch blocks one."""
    return True


def _release_when_copied(self: AsapEngine) -> None:
    """Frees what has been copied out, though the call before the gap has yet to read it."""
    piece, self.going, self.out_ends_ns = self.going, None, NEVER
    self._release(piece)


# ------------------------------------------------------------------ the planners of the papers


def _trips_that_return_before_they_leave(self: LevelGraph, variable: int, lms: Lms):
    """Forgets that a swap-in may be triggered before the last near reader has run."""
    producer = self.trace.producer[variable]
    home = 0 if producer is None else self.level[producer]
    last_use = -1 if producer is None else producer
    for reader in self.trace.readers[variable]:
        if self.level[reader] - home >= lms.swapout_threshold or last_use == -1:
            yield lms_module.Trip(variable, last_use, self.trigger(reader, lms.swapin_ahead))
        last_use = reader


def _make_room_among_all(self: _Cache, size_bytes: int, touched) -> None:
    """Evicts whatever is oldest, the running call's own inputs too."""
    for variable in list(self.recent):
        if self.ledger_bytes + size_bytes <= self.budget_bytes:
            return
        self._evict(variable, self.size[variable])


def _make_room_for_what_rested(self: Walk, size_bytes: int) -> None:
    """Lets parameters that rested on the device go like what was swapped out: without a copy."""
    while self.present_bytes + self.leaving_bytes + size_bytes > self.budget_bytes:
        root = next(iter(self.leaving))
        del self.leaving[root]
        self.leaving_bytes -= self.sequence.size_bytes[root]
        self.writer.free(self.version[root])


#: {name: (plant, planner)}; a planner may be given by its name.
BUGS: dict[str, tuple[Plant, object]] = {
    "frees before the last reader": (_plant_last_uses(_last_use_is_the_first_reader), KeepAll()),
    "forgets carried variables at the end": (
        _plant_last_uses(_updates_die_like_all_others), Naive(),
    ),
    "frees repeated inputs twice": (
        _method(ListWriter, "free_dead")(_free_dead_inputs_one_by_one), KeepAll(),
    ),
    "does not know reuse": (_method(ListWriter, "run")(_run_without_reuse), Naive()),
    "stale parameter after its update": (
        _method(ListWriter, "run")(_run_keeps_the_copy_of_what_it_updates), Naive(),
    ),
    "drops a value whose copy was cancelled": (
        _method(ListWriter, "cancel_swap_out")(_cancel_leaves_the_copy_valid), SlidingWindow(),
    ),
    "both values in one host slot": (
        lambda patch: patch.setattr(naive, "bound_to_device", lambda trace: frozenset()), Naive(),
    ),
    "does not round by the granule": (_method(ListWriter, "granted")(_granted_is_asked), Naive()),
    "prefetches past the budget": (
        _method(Walk, "_enter")(_enter_beside_what_leaves), SlidingWindow(),
    ),
    "forgets the workspace": (_method(Walk, "step")(_step_without_workspace), SlidingWindow()),
    "workspace after the peak": (_method(ListWriter, "run")(_peak_without_workspace), Naive()),
    "ignores the host budget": (lambda patch: None, LimitsMissingHost()),
    "adds slack to the minimum": (lambda patch: None, MinimumPlusSlack()),
    "caches in the machine": (lambda patch: None, RemembersDurations()),
    "remembers the last plan": (lambda patch: None, StartsWhereItEnded()),
    "measures size in fixed bytes": (
        lambda patch: patch.setattr(naive, "_part_with", _small_ones_stay), Naive(),
    ),
    "claims its own estimate": (lambda patch: None, ClaimsItsOwnEstimate()),
    "prefetch blocks a call": (_method(AsapEngine, "_reserve")(_reserve_only_now), "belady"),
    "a chain without extra memory": (
        lambda patch: patch.setattr(chain_view, "_extra", lambda *arguments: 0), "greedy",
    ),
    "comes back before it has left": (
        _method(LevelGraph, "_trips_of")(_trips_that_return_before_they_leave),
        Lms(1, 1, 0),
    ),
    "evicts its own inputs": (_method(_Cache, "_make_room")(_make_room_among_all), "lru"),
    "drops parameters that rested": (
        _method(Walk, "_make_room")(_make_room_for_what_rested), "window-cyclic",
    ),
    "frees as soon as it is copied": (
        _method(AsapEngine, "_end_out")(_release_when_copied), "belady",
    ),
}  # fmt: skip
