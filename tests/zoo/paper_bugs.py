"""Planted bugs of the papers' planners and tables: those that an audit saw survive.

`BUGS` is {name: (a function that plants it, the test that kills it)}. Most of them still make legal
plans, and fast ones: only it is no longer the paper's method, so laws of planners see nothing.
`changed_tables` changes each figure of the papers' tables in turn. Not here, since it is the same
program: how far `lms` looks further back for a trigger. Read next: `test_paper_bugs.py`;
`unit/test_choices_of_papers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from unit import test_choices_of_papers as CHOICES
from unit import test_printed_tables as TABLES
from unit import test_swap_planners as SWAPS
from zoo.planting import plant, plant_everywhere

from ooctrain.experiments.paper_000 import table1
from ooctrain.experiments.paper_001 import hybrid
from ooctrain.experiments.paper_004 import split_accuracy
from ooctrain.sched.planners import hmms
from ooctrain.sched.planners.dynprog import DynProg
from ooctrain.sched.planners.lms import LevelGraph
from ooctrain.sched.planners.tflms_hybrid import TflmsHybrid
from ooctrain.sched.planners.window import SlidingWindow, _Reach
from ooctrain.sched.planning import rematerialise

Plant = Callable[[pytest.MonkeyPatch], Any]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant(patch, owner, name, piece, wrong)


def _default(owner: type, name: str, wrong: Any) -> Plant:
    """Another default of a setting of a planner."""

    def change(patch: pytest.MonkeyPatch) -> None:
        defaults = [
            wrong if field.name == name else field.default
            for field in owner.__dataclass_fields__.values()  # type: ignore[attr-defined]
        ]
        patch.setattr(owner.__init__, "__defaults__", tuple(defaults))

    return change


BUGS: dict[str, tuple[Plant, Callable[..., None]]] = {
    "a window of half a budget": (
        _default(SlidingWindow, "size", 0.5),
        CHOICES.test_the_window_ends_with_the_variable_that_fills_one_and_a_half_budgets,
    ),
    "the variable that fills the window is outside": (
        _slip(_Reach, "fill", "counted > self.most", "counted >= self.most"),
        CHOICES.test_the_window_ends_with_the_variable_that_fills_one_and_a_half_budgets,
    ),
    "all prefetches are taken back where the last is enough": (
        _slip(_Reach, "take_back", "missing_bytes > 0 and self.head", "self.head"),
        CHOICES.test_the_prefetch_that_entered_the_window_last_gives_way_first,
    ),
    "groups of readers are measured from the first of each": (
        _slip(
            LevelGraph, "_trips_of", "if far:\n            before = level",
            "if far and (before is None or level - before > lms.swapin_groupby):\n"
            "            before = level",
        ),
        SWAPS.test_readers_in_a_row_share_one_trip_as_in_the_authors_code,
    ),
    "the trigger of a swap-in is one level further back": (
        _slip(LevelGraph, "trigger", "- ahead", "- ahead - 1"),
        CHOICES.test_whoever_is_at_a_level_has_an_ancestor_at_each_level_below,
    ),
    "the dearest checkpoints come first": (
        _slip(TflmsHybrid, "by_recompute_time", "(per_byte[number]", "(-per_byte[number]"),
        CHOICES.test_what_is_cheapest_per_byte_is_computed_again_first,
    ),
    "checkpoints by time alone": (
        _slip(
            TflmsHybrid, "by_recompute_time",
            "time_ns / sum(trace.variables[var].nbytes for var in segment[number])", "time_ns",
        ),
        CHOICES.test_what_is_cheapest_per_byte_is_computed_again_first,
    ),
    "batch statistics are computed again too": (
        lambda patch: _statistics_too(patch),
        CHOICES.test_batch_statistics_stay_where_the_values_of_their_segment_go,
    ),
    "what recomputation costs, as a share of the slower speed": (
        _slip(hybrid, "recompute_overhead", "1 - again / plain", "plain / again - 1"),
        CHOICES.test_what_recomputation_costs_is_a_share_of_the_speed_without_it,
    ),
    "50 slots of memory": (
        _default(DynProg, "slots", 50), CHOICES.test_memory_is_cut_into_500_slots,
    ),
    "a value leaves with its first forward reader": (
        lambda patch: _storages(patch, "forward[-1], backward[0]", "forward[0], backward[0]"),
        CHOICES.test_a_value_leaves_with_its_last_forward_reader,
    ),
    "a value is back for its last backward reader": (
        lambda patch: _storages(patch, "forward[-1], backward[0]", "forward[-1], backward[-1]"),
        CHOICES.test_a_value_leaves_with_its_last_forward_reader,
    ),
    "an input is copied out": (
        lambda patch: _storages(patch, "trace.producer[variable.id] is not None", "True"),
        CHOICES.test_an_input_has_a_host_copy_and_costs_no_transfer,
    ),
    "ratios in halves": (
        lambda patch: patch.setattr(hmms, "RATIO_STEPS", 2),
        CHOICES.test_ratios_are_tried_in_steps_of_a_twentieth,
    ),
}  # fmt: skip


def _storages(patch: pytest.MonkeyPatch, piece: str, wrong: str) -> None:
    planted = plant_everywhere(patch, hmms, "offloadable_storages", piece, wrong)
    patch.setattr(CHOICES, "offloadable_storages", planted)


def _statistics_too(patch: pytest.MonkeyPatch) -> None:
    piece = ' and trace.variables[var].kind != "stat"'
    patch.setattr(CHOICES, "segments", plant(patch, rematerialise, "segments", piece, ""))


Change = tuple[str, Plant, Callable[[], None]]


def changed_tables() -> Iterator[Change]:
    """(which figure, a function that makes it one larger, the test that kills it)."""
    for row, method in enumerate(table1.METHODS):
        for batch, speed in method.printed.items():
            wrong = replace(method, printed={**method.printed, batch: speed + 1})
            yield (
                f"paper 000, {method.name}, batch {batch}",
                _of_tuple(table1, "METHODS", row, wrong), TABLES.test_table_1_of_paper_000,
            )  # fmt: skip
    for place, network in enumerate(hybrid.NETWORKS):
        for table in ("swap", "hybrid"):
            for size, changed in _changed_cells(getattr(network, table)):
                wrong_network = replace(network, **{table: changed})
                yield (
                    f"paper 001, {network.model}, {table}, {size}",
                    _of_tuple(hybrid, "NETWORKS", place, wrong_network),
                    TABLES.test_tables_1_and_2_of_paper_001,
                )
    for name in ("PRINTED", "PRINTED_IMAGENET"):
        right = getattr(split_accuracy, name)
        for key, value in right.items():
            wrong_cell = (value[0] + 1, *value[1:]) if isinstance(value, tuple) else value + 1
            yield (
                f"paper 004, {name}, {key}",
                _attribute(split_accuracy, name, {**right, key: wrong_cell}),
                TABLES.test_figures_of_papers_000_003_and_004,
            )


def _changed_cells(table: Mapping[int, Any]) -> Iterator[tuple[str, dict[int, Any]]]:
    for size, tuned in table.items():
        for name in ("swapout_threshold", "swapin_ahead", "swapin_groupby"):
            wrong = replace(tuned, **{name: getattr(tuned, name) + 1})
            yield f"{name} at {size}", {**table, size: wrong}
        longer = replace(tuned, checkpoints=(*tuned.checkpoints, 99))
        yield f"checkpoints at {size}", {**table, size: longer}


def _of_tuple(module: Any, name: str, place: int, wrong: Any) -> Plant:
    items = list(getattr(module, name))
    items[place] = wrong
    return _attribute(module, name, tuple(items))


def _attribute(module: Any, name: str, wrong: Any) -> Plant:
    return lambda patch: patch.setattr(module, name, wrong)
