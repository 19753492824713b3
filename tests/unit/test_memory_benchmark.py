"""`benchmarks/bench_memory.py` and `bench_largest.py`: what they make of what was measured."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks import bench_largest, bench_memory, memory_process, memory_sides
from benchmarks.bench_largest import FINENESS, Search, our_sides
from benchmarks.bench_memory import begun
from benchmarks.memory_cases import (
    CASES,
    ON_DISK,
    Side,
    as_words,
    disk_sides,
    from_words,
    make_batch,
    torch_sides,
)
from benchmarks.memory_goals import goals, losses_differ
from benchmarks.memory_picture import curves_of, panels_svg
from ooctrain.step.machine import Disk

LOSSES = [2.0, 1.9, 1.8]


def row(name, growth, step_s, losses=LOSSES, **rest):
    exact = "micro" not in name
    return {"name": name, "growth_mib": growth, "step_s": step_s, "losses": losses, "exact": exact,
            **rest}  # fmt: skip


def disk_row(name, growth, step_s, arena, **rest):
    return row(name, growth, step_s, o_direct=True, arena_mib=arena, in_core_arena_mib=1000.0,
               predicted_1gbs_s=1.2, **rest)  # fmt: skip


FOUND = {
    "network": "resnet18", "batch": 4, "image": 32, "left_out": [],
    "rows": [
        row("ours", 1000.0, 1.0), row("ours, memory 50%", 400.0, 1.2),
        row("torch NHWC", 1200.0, 2.0), row("torch NCHW", 1400.0, 3.0, [2.0, 1.9, 1.83]),
        row("torch NHWC, 4 micro-batches", 500.0, 2.1, [1.0, 1.0, 1.0]),
        row("torch NHWC, checkpoint, 3 segments", 700.0, 2.5),
        row("torch NCHW, checkpoint, 3 segments", 1300.0, 1.5),
        {"name": "torch NHWC, saved to disk", "exact": True, "error": "killed"},
    ],
}  # fmt: skip


def with_rows(*rows):
    return {**FOUND, "rows": [*FOUND["rows"], *rows]}


def reached(found):
    return [(value, met) for _, value, _, met in goals(found)]


def test_the_goals_beside_torch():
    # 1.2 s of ours in 700 MiB beside 2.5 s; 400 MiB of ours in 2 s beside 1200; 400 beside 500.
    values = [(pytest.approx(0.48), True), (pytest.approx(1 / 3), True), (0.8, True)]
    assert reached(FOUND)[:3] == values
    slow = [r | {"step_s": 2.1} if r["name"].startswith("ours") else r for r in FOUND["rows"]]
    assert reached({**FOUND, "rows": slow})[:2] == [(pytest.approx(0.84), False), (None, None)]


def test_a_disk_counts_only_past_the_page_cache_and_within_a_quarter():
    assert reached(FOUND)[3:] == [(None, None)] * 4
    device = disk_row("ours, device 25% with the disk", 300.0, 1.4, 250.0)
    assert reached(with_rows(device))[3:] == [(1.4, True), (1.2, True), (None, None), (None, None)]
    small = device | {"growth_mib": 250.0, "step_s": 1.6}
    assert reached(with_rows(small))[3:] == [(1.6, False), (1.2, True)] * 2
    cached, large = device | {"o_direct": False}, device | {"arena_mib": 260.0}
    assert reached(with_rows(cached, large))[3:] == [(None, None)] * 4


def test_losses_are_those_that_torch_in_core_might_have():
    assert losses_differ(FOUND) == []
    # Torch's layouts end 0.03 apart, so 0.06 beyond either is nothing to speak of.
    good, bad = row("ours, a", 1.0, 1.0, [2.0, 1.0, 1.88]), row("ours, b", 1.0, 1.0, [2, 1.0, 1.9])
    first = row("ours, c", 1.0, 1.0, [2.001, 1.9, 1.8])
    assert losses_differ(with_rows(good, bad, first)) == ["ours, b", "ours, c"]


def test_a_panel_for_each_network_and_torch_in_its_faster_layout():
    disk = disk_row("ours, device 25% with the disk", 300.0, 1.4, 250.0)
    picture = panels_svg([with_rows(disk), FOUND, FOUND])
    assert picture.count("resnet18, batch 4, 32 px") == 3
    assert picture.count("<title>") == 6 + 5 + 5
    assert list(curves_of(with_rows(disk)))[-1] == "ours with the disk"
    assert all("NCHW" not in name for curve in curves_of(FOUND).values() for _, name in curve)


def test_a_run_is_resumed_only_with_the_same_batch(tmp_path):
    file, case = tmp_path / "memory-resnet18.json", CASES["resnet18"].of(4)
    file.write_text(json.dumps(FOUND))
    assert begun(case, file, resume=True)["rows"] == FOUND["rows"]
    assert begun(case.of(8), file, resume=True)["rows"] == []
    assert begun(case, file, resume=False)["rows"] == []


def test_a_case_and_a_side_arrive_as_they_were_sent():
    for case in CASES.values():
        for side in torch_sides(case, quick=False):
            assert from_words(as_words(case, side, 3, 2)) == (case, side, 3, 2)
    side = Side("ours", "ours", "device", 25, folder="/tmp", rates=(1.5, 2.5))
    assert from_words(as_words(CASES["unet"], side, 3, 2))[1] == side


def test_all_that_was_measured_of_a_disk_is_what_ours_plans_with(monkeypatch, tmp_path):
    measured = Disk(1.5, 2.5, "duplex", 700.0, str(tmp_path))
    monkeypatch.setattr(bench_memory, "measure_disk", lambda folder: measured)
    monkeypatch.setattr(bench_memory, "look_at", lambda folder: SimpleNamespace(file_system="ext4"))
    planned_with = []
    monkeypatch.setattr(memory_sides.oc, "Trainer", lambda *_, **how: planned_with.append(how))
    case = CASES["resnet18"].of(1)
    run = bench_memory.Run(case, 0.0, {"rows": [], "left_out": []}, None)
    for side in disk_sides(1 << 30, **run.disk(str(tmp_path))):
        if side.how == "memory":
            memory_sides.our_step(case, side, 1)
    assert [how["machine"].disk for how in planned_with] == [measured] * len(ON_DISK)


def test_segments_go_from_two_to_twice_the_root_of_the_stages():
    assert CASES["unet"].segment_counts == [2, 3, 4, 5, 6, 7, 8]
    assert CASES["resnet18"].segment_counts[-1] == 6


def test_each_pixel_has_a_label_and_both_classes_occur():
    images, labels = make_batch(replace(CASES["unet"], batch=2, image=32))
    assert images.shape == (2, 3, 32, 32)
    assert labels.shape == (2, 32, 32)
    assert set(np.unique(labels)) == {0, 1}


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are Linux's")
@pytest.mark.parametrize("direct", [True, False])
def test_the_page_cache_is_looked_at_from_outside(tmp_path, direct):
    flags = os.O_RDWR | os.O_TMPFILE | (os.O_DIRECT if direct else 0)
    try:
        file = os.open(tmp_path, flags)
    except OSError:
        pytest.skip("this file system has no such files")
    try:
        os.truncate(file, 3 << 20)
        found = memory_process._slab_file(os.getpid(), str(tmp_path))
    finally:
        os.close(file)
    assert found == {"o_direct": direct, "slab_file_mib": 3.0}
    assert memory_process._slab_file(os.getpid(), str(tmp_path))["o_direct"] is False


@settings(max_examples=20)
@given(
    base=st.integers(100, 400), slope=st.floats(0.5, 300), bend=st.floats(0.8, 1.25),
    planned=st.floats(0.8, 1.1), start=st.integers(8, 300),
)  # fmt: skip
@example(base=300, slope=7.0, bend=1.2, planned=1.1, start=8)  # the line ends too late
@example(base=100, slope=70.0, bend=1.25, planned=0.8125, start=8)  # no try of ours fits
@example(base=100, slope=244.0, bend=0.875, planned=1.0, start=8)  # within the small batches
@example(base=300, slope=7.0, bend=0.8, planned=0.8, start=300)  # and too early
def test_the_search_ends_at_the_largest_batch_that_fits(base, slope, bend, planned, start):
    """Whatever the line and the plans foretell: what is found fits, and not much more does."""
    limit = 2048

    def total_mib(batch):
        """A line that bends beyond the small batches; more images never hold less."""
        return base + slope * (min(batch, 8) + bend * max(0, batch - 8))

    def pretended(case, side, steps, threads, limit_s):
        batch = case.batch
        if steps:
            return {"name": side.name, "total_mib": total_mib(batch)}
        fits = base + planned * slope * batch <= limit
        return {"name": side.name, **({"total_mib": base} if fits else {"error": "refused"})}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_largest, "run_side", pretended)
        search = Search(CASES["resnet50"], limit << 20, [], None)
        torch = Side("torch NHWC", "torch", "in-core", layout="NHWC")
        theirs = search.around(torch, search.line_end(torch))
        ours = search.largest_trained(next(our_sides(limit << 20, "")), start)

    def fits(batch):
        return total_mib(batch) <= limit

    assert theirs == 0 or fits(theirs)
    assert ours == 0 or fits(ours)
    # A step is a part of where the line ended, which may be a quarter beyond.
    assert not fits(theirs + 2 + int(1.3 * theirs / FINENESS)) or theirs == 0


def test_a_line_goes_through_what_the_frontier_knows(tmp_path, monkeypatch):
    def pretended(case, side, steps, threads, limit_s):
        assert case.batch == 1, "one small batch is enough"
        return {"name": side.name, "total_mib": 300.0, "growth_mib": 100.0}

    monkeypatch.setattr(bench_largest, "run_side", pretended)
    rows = [row("torch NHWC", 400.0, 1.0), {"name": "torch NCHW", "error": "killed"}]
    (tmp_path / "memory-unet.json").write_text(json.dumps({**FOUND, "rows": rows}))
    known = bench_largest.known_frontier(CASES["unet"], tmp_path)
    assert known == ({"torch NHWC": 400.0}, 4)
    search = Search(CASES["unet"], 1300 << 20, [], None, *known)
    # 100 MiB an image beyond the first: 300 + 100 (n - 1) reaches 1300 at 11.
    assert search.line_end(Side("torch NHWC", "torch", "in-core")) == 11


@pytest.mark.parametrize("chance_mib", [-9.0, 0.0, 12.0])
def test_chance_between_two_small_batches_gives_no_line(chance_mib, monkeypatch):
    """VGG-19 in seven segments took 837 MiB for two images and 828 for four."""

    def pretended(case, side, steps, threads, limit_s):
        more = chance_mib if case.batch == 4 else 80.0 * (case.batch - 2)
        return {"name": side.name, "total_mib": 837.0 + more}

    monkeypatch.setattr(bench_largest, "run_side", pretended)
    search = Search(CASES["vgg19"], 2048 << 20, [], None)
    assert search.line_end(Side("torch NCHW", "torch", "in-core")) == 17  # 837 + 80 * 15 = 2037


def test_where_the_second_batch_does_not_run_the_line_ends_at_the_first(monkeypatch):
    def pretended(case, side, steps, threads, limit_s):
        return {"name": side.name, **({"total_mib": 900.0} if case.batch == 2 else {"error": "x"})}

    monkeypatch.setattr(bench_largest, "run_side", pretended)
    search = Search(CASES["vgg19"], 2048 << 20, [], None)
    assert search.line_end(Side("torch NCHW", "torch", "in-core")) == 2


def test_a_try_that_was_made_is_not_made_again(tmp_path, monkeypatch):
    made = []

    def pretended(case, side, steps, threads, limit_s):
        made.append(case.batch)
        return {"name": side.name, "total_mib": 10.0 * case.batch}

    monkeypatch.setattr(bench_largest, "run_side", pretended)
    side, file = next(our_sides(1 << 30, "")), tmp_path / "tries.json"
    for _ in range(2):
        tries = bench_largest.known_tries(file, resume=True)
        assert Search(CASES["unet"], 1 << 30, tries, file).largest_trained(side, 8) in range(
            96, 103
        )
    assert len(made) == len(set(made)) + 1  # planned, and then trained
