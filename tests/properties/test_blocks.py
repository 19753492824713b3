"""The law of blocks: a step whose images lie in blocks alone has the bits of the untiled step.

Two segments with cuts of their own share a border tensor, which then lies in the blocks of the
first; its gradient lies in those of the second; the image, the result and the image's gradient lie
in blocks, too. No whole of these is left. Executed within a budget, values are the same to the bit
under planners, allocators and budgets, and the peak is the ledger's. The bugs that these laws kill
are those of tests/zoo/block_bugs.py. Source: docs/tiling.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from properties.test_bands import EVERY_ROW, Cut, check_any_data, check_bits, cuts
from support.check_tile import chain_trace, random_values
from support.quick import quick
from support.same_bits import check_same_bits, in_core, out_of_core
from support.tile_chains import Chain, chains

import ooctrain as oc
from ooctrain import nn
from ooctrain.devices.interface import Debug
from ooctrain.engine.incore import initial_values
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, ScheduleError
from ooctrain.execution.fit import prepare
from ooctrain.execution.settings import Settings
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.share_storage import share_storage
from ooctrain.rewrite.tile.bands import RowBlock, Whole, _pieces
from ooctrain.sched.schedule import Free
from ooctrain.step.blocks import tensor_of
from ooctrain.step.trace import Trace


def two_segments(trace: Trace, cut: Cut, second: Cut, border: int, layers: int) -> Trace:
    """The trace in bands up to layer `border`, and in others behind it."""
    first = cut.of(trace, "0", str(border))
    return second.of(first, str(border + 1), str(layers - 1))


def wholes_left(trace: Trace, banded: Trace) -> set[str]:
    """Images of the trace of which the banded one still has a whole, though it has blocks."""
    blocks = {tensor_of(v.name) for v in banded.variables} - {v.name for v in banded.variables}
    return {v.name for v in trace.variables if v.name in blocks} & {
        v.name for v in banded.variables
    }


#: What cannot run in bands.
REFUSED = ("nothing but padding", "adds images of one pixel in one block")


@pytest.mark.slow
@settings(max_examples=30)
@given(chains(), chains(), cuts, cuts, st.booleans(), st.integers(0, 99))
def test_two_segments_on_any_data(
    one: Chain, two: Chain, cut: Cut, second: Cut, shared: bool, seed: int
) -> None:
    joint = nn.Conv2d(channels_of(one), two.image[1], 1)
    layers = [*one.model.children(), joint, *two.model.children()]
    chain = Chain(nn.Sequential(*layers), one.image, (1, 1), one.image_gradient)
    trace = chain.trace("direct")
    assume(trace is not None)
    before = share_storage(trace) if shared else trace
    try:
        banded = two_segments(before, cut, second, len(list(one.model.children())), len(layers))
    except ConfigError as refusal:
        if not any(named in str(refusal) for named in REFUSED):
            raise
        return
    check_any_data(trace, banded, random_values(trace, seed, integers=None))


def channels_of(chain: Chain) -> int:
    """Of what its last layer gives."""
    convolutions = [m for m in chain.model.children() if isinstance(m, nn.Conv2d)]
    return convolutions[-1].weight.shape[0] if convolutions else chain.image[1]


#: Where segments meet: layers up to the border, and behind it.
BORDERS = {
    "convolutions": ([nn.Conv2d(2, 4, 3, padding=1), nn.ReLU()], [nn.Conv2d(4, 3, 5, padding=2)]),
    "a pool before it": ([nn.Conv2d(2, 4, 3), nn.MaxPool2d(2)], [nn.Conv2d(4, 4, 3), nn.ReLU()]),
    "a pool behind it": ([nn.Conv2d(2, 4, 3), nn.ReLU()], [nn.MaxPool2d(3, 2, 1), nn.ReLU()]),
    "upsampling": ([nn.Conv2d(2, 4, 3, 2)], [nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 3)]),
}


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("rows", quick([EVERY_ROW, (5, 11, 19), (2, 3, 18)], 0))
@pytest.mark.parametrize("case", quick(list(BORDERS), 0, 1))
def test_named_borders(case: str, rows: tuple[int, ...], again: bool) -> None:
    law_of_borders(case, rows, again)


def law_of_borders(case: str, rows: tuple[int, ...], again: bool) -> None:
    """Bits, and nothing whole; the zoo's bugs break it."""
    one, two = BORDERS[case]
    layers = [*one, *two]
    trace = Chain(nn.Sequential(*layers), (2, 2, 24, 11), (1, 1)).trace("direct")
    assert trace is not None
    shared = share_storage(trace)
    first, second = Cut((8, 9, 21), again), Cut(rows, again)
    banded = two_segments(shared, first, second, len(one) - 1, len(layers))
    check_bits(trace, banded, random_values(trace, 1, integers=1))
    assert not wholes_left(trace, banded)
    border = trace.variable_by_name[f"{len(one) - 1}.out"]
    images = [v for v in banded.variables if v.shape == border.shape and v.kind != "wgrad"]
    assert not images, "a border is put together"
    assert not any("insert" in call.name for call in banded.calls)


