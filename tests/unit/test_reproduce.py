"""Tables of the papers: figures are printed as the papers have them, cells are what they claim."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ooctrain.api import step_trace
from ooctrain.cli import main
from ooctrain.experiments.paper_000 import architectures, table1
from ooctrain.experiments.paper_000.architectures import Largest
from ooctrain.experiments.paper_000.table1 import (
    BASELINE,
    METHODS,
    OURS,
    SCHEDULE_VA,
    batch_cells,
    method_named,
)
from ooctrain.experiments.paper_001 import hybrid
from ooctrain.experiments.paper_001.hybrid import Tuned
from ooctrain.experiments.paper_002 import offload_ratios
from ooctrain.experiments.paper_002 import offload_ratios as report_of_ratios
from ooctrain.experiments.paper_003 import sft_images
from ooctrain.experiments.paper_004 import distributed, hmms_speeds
from ooctrain.sched.planners.bn_recompute import offloadable_share
from ooctrain.sched.planners.lms import LevelGraph
from ooctrain.step import presets
from ooctrain.step.presets import rtx2080ti
from ooctrain.units import GIB, MIB

ROOT = Path(__file__).parents[2]
MODEL, PHYSICAL = "resnet18", 1 * GIB


def documented(command: str) -> set[str]:
    """The keys that docs/json.md names for a command."""
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    section = text.split(f"## `ooctrain reproduce {command} --json`")[1].split("\n## ")[0]
    return set(re.findall(r"`(\w+)`", section))


@pytest.fixture(scope="module")
def cells():
    """A batch that fits in-core, and one that is several times too large."""
    return [cell for batch in (16, 56) for cell in table1.cells_of(MODEL, batch, PHYSICAL, METHODS)]


def test_the_printed_shares_are_those_of_the_papers_text():
    kept = {(m.name, b): table1.printed_kept(m, b) for m in METHODS for b in m.printed}
    assert round(kept["schedule + VA", 1440], 2) == 0.55
    assert round(kept["schedule", 928], 2) == 0.69
    assert round(kept["LMS", 928], 2) == 0.53
    assert kept[BASELINE, 190] == 1
    assert max(method_named("LMS").printed) == 928
    assert method_named(OURS).printed == {}


@pytest.mark.slow
def test_every_cell_keeps_its_promise(cells):
    assert [cell.method for cell in cells] == [method.name for method in METHODS] * 2
    for cell in cells:
        if cell.images_per_s is None:
            continue
        assert cell.reserved_bytes <= PHYSICAL
        assert cell.budget_bytes <= PHYSICAL
        assert 0 < cell.images_per_s <= cell.compute_images_per_s


def test_swapping_trains_what_does_not_fit_and_loses_speed(cells):
    speed = {(cell.method, cell.batch): cell.images_per_s for cell in cells}
    assert speed[BASELINE, 56] is None
    assert table1.largest_batch(cells, BASELINE) == 16
    for method in ("schedule", "schedule + VA", OURS):
        assert table1.largest_batch(cells, method) == 56
    assert speed[OURS, 16] == pytest.approx(speed[BASELINE, 16])
    assert speed[OURS, 56] >= speed["schedule", 56]
    in_core = table1.in_core_images_per_s(cells)
    assert in_core == speed[BASELINE, 16]
    assert table1.speed_kept(replace(cells[0], images_per_s=in_core / 2), in_core) == 0.5


@pytest.mark.slow
def test_what_does_not_fit_has_no_speed():
    found = batch_cells((MODEL, 56, 64 * MIB))
    for cell in found:
        assert cell.images_per_s is None
        assert cell.budget_bytes is None
    assert table1.in_core_images_per_s(found) is None


def test_a_machine_is_fitted_until_it_trains_as_fast_as_was_printed(monkeypatch):
    """A small network for ResNet-50, at a speed between the preset's and 16 times that."""
    case = "resnet18", 8
    trains = partial(table1.cells_of, *case, 16 * GIB, METHODS[:1])
    preset = trains([presets.machine(table1.MACHINE)])[0].images_per_s
    monkeypatch.setattr(table1, "FITTED_MODEL", case[0])
    monkeypatch.setattr(table1, "FITTED_BATCH", case[1])
    monkeypatch.setattr(table1, "FITTED_IMAGES_PER_S", 1.25 * preset)
    found = table1.fitted.__wrapped__(50)
    assert trains([found])[0].images_per_s == pytest.approx(1.25 * preset, rel=1e-4)
    assert (found.link_bytes_per_us, found.name) == (50e3, "fitted, 50 GB/s")


