"""The interface of every planner, and the bookkeeping that list-writing planners share.

A planner decides *what* moves *when*. `ListWriter` keeps the books: which variables are resident,
which host copies are valid, how many granted bytes are claimed. A planner's file therefore shows
only its algorithm. The lists are legal, and the plans state what the simulator finds. Read next:
`sched/planners/keep_all.py`, `sched/planners/naive.py`, then `sched/planners/window/window.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

from ooctrain.errors import ConfigError, Infeasible
from ooctrain.sched.ledger import peaks, walk
from ooctrain.sched.schedule import (
    BYTES,
    End,
    Fence,
    Free,
    Granule,
    Instruction,
    Plan,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
    whole,
)
from ooctrain.sched.simulate import times_ns
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Call, Trace
from ooctrain.units import format_bytes

#: `Infeasible.minimum_bytes` where host memory is what lacks and the planner names no device budget
#: that makes up for it: there is no such plan, or it has not looked for one.
HOST_LACKS = 0


class Planner(Protocol):
    """Turns a trace and a budget into a plan. A pure function of its arguments."""

    @property
    def name(self) -> str:
        """Its name in tables and messages."""
        ...

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """A plan whose ledger stays within the budget.

        Args:
            trace: the (rewritten) step.
            budget_bytes: of everything on the device, in granted bytes.
            machine: what decisions and the claimed makespan stand on.
            granule: how the allocator rounds, and whether parts of variables may move.
            host_budget_bytes: of host copies; None: unlimited.
            seed: of planners that draw random numbers.
            time_limit_s: only interrupts a search, and the plan's notes then say `cut_short`;
                what ends it otherwise is a number of evaluations (`effort.py`).

        Raises:
            Infeasible: with the least budget at which this same planner succeeds, host memory
                permitting; with `HOST_LACKS` where it is host memory that does not suffice.
        """
        ...


@runtime_checkable
class WeighingPlanner(Planner, Protocol):
    """A planner that chooses among whole plans, by a measure that the caller may replace.

    What a plan claims leaves out what its allocator costs (mapping memory, for example). The
    caller who prepares a step knows the allocator, and can give a function that counts it.
    """

    def weighing_by(self, step_us: Callable[[Plan], float]) -> Planner:
        """The same planner, which compares plans by `step_us(plan)`, not by their makespans."""
        ...


@runtime_checkable
class OfferedPlanner(Planner, Protocol):
    """A planner that chooses among forms of one step, too.

    The composer of a plan knows rewrites that keep the bits; a planner knows whether one pays.
    """

    def offered(self, steps: Mapping[str, Trace]) -> Planner:
        """The same planner, which may answer for one of these steps instead.

        Args:
            steps: {name of a rewrite: the step after it}. A plan for one of them has this step as
                its `trace`, and the name in its `rewrites`.
        """
        ...


def as_plan(found: object, planner: Planner) -> Plan:
    """What a planner returned, if it is a plan at all; ConfigError otherwise."""
    if not isinstance(found, Plan):
        raise ConfigError(
            f"planner {planner.name!r} returned {type(found).__name__}, not a Plan",
            code="OOC-108",
            fix="plan() returns a Plan, such as `make_plan(...)` gives",
        )
    for name, kind in (("trace", Trace), ("schedule", Schedule), ("notes", Mapping)):
        value = getattr(found, name)
        if not isinstance(value, kind):
            raise _wrong_plan(planner, f"has {type(value).__name__} as its {name}")
    for index, instruction in enumerate(found.schedule.instructions):
        if not isinstance(instruction, Instruction):
            what = f"has {instruction!r} as instruction {index}, not an Instruction"
            raise _wrong_plan(planner, what, "Run, End, SwapOut, SwapIn, Free or Fence")
    return found


def _wrong_plan(planner: Planner, what: str, fix: str = "") -> ConfigError:
    return ConfigError(
        f"the plan of planner {planner.name!r} {what}", code="OOC-108",
        fix=fix or "make it with `make_plan(schedule, trace, machine)`",
    )  # fmt: skip


def checked_refusal(refusal: Infeasible, planner: Planner) -> Infeasible:
    """A planner's refusal, if it names its least budget; ConfigError otherwise."""
    least = refusal.minimum_bytes
    if isinstance(least, bool) or not isinstance(least, Integral) or least < 0:
        raise ConfigError(
            f"planner {planner.name!r} refuses with minimum_bytes={least!r}", code="OOC-108",
            fix="the least budget in bytes at which it has a plan, as `infeasible(...)` takes it",
        )  # fmt: skip
    return refusal


def call_need_bytes(call: Call, trace: Trace, granule: Granule) -> int:
    """Granted bytes that a call needs by itself: distinct storages of what it touches, and
    workspace.
    """
    variables = (v for v in call.touched() if v not in call.reuse)
    touched = sum(granule.granted(trace.variables[v].nbytes) for v in variables)
    return touched + granule.granted(call.workspace_bytes)


