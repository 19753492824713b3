"""A cache of prepared steps, with the memory that planning them left behind.

A step is planned once, and used as long as its key is the same. Under a memory budget each step has
a promise, which also counts Python's objects of its list. But other steps' plans take memory too,
and the heap has gaps where planning had tried what it did not take. So what the process holds is
measured before and after each plan. A step whose promise has too little for that is planned again,
and one that was planned earlier is forgotten. Source: ours. Read next: `promise.py`, `fit.py`;
`seen.py` for the keys.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from ooctrain.devices.cpu.host_vm import check_memory
from ooctrain.devices.spill import Spill, look_at
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import DoesNotFit, Infeasible, OoctrainError
from ooctrain.execution.fit import prepare, share_bytes
from ooctrain.execution.planners import as_planner
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.promise import (
    OWN_STEP_BYTES,
    OwnShare,
    expected_lists_bytes,
    held_here,
    in_steps,
    own_share,
    running_bytes,
    values_bytes,
)
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile.offers import forget_tilings
from ooctrain.sched.planning.effort import searches
from ooctrain.step.machine import forget_durations
from ooctrain.step.trace import Trace

#: Steps that a trainer remembers at least; each change of what they depend on makes another.
MOST_REMEMBERED = 32
#: Instructions of all steps that it remembers beyond these; some 200 bytes each. So a data set with
#: many shapes of batches, which come one after the other again and again, is planned once.
MOST_INSTRUCTIONS = 500_000
#: Refusals that it remembers.
MOST_REFUSED = 256


class StepCache:
    """Prepared steps by what they depend on; those used last are kept.

    Args:
        make_room: gives back what the device holds. It is called before a memory budget is divided,
            since planning takes memory, too, and no promise has any for it while an arena is there.
    """

    def __init__(self, make_room: Callable[[], None]):
        self._make_room = make_room
        self._steps: dict[tuple[Any, ...], PreparedStep] = {}
        self._refused: dict[tuple[Any, ...], Infeasible | DoesNotFit] = {}
        self._budgets: dict[Hashable, int] = {}  # by settings, of the largest training step
        self._disk: Spill | None = None  # as it was looked at
        self._own: OwnShare | None = None  # of the process, before the first arena was opened
        self._left_bytes = 0  # what planning has left of memory since then

    def find(self, key: tuple[Hashable, ...]) -> PreparedStep | None:
        """The step of this key, if it is still there."""
        if (refusal := self._refused.get(key)) is not None:
            raise copy.copy(refusal)
        found = self._steps.pop(key, None)
        if found is not None:
            self._steps[key] = found
        return found

    def know(self, key: tuple[Any, ...], step: PreparedStep) -> None:
        """Another key of a step that has been added just now."""
        self._steps.setdefault(key, step)
        self._forget_oldest()

    def add(
        self, key: tuple[Any, ...], trace: Trace, settings: Settings, values: Iterable[Tensor],
        training: Callable[[], Trace] | None = None,
    ) -> PreparedStep:  # fmt: skip
        """Prepares a step, unless one is there whose trace came out the same.

        Args:
            values: all that persists, those that the step does not use included.
            training: for an evaluation, the training step of its batch: of that a percentage is,
                until a step trains.
        """
        try:
            return self._add(key, trace, settings, values, training)
        except (Infeasible, DoesNotFit) as refusal:
            if settings.time_limit_s is None:  # with more time there may be a plan
                self._refused[key] = copy.copy(refusal)  # without the frames it was raised in
                if len(self._refused) > MOST_REFUSED:
                    del self._refused[next(iter(self._refused))]
            raise

    def _add(
        self, key: tuple[Any, ...], trace: Trace, settings: Settings, values: Iterable[Tensor],
        training: Callable[[], Trace] | None,
    ) -> PreparedStep:  # fmt: skip
        whole, is_share = key[1].whole, _is_share(settings.budget)
        alike = (
            step
            for (known, shape, persisting, *_), step in self._steps.items()
            if (known, shape.whole, persisting) == (key[0], whole, key[2])
            and step.original == trace
        )
        found = next(alike, None)
        if found is None:
            settings = self._with_disk(self._in_bytes(key, trace, settings, training))
            if not key[1].bands:
                settings = replace(settings, same_bits=True)
            try:
                found = (
                    prepare(trace, settings)
                    if settings.memory is None
                    else self._promised(trace, settings, values, whole)
                )
            finally:
                _forget_planning()
            more = self._budgets.get(key[0], 0) < found.budget_bytes
            if key[1].training and more and is_share:
                self._forget(key[0])
                self._budgets[key[0]] = found.budget_bytes
        self._steps[key] = found
        self._forget_oldest()
        return found

    def _forget_oldest(self) -> None:
        """Keeps the steps that were used last, each under all of its keys."""
        kept = {id(step): step for step in self._steps.values()}
        total = sum(len(step.plan.schedule.instructions) for step in kept.values())
        while len(kept) > MOST_REMEMBERED and total > MOST_INSTRUCTIONS:
            oldest = next(iter(self._steps.values()))
            self._steps = {key: step for key, step in self._steps.items() if step is not oldest}
            total -= len(kept.pop(id(oldest)).plan.schedule.instructions)

    def _promised(
        self, trace: Trace, settings: Settings, values: Iterable[Tensor], whole: int | None
    ) -> PreparedStep:  # fmt: skip
        """A step whose promise has room for what planning has left, this time and before."""
        self._make_room()
        self._own = self._own or _own_share(trace, settings, values)
        # Not as it was at first: another optimizer has other slots.
        persisting, room_bytes = values_bytes(values), self._left_bytes
        while True:
            own = replace(self._own, values_bytes=persisting, left_bytes=in_steps(room_bytes))
            found = self._measured(partial(prepare, trace, settings, own, whole))
            if isinstance(found, PreparedStep):
                needed_bytes = self._running_bytes(found)
                if self._is_kept(found):
                    if found.promise is not None:
                        rest_bytes = found.promise.promised_bytes - held_here()
                        check_memory(rest_bytes, "the rest of --memory wants")
                    _compile_apart(found.plan.trace)
                    return found
            else:
                needed_bytes = self._left_bytes
                if needed_bytes <= expected_lists_bytes(trace, own):
                    raise found
            # More each time, so that it ends: by a refusal if need be.
            room_bytes = max(needed_bytes, room_bytes + OWN_STEP_BYTES)

    def _measured(
        self, planning: Callable[[], PreparedStep]
    ) -> PreparedStep | Infeasible | DoesNotFit:
        """Plans or finds a refusal, gives back what can be, and forgets the steps that cannot keep
        their promise with the rest: they are planned anew when their turn comes."""
        before = held_here()
        try:
            return planning()
        except (Infeasible, DoesNotFit) as refusal:
            # A copy knows nothing of the frames in which all that was tried still lies.
            return copy.copy(refusal)
        finally:
            _forget_planning()
            self._left_bytes = max(0, self._left_bytes + held_here() - before)
            self._steps = {key: step for key, step in self._steps.items() if self._is_kept(step)}

    def _is_kept(self, step: PreparedStep) -> bool:
        """Whether a step can keep its promise, if it has one, given what planning has left."""
        promise = step.promise
        return promise is None or self._running_bytes(step) <= promise.list_bytes

    def _running_bytes(self, step: PreparedStep) -> int:
        return running_bytes(self._left_bytes, len(step.plan.schedule.instructions))

    def _with_disk(self, settings: Settings) -> Settings:
        """The settings, with what a disk could do when it was first looked at: later it may be
        full, and the trainer has its space.
        """
        disk = settings.disk
        if disk is None:
            return settings
        if self._disk != disk:
            self._disk = replace(disk, place=look_at(disk.folder))
        return replace(settings, spill=self._disk)

    def _in_bytes(
        self, key: tuple[Any, ...], trace: Trace, settings: Settings,
        training: Callable[[], Trace] | None,
    ) -> Settings:  # fmt: skip
        """The settings, a percentage being that of the largest step that was trained."""
        known = self._budgets.get(key[0])
        if not _is_share(settings.budget):
            return settings
        if key[1].training:
            if known is None:
                return settings
            known = max(known, share_bytes(trace, settings))
        elif known is None:
            try:
                known = share_bytes(trace if training is None else training(), settings)
            except OoctrainError:  # its loss wants other targets
                known = share_bytes(trace, settings)
        return replace(settings, budget=known)

    def _forget(self, settings: Hashable) -> None:
        """Forgets what was planned and refused in fewer bytes: its turn comes again."""
        self._steps = {key: step for key, step in self._steps.items() if key[0] != settings}
        self._refused = {k: refusal for k, refusal in self._refused.items() if k[0] != settings}


def _is_share(budget: int | str | None) -> bool:
    """Whether a budget is a percentage."""
    return isinstance(budget, str) and budget.strip().endswith("%")


def _forget_planning() -> None:
    """Gives back what planners keep from one question to the next, about the same step as a rule:
    durations of calls, and the steps that were written in bands, of thousands of calls each. The
    next plan finds its tables anew."""
    forget_durations()
    forget_tilings()


def _own_share(trace: Trace, settings: Settings, values: Iterable[Tensor]) -> OwnShare:
    """What this process holds by itself, once it has loaded what it needs to prepare and run the
    step."""
    search_too = searches(as_planner(settings.planner))
    _compile_apart(apply_rewrites(trace, settings.rewrites), searches=search_too)
    return own_share(trace, settings.rewrites, values, searches=search_too)


def _compile_apart(trace: Trace, *, searches: bool = False) -> None:
    """Has the kernels of a step compiled by a process of its own, and the search if need be."""
    # Late: it loads Numba, which preparing a step otherwise does without.
    from ooctrain.execution.compile_apart import compile_apart

    compile_apart((call.op for call in trace.calls), searches=searches)