@pytest.mark.slow
def test_fitted_machines_train_in_core_what_the_paper_did_and_no_list_beats_the_bound():
    wheres = table1.machines()
    for where in wheres[1:]:
        (cell, *_) = table1.cells_of("resnet50", 190, 16 * GIB, METHODS[:1], [where])
        assert cell.images_per_s == pytest.approx(581, rel=1e-4)
    assert [where.link_bytes_per_us for where in wheres[1:]] == [50e3, 100e3]
    found = [cell for cell in batch_cells((MODEL, 56, PHYSICAL)) if cell.method != OURS]
    bounds = {b.machine: b.images_per_s for b in table1.offload_bounds((MODEL, 56, PHYSICAL))}
    assert set(bounds) == {cell.machine for cell in found} == {where.name for where in wheres}
    for cell in found:
        assert cell.images_per_s is None or cell.images_per_s <= bounds[cell.machine] * (1 + 1e-5)
    slow, fast = (
        [cell.images_per_s for cell in found if (cell.machine, cell.method) == (name, SCHEDULE_VA)]
        for name in ("fitted, 50 GB/s", "fitted, 100 GB/s")
    )
    assert slow < fast


def reproduced(name: str, tmp_path: Path, capsys, *options: str) -> tuple[str, dict]:
    """(what `ooctrain reproduce NAME --quick` prints, what it writes); the figure is drawn."""
    figure, numbers = tmp_path / "x.svg", tmp_path / "x.json"
    arguments = ["--quick", "--figure", str(figure), "--json", str(numbers), *options]
    assert main(["reproduce", name, *arguments]) == 0
    assert ElementTree.fromstring(figure.read_text()).tag.endswith("svg")
    shown, found = capsys.readouterr().out, json.loads(numbers.read_text())
    (section,) = re.findall(r'docs papers`, section\s+"(.*)"', " ".join(shown.split()))
    assert f"\n### `{section}`" in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert set(found) <= documented(name)
    return shown, found


@pytest.mark.slow
def test_table1_prints_draws_and_writes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(table1, "MODEL", MODEL)
    monkeypatch.setattr(table1, "QUICK_BATCHES", (16, 64))
    shown, found = reproduced("table1", tmp_path, capsys, "--physical", "1GiB")
    for words in ("Images per second", "in-core speed", "schedule"):
        assert words in shown
    assert set(found["cells"][0]) <= documented("table1")
    assert set(found["bounds"][0]) <= documented("table1")
    assert len(found["cells"]) == 2 * (3 * len(METHODS) - 2)  # auto on the first machine alone


@pytest.fixture(scope="module")
def chains():
    """ResNet-18 where memory is short, and where it is not."""
    (group, *_) = offload_ratios.groups(("resnet18",), {224: (4,)})
    return offload_ratios.chain_cells((group, (0.0, 0.3, 1.0)))


def test_on_chains_nobody_beats_the_bounds_and_all_memory_costs_nothing(chains):
    assert len(chains) == 3 * len(offload_ratios.CHAIN_CASE_PLANNERS)
    for cell in chains:
        assert cell.compute_us <= cell.proposition_3_us <= cell.lp_us * (1 + 1e-5)
        assert cell.lp_us <= cell.makespan_us * (1 + 1e-5)
    assert {cell.ratio for cell in chains if cell.share == 1.0} == {1.0}
    tight = {cell.planner: cell.ratio for cell in chains if cell.share == 0.0}
    assert tight["belady"] == min(tight.values()) > 1.0


def test_claims_count_what_the_cells_say(chains):
    greedy, dynprog, vdnn, _ = chains[:4]
    slow, fast = replace(vdnn, makespan_us=3.0), replace(greedy, makespan_us=2.0)
    other = replace(dynprog, makespan_us=4.0, proposition_3_us=2.0)
    otherwise = [replace(other, planner=name) for name in offload_ratios.CHAIN_CASE_PLANNERS[-2:]]
    found = {c.printed: c.here for c in offload_ratios.claims([fast, other, slow, *otherwise])}
    assert found["GREEDY outperforms VDNN in most cases"] == "faster in 1, slower in 0 of 1"
    assert found["DYNPROG outperforms VDNN in most cases"] == "faster in 0, slower in 1 of 1"
    assert found["DYNPROG is much more stable than VDNN"].startswith("at most 2.00: resnet18")
    assert found["the ratio of DYNPROG remains below 1.3 on DenseNets"] == "not asked"