def last_uses(trace: Trace) -> list[int]:
    """For each variable the last call that touches it: -1 if none, a call past the end if it
    persists.
    """
    last = [uses[-1] if uses else -1 for uses in trace.uses]
    for variable in trace.end_variables.values():
        last[variable] = len(trace.calls)
    return last


def bound_to_device(trace: Trace) -> frozenset[int]:
    """Parameters that are read after their update exists, and these updates.

    Both values would need the one host slot of the parameter at the same time, so list writers that
    move whole variables leave such pairs on the device. Updates in place, as optimizers make them,
    are not concerned.
    """
    pairs = ((old, new) for new, old in trace.carries.items())
    return frozenset(
        variable
        for old, new in pairs
        if trace.readers[old] and trace.readers[old][-1] > trace.uses[new][0]
        for variable in (old, new)
    )


def turning_point(trace: Trace) -> int:
    """The first call after the forward phase; past the end where no call follows."""
    return next((call.id for call in trace.calls if call.phase != "forward"), len(trace.calls))


class ListWriter:
    """Writes a list instruction by instruction and keeps its books; variables move as a whole.

    Args:
        trace: what the list runs.
        granule: how the ledger rounds.
        device: variables that are on the device before the step.
        host: variables with a valid host copy before the step.

    Attributes:
        resident: variables on the device at this point of the list.
        hosted: variables with a valid host copy, already made or listed.
        ledger_bytes, peak_bytes: granted bytes now, and the most so far.
        peak_call: name of the call at which the peak was reached.
    """

    def __init__(
        self, trace: Trace, granule: Granule, device: Collection[int], host: Collection[int]
    ):
        self.trace, self.granule = trace, granule
        self.device_start, self.host_start = tuple(sorted(device)), tuple(sorted(host))
        self.resident, self.hosted = set(device), set(host)
        self.last_use = last_uses(trace)
        self._sizes = [variable.nbytes for variable in trace.variables]
        self._granted = [granule.granted(size) for size in self._sizes]
        self.ledger_bytes = self.peak_bytes = sum(map(self.granted, device))
        self.peak_call = ""
        self._instructions: list[Instruction | None] = []
        self._swap_out_at: dict[int, int] = {}
        self._running = ""

    def granted(self, variable: int) -> int:
        """Bytes that the allocator grants for a variable."""
        return self._granted[variable]

    def claim_bytes(self, call_id: int) -> int:
        """Granted bytes that a call claims: outputs on storages of their own, and workspace."""
        call = self.trace.calls[call_id]
        fresh = sum([self._granted[out] for out in call.outs if out not in call.reuse])
        return fresh + self.granule.granted(call.workspace_bytes)

    def run(self, call_id: int) -> None:
        """Lists a call and its End; all its outputs stay."""
        call = self.trace.calls[call_id]
        self._running = call.name
        self._claim(self.claim_bytes(call_id))
        self._instructions += [Run(call_id), End(call_id)]
        self.ledger_bytes -= self.granule.granted(call.workspace_bytes)
        self.resident.difference_update(call.reuse.values())
        self.resident.update(call.outs)

    def swap_in(self, variable: int) -> None:
        """Lists the way back of a variable; nothing happens if it is on the device."""
        if variable not in self.resident:
            self._claim(self.granted(variable))
            self.resident.add(variable)
            self._move(SwapIn, variable)

    def swap_out(self, variable: int) -> None:
        """Lists the copy to the host; nothing happens if the host has a valid one."""
        if variable in self.hosted:
            return
        self._move(SwapOut, variable)
        self._swap_out_at[variable] = len(self._instructions) - 1
        self.hosted.add(variable)
        self.hosted.discard(self.trace.carries.get(variable, -1))  # both share one host slot

    def cancel_swap_out(self, variable: int) -> None:
        """Takes a listed copy to the host off the list again, if there is one."""
        position = self._swap_out_at.pop(variable, None)
        if position is not None:
            if self._sizes[variable]:
                self._instructions[position] = None
            self.hosted.discard(variable)

    def free(self, variable: int) -> None:
        """Lists the release of a resident variable."""
        self._move(Free, variable)
        self.resident.remove(variable)
        self._swap_out_at.pop(variable, None)
        self.ledger_bytes -= self.granted(variable)

    def fence(self) -> None:
        """Lists a fence."""
        self._instructions.append(Fence())

    def is_dead(self, variable: int, call_id: int) -> bool:
        """Whether no call needs a variable after this one, the next step included."""
        return self.last_use[variable] <= call_id

    def free_dead(self, call_id: int) -> None:
        """Frees what a call was the last to touch."""
        for variable in self.trace.calls[call_id].touched():
            if variable in self.resident and self.is_dead(variable, call_id):
                self.free(variable)

    def finish(self) -> Schedule:
        """Brings the start about again, under the trace's carries, and returns the schedule."""
        end = {start: self.trace.end_variables.get(start, start) for start in self.trace.initial}
        stays = {end[variable] for variable in self.device_start}
        for variable in self.host_start:
            if self.trace.variables[variable].persistent:
                self.swap_out(end[variable])
        for variable in sorted(self.resident - stays):
            self.free(variable)
        for variable in sorted(stays - self.resident):
            self.swap_in(variable)
        return Schedule(
            tuple(i for i in self._instructions if i is not None),
            tuple(whole(self.trace, v) for v in self.device_start),
            tuple(whole(self.trace, v) for v in self.host_start),
            self.granule,
        )

    def _move(self, kind: type[SwapIn] | type[SwapOut] | type[Free], variable: int) -> None:
        # A variable without bytes has no range that could move.
        if self._sizes[variable]:
            self._instructions.append(kind(variable, 0, self._sizes[variable]))

    def _claim(self, size_bytes: int) -> None:
        self.ledger_bytes += size_bytes
        if self.ledger_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_call = self.ledger_bytes, self._running


