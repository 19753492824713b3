"""Allocation logs: what is written is read back, and replay tells what a real run would."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain.alloc import AllocationLog, Recorder, Request
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.log import check_requests, foresee, hold_whole
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.replay import peak_bytes, replay, serve
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.cli import DOES_NOT_FIT, DONE, main
from ooctrain.cli.options import split_names
from ooctrain.errors import ConfigError, OutOfDeviceMemory
from ooctrain.execution.placement import allocation_log, reserved_peak
from ooctrain.rewrite import apply_rewrites
from ooctrain.step.presets import machine
from ooctrain.units import Granule

MIB = 1 << 20
FOUR_BLOCKS = [Request("allocate", key, MIB, tag=f"block {key}") for key in range(4)]
TWO_HOLES = [*FOUR_BLOCKS, Request("free", 0), Request("free", 2)]
LARGE = Request("allocate", 4, 2 * MIB, tag="large")


@st.composite
def request_lists(draw, ranges=False):
    """Legal requests in small sizes; with ranges some blocks are reserved and held in halves."""
    requests, live, made = [], [], 0
    for choice, size in draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=60)
    ):
        if choice < 3 or not live:
            op = "reserve" if ranges and choice == 2 else "allocate"
            requests.append(Request(op, made, size * 4096, tag=f"b{made}"))
            if op == "reserve":
                half = max(1, size // 2) * 4096
                requests.append(Request("map", made, lo=0, hi=half))
                if size > 1 and choice % 2 == 0:
                    requests.append(Request("map", made, lo=half, hi=size * 4096))
                    requests.append(Request("unmap", made, lo=0, hi=half))
            live.append(made)
            made += 1
        else:
            requests.append(Request("free", live.pop(size % len(live))))
    return requests


def as_log(requests, budget_bytes=4 * MIB):
    return AllocationLog(tuple(requests), "best-fit", Granule(512, False), budget_bytes, "a test")


def small_plan(batch=64):
    trace = oc.trace(oc.models.build("resnet18", stem="cifar"), (batch, 3, 32, 32), threads=1)
    rewritten = apply_rewrites(trace, ("fuse", "share_storage"))
    granule = Granule(1, ranges=False)
    return oc.plan(rewritten, "20%", planner="window", machine="v100-pcie", granule=granule)


# The file.


@given(requests=request_lists(ranges=True))
def test_a_log_reads_back_as_it_was_written(tmp_path_factory, requests):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    requests = [Request("step", 0), *requests, Request("refused", -1, 99, tag="too large")]
    log = AllocationLog(tuple(requests), "va", Granule(4096), 7, "ä note", frozenset({"b0"}))
    log.save(path)
    assert AllocationLog.load(path) == log


def test_a_log_of_another_version_is_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    as_log(FOUR_BLOCKS).save(path)
    header, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header.replace('"version": 1', '"version": 2'), *rest]))
    with pytest.raises(ConfigError, match="version 2"):
        AllocationLog.load(path)


@pytest.mark.parametrize("granule", ['{"size_bytes": 0}', '{"size": 512}', "512"])
def test_a_log_without_a_granule_is_refused(tmp_path, granule):
    path = tmp_path / "log.jsonl"
    as_log(FOUR_BLOCKS).save(path)
    header, *rest = path.read_text().splitlines()
    changed = {**json.loads(header), "granule": json.loads(granule)}
    path.write_text("\n".join([json.dumps(changed), *rest]))
    with pytest.raises(ConfigError, match="no granule"):
        AllocationLog.load(path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "line 6"),
        ('{"op": "alloc", "id": 9}', "not a request"),
        ('{"op": "free", "id": 9}', "request 4 of the log"),
        ('{"op": "allocate", "id": 0, "bytes": 5}', "request 4 of the log"),
        ('{"op": "allocate", "id": 9, "bytes": 0}', "request 4 of the log"),
        ('{"op": "map", "id": 0, "lo": 5, "hi": 5}', "request 4 of the log"),
        ("[1]", "not a request"),
    ],
)
def test_a_line_that_means_nothing_is_named(tmp_path, line, why):
    path = tmp_path / "log.jsonl"
    as_log(FOUR_BLOCKS).save(path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ConfigError, match=why) as caught:
        AllocationLog.load(path)
    assert caught.value.code == "OOC-114"


@pytest.mark.parametrize("text", ["", "{}", "README", '{"format": "x", "version": 1}'])
def test_another_file_is_no_log(tmp_path, text):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="header"):
        AllocationLog.load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        AllocationLog.load(tmp_path / "none")


# Recording and replaying.


@given(requests=request_lists())
def test_a_replay_of_a_recording_repeats_its_books(requests):
    first = BestFit(DryMemory(64 * MIB))
    recorder = Recorder(first)
    stats = serve(requests, recorder)
    again = replay(recorder.log(), BestFit(DryMemory(64 * MIB)))
    assert again.stats == stats
    assert again.served == len(recorder.requests)
    assert stats.peak_requested_bytes == peak_bytes(requests)


@given(requests=request_lists(ranges=True))
def test_a_recording_is_what_was_asked_for(requests):
    recorder = Recorder(VirtualAddressing(DryMemory(64 * MIB), chunk=4096))
    serve(requests, recorder)
    assert recorder.requests == requests


@given(requests=request_lists(ranges=True))
def test_what_is_held_whole_is_never_less(requests):
    whole = hold_whole(requests)
    assert {request.op for request in whole} <= {"allocate", "free"}
    assert peak_bytes(whole) >= peak_bytes(requests)
    assert replay(requests, "best-fit").stats.peak_requested_bytes == peak_bytes(whole)


@given(requests=request_lists())
def test_a_static_plan_serves_what_it_foresaw(requests):
    lives = foresee(requests).lifetimes
    assert len(lives) == sum(request.op == "allocate" for request in requests)
    found = replay(requests, "first-fit")
    assert found.failure is None
    assert found.stats.peak_reserved_bytes >= found.stats.peak_granted_bytes


def test_a_failure_says_where_and_best_fit_fails_where_va_does_not():
    requests = [Request("step", 0), *TWO_HOLES, LARGE, Request("free", 4)]
    found = replay(requests, "best-fit", budget=4 * MIB)
    assert found.failure.place == 7
    assert found.failure.request == LARGE
    assert found.failure.step == 1
    assert "fragment" in found.failure.text
    assert found.served == 7
    glued = replay(requests, "va:chunk=64KiB", budget=4 * MIB)
    assert glued.failure is None
    assert glued.served == len(requests)
    assert glued.external_share == 0


def test_without_a_budget_the_arena_is_what_it_takes():
    found = replay([*TWO_HOLES, LARGE], "best-fit")
    assert found.failure is None
    assert found.stats.peak_reserved_bytes == 6 * MIB
    assert found.external_share == pytest.approx(1 / 3)
    exact = replay([*TWO_HOLES, LARGE], "va:chunk=64KiB")
    assert exact.failure is None
    assert exact.budget_bytes == exact.stats.peak_reserved_bytes == 4 * MIB


def test_shares_are_those_of_the_peaks():
    requests = [Request("allocate", 0, 3 * 4096 + 1), Request("free", 0)]
    found = replay(requests, "va:chunk=16KiB", budget=MIB)
    assert found.internal_share == pytest.approx(1 - (3 * 4096 + 1) / (4 * 4096))


def test_a_refused_request_is_recorded_and_skipped():
    recorder = Recorder(BestFit(DryMemory(4 * MIB)))
    serve(TWO_HOLES, recorder)
    with pytest.raises(OutOfDeviceMemory):
        recorder.allocate(2 * MIB, "large")
    assert recorder.requests[-1] == Request("refused", -1, 2 * MIB, tag="large")
    assert replay(recorder.log(), "best-fit").failure is None


def test_ranges_need_an_allocator_that_has_them():
    requests = [Request("reserve", 0, MIB), Request("map", 0, lo=0, hi=MIB)]
    check_requests(requests)
    with pytest.raises(ConfigError, match="no ranges"):
        serve(requests, BestFit(DryMemory(MIB)))
    assert replay(requests, "best-fit").held_whole
    assert not replay(requests, VirtualAddressing(DryMemory(MIB), 4096)).held_whole


# Logs of schedules.


@pytest.mark.parametrize("name", ["best-fit", "va:chunk=2MiB"])
def test_the_log_of_a_schedule_reserves_what_the_executor_is_told(name):
    plan = small_plan()
    log = allocation_log(plan.trace, plan.schedule, plan.peak_bytes, steps=4)
    choice = choose_allocator(name, 1 << 30, binding=False)
    found = replay(log, choice.make(DryMemory(1 << 30)))
    assert found.stats.peak_reserved_bytes == reserved_peak(plan.schedule, plan.trace, choice)
    assert len(found.maps_by_step) == 4
    assert sum(found.maps_by_step) == found.stats.maps
    check_requests(log.requests)


def test_a_log_of_a_schedule_knows_who_is_a_parameter():
    plan = small_plan(8)
    log = allocation_log(plan.trace, plan.schedule, plan.peak_bytes, steps=1)
    assert "conv1.weight" in log.parameters
    assert any(life.parameter for life in foresee(log.requests, log.parameters).lifetimes)


def test_a_laptop_replays_a_batch_of_1440():
    resnet = oc.models.build("resnet50", num_classes=1000, stem="imagenet")
    trace = oc.trace(resnet, (1440, 3, 224, 224), threads=1)
    plan = oc.plan(trace, "15GiB", "window", machine("v100-16gb-nvlink"), Granule(1, False))
    log = allocation_log(plan.trace, plan.schedule, 15 << 30)
    assert replay(log, "best-fit", budget="16GiB").failure is not None
    assert replay(log, "va:chunk=2MiB", budget="16GiB").failure is None


LOGGED = """
from ooctrain.alloc.{module} import {kind}
from ooctrain.alloc.wrappers import Logged

