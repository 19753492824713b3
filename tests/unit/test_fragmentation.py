"""The experiment on fragmentation: searches find what they claim, tables and figure show it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooctrain.alloc.registry import choose_allocator, choose_dry
from ooctrain.api import step_trace
from ooctrain.cli import main
from ooctrain.errors import OutOfDeviceMemory
from ooctrain.execution.placement import reserved_within
from ooctrain.experiments.paper_000 import fragmentation
from ooctrain.experiments.paper_000.fragmentation import (
    STEPS,
    Bench,
    LargestBudget,
    _largest,
    chunk_trades,
    largest_batches,
    largest_budget,
    most_live,
    replay_chunks,
    time_chunks,
)
from ooctrain.experiments.spread import spread
from ooctrain.units import GIB, KIB, MIB

PHYSICAL = 2 * GIB
NAMES = ("best-fit", "va:chunk=64KiB")


@pytest.fixture(scope="module")
def bench():
    return Bench(step_trace("resnet18", 64))


@given(st.lists(st.integers(1, 100), unique=True, max_size=40).map(sorted), st.integers(0, 110))
def test_bisection_finds_the_largest_of_a_monotone_question(budgets, limit):
    fitting = [budget for budget in budgets if budget <= limit]
    assert _largest(budgets, lambda budget: budget <= limit) == max(fitting, default=None)


def test_what_is_promised_is_kept_and_one_step_more_is_not(bench):
    best, va = largest_budget("resnet18", 64, NAMES, PHYSICAL, bench)
    for row, name in ((best, NAMES[0]), (va, NAMES[1])):
        assert row.peak_bytes <= row.budget_bytes <= PHYSICAL
        assert row.peak_bytes <= row.reserved_bytes <= PHYSICAL
        if row.budget_bytes < PHYSICAL:
            choice = choose_allocator(name, PHYSICAL, binding=False)
            more = (row.budget_bytes // (PHYSICAL // STEPS) + 1) * (PHYSICAL // STEPS)
            assert bench.reserved_bytes(more, choice) > PHYSICAL
    assert va.ratio < 1.05
    assert va.budget_bytes >= best.budget_bytes


def test_what_cannot_be_trained_has_no_budget(bench):
    least = bench.minimum_bytes(choose_dry(NAMES[0], PHYSICAL))
    (row,) = largest_budget("resnet18", 64, NAMES[:1], least - 1, bench)
    assert row == LargestBudget("resnet18", 64, NAMES[0], None, None, None, least, None)
    assert row.ratio is None
    assert row.images_per_s is None


def test_plans_are_made_in_the_allocators_granule(bench):
    """What the allocator rounds, the planner has counted: with virtual addressing nothing is lost.

    Planned in bytes, the same memory and chunks of 4 MiB would not do.
    """
    names = ("va-paper:chunk=4MiB", "va-nnabla:chunk=4MiB")
    for row, name in zip(largest_budget("resnet18", 64, names, GIB, bench), names, strict=True):
        assert row.peak_bytes == row.reserved_bytes
        assert GIB - 32 * MIB < row.reserved_bytes <= GIB
        choice, in_bytes = choose_dry(name, GIB), bench.plan(row.budget_bytes)
        with pytest.raises(OutOfDeviceMemory):
            reserved_within(in_bytes.schedule, in_bytes.trace, choice, GIB)


def test_virtual_addressing_trains_the_larger_batch():
    best, va = largest_batches("resnet18", NAMES, 256 * MIB, step=8)
    assert 0 < best.batch < va.batch
    assert va.batch % 8 == 0


def test_rounding_wastes_less_than_equation_2_allows_and_nothing_is_mapped_later():
    costs = replay_chunks((64 * KIB, 512 * KIB, 4 * MIB), "va", "resnet18", 64, GIB)
    assert [cost.chunk_bytes for cost in costs] == [64 * KIB, 512 * KIB, 4 * MIB]
    for cost in costs:
        assert 0 <= cost.wasted_bytes < cost.live_blocks * cost.chunk_bytes
        assert cost.later_maps == 0
    wasted = [cost.wasted_bytes for cost in costs]
    assert wasted == sorted(wasted)
    assert wasted[0] < wasted[-1]


def test_larger_chunks_hold_fewer_variables_and_waste_more_of_the_memory():
    """Equation 2, for lists that were planned in their chunks."""
    small, large = chunk_trades((64,), (64 * KIB, 4 * MIB), "resnet18", 900 * MIB)
    for trade in (small, large):
        assert 0 <= trade.wasted_bytes < trade.live_blocks * trade.chunk_bytes
        assert trade.maps > 0
    assert small.live_blocks > large.live_blocks
    assert small.wasted_bytes < large.wasted_bytes
    assert small.maps > large.maps
    assert small.images_per_s > large.images_per_s


def test_the_most_live_blocks_are_counted():
    from ooctrain.alloc import Request

    first = [Request("allocate", 0, 1), Request("reserve", 1, 1), Request("step", 0)]
    assert most_live([*first, Request("free", 0), Request("allocate", 2, 1)]) == 2


@pytest.fixture
def small(monkeypatch):
    """The experiment with next to nothing in it."""
    monkeypatch.setattr(fragmentation, "QUICK_BATCHES", {"resnet18": (16, 64)})
    monkeypatch.setattr(fragmentation, "BATCH_STEP", 64)
    monkeypatch.setattr(fragmentation, "QUICK_CHUNKS", (64 * KIB, MIB))
    monkeypatch.setattr(fragmentation, "QUICK_TRADED", (64 * KIB, MIB))
    monkeypatch.setattr(fragmentation, "QUICK_TRADED_BATCHES", (16,))
    for name, value in {
        "MODEL": "resnet18", "BATCH": 16, "BUDGET_BYTES": 400 * MIB, "DEVICE_MODEL": "lenet",
        "DEVICE_BATCH": 8, "DEVICE_BUDGET": "2MiB",
    }.items():  # fmt: skip
        monkeypatch.setattr(fragmentation, name, value)


def test_real_steps_are_timed_where_the_chunk_fits(small):
    times = time_chunks((64 * KIB, 64 * MIB), steps=1, threads=1)
    assert times[64 * KIB] > 0
    assert 64 * MIB not in times


@pytest.mark.slow
def test_the_command_prints_draws_and_writes(small, tmp_path, capsys):
    figure, numbers = tmp_path / "x.svg", tmp_path / "x.json"
    arguments = ["--quick", "--physical", "1GiB", "--figure", str(figure), "--json", str(numbers)]
    assert main(["reproduce", "fragmentation", *arguments]) == 0
    shown = capsys.readouterr().out
    for words in ("usable", "largest batch", "Chunk sizes", "ooctrain docs papers"):
        assert words in shown
    assert ElementTree.fromstring(figure.read_text()).tag.endswith("svg")
    found = json.loads(numbers.read_text())
    text = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    section = text.split("## `ooctrain reproduce fragmentation --json`")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section)) | {"model", "allocator", "batch"}
    assert set(found) <= documented
    for part in ("budgets", "largest_batches", "chunks", "chunk_trades"):
        assert set(found[part][0]) <= documented
    assert len(found["budgets"]) == 4


@pytest.mark.slow
def test_cases_are_spread_over_processes_in_order():
    cases = [("resnet18", batch, NAMES, PHYSICAL) for batch in (16, 32)]
    here = list(spread(fragmentation.budget_case, cases, processes=1))
    assert list(spread(fragmentation.budget_case, cases, processes=2)) == here
    assert [rows[0].batch for rows in here] == [16, 32]


OWN = """
from ooctrain.alloc.best_fit import BestFit


class Raises(BestFit):
    def allocate(self, *given, **named):
        raise KeyError("mine")


class Lies(BestFit):
    def allocate(self, *given, **named):
        block = super().allocate(*given, **named)
        block.granted_bytes += 7
        return block
"""


def test_an_allocator_that_fails_is_a_row_and_the_others_are_asked(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    raises, lies = f"{tmp_path}/own.py:Raises", f"{tmp_path}/own.py:Lies"
    names, bench = (raises, "best-fit", lies), Bench(step_trace("lenet", 16))
    rows = largest_budget("lenet", 16, names, 64 * MIB, bench)
    assert [row.allocator for row in rows] == list(names)
    assert [row.error.split("]")[0] if row.error else None for row in rows] == [
        "[OOC-115", None, "[OOC-132",
    ]  # fmt: skip
    assert "own.py, line 7" in rows[0].error
    assert rows[1].budget_bytes is not None
    batches = largest_batches("lenet", names, 1 * MIB, step=8)
    assert [bool(row.error) for row in batches] == [True, False, True]
    assert batches[1].batch > 0
