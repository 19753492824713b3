"""Which calls run again when some values alone are dropped, without a walk over the whole step.

From a trace and values to drop come the calls that `rematerialise` would add, in their order. Only
calls that read what is dropped need anything back, and what is alive before a call follows from its
number: what was written before and is used from it on. So the cost is that of the values'
neighbourhood, and a planner may ask for every segment of a long step. Source: as
`rematerialise.py`, which answers for all choices, and to which tests hold this file. Read next:
`sched/planners/tflms_hybrid.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from ooctrain.sched.planning.decisions import BEFORE_THE_STEP
from ooctrain.sched.planning.rematerialise import last_forward_use, rematerialise
from ooctrain.step.trace import Trace


def calls_added(trace: Trace, dropped: Collection[int]) -> list[int]:
    """The calls that `rematerialise(trace, dropped)` adds, in order of their second runs.

    Args:
        dropped: values of `droppable(trace)`.

    Cost: O(uses of the values + calls that are added); that of `rematerialise` where a value has to
        be kept, or one that was not dropped is taken over.
    """
    around = _Around(trace, dropped)
    readers = {use for var in dropped for use in trace.readers[var] if use > around.gone_after[var]}
    if all(around.revive_for(call) for call in sorted(readers)):
        return around.added
    seen = BEFORE_THE_STEP
    again = []
    for run in rematerialise(trace, dropped):
        again += [run.call] if run.call <= seen else []
        seen = max(seen, run.call)
    return again


class _Around:
    """The step around some dropped values.

    Attributes:
        gone_after: for each of them the call after which it dies.
        back: what has been computed again and is alive.
        added: calls that have run again so far.
    """

    def __init__(self, trace: Trace, dropped: Collection[int]):
        self.trace = trace
        self.gone_after = {var: last_forward_use(trace, var) for var in dropped}
        self.ends = frozenset(trace.end_variables.values())
        self.back: set[int] = set()
        self.added: list[int] = []

    def revive_for(self, call_id: int) -> bool:
        """Brings back what a call reads, depth first, the last value first; False where that is
        not possible, or where other calls are concerned too.
        """
        ins = dict.fromkeys(self.trace.calls[call_id].ins)
        stack = [var for var in ins if not self._is_alive(var, call_id)]
        while stack:
            value = stack[-1]
            if self._is_alive(value, call_id):
                stack.pop()
                continue
            producer = self.trace.producer[value]
            if producer is None or not self.trace.calls[producer].pure:
                return False
            sources = dict.fromkeys(self.trace.calls[producer].ins)
            lacking = [var for var in sources if not self._is_alive(var, call_id)]
            if lacking:
                stack += lacking
            elif not self._run(producer, call_id):
                return False
            else:
                stack.pop()
        self.back = {var for var in self.back if self.trace.uses[var][-1] > call_id}
        return True

    def _run(self, producer: int, call_id: int) -> bool:
        """Runs a call again before another; False where it takes over what is alive anyway."""
        call = self.trace.calls[producer]
        if any(source not in self.back for source in call.reuse.values()):
            return False
        self.back.difference_update(call.reuse.values())
        self.back.update(var for var in call.outs if not self._is_alive(var, call_id))
        self.added.append(producer)
        return True

    def _is_alive(self, var: int, call_id: int) -> bool:
        """Whether a value is there before a call."""
        if var in self.back:
            return True
        producer, uses = self.trace.producer[var], self.trace.uses[var]
        if self.gone_after.get(var, call_id) < call_id or producer == call_id:
            return False
        written = producer is None or producer < call_id
        return written and (var in self.ends or uses[-1] >= call_id)
