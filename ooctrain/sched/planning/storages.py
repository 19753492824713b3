"""The variable sequence of paper 000, storage by storage, as tables.

A `VariableSequence` says which call uses which storage, in order, how large and for how long. An
in-place call does not make a new object to be swapped, so the sequence is one of storages (paper
004's tensor storage objects), each of which holds one variable after the other. Source: paper 000,
section 3. Read next: `sched/planners/window/window.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ooctrain.sched.planning.list_writer import ListWriter, bound_to_device, last_uses
from ooctrain.sched.schedule import Granule
from ooctrain.step.trace import Trace


class VariableSequence:
    """Who uses what, in order, without what is pinned to the device.

    Args:
        trace: the step.
        granule: how sizes are rounded.
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
