"""Planted bugs of `capuchin`: slips in free time, lanes, savings, and in the order of eviction.

`BUGS` is {name: (a function that plants it, the test that kills it)}. A wrong order of letting
values go still makes legal plans, which pass all laws of planners; so small steps whose order is
known by hand show the bug. Read next: `test_capuchin_bugs.py`; `unit/test_capuchin.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit import test_capuchin
from zoo.planting import plant

import ooctrain as oc
from ooctrain.sched.planners.capuchin import Lane, Policy, _Choosing

Plant = Callable[[pytest.MonkeyPatch], Any]


def _slip(owner: type, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _of_chain(test: Callable[[Any], None]) -> Callable[[], None]:
    chain = oc.chain([8] * 7, [8] * 7, [20, 30, 40, 50, 60, 70], [30] * 6, [0] * 6, [0] * 6)
    return lambda: test(chain)


BUGS: dict[str, tuple[Plant, Callable[[], None]]] = {
    "the least free time first": (
        _slip(Policy, "__init__", "(-self._free_ns(var), var)", "(self._free_ns(var), var)"),
        _of_chain(test_capuchin.test_values_with_the_most_free_time_are_swapped_first),
    ),
    "an interval up to the end of the next access": (
        _slip(Policy, "copies_of", "self._end_ns[gap.before - 1]", "self._end_ns[gap.before]"),
        _of_chain(test_capuchin.test_free_time_is_the_interval_without_both_copies),
    ),
    "a value that returns before it has left": (
        _slip(Policy, "copies_of", "returns_ns < leaves_ns + out_ns", "returns_ns < leaves_ns"),
        _of_chain(test_capuchin.test_copies_of_swapped_values_share_no_moment_of_a_lane),
    ),
    "a lane that begins where another copy ends later": (
        _slip(Lane, "earliest_ns", "max(begin_ns, end_ns)", "begin_ns"),
        test_capuchin.test_a_lane_finds_the_first_and_the_last_free_place,
    ),
    "a lane that looks for the last place before its last copy only": (
        _slip(Lane, "latest_ns", "end_ns - done_ns >= length_ns", "end_ns >= done_ns"),
        test_capuchin.test_a_lane_finds_the_first_and_the_last_free_place,
    ),
    "sources that are gone cost nothing": (
        _slip(Policy, "again_ns", "source in dropped\n", "False\n"),
        _of_chain(
            test_capuchin.test_where_the_link_is_slow_the_cheapest_per_byte_run_again_instead
        ),
    ),
    "the dearest value runs again": (
        _slip(
            _Choosing, "_best_to_compute_again", ".hi / max(1.0, again_ns)", ".hi * again_ns"
        ),
        _of_chain(
            test_capuchin.test_where_the_link_is_slow_the_cheapest_per_byte_run_again_instead
        ),
    ),
    "what is computed again is swapped besides": (
        _slip(
            _Choosing, "choice", "frozenset(self._swapped)",
            "frozenset(self._swapped | self._dropped)",
        ),
        _of_chain(test_capuchin.test_what_can_be_hidden_is_swapped_and_only_then_something_runs_again),
    ),
    "the dearer of the two ways": (
        _slip(_Choosing, "choice", "again[0] >= copies.shown_ns", "again[0] <= copies.shown_ns"),
        _of_chain(
            test_capuchin.test_where_the_link_is_slow_the_cheapest_per_byte_run_again_instead
        ),
    ),
    "a swapped value leaves between all its readers": (
        _slip(
            Policy, "played",
            "first[interval.after] <= gap.after and gap.before <= first[interval.before]", "True",
        ),
        test_capuchin.test_each_swapped_value_travels_once,
    ),
}  # fmt: skip
