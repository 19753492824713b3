"""Every function of the search, compiled or read from the disk: each is compiled by its first call.

Who wants compilation out of the way, as the tests and `execution/compile_apart.py` do, has three
short searches of a chain of three stages made here. Read next: `choice.py`, `jit.py`.
"""

from __future__ import annotations

from ooctrain.sched.budget import input_bytes, trace_peak_bytes
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import rematerialise_after
from ooctrain.sched.search.choice import Search
from ooctrain.step.chain import chain
from ooctrain.step.presets import v100_pcie

#: Evaluations of each search.
FEW = 12


def compile_search() -> None:
    """Searches for choices, and from one of them for what is kept: where the host holds all, and
    where it holds the inputs alone.
    """
    trace = chain([4] * 4, [4] * 4, [1] * 3, [1] * 3, [0] * 3, [0] * 3)
    budget_bytes, never = trace_peak_bytes(trace), Deadline.after(None)
    for host_bytes in (None, input_bytes(trace)):
        question = Question(trace, budget_bytes, v100_pcie(), host_budget_bytes=host_bytes)
        search = Search(question)
        found = search.improve(search.dropping(()), FEW, seed=0, deadline=never)
        runs = rematerialise_after(trace, found.dropped, unread=found.unread, held=found.held)
        search.call_by_call([(found, runs)], FEW, seed=0, deadline=never)