def make(memory):
    return Logged({kind}(memory))
"""


@pytest.mark.parametrize(
    ("module", "kind"), [("best_fit", "BestFit"), ("virtual", "VirtualAddressing")]
)
def test_the_log_of_a_schedule_is_what_a_real_run_asks_for(tmp_path, module, kind):
    file = tmp_path / "mine.py"
    file.write_text(LOGGED.format(module=module, kind=kind))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 3, 32, 32), np.float32), np.arange(8)
    model = oc.models.build("lenet")
    with oc.Trainer(
        model, optimizer=oc.optim.SGD(model.parameters(), lr=0.01), budget="50%",
        planner="window", allocator=f"{file}:make", threads=1,
    ) as trainer:  # fmt: skip
        for _ in range(3):
            trainer.step(x, y)
        plan, chosen = trainer.prepared.plan, trainer.prepared.allocator
        found = trainer._residence.open.session.allocator
        while not hasattr(found, "requests"):
            found = found.inner
        recorded = [request for request in found.requests if request.op != "step"]
    log = allocation_log(plan.trace, plan.schedule, 0, chosen)
    foreseen = [request for request in log.requests if request.op != "step"]
    assert recorded[: len(foreseen)] == foreseen
    assert len(foreseen) > 100


# The command.


def test_the_command_compares_allocators(tmp_path, capsys):
    log, numbers = tmp_path / "log.jsonl", tmp_path / "x.json"
    as_log([*TWO_HOLES, LARGE]).save(log)
    names = "best-fit,va:chunk=64KiB"
    status = main(
        ["replay", str(log), "--allocator", names, "--budget", "4MiB", "--json", str(numbers)]
    )
    shown = capsys.readouterr().out
    assert status == DONE
    assert "fails at request 6" in shown
    best, va = json.loads(numbers.read_text())["rows"]
    assert best["failed_at"] == 6
    assert va["failed_at"] is None
    assert va["peak_reserved_bytes"] == 4 * MIB


def test_the_command_says_3_where_nobody_serves(tmp_path):
    log = tmp_path / "log.jsonl"
    as_log([LARGE]).save(log)
    assert main(["replay", str(log), "--allocator", "best-fit", "--budget", "1MiB"]) == DOES_NOT_FIT
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert main(["replay", str(log), "--allocator", "nobody"]) == 2


def test_plan_writes_a_log_that_replay_reads(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    options = ["--batch", "8", "--threads", "1", "--machine", "v100-pcie"]
    assert main(["plan", "lenet", *options, "--allocation-log", str(log)]) == DONE
    assert main(["replay", str(log), "--allocator", "best-fit,va"]) == DONE
    assert "lenet, batch 8" in capsys.readouterr().out


@pytest.mark.slow
def test_train_writes_a_log_too(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    options = ["--batch", "8", "--threads", "1", "--steps", "1", "--budget", "50%"]
    assert main(["train", "lenet", *options, "--allocation-log", str(log)]) == DONE
    found = AllocationLog.load(log)
    assert found.allocator == "va"
    assert replay(found, "va").failure is None


def test_commas_separate_allocators_and_their_parameters():
    assert split_names("best-fit, va:chunk=1MiB,x=2 ,va") == ["best-fit", "va:chunk=1MiB,x=2", "va"]
    assert split_names(" ,") == []


@pytest.mark.parametrize(
    "typed", [("best-fit,bump",), ("best-fit", "bump"), (" best-fit ,", "bump")]
)
def test_allocators_are_named_together_or_one_by_one(tmp_path, typed):
    log, out = tmp_path / "log.jsonl", tmp_path / "rows.json"
    as_log(TWO_HOLES).save(log)
    named = [word for name in typed for word in ("--allocator", name)]
    main(["replay", str(log), *named, "--json", str(out)])
    assert [row["allocator"] for row in json.loads(out.read_text())["rows"]] == ["best-fit", "bump"]


def test_no_allocator_at_all_is_told(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    as_log(TWO_HOLES).save(log)
    assert main(["replay", str(log), "--allocator", " ,"]) != DONE
    assert "--allocator names nothing" in capsys.readouterr().err


def test_the_fix_of_an_option_without_default_is_to_leave_it_out(capsys):
    """It was `--rewrite` and nothing behind."""
    assert main(["plan", "lenet", "--rewrite", ","]) != DONE
    assert "likely fix: leave --rewrite out" in capsys.readouterr().err
