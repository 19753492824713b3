"""The bookkeeping that list-writing planners share.

A list is written instruction by instruction. `ListWriter` keeps the books: which variables are
resident, which host copies are valid, how many granted bytes are claimed, and where the peak is. So
a planner's file shows only its algorithm, and the list is legal: what starts on a side is there
again in the end, under the trace's carries. `VariableSequence` is what planners that follow the
order of uses read. Source: ours; the sequence is paper 000's, section 3. Read next: `planner.py`,
which makes a plan of a list; `sched/planners/keep_all.py`, `sched/planners/naive.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

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


# The variable sequence of paper 000 (section 3), as tables: which call uses which storage, in
# order. An in-place call does not make a new object to be swapped, so the sequence is one of
# storages (paper 004's tensor storage objects), each of which holds one variable after the other.


class VariableSequence:
    """Uses of storages in order, without what is pinned to the device.

    Args:
        pin_persistent: whether what persists never leaves the device. What `bound_to_device` names
            never does.
        resting: initial variables that are on the device between steps, but may leave within one.

    Attributes:
        storage: for each variable its storage; `size_bytes` and `last_use` of each storage.
        order: (call, storage) in order of use; `starts[k]` is where call k's part begins. After the
            last call comes the end of the step, which uses what rests on the device.
        positions: for each storage where it stands in `order`, ascending.
        touched: for each call its distinct storages.
        fresh_pinned: for each call the pinned storages that it is the first to write.
        pinned: storages that never leave the device.
    """

    def __init__(
        self, trace: Trace, granule: Granule, pin_persistent: bool, resting: Iterable[int] = ()
    ):
        self.trace, self.granule = trace, granule
        self.storage = trace.storage
        self.size_bytes = [granule.granted(variable.nbytes) for variable in trace.variables]
        self.last_use = _last_uses_of_storages(trace, self.storage)
        pinned = bound_to_device(trace)
        if pin_persistent:
            pinned |= {v for pair in trace.end_variables.items() for v in pair}
        self.pinned = {self.storage[v] for v in pinned}
        self.resting = tuple(v for v in resting if v not in self.pinned)
        self.workspace_bytes = [granule.granted(call.workspace_bytes) for call in trace.calls]
        self.touched = [
            list(dict.fromkeys(self.storage[v] for v in call.touched())) for call in trace.calls
        ]
        self.fresh_pinned = [
            [v for v in call.outs if self.storage[v] == v and v in self.pinned]
            for call in trace.calls
        ]
        self.order: list[tuple[int, int]] = []
        self.starts = [0]
        for call, touched in enumerate(self.touched):
            self.order += [(call, root) for root in touched if root not in self.pinned]
            self.starts.append(len(self.order))
        ends = [self.storage[trace.end_variables[v]] for v in self.resting]
        self.order += [(len(trace.calls), root) for root in ends]
        self.positions: dict[int, list[int]] = defaultdict(list)
        for position, (_, root) in enumerate(self.order):
            self.positions[root].append(position)

    def start(self) -> ListWriter:
        """A writer at the start: what is pinned or rests there on the device, all else on the
        host.
        """
        on_device = self.pinned.union(self.resting)
        device = [v for v in self.trace.initial if v in on_device]
        host = [v for v in self.trace.initial if v not in on_device]
        return ListWriter(self.trace, self.granule, device, host)

    def largest_need(self) -> tuple[int, str]:
        """(bytes, call): the most that a call needs together with what is pinned at that time."""
        held = {v for v in self.trace.initial if v in self.pinned}
        held_bytes = sum(self.size_bytes[v] for v in held)
        needs = [(held_bytes, "the start")]
        for call in self.trace.calls:
            fresh = [v for v in self.fresh_pinned[call.id] if v not in held]
            held.update(fresh)
            held_bytes += sum(self.size_bytes[v] for v in fresh)
            others = sum(self.size_bytes[v] for v in self.touched[call.id] if v not in held)
            needs.append((held_bytes + others + self.workspace_bytes[call.id], call.name))
            dead = [v for v in self.touched[call.id] if v in held and self.last_use[v] <= call.id]
            held.difference_update(dead)
            held_bytes -= sum(self.size_bytes[v] for v in dead)
        return max(needs, key=lambda need: need[0])


def _last_uses_of_storages(trace: Trace, storage: Sequence[int]) -> list[int]:
    last = [-1] * len(storage)
    for variable, use in enumerate(last_uses(trace)):
        last[storage[variable]] = max(last[storage[variable]], use)
    return last
