"""Planted bugs of `combined`, its searches and the host's room, each with the law that kills it.

`BUGS` is {name: (a function that plants it, the law, the seeds that it is asked with)}. The plans
stay legal, since the verifier and `check_host` see to that; what suffers is that plans are refused,
or slower than others. So laws that compare with others, or count byte by byte, show the bug. Read
next: `test_combined_bugs.py`; `properties/test_combined.py`, `unit/test_host_budget.py`,
`unit/test_keep_or_recompute.py`, `unit/test_keep_offload_or_recompute.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from properties import test_combined
from unit import (
    test_host_budget,
    test_keep_offload_or_recompute,
    test_keep_or_recompute,
    test_search,
)
from zoo.planting import plant, plant_everywhere

from ooctrain.sched.bounds import closed
from ooctrain.sched.planners.combined import Combined, _Starts
from ooctrain.sched.planning import rematerialise
from ooctrain.sched.planning.host_gaps import HostGaps
from ooctrain.sched.planning.lower import AsapEngine
from ooctrain.sched.search import keep_or_recompute, kept_gaps, play
from ooctrain.sched.search.choice import Search
from ooctrain.sched.search.keep_offload_or_recompute import KeepOffloadOrRecomputeSearch
from ooctrain.sched.search.keep_or_recompute import KeepOrRecomputeSearch

Plant = Callable[[pytest.MonkeyPatch], Any]
Law = Callable[[Any], Any]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _slip_everywhere(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, owner, name, piece, wrong)


HOST = test_host_budget.what_leaves_fits_on_the_host
STARTS = test_combined.is_never_worse_than_its_starts
AGREE = test_search.search_list_and_simulator_agree
FITS = test_combined.is_not_beaten_where_everything_fits
READ_OFF = test_combined.what_is_read_off_gives_the_runs
RUNS, FOUND = (
    test_keep_or_recompute.keeps_what_the_runs_keep,
    test_keep_or_recompute.what_is_found_is_a_plan,
)
LITTLE = test_host_budget.a_little_host_memory_is_no_loss
SMALL = test_keep_or_recompute.has_room_for_what_is_small
COPIES, STANDS = (
    test_keep_offload_or_recompute.what_copies_find_is_a_plan,
    test_keep_offload_or_recompute.stands_where_it_says,
)

BUGS: dict[str, tuple[Plant, Law, Sequence[Any]]] = {
    "search: what lacks less, but does not fit yet, is forgotten": (
        _slip(Search, "improve", "return self._choice(walk.best)",
              "return start if walk.best_cost > 1e29 else self._choice(walk.best)"),
        test_search.goes_on_from_what_lacks_least, (0,),
    ),
    "search: copies slow no call down": (
        _slip_everywhere(play, "link_of", "*machine.slowdown.as_integer_ratio(),", "1, 1,"),
        AGREE, range(60),
    ),
    "search: no instruction takes time to issue": (
        _slip_everywhere(play, "link_of", "round(machine.issue_us * 1000)", "0"),
        AGREE, range(60),
    ),
    "engine of lists: copies slow no call down": (
        _slip(AsapEngine, "_clock_moves",
              "self.slowdown.as_integer_ratio() if self.going or self.coming else (1, 1)",
              "(1, 1)"),
        AGREE, range(60),
    ),
    "engine of lists: a call is slowed down when the copies are over, too": (
        _slip(AsapEngine, "_clock_moves", " if self.going or self.coming else (1, 1)", ""),
        AGREE, range(60),
    ),
    "host room: the slot in which a copy comes back is free": (
        _slip(HostGaps, "take", "self._margin.take(gap.after + 1, gap.before, part)",
              "self._margin.take(gap.after + 1, gap.before - 1, part)"),
        HOST, range(40),
    ),
    "host room: a copy is there before the value's last use": (
        _slip(HostGaps, "take", "self._margin.take(gap.after + 1, gap.before, part)",
              "self._margin.take(gap.after, gap.before, part)"),
        HOST, range(40),
    ),
    "host room: what an earlier gap left is forgotten between the two": (
        _slip(HostGaps, "take", "self._margin.take(until + 1, gap.after, shared)", "pass"),
        HOST, range(60),
    ),
    "host room: all that is asked for fits": (
        _slip(HostGaps, "fitting",
              "part = min(part, self._margin.least(gap.after + 1, gap.before))", "pass"),
        HOST, range(40),
    ),
    "host room: the later gap's end is not noted": (
        _slip(HostGaps, "take", "gap.before if whole else until", "until"),
        HOST, range(60),
    ),
    "combined: what the search found, though a start is faster": (
        _slip(Combined, "_plan_form", "starting.best = min(plans, key=makespan_us)",
              "starting.best = plans[-1]"),
        STARTS, (230, 358),
    ),
    "combined: keep-all, where all fits": (
        _slip(_Starts, "is_least", "<=", ">="),
        FITS, (9, 118),
    ),
    "arrivals: an input comes once for each call that reads it": (
        _slip_everywhere(closed, "arrivals_us", " and v not in there", ""),
        FITS, range(200, 215),
    ),
    "read off: a value made again later was dropped at the start": (
        _slip_everywhere(rematerialise, "read_off",
                         "dict.fromkeys(call.touched(), run.call)",
                         "dict.fromkeys(call.outs, run.call)"),
        READ_OFF, range(40),
    ),
    "kept: a value is wanted until the call before its last reader": (
        _slip(KeepOrRecomputeSearch, "wanted",
              "wanted[first + 1 : last + 1", "wanted[first + 1 : last"),
        RUNS, range(30),
    ),
    "kept: what is large and may not run again takes no room": (
        _slip_everywhere(kept_gaps, "_others",
                         "base[first : until[var] + 1] += size_bytes", "pass"),
        RUNS, range(30),
    ),
    "kept: outputs that may not run again are claimed by nobody": (
        _slip_everywhere(kept_gaps, "_others",
                         "claim[made] += size_bytes", "pass"),
        RUNS, range(60),
    ),
    "kept: inputs take no room": (
        _slip_everywhere(kept_gaps, "_others",
                         "claim[list(trace.readers[var])] += size_bytes", "pass"),
        RUNS, range(60),
    ),
    "kept: what is small is there though its storage has been taken over": (
        _slip_everywhere(kept_gaps, "kept_tables", "until[var] = min(until[var], taker)", "pass"),
        FOUND, (369,),
    ),
    "kept: runs for a call count as runs for the next": (
        _slip_everywhere(keep_or_recompute, "_for_calls",
                         "[run.call] * waiting", "[run.call + 1] * waiting"),
        RUNS, range(30),
    ),
    "where the host has too little room it is not done without": (
        _slip(Combined, "_searched_with_and_without", "if not is_host_tight(question):",
              "if True:"),
        LITTLE, ("cpu-generic",),
    ),
    "kept: what is small stays though there is no room for it": (
        _slip(Search, "kept_from_call_to_call", "small=NOTHING", "small=0.002"), SMALL, (1,),
    ),
    "kept: what is there is made again": (
        _slip_everywhere(keep_or_recompute, "listed",
                         "if v not in present) if again", ") if again"),
        COPIES, (663,),
    ),
    "kept: what is there as the next call begins is gone as this one does": (
        _slip_everywhere(keep_or_recompute, "listed",
                         "there[number + 1, col", "there[number, col"),
        COPIES, (663,),
    ),
    "copies: what stays is forgotten": (
        _slip(Search, "_with_copies", "kept._replace(stays=self._choice(now).stays)", "kept"),
        COPIES, range(300),
    ),
    "copies: what stays at first is not looked at": (
        _slip(KeepOffloadOrRecomputeSearch, "begun",
              "keeping, stays, self", "keeping, 0 * stays, self"),
        STANDS, range(40),
    ),
}  # fmt: skip
#: The first of each search: `make test` plants them.
QUICK = (next(iter(BUGS)), "kept: a value is wanted until the call before its last reader")
