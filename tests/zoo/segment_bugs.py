"""Planted bugs of paper 003's analysis: dimension maps, segments, sizes of tiles, offers, names.

`SEGMENT_BUGS` is {name: (plant, the test that kills it)}. Each is a slip that a reading of the
listings suggests; several are in the paper as printed. Read next: `test_segment_bugs.py`;
`tests/errata/test_errata_003.py` runs the print itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from unit import test_banded, test_few_bands, test_graph_tiles, test_rewrite_plugins, test_sft
from zoo.planting import plant, plant_everywhere, with_bug

from ooctrain.rewrite import plugged
from ooctrain.rewrite.tile import (
    banded,
    choose,
    dimensions,
    graph_tiles,
    mixed_bands,
    operators,
    segment_costs,
    sft,
)

#: The package has a function of the same name.
LAWS = import_module("ooctrain.testing.check_rewrite")
Plant = Callable[[pytest.MonkeyPatch], None]


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    put = plant if isinstance(owner, type) else plant_everywhere
    return lambda patch: put(patch, owner, name, piece, wrong) and None


def _slip_of_nest(name: str, piece: str, wrong: str) -> Plant:
    """Changes a dimension map, also in the table of them."""

    def planted(patch: pytest.MonkeyPatch) -> None:
        right = getattr(dimensions, name)
        changed = with_bug(right, piece, wrong)
        table = {op: changed if make is right else make for op, make in dimensions.NESTS.items()}
        patch.setattr(dimensions, "NESTS", table)

    return planted


def _slice_of(op: Any, *ins: Any) -> Callable[[], None]:
    return lambda: test_sft.test_a_slice_depends_on_what_its_map_says_and_on_nothing_else(op, ins)


def _bits_of_a_graph() -> None:
    test_graph_tiles.test_tiles_of_a_graph_have_the_untiled_bits((1, 16, 3, ()))


SEGMENT_BUGS: dict[str, tuple[Plant, Callable[[], None]]] = {
    "a convolution that reads one row per row": (
        _slip_of_nest("_conv2d", "{2: rows, 3: columns}", "{3: columns}"),
        _slice_of(test_sft.CONV, test_sft.IMAGE, test_sft.WEIGHT),
    ),
    "channels of a convolution cut together": (
        _slip_of_nest(
            "_conv2d", 'TensorLoops(("B", "K", "H", "W"))', 'TensorLoops(("B", "C", "H", "W"))'
        ),
        test_sft.test_figure_6,
    ),
    "a softmax whose channels can be cut": (
        _slip_of_nest("_softmax", "WHOLE if i == op.axis else name", "name"),
        _slice_of(test_sft.SoftmaxAlong(1), test_sft.IMAGE),
    ),
    "delta 0 for every pooling": (
        _slip(dimensions.TensorLoops, "delta", "window.reach - window.stride", "0"),
        test_sft.test_table_4,
    ),
    "the gradient forgotten": (
        _slip(
            sft, "need_bytes", "read + written + variables[call.outs[0]].nbytes", "read + written"
        ),
        test_sft.test_segments_end_at_the_first_operator_that_fits,
    ),
    "the checkpoint left out of the segment": (
        _slip(sft, "_end_of_segment", "min(stop, count - 1)", "min(stop - 1, count - 1)"),
        test_sft.test_segments_end_at_the_first_operator_that_fits,
    ),
    "post dominators ignored": (
        _slip(sft, "_end_of_segment", "min(behind[place], count)", "stop"),
        test_sft.test_no_way_leads_around_the_end_of_a_segment,
    ),
    "the farther of two dominators": (
        _slip(operators, "post_dominators", "nearer=max", "nearer=min"),
        test_sft.test_no_way_leads_around_the_end_of_a_segment,
    ),
    "the first reader alone": (
        _slip(
            sft, "tile_spans_of", "Span(min(known.lo, read.lo), max(known.hi, read.hi))", "known"
        ),
        test_sft.test_readers_of_one_tensor_ask_for_the_union,
    ),
    "cuts inside of an activation": (
        _slip(segment_costs, "cuts_of", "if p + 1 not in inner or", "if True or"),
        test_banded.test_a_network_is_cut_where_one_small_tensor_leads_across,
    ),
    "limits of memory that go up": (
        _slip(choose, "_limits", "limit = int(limit * STEP)", "limit = int(limit / STEP)"),
        test_banded.test_offers_go_down_in_memory_and_do_not_know_the_budget,
    ),
    "the last reader of a fork alone": (
        _slip(
            graph_tiles._Demand,
            "add",
            "Span(min(known.lo, rows.lo), max(known.hi, rows.hi))",
            "rows",
        ),
        _bits_of_a_graph,
    ),
    "weight gradients over all rows in each tile": (
        _slip(
            graph_tiles.RowTiles,
            "of",
            "self._share(self.untiled(call), tile)",
            "Span(0, self.untiled(call))",
        ),
        _bits_of_a_graph,
    ),
    "tiles that leave out a row": (
        _slip(
            graph_tiles.RowTiles,
            "_share",
            "extent * (tile + 1) // self.tiles)",
            "extent * (tile + 1) // self.tiles - (tile == 1))",
        ),
        _bits_of_a_graph,
    ),
    "a tiling is dropped for parameters that may move away": (
        _slip(
            banded._Attempts,
            "_make",
            "self._largest_call_bytes(tiled)",
            "trace_minimum_bytes(tiled, self.question.granule)",
        ),
        test_banded.test_its_minimum_is_the_same_whatever_was_asked_where_parameters_move,
    ),
    "a host without end": (
        _slip(
            mixed_bands,
            "mixed_tilings",
            "int(host * share) if host is not None else 1 << 62",
            "1 << 62",
        ),
        test_banded.test_some_segments_run_again_where_the_host_cannot_hold_all_and_not_more_than_must,
    ),
    "the first layer of a segment is spared": (
        _slip(mixed_bands, "sparing", "layer = layers[-1]", "layer = layers[0]"),
        test_banded.test_the_last_layer_of_a_segment_runs_once_where_its_result_is_stored,
    ),
    "what lasts counts where it may move away": (
        _slip(
            mixed_bands,
            "few_tilings",
            "int(question.budget_bytes * share)",
            "int(question.budget_bytes * share) - sum("
            "v.nbytes for v in question.trace.variables if v.persistent)",
        ),
        test_few_bands.test_only_what_is_wide_runs_in_bands,
    ),
    "only the estimated work counts": (
        _slip(mixed_bands, "_calls_in_bands", "if not choice.name:", "if choice.name:"),
        functools.partial(
            test_few_bands.test_on_a_slow_link_it_is_offered_too_that_only_what_is_wide_runs_in_bands,
            10,
        ),
    ),
    "bands in front run again": (
        _slip(mixed_bands, "few_tilings", "movable_choices(", "("),
        test_few_bands.test_only_what_is_wide_runs_in_bands,
    ),
    "memories eight times as large": (
        _slip(choose, "best_way", "<= all_bytes", "<= all_bytes * 8"),
        test_banded.test_no_mixed_choice_stores_more_than_both_memories_hold,
    ),
    "a file says nothing of what it keeps": (
        _slip(plugged, "as_named", 'getattr(factory, "keeps", "bits")', '"bits"'),
        test_rewrite_plugins.test_other_attributes_say_what_is_kept,
    ),
    "nothing is compared": (
        _slip(LAWS, "_compare", "(error > allowed).any()", "False"),
        test_rewrite_plugins.test_a_lie_about_bits_is_found,
    ),
}