class SkipOverTheBorder(nn.Module):
    """The first segment's inner sum is read by the second one, too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.c, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.a(x)
        return self.c(self.b(self.relu(inner)) + inner)


def test_a_skip_over_the_border() -> None:
    law_of_a_skip()


def law_of_a_skip() -> None:
    """Storage is shared between the two segments: a block must outlive what was its last reader."""
    trace = chain_trace(SkipOverTheBorder(), (1, 2, 24, 11), conv_algorithm="direct")
    first = share_storage(Cut((8, 9, 21), False).of(trace, "a", "b"))
    end = next(call for call in first.calls if call.name == "c.fwd")
    start = next(call for call in first.calls if end.ins[0] in call.outs)
    banded = Cut((5, 12), False).of(first, start.name, end.name)
    check_bits(trace, banded, random_values(trace, 1, integers=1))
    assert not any("insert" in call.name for call in banded.calls if call.phase == "forward")


def test_a_view_is_read_from_the_blocks_that_hold_its_rows_and_from_no_other() -> None:
    """Of two images in blocks of one, three and two rows."""
    cuts = [(image, lo, hi) for image in range(2) for lo, hi in ((0, 1), (1, 4), (4, 6))]
    whole = Whole(6, [RowBlock(variable, *cut) for variable, cut in enumerate(cuts)])
    for image, (lo, hi) in product(range(2), combinations(range(7), 2)):
        found = [
            (v, rows or (0, 0, cuts[v][2] - cuts[v][1]))  # None: all of them
            for v, rows in _pieces(whole, (image, lo, hi))
        ]
        wanted = [
            (b.variable, row - b.lo)
            for b in whole.blocks
            for row in range(b.lo, b.hi)
            if b.image == image and lo <= row < hi
        ]
        assert [(v, row) for v, (_, *rows) in found for row in range(*rows)] == wanted
        assert len(found) == len({v for v, _ in wanted})


def test_who_has_no_rule_gets_a_whole() -> None:
    """And only he: the pool over the whole image, not the second segment."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    trace = oc.trace(model, (1, 2, 20, 9), threads=2)
    banded = apply_rewrites(trace, ("bands:3:0:1", "bands:4:2:2"))
    inserted = {call.name.partition("[")[0] for call in banded.calls if "insert" in call.name}
    assert inserted == {"2.out.insert"}
    assert "input" not in banded.variable_by_name
    assert sum(v.kind == "input" for v in banded.variables) == 3 + 1  # and the labels


# Executed


