"""Compiles the search of the planners: without signatures, it is compiled by its first call.

Half a dozen tests search, and each worker would compile for as long as a hundred tests run. So
`../conftest.py` starts this file before the workers. Read next: `ooctrain/sched/search/anneal.py`.
"""

from __future__ import annotations

import gc

import ooctrain as oc
from ooctrain.sched.planning.effort import Deadline
from ooctrain.sched.planning.question import Question
from ooctrain.sched.search.choice import Choice, Search


def compile_search() -> None:
    """Ten choices for a chain of three stages; a planner would plan it without a search."""
    chain = oc.chain([4] * 4, [4] * 4, [1] * 3, [1] * 3, [0] * 3, [0] * 3)
    search = Search(Question(chain, 20, oc.machine("v100-pcie")))
    search.improve(Choice(()), 10, seed=0, deadline=Deadline.after(None))


if __name__ == "__main__":
    gc.set_threshold(50_000)
    compile_search()