def test_slots_change_what_dynprog_finds_and_never_beat_the_bound():
    found = offload_ratios.slot_cells(("resnet18", (0.3, 1.0)))
    counted = [(cell.slots, cell.most_states) for cell in found]
    assert counted == 2 * list(offload_ratios.SLOTS)
    assert all(cell.ratio >= 1 for cell in found)
    assert {cell.ratio for cell in found if cell.share == 1.0} == {1.0}
    assert len({cell.ratio for cell in found if cell.share == 0.3}) > 1


def test_the_figure_has_a_column_for_each_image_size(chains):
    groups = [(model, size) for size in (224, 500, 1000) for model in ("resnet18", "resnet50")]
    groups += [("inception_v3", size) for size in (299, 500, 1000)]
    cells = [
        replace(cell, group=replace(cell.group, model=model, image_size=size, batch=batch))
        for model, size in groups
        for batch in offload_ratios.BATCHES.get(size, (32, 64))
        for cell in chains
    ]
    ratios, speeds, steps = ElementTree.fromstring(report_of_ratios.ratio_figure(cells, []))
    assert [len(ratios), len(speeds), len(steps)] == [3, 3, 0]
    for column, sizes in zip((*ratios, *speeds), 2 * ("224 299", "500", "1000"), strict=True):
        titles = [picture.find("{*}text").text for picture in column]
        found = [title.partition(" pixels")[0].split(", ") for title in titles]
        assert [model for model, _ in found] == ["resnet18", "resnet50", "inception_v3"]
        assert {size for _, size in found} == set(sizes.split())


def test_steps_are_asked_in_the_memory_of_their_chains():
    low, *_, high = offload_ratios.step_cases(("resnet18",), (0.0, 1.0))
    assert int(low.budget) < int(high.budget)
    assert (low.batch, low.image_size) == (offload_ratios.USUAL_BATCH, offload_ratios.USUAL_SIZE)


