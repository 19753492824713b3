"""Planted bugs of `combined`, its search and the host's room, each with the law that kills it.

`BUGS` is {name: (a function that plants it, the law, the seeds that it is asked with)}. The plans
stay legal, since the verifier and `check_host` see to that; what suffers is that plans are refused,
or slower than others. So laws that compare with others, or count byte by byte, show the bug. Read
next: `test_combined_bugs.py`; `properties/test_combined.py`, `unit/test_host_budget.py`,
`unit/test_kept.py`, `unit/test_search.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import pytest
from properties import test_combined
from unit import test_host_budget, test_kept, test_search
from zoo.planting import plant, plant_everywhere

from ooctrain.sched.bounds import closed
from ooctrain.sched.planners import by_search
from ooctrain.sched.planners.combined import _Starts
from ooctrain.sched.planning.host_gaps import HostGaps
from ooctrain.sched.planning.lower import AsapEngine
from ooctrain.sched.search import anneal, kept, moves, play, search
from ooctrain.sched.search.search import Search

Plant = Callable[[pytest.MonkeyPatch], Any]
Law = Callable[[Any], Any]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _slip_everywhere(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, owner, name, piece, wrong)


def _slip_compiled(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    """The changed function is compiled, too, but not kept on disk."""

    def planted(patch: pytest.MonkeyPatch) -> Any:
        for decorator in ("compiled", "inner"):
            patch.setattr(owner, decorator, numba.njit(nogil=True), raising=False)
        return plant_everywhere(patch, owner, name, piece, wrong)

    return planted


HOST = test_host_budget.what_leaves_fits_on_the_host
STARTS = test_combined.is_never_worse_than_its_starts
AGREE = test_search.search_list_and_simulator_agree
FITS = test_combined.is_not_beaten_where_everything_fits
RUNS, FOUND = test_kept.keeps_what_the_runs_keep, test_kept.what_is_found_is_a_plan
LITTLE = test_host_budget.a_little_host_memory_is_no_loss
SMALL, STANDS = test_kept.has_room_for_what_is_small, test_kept.stands_where_it_says
BACK, TAKEN_BACK = test_kept.comes_back_from_its_runs, test_kept.moves_are_taken_back

BUGS: dict[str, tuple[Plant, Law, Sequence[Any]]] = {
    "search: what lacks less, but does not fit yet, is forgotten": (
        _slip(Search, "improve", "return walk.best",
              "return walk.best if walk.best_cost < 1e29 else self.dropping(())"),
        test_kept.goes_on_from_what_lacks_least, (0,),
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
        _slip(_Starts, "search", "found.plan is not None and found.plan.makespan_us < self.best_us",
              "found.plan is not None"),
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
    "kept: a value is wanted until the call before its last reader": (
        _slip(Search, "keeping", "spans.append((column[var], first + 1, last))",
              "spans.append((column[var], first + 1, last - 1))"),
        RUNS, range(30),
    ),
    "kept: runs for a call count as runs for the next": (
        _slip_everywhere(search, "_for_calls",
                         "[run.call] * waiting", "[run.call + 1] * waiting"),
        RUNS, range(30),
    ),
    "kept: what has no wish before it is not told that it lasts longer": (
        _slip_compiled(kept, "want", "while call >= 0 and row[call] > call:",
                         "while call >= 0 and row[call] > call + 1:"),
        test_kept.rows_say_until_when_a_value_is_wanted, range(10),
    ),
    "kept: what is there before the step is made by the last run": (
        _slip(Search, "runs", "if first >= 0:", "if True:"), FOUND, range(20),
    ),
    "where the host has too little room it is not done without": (
        _slip_everywhere(by_search, "found_by_search", "if not is_host_tight(question):",
                         "if True:"),
        LITTLE, ("cpu-generic",),
    ),
    "kept: what is small stays though there is no room for it": (
        _slip(Search, "_with_what_is_small", "if with_small <= cost else", "if True else"),
        SMALL, (1,),
    ),
    "kept: what is small never stays": (
        _slip(Search, "_with_what_is_small", "if with_small <= cost else", "if False else"),
        SMALL, (1,),
    ),
    "search: it is written into where it began": (
        _slip(Search, "_with_what_is_small", "self.cost(kept), _copied(kept),",
              "self.cost(kept), kept,"),
        test_kept.leaves_its_start_as_it_is, range(10),
    ),
    "search: what stays is forgotten": (
        _slip(Search, "stays", "if kept.stays[slot]", "if False"),
        BACK, range(40),
    ),
    "moves: of two changes of a column the first is taken back last": (
        _slip_compiled(moves, "undo", "range(change.numbers[0] - 1, -1, -1)",
                       "range(change.numbers[0])"),
        TAKEN_BACK, range(40),
    ),
    "annealing: what is not taken is not taken back": (
        _slip_compiled(anneal, "anneal", "undo(now, change)", "pass"),
        STANDS, range(10),
    ),
    "annealing: what is taken costs what it did before": (
        _slip_compiled(anneal, "anneal", "cost, is_seen = found,", "cost, is_seen = cost,"),
        STANDS, range(10),
    ),
    "annealing: of the best met it is forgotten what stays": (
        _slip_compiled(anneal, "anneal", "copy(now.stays, best.stays)", "pass"),
        STANDS, range(40),
    ),
}  # fmt: skip
#: The first of each search: `make test` plants them.
QUICK = (next(iter(BUGS)), "kept: a value is wanted until the call before its last reader")