def writer_with_resident_parameters(trace: Trace, granule: Granule) -> ListWriter:
    """A writer at the usual start: what persists on the device, inputs on the host."""
    persistent = {v for v in trace.initial if trace.variables[v].persistent}
    return ListWriter(trace, granule, persistent, set(trace.initial) - persistent)


def make_plan(
    schedule: Schedule, trace: Trace, machine: Machine, notes: Mapping[str, Any] | None = None
) -> Plan:
    """A plan that claims of the schedule what the simulator finds."""
    issued = walk(trace, schedule)
    _, done_ns = times_ns(issued, schedule, trace, machine)
    makespan_ns = max((done_ns[row.index] for row in issued if row.stream), default=0)
    device_peak, host_peak = peaks(issued, schedule)
    return Plan(
        trace, (), schedule, makespan_ns / 1000, device_peak, host_peak, notes=dict(notes or {})
    )


def infeasible(
    planner: str, budget_bytes: int, minimum_bytes: int, witness_call: str
) -> Infeasible:
    """The error of a planner whose least budget is above the given one, or `HOST_LACKS`."""
    if minimum_bytes == HOST_LACKS:
        return host_lacks(planner)
    return Infeasible(
        f"planner {planner!r} finds no schedule within the budget",
        minimum_bytes=minimum_bytes,
        witness_call=witness_call,
        where=f"call {witness_call}" if witness_call else "",
        numbers=f"budget {format_bytes(budget_bytes)} ({budget_bytes} bytes), "
        f"least {format_bytes(minimum_bytes)} ({minimum_bytes} bytes)",
        fix=f"a budget of {minimum_bytes} bytes, a smaller batch, or another planner",
    )


def host_lacks(planner: str, numbers: str = "") -> Infeasible:
    """The error of a planner that lacks host memory: its `minimum_bytes` is `HOST_LACKS`."""
    return Infeasible(
        f"planner {planner!r} needs more host memory than its budget", minimum_bytes=HOST_LACKS,
        numbers=numbers, fix="a larger host budget, or a planner that swaps less",
    )  # fmt: skip


def check_host(planner: str, plan: Plan, host_budget_bytes: int | None) -> None:
    """Raises Infeasible (`host_lacks`) where a plan's host copies exceed the host budget."""
    needed = plan.host_peak_bytes
    if host_budget_bytes is not None and needed > host_budget_bytes:
        inputs = sum(
            hi - lo
            for variable, lo, hi in plan.schedule.start_host
            if not plan.trace.variables[variable].persistent
        )
        raise host_lacks(
            planner,
            f"host budget {format_bytes(host_budget_bytes)} ({host_budget_bytes} bytes), "
            f"needed {format_bytes(needed)} ({needed} bytes), of these {inputs} for the inputs, "
            "which wait there before the step",
        )


def least_refusal(planner: str, refusals: Sequence[Infeasible], budget_bytes: int) -> Infeasible:
    """The refusal of a planner that asked others, which all refused.

    It names the least device budget that one of them named. Where one of them had enough of that
    and lacked host memory, what others named may turn out to lack it as well: then no budget is
    named (`HOST_LACKS`).
    """
    for refusal in refusals:
        if refusal.minimum_bytes == HOST_LACKS:
            return host_lacks(planner, refusal.numbers)
    least = min(refusals, key=lambda refusal: refusal.minimum_bytes)
    return infeasible(planner, budget_bytes, least.minimum_bytes, least.witness_call)


def smallest_budget(
    feasible: Callable[[int], bool], low: int, high: int,
    is_over: Callable[[], bool] = lambda: False,
) -> int:  # fmt: skip
    """The least budget in [low, high] that a planner manages, by bisection.

    Args:
        feasible: whether it manages a budget; true at `high`.
        low, high: bytes.
        is_over: whether the time for it is.

    Returns:
        A budget that is feasible, while the one a byte below is not (or is under `low`, or time was
        over).
    """
    while low < high and not is_over():
        middle = (low + high) // 2
        if feasible(middle):
            high = middle
        else:
            low = middle + 1
    return high