def test_offload_ratios_prints_draws_and_writes(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OOCTRAIN_CACHE", str(tmp_path))
    monkeypatch.setattr(offload_ratios, "QUICK_BATCHES", {224: (32, 2)})
    monkeypatch.setattr(offload_ratios, "STEP_PLANNERS", ("greedy",))
    monkeypatch.setattr(report_of_ratios, "STEP_PLANNERS", ("greedy",))
    monkeypatch.setattr(offload_ratios, "QUICK_DENSENETS", ("resnet18",))
    shown, found = reproduced("offload-ratios", tmp_path, capsys)
    assert "GREEDY outperforms VDNN" in shown
    assert len(found["cells"]) == 2 * len(offload_ratios.QUICK_SHARES) * len(
        offload_ratios.CHAIN_CASE_PLANNERS
    )
    assert set(found["cells"][0]) <= documented("offload-ratios")


def test_the_fitted_machine_gives_the_share_that_was_asked_for():
    step = step_trace("resnet18", 4, 224)
    assert offloadable_share(step, hmms_speeds.p100_nvlink()) > 0.55
    machine = hmms_speeds.fitted(step, hmms_speeds.p100_nvlink(), 0.55)
    assert offloadable_share(step, machine) == pytest.approx(0.55, abs=1e-3)
    calls = hmms_speeds.call_bytes(step, machine)
    carried = sum(call.offloadable_bytes for call in calls)
    assert carried / sum(call.generated_bytes for call in calls) == pytest.approx(0.55, abs=1e-3)


@pytest.mark.slow
def test_hmms_prints_draws_and_writes_and_loses_less_than_layer_by_layer(tmp_path, capsys):
    shown, found = reproduced("hmms", tmp_path, capsys)
    assert "vgg19" in shown
    loss = {(s["machine"], s["model"], s["method"]): s["loss"] for s in found["speeds"]}
    for (machine, model, method), lost in loss.items():
        assert 0 <= lost < 1
        if method == hmms_speeds.HMMS:
            assert lost < loss[machine, model, hmms_speeds.LAYER_WISE]
    printed = {(s["model"], s["method"]): s["printed"] for s in found["speeds"]}
    assert printed["vgg19", "layer-wise"] == 0.13
    assert printed["resnet50", "HMMS"] == 0.051
    rows = (found["speeds"][0], found["shares"][0], found["calls"]["vgg19"][0])
    assert {key for row in rows for key in row} <= documented("hmms")


@pytest.mark.slow
def test_split_hmms_prints_draws_and_writes(tmp_path, capsys):
    shown, found = reproduced("split-hmms", tmp_path, capsys)
    assert "another network" in shown
    largest = {row["method"]: row["batch"] for row in found["batches"]}
    assert largest["split + HMMS"] >= largest["HMMS"] >= largest["baseline"] > 0
    before, after = found["calls"]
    assert after["minimum_bytes"] < before["minimum_bytes"]
    rows = (found["batches"][0], before)
    assert {key for row in rows for key in row} <= documented("split-hmms")


@pytest.mark.slow
def test_split_accuracy_prints_draws_and_writes(tmp_path, capsys):
    shown, found = reproduced(
        "split-accuracy", tmp_path, capsys, "--set", "images=64,epochs=1,seeds=2"
    )
    assert "not run here" in shown
    kinds = [row["kind"] for row in found["rows"]]
    assert kinds == ["whole", "split", "stochastic"]
    assert all(len(row["accuracies"]) == 2 for row in found["rows"])
    assert [row["printed"] for row in found["rows"]] == [94.14, 93.02, 94.58]
    assert {key for row in found["rows"] for key in row} <= documented("split-accuracy")
    assert main(["reproduce", "split-accuracy", "--quick", "--set", "epoch=3"]) == 2


def step_of(batch: int, forward_us: float, backward_us: float) -> distributed.StepTimes:
    return distributed.StepTimes("", "", batch, forward_us, backward_us, None)


def test_an_epoch_takes_what_paper_004_prints():
    """2 G / (alpha B) = 2 x 100 MB / (0.8 x 1 GB/s) = 250 ms, beside 200 ms backwards; 10 steps."""
    network_us = distributed.exchange_us(100_000_000, 8)
    assert network_us == pytest.approx(250_000)
    hidden, shown = step_of(64, 100_000, 300_000), step_of(64, 100_000, 200_000)
    assert distributed.epoch_us(hidden, network_us, 640) == pytest.approx(10 * 400_000)
    assert distributed.epoch_us(shown, network_us, 640) == pytest.approx(10 * 350_000)


@settings(max_examples=30)
@given(
    small=st.integers(1, 64), times=st.integers(2, 8), forward_us=st.integers(1, 10**6),
    backward_us=st.integers(1, 10**6), size=st.integers(1, 10**9),
)  # fmt: skip
@example(small=64, times=6, forward_us=203_385, backward_us=404_533, size=574_668_960)
def test_a_larger_batch_gains_from_nothing_to_the_ratio_of_the_batches(
    small, times, forward_us, backward_us, size
):
    """Of steps whose time is in proportion to their batch; the slower the network, the more."""
    one = step_of(small, forward_us, backward_us)
    other = step_of(times * small, times * forward_us, times * backward_us)
    found = [row.speedup for row in distributed.speedups(one, other, size)]
    assert all(slow >= fast * (1 - 1e-9) for fast, slow in itertools.pairwise(found))
    assert 1 - 1e-9 <= found[0] <= found[-1] * (1 + 1e-9) <= times * (1 + 1e-8)
    compute = forward_us + max(backward_us, distributed.exchange_us(size, 32.0))
    assert found[0] == pytest.approx(
        times * compute
        / (times * forward_us + max(times * backward_us, distributed.exchange_us(size, 32.0)))
    )  # fmt: skip


def test_gradients_are_those_of_each_parameter_once():
    step = step_trace("vgg19", 2, 224)
    assert distributed.gradient_bytes(step) == 4 * 143_667_240


@pytest.mark.slow
def test_distributed_prints_draws_and_writes_figure_11(tmp_path, capsys):
    shown, found = reproduced("distributed", tmp_path, capsys)
    assert "Gbit/s" in shown
    assert found["gradient_bytes"] == 4 * 143_667_240
    assert {row["gbit_s"] for row in found["speedups"]} == set(distributed.BANDWIDTHS)
    assert {row["printed"] for row in found["speedups"] if row["gbit_s"] == 10} == {2.1}
    rows = (found["speedups"][0], found["steps"][0], found["gains"][0])
    assert {key for row in rows for key in row} <= documented("distributed")


def test_activations_of_the_three_networks_are_those_of_paper_003():
    """Printed are 118, 129 and 43 GiB at 10240 pixels."""
    found = {
        network: round(
            sft_images.activation_bytes(sft_images.convolutional_step(network, 10240)) / GIB, 1
        )
        for network in sft_images.PRINTED_GIB
    }
    assert found == {"vgg16": 118.6, "vgg19": 128.7, "darknet19": 42.8}


@pytest.mark.slow
def test_each_way_of_figure_8_goes_as_far_as_it_fits():
    small = replace(rtx2080ti(), device_bytes=48 * MIB)
    rows = [row for side in (32, 256, 384) for row in sft_images.cells("vgg16", side, small)]
    assert [row.way for row in rows] == [*sft_images.ways()] * 3
    found = sft_images.largest(rows)
    sides = [
        found[small.name, "vgg16", way]
        for way in (sft_images.BASE, sft_images.CHECKPOINT, sft_images.OURS)
    ]
    assert sides == sorted(sides)
    for row in rows:
        assert (row.seconds is None) == (row.peak_bytes > small.device_bytes)
        if row.way == sft_images.SFT and row.seconds is not None:
            assert "tile:" in row.tiling
            assert row.over_untiled > 1
    assert sft_images.ARTIFACT_S["rtx2080ti", "vgg16", 10240] == 43.8


@pytest.mark.slow
def test_sft_prints_draws_and_writes(tmp_path, capsys):
    shown, found = reproduced("sft", tmp_path, capsys)
    assert "118 GiB" in shown
    assert {*found, *found["cells"][0]} <= documented("sft")


def test_batches_are_those_at_which_a_method_ends():
    batches = {"baseline": 4, "schedule": 16, "schedule + VA": 24, "va-nnabla": 24, "va": 32}
    found = [Largest("m", name, batch) for name, batch in batches.items()]
    assert architectures.batches_of(found) == [2, 4, 8, 16, 24]
    times = {"schedule": 4.0, "schedule + VA": 1.5, "va-nnabla": 1.5, "va": 2.0}
    assert architectures.factors(found) == times
    none = [replace(row, batch=0) for row in found]
    assert architectures.batches_of(none) == []
    assert architectures.factors(none) == dict.fromkeys(times)


def test_the_printed_batches_of_the_architectures_are_those_of_the_papers_text():
    printed = {
        each.model: (each.printed_in_core, architectures.printed_batch(each, "schedule"))
        for each in architectures.NETWORKS
    }
    assert printed["densenet121"] == (512, 768)
    assert printed["pix2pixhd_perceptual"] == (4, 16)
    assert printed["deeplabv3plus"] == printed["deeplabv3plus_xception65"] == (6, 32)


@pytest.mark.slow
def test_architectures_prints_draws_and_writes(monkeypatch, tmp_path, capsys):
    network = replace(architectures.NETWORKS[1], model="vgg11", batch_step=16)
    monkeypatch.setattr(architectures, "QUICK_NETWORKS", (network,))
    _, found = reproduced("architectures", tmp_path, capsys, "--physical", "3GiB")
    in_core, schedule, va, code, ours = (row["batch"] for row in found["largest_batches"])
    assert 0 < in_core <= schedule <= va == code <= ours
    speed = {(cell["method"], cell["batch"]): cell["images_per_s"] for cell in found["cells"]}
    assert speed["baseline", in_core] is not None
    assert speed["schedule + VA", va] is not None
    assert (speed["baseline", va] is None) == (va > in_core)
    rows = (found["cells"][0], found["largest_batches"][0], found["networks"][0])
    assert {key for row in rows for key in row} <= documented("architectures")


def test_the_printed_tables_of_paper_001_have_the_figures_of_its_text():
    resnet50, deeplab = hybrid.NETWORKS
    assert sorted(resnet50.swap) == sorted(resnet50.hybrid) == list(range(3500, 7001, 500))
    assert sorted(deeplab.swap) == sorted(deeplab.hybrid) == list(range(500, 1301, 100))
    assert str(resnet50.hybrid[6500]) == "429/25/821, list 2+4+5+6"
    assert str(deeplab.swap[900]) == "217/11/0"
    assert deeplab.hybrid[1000].checkpoints == (1, 2, 3, 4, 5, 6)
    assert (resnet50.gain, deeplab.gain) == ((6500, 0.375), (1000, 0.187))


SMALL = replace(
    hybrid.RESNET50, model="resnet18", batch=64, image_sizes=(128, 192), levels=200,
    sizes_of_fit=(128, 160), sizes_of_knee=(160, 192), swap={192: Tuned(100, 5, 200)},
    hybrid={192: Tuned(100, 5, 200, (2,))},
)  # fmt: skip


@pytest.fixture(scope="module")
def images():
    """A network at an image that fits, and at one of twice as many pixels."""
    return [cell for size in SMALL.image_sizes for cell in hybrid.cells((SMALL, size, None))]


@pytest.mark.slow
def test_in_the_fitted_memory_the_step_ends_where_the_papers_does(images):
    largest = {
        (method, memory): hybrid.largest(images, "resnet18", method, memory)
        for method in hybrid.METHODS
        for memory in (hybrid.DEVICE, hybrid.FITTED)
    }
    assert largest[hybrid.VANILLA, hybrid.FITTED] == 128
    assert largest[hybrid.SWAP, hybrid.FITTED] == largest[hybrid.OURS, hybrid.FITTED] == 192
    assert {largest[method, hybrid.DEVICE] for method in hybrid.METHODS} == {192}


@pytest.mark.slow
def test_recomputation_costs_time_and_swapping_copies(images):
    assert hybrid.recompute_overhead(images, SMALL, hybrid.FITTED) > 0
    cell = {(c.method, c.image_size): c for c in images if c.memory == hybrid.FITTED}
    assert cell[hybrid.SWAP, 128].swap_outs == cell[hybrid.RECOMPUTE, 128].swap_outs == 0
    assert cell[hybrid.SWAP, 192].swap_outs > 0 < cell[hybrid.SWAP, 192].bytes_out
    assert cell[hybrid.VANILLA, 192].minimum_bytes > cell[hybrid.VANILLA, 192].budget_bytes
    size, gain = hybrid.hybrid_gain(images, SMALL, hybrid.FITTED)
    assert gain >= 0
    assert size in SMALL.image_sizes


@pytest.mark.slow
def test_on_the_fitted_link_swapping_begins_to_lose_between_the_sizes_of_the_knee():
    link = hybrid.fitted_link(SMALL)
    assert 0 < link < hybrid.MACHINE.link_bytes_per_us
    speeds = {}
    for where in (None, link, link / 2):
        for cell in hybrid.cells((SMALL, 176, where)):
            if cell.method == hybrid.SWAP:
                speeds[cell.memory, cell.link_bytes_per_us] = cell.megapixels_per_s
    flat = speeds[hybrid.FITTED, hybrid.MACHINE.link_bytes_per_us]
    assert speeds[hybrid.FITTED_LINK, link] == pytest.approx(hybrid.FLAT * flat, rel=1e-3)
    assert speeds[hybrid.FITTED_LINK, link / 2] < 0.9 * flat


def test_printed_levels_are_used_as_given_and_scaled():
    given, scaled = [r for r in hybrid.replays((SMALL, 192, None)) if r.memory == hybrid.FITTED][:2]
    assert given.used == given.printed == SMALL.swap[192]
    assert scaled.printed == SMALL.swap[192]
    height = LevelGraph(step_trace("resnet18", 64, 192)).height
    assert scaled.used.swapout_threshold == round(100 * height / 200)


@pytest.mark.slow
def test_hybrid_prints_draws_and_writes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(hybrid, "NETWORKS", (SMALL,))
    monkeypatch.setattr(hybrid, "QUICK_SIZES", {"resnet18": (192,)})
    shown, found = reproduced("hybrid", tmp_path, capsys)
    assert "hybrid gains over swap" in shown
    keys = set(found["cells"][0]) | set(found["replays"][0]) | set(found["replays"][0]["used"])
    assert keys <= documented("hybrid")
