"""Planted bugs of the search over what is kept from call to call, each with the law that kills it.

`BUGS` is {name: (a function that plants it, the law, the seeds that it is asked with)}, as in
`combined_bugs.py`. Read next: `test_kept_bugs.py`; `unit/test_kept.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from unit import test_kept
from zoo.planting import plant, plant_everywhere

from ooctrain.sched.search import kept
from ooctrain.sched.search.choice import Search
from ooctrain.sched.search.kept import KeptSearch

Plant = Callable[[pytest.MonkeyPatch], Any]
Law = Callable[[int], Any]
RUNS, FOUND = test_kept.keeps_what_the_runs_keep, test_kept.what_is_found_is_a_plan
SMALL = test_kept.has_room_for_what_is_small


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _slip_everywhere(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, owner, name, piece, wrong)


BUGS: dict[str, tuple[Plant, Law, Sequence[int]]] = {
    "kept: a value is wanted until the call before its last reader": (
        _slip(KeptSearch, "_wanted", "wanted[first + 1 : last + 1", "wanted[first + 1 : last"),
        RUNS, range(30),
    ),
    "kept: what is large and may not run again takes no room": (
        _slip_everywhere(kept, "_others", "base[first : until[var] + 1] += size_bytes", "pass"),
        RUNS, range(30),
    ),
    "kept: outputs that may not run again are claimed by nobody": (
        _slip_everywhere(kept, "_others", "claim[made] += size_bytes", "pass"),
        RUNS, range(60),
    ),
    "kept: inputs take no room": (
        _slip_everywhere(kept, "_others", "claim[list(trace.readers[var])] += size_bytes", "pass"),
        RUNS, range(60),
    ),
    "kept: what is small is there though its storage has been taken over": (
        _slip_everywhere(kept, "_kept_tables", "until[var] = min(until[var], taker)", "pass"),
        FOUND, (369,),
    ),
    "kept: runs for a call count as runs for the next": (
        _slip_everywhere(kept, "_for_calls", "[run.call] * waiting", "[run.call + 1] * waiting"),
        RUNS, range(30),
    ),
    "kept: what is small stays though the best choice has no room for it": (
        _slip(Search, "kept_from_call_to_call", "small=NOTHING", "small=0.002"), SMALL, (1,),
    ),
}  # fmt: skip