def small_vgg() -> nn.Sequential:
    oc.manual_seed(0)
    return nn.Sequential(
        nn.FromBytes(127.5, 127.5), nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def image_in_a_file(folder: Path, side: int) -> oc.data.RowImage:
    """Random bytes, (side, side, 3)."""
    path = folder / f"{side}.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))
    return oc.data.RowImage(path)


WAYS = [
    ("belady", "va:chunk=4KiB", "2%"),
    ("window", "va:chunk=16KiB", "10%"),
    ("naive", "buddy", "90%"),
    ("prefix", "best-fit", "80%"),
    ("keep-all", "va:chunk=4KiB", None),
]


@pytest.mark.parametrize(("planner", "allocator", "budget"), quick(WAYS, 0, names=3))
def test_an_image_in_blocks_trains_to_the_bit(
    planner: str, allocator: str, budget: str | None, tmp_path: Path
) -> None:
    """Two segments, two steps; the step that runs in core is the banded one, whose values the laws
    above hold to the untiled one's.
    """
    model, image = small_vgg(), image_in_a_file(tmp_path, 64)
    banded = ("bands:4:0:5", "bands:3:6:8", "share_storage")
    plain = oc.trace(model, image.shape, threads=1, conv_algorithm="direct")
    how = Settings(
        budget=budget, planner=planner, allocator=allocator, threads=1, rewrites=banded,
        time_limit_s=None, machine="cpu-generic", debug=Debug(poison=0xFF, check_ledger=True),
    )  # fmt: skip
    start, scalars = initial_values(plain, model), {"lr": 0.05, "seed": 7}
    labels = np.array([3])
    found = out_of_core(prepare(plain, how), how, start, [(image, labels)] * 2, scalars)
    whole = np.asarray(image.rows(0, 0, 64))
    expected = in_core(apply_rewrites(plain, banded[:2]), start, [(whole, labels)] * 2, scalars)
    check_same_bits(found, expected)


def test_a_border_block_freed_before_its_second_reader_is_refused() -> None:
    """Of one call that reads two blocks each is read by two calls: the list must keep it."""
    model = small_vgg()
    trace = oc.trace(model, (1, 3, 64, 64), threads=1)
    names = ("bands:4:0:5", "bands:3:6:8", "share_storage")
    plan = oc.plan(trace, "100%", planner="keep-all", rewrites=names)
    blocks = {
        v.id for v in plan.trace.variables
        if tensor_of(v.name) == "5.out" and len(plan.trace.readers[v.id]) > 2
    }  # fmt: skip
    assert blocks
    instructions = list(plan.schedule.instructions)
    last = next(
        i for i, one in enumerate(instructions) if isinstance(one, Free) and one.var in blocks
    )
    freed = instructions.pop(last)
    second = plan.trace.readers[freed.var][-1]
    before = next(i for i, one in enumerate(instructions) if getattr(one, "call", None) == second)
    instructions.insert(before, freed)
    early = replace(plan, schedule=replace(plan.schedule, instructions=tuple(instructions)))
    oc.verify(plan, trace, "100%")
    with pytest.raises(ScheduleError):
        oc.verify(early, trace, "100%")


# Larger than the device


def quarter_vgg16() -> nn.Sequential:
    """VGG-16 with a quarter of the channels, for bytes."""
    oc.manual_seed(0)
    layers: list[nn.Module] = [nn.FromBytes(127.5, 127.5)]
    channels = 3
    for outputs, count in ((16, 2), (32, 2), (64, 3), (128, 3), (128, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


BANDS = ("bands:32:0:31", "share_storage")


@pytest.mark.slow
def test_gradients_of_a_file_are_those_of_the_untiled_step(tmp_path: Path) -> None:
    """At a size where the untiled step fits: within a bound of two orders of float sums, layer upon
    layer; sums over more pixels than channels dominate.
    """
    model, image = quarter_vgg16(), image_in_a_file(tmp_path, 256)
    trace = oc.trace(model, image.shape, optimizer=None, threads=2, conv_algorithm="direct")
    plan = oc.plan(trace, "10%", planner="belady", rewrites=BANDS, allocator="va")
    batch = image, np.array([3])
    found = oc.execute(plan, model, batch)
    whole = np.asarray(image.rows(0, 0, 256)), batch[1]
    untiled = oc.execute(oc.plan(trace, "100%", rewrites=("share_storage",)), model, whole)
    assert found.loss == untiled.loss
    assert found.timeline.peak_bytes == plan.peak_bytes < untiled.timeline.peak_bytes / 2
    for name, expected in untiled.gradients.items():
        assert np.abs(found.gradients[name] - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.slow
def test_an_image_of_48_mib_trains_in_a_device_of_32(tmp_path: Path) -> None:
    model, image = quarter_vgg16(), image_in_a_file(tmp_path, 2048)
    assert 4 * np.prod(image.shape) == 48 << 20
    trace = oc.trace(model, image.shape, optimizer=None, threads=2)
    plan = oc.plan(trace, "32MiB", planner="belady", rewrites=BANDS, allocator="va")
    found = oc.execute(plan, model, (image, np.array([3])))
    assert found.timeline.peak_bytes == plan.peak_bytes <= 32 << 20
    assert np.isfinite(found.loss)
    assert all(np.isfinite(g).all() and g.any() for g in found.gradients.values())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no Pss here")
def test_the_process_holds_what_is_promised() -> None:
    """Device and host memory, the pages of the file, and 32 MiB; each page counted once."""
    child = [sys.executable, "-m", "benchmarks.bench_blocks", "--child", "1024", "16", "32"]
    root = Path(__file__).parents[2]
    shown = subprocess.run(child, check=True, capture_output=True, text=True, cwd=root).stdout
    found = json.loads(shown)
    promised = found["peak_mib"] + found["host_peak_mib"] + 3 * 1024**2 / (1 << 20)
    assert found["resident_mib"] - found["before_mib"] <= promised + 32
