"""The bookkeeping that list-writing planners share: `ListWriter`.

A list is written instruction by instruction. `ListWriter` keeps the books: which variables are
resident, which host copies are valid, how many granted bytes are claimed, and where the peak is. So
a planner's file shows only its algorithm, and the list is legal: what starts on a side is there
again in the end, under the trace's carries. Read next: `planner.py`, which makes a plan of a list;
`sched/planners/keep_all.py`, `sched/planners/naive.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from ooctrain.sched.schedule import (
    End,
    Fence,
    Free,
    Granule,
    Instruction,
    Run,
    Schedule,
    SwapIn,
    SwapOut,
    whole,
)
from ooctrain.step.trace import Trace


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
