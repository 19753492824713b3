"""Planted bugs of the searches over what is kept from call to call, and the laws that kill them.

`BUGS` is {name: (a function that plants it, the law, the seeds that it is asked with)}, as in
`combined_bugs.py`. Read next: `test_kept_bugs.py`; `unit/test_kept.py`,
`unit/test_kept_copies.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from unit import test_kept, test_kept_copies
from zoo.planting import plant, plant_everywhere

from ooctrain.sched.search import kept
from ooctrain.sched.search.choice import Search
from ooctrain.sched.search.kept import KeptSearch
from ooctrain.sched.search.kept_copies import CopiesSearch

Plant = Callable[[pytest.MonkeyPatch], Any]
Law = Callable[[int], Any]
COPIES, STANDS = test_kept_copies.what_copies_find_is_a_plan, test_kept_copies.stands_where_it_says
RUNS, FOUND = test_kept.keeps_what_the_runs_keep, test_kept.what_is_found_is_a_plan


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _slip_everywhere(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, owner, name, piece, wrong)


BUGS: dict[str, tuple[Plant, Law, Sequence[int]]] = {
    "kept: a value is wanted until the call before its last reader": (
        _slip(KeptSearch, "wanted", "wanted[first + 1 : last + 1", "wanted[first + 1 : last"),
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
    "kept: what is there is made again": (
        _slip_everywhere(kept, "listed", "if v not in present) if again", ") if again"),
        COPIES, (663,),
    ),
    "copies: what stays is forgotten": (
        _slip(Search, "_with_copies", "kept._replace(stays=self._choice(now).stays)", "kept"),
        COPIES, range(300),
    ),
    "kept: what is there as the next call begins is gone as this one does": (
        _slip_everywhere(kept, "listed", "there[number + 1, col", "there[number, col"),
        COPIES, (663,),
    ),
    "copies: what stays at first is not looked at": (
        _slip(CopiesSearch, "begun", "keeping, stays, self", "keeping, 0 * stays, self"),
        STANDS, range(40),
    ),
}  # fmt: skip
