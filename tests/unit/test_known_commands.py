"""What commands say of a run, of ranks, of a machine and of what would fit, without running one.

The rows and lines of a run are made from a record that is filled by hand, and stand in a table with
their numbers and the numbers of their words: a half sentence that is missing, or stands where its
condition does not hold, is seen. `test_known_numbers.py` does the same for whole commands that run
nothing; `support/known.py` says why.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from support import known
from support.known_numbers import numbers_in

import ooctrain as oc
from ooctrain import nn, optim
from ooctrain.cli import COMMANDS, calibrate_command, command_ranks, main
from ooctrain.cli.advice import FitQuestion, changes_that_fit, need_of
from ooctrain.cli.command_ranks import agree_on_run, is_compared_on_all, rank_rows, with_cores
from ooctrain.cli.live import Lines, Redrawn, shown_every
from ooctrain.cli.options import split_names
from ooctrain.cli.run.kept_promise import counted_rows, expect_kept
from ooctrain.cli.run.run_record import EpochEnd, RunOptions, RunRecord, TrainingRun, typical_us
from ooctrain.cli.run.train_rows import plan_rows, summary_rows, task_rows
from ooctrain.cli.schedules import SCHEDULES, RunLength, depends_on_the_end, find_schedule
from ooctrain.cli.step_options import Extent, RankOptions, Workload, options_from, parse_rate
from ooctrain.cli.workload import (
    find_machine,
    host_rows,
    make_task,
    network_rows,
    split_rows,
    written_rows,
)
from ooctrain.errors import ConfigError, Infeasible, OoctrainError
from ooctrain.execution.fit import prepare
from ooctrain.execution.promise import Promise
from ooctrain.execution.settings import Options, Settings
from ooctrain.models import build
from ooctrain.sched.planners.registry import get_planner
from ooctrain.step.machine import Disk
from ooctrain.step.presets import load_calibration, machine
from ooctrain.tracing import trace
from ooctrain.units import BYTES, Granule

WORKLOAD = Workload("lenet", data="digits", batch=8)
HOW = Options("50%", "lru", threads=1, machine="cpu-generic")
EXTENT = Extent(epochs=3)


def said(rows):
    """Of each row its name, its numbers, and how many words it has."""
    lines = [(name, text) for name, text in rows]
    return [
        (name, " ".join(n for found in numbers_in([text]) for n in found), len(text.split()))
        for name, text in lines
    ]


@cache
def prepared_step(planner="lru", budget="50%"):
    step = trace(build("lenet"), (8, 3, 32, 32), threads=1)
    return prepare(step, Settings(budget=budget, planner=planner, machine="cpu-generic"))


def a_run(extent=EXTENT, steps=3, **record):
    """A run that has done some steps, of which the record says what the test is about."""
    prepared = prepared_step()
    filled = {"losses": [2.5] * steps, "step_us": [9e5, *[1e4] * (steps - 1)][:steps]}
    trainer = SimpleNamespace(prepared=prepared, steps_done=steps, plan=prepared.plan)
    task = SimpleNamespace(train=range(40))
    options = RunOptions(WORKLOAD, HOW, extent)
    return TrainingRun(options, task, trainer, RunRecord(**{**filled, **record}))


# Options


def options_of(command, path):
    """(command, option, what it takes, its default) of a command and those below it."""
    for param in command.params:
        kind = type(param.type).__name__
        limits = [getattr(param.type, name, "") for name in ("min", "max", "exists", "dir_okay")]
        shown = getattr(param, "show_default", None)
        yield (path, *param.opts[:1], param.name, kind, *limits, spelled(param.default),
               param.required, param.multiple, getattr(param, "is_flag", False), shown)  # fmt: skip
    for name, inner in getattr(command, "commands", {}).items():
        yield from options_of(inner, f"{path} {name}")


def spelled(default):
    """A default; "" where none is given, however this version of click says that."""
    return default if isinstance(default, int | float | str) else ""


def all_options():
    for name in COMMANDS:
        yield from options_of(getattr(import_module(f"ooctrain.cli.{name}_command"), name), name)


@pytest.mark.slow
def test_what_options_of_commands_take_and_mean_without_a_value():
    """In a process of its own, since other tests run commands in this one."""
    program = (
        "import json\nfrom unit.test_known_commands import all_options\n"
        "print(json.dumps([*all_options()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[1], check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    known.check_rows("commands", "options", json.loads(done.stdout))


def test_words_in_a_list():
    assert split_names(" a, b:c=1,d=2,,e:f=3,g") == ["a", "b:c=1,d=2", "e:f=3", "g"]
    assert split_names("k=1,a") == ["k=1", "a"]


# What a run says


def test_rows_before_the_first_step():
    rows = []
    for planner, budget in (("lru", "50%"), ("keep-all", "100%"), ("window", "30%")):
        prepared = prepared_step(planner, budget)
        task = make_task(WORKLOAD, 0)
        rows += said([*task_rows(WORKLOAD, task), *plan_rows(prepared)])
    promise = Promise(*(n << 20 for n in (1000, 100, 50, 30, 20, 10, 400, 300)))
    rows += said([*task_rows(WORKLOAD, task), *plan_rows(replace(prepared, promise=promise))])
    for model, size in (("resnet18", 40), ("resnet18", 160)):
        other = replace(WORKLOAD, model=model, data=None, image_size=size)
        rows += said([*task_rows(other, make_task(other, 0)), *plan_rows(prepared)])
    stochastic = replace(WORKLOAD, split="depth=0.5,grid=2x2,stochastic")
    rows += said(split_rows(make_task(stochastic, 0)))
    rows += said(split_rows(make_task(replace(stochastic, split="depth=0.5,grid=2x1"), 0)))
    rows += said(network_rows(make_task(WORKLOAD, 0), WORKLOAD))
    known.check_rows("commands", "rows before", rows)


RECORDS = {
    "steps": {}, "saved": {"saved": 2}, "none": {"step_us": []}, "one": {"step_us": [5e5]},
    "same": {"identical_to_incore": True, "incore_step_us": [4e4, 2e4, 8e3]},
    "others": {"identical_to_incore": False}, "tested": {"test_accuracy": 0.8764},
    "planning": {"plan_us": [1e6, 900.0, 901.0]}, "little planning": {"plan_us": [1e6, 200.0]},
    "just planning": {"plan_us": [200.0]},
}  # fmt: skip
EXTENTS = {
    "no file": EXTENT,
    "file": replace(EXTENT, checkpoint_path="c.npz", resume_path="c.npz", epochs=1, steps=3),
    "long": replace(EXTENT, steps=3, resume_path="r.npz"),
    "epochs": replace(EXTENT, steps=9, epochs=1, resume_path="r.npz"),
}


@pytest.mark.parametrize("name", EXTENTS)
def test_rows_after_the_last_step(name):
    rows = []
    for record in RECORDS.values():
        # Of 40 images in batches of 8 an epoch has 5 steps.
        run = a_run(EXTENTS[name], steps=5 if name == "epochs" else 3, **record)
        for stopped in (False, True):
            if name == "no file" and not run.record.step_us and not stopped:
                continue  # a run that was not resumed has steps
            rows += said(summary_rows(prepared_step(), run, stopped=stopped))
    known.check_rows("commands", f"rows after, {name}", rows)


def test_rows_of_a_run_with_its_time_line_and_its_bound():
    prepared, rows = prepared_step(), []
    line = prepared.predict()
    for timeline in (line, replace(line, peak_bytes=line.peak_bytes + 4096)):
        run = a_run(timeline=timeline, incore_timelines=deque([line, line]))
        rows += said(summary_rows(prepared, run, stopped=False))
    own = replace(prepared, machine=replace(prepared.machine, name="mine"))
    rows += said(summary_rows(own, run, stopped=False))
    known.check_rows("commands", "rows with a bound", rows)
    assert typical_us([]) is None
    assert (typical_us([9.0]), typical_us([9.0, 1.0, 2.0, 4.0])) == (9.0, 2.0)


@pytest.mark.parametrize(("most", "group"), [(900, None), (1000, 2000), (1001, None), (5000, 0)])
def test_a_promise_is_kept_up_to_its_last_byte(most, group):
    promise = SimpleNamespace(
        memory_bytes=1000, divided=lambda: "in two", besides=lambda: "and more"
    )
    record = RunRecord(watch=SimpleNamespace(most_bytes=most, group_most_bytes=group))
    rows = counted_rows(promise, record)
    known.check_rows("commands", f"promise {most}", said(rows))
    assert len(rows) == (2 if most > 1000 else 1)
    if most > 1000:
        with pytest.raises(OoctrainError) as caught:
            expect_kept(promise, record)
        assert caught.value.code == "OOC-125"
        assert numbers_in([caught.value.numbers])[0][0] == "1000"
    else:
        expect_kept(promise, record)
    for left in ((None, record), (promise, RunRecord())):
        assert counted_rows(*left) == []
        expect_kept(*left)


def lines_of(run, columns=300, *, per_epoch=5, apart=0, extent=EXTENT):
    return Lines(Console(width=columns, file=io.StringIO()), "t", per_epoch, extent, apart)


def fields_of(fields):
    """Without what the clock says."""
    return [
        "".join(c for c in field if not c.isdigit() and c != ".") if "images/s" in field
        or "ETA" in field else field for field in fields
    ]  # fmt: skip


def test_the_fields_of_a_step():
    rows = []
    for per_epoch, apart, extent in (
        (5, 0, EXTENT), (5, 2, EXTENT), (5, -2, EXTENT), (4, 0, replace(EXTENT, epochs=1)),
        (5, 0, replace(EXTENT, steps=7)), (5, 0, replace(EXTENT, steps=99)),
    ):  # fmt: skip
        lines = lines_of(None, per_epoch=per_epoch, apart=apart, extent=extent)
        for done in (1, 5, 6, 7, 10, 13, 15, 17):
            run = a_run(extent, steps=done)
            lines.count(run)
            rows.append((lines.total_steps, done, *fields_of(lines.step_fields(run))))
    line = prepared_step().predict()
    both = line, replace(line, bytes_out=0)
    rows += [fields_of(lines.step_fields(a_run(timeline=timeline))) for timeline in both]
    rows.append(lines.memory_fields(a_run(timeline=line)))
    rows.append(lines.memory_fields(a_run()))
    rows.append([lines.memory_bar(a_run(timeline=line), columns).plain for columns in (10, 40)])
    known.check_rows("commands", "fields of a step", rows)


def test_which_steps_a_pipe_shows():
    rows = []
    for per_epoch, epochs, apart, first in (
        (5, 3, 0, 1),
        (20, 2, 3, 1),
        (7, 2, -1, 4),
        (3, 9, 0, 2),
    ):
        extent = replace(EXTENT, epochs=epochs)
        lines = lines_of(None, per_epoch=per_epoch, apart=apart, extent=extent)
        for done in range(first, lines.total_steps + 1):
            lines.on_step(a_run(extent, steps=done, timeline=prepared_step().predict()))
            if (done - apart) % per_epoch == 0:
                end = EpochEnd(1 + done // per_epoch, 0.25, 0.125 if done % 2 else None)
                lines.on_epoch(a_run(extent, steps=done, epochs=[end]))
        shown = lines.console.file.getvalue().splitlines()
        rows += [(" ".join(fields_of(line.split("  "))),) for line in shown]
    known.check_rows("commands", "lines in a pipe", [(line.split("ETA")[0],) for (line,) in rows])
    known.check_rows("commands", "shown every", [
        [shown_every(total, per_epoch) for total in (1, 8, 9, 30, 64, 400)]
        for per_epoch in (1, 3, 8, 50, 1000)
    ])  # fmt: skip


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_the_picture_of_a_step(columns):
    console = Console(width=columns, file=io.StringIO(), force_terminal=True, color_system=None)
    view = Redrawn(Lines(console, "t", 5, EXTENT))
    before = view.pictures
    assert str(view.live.get_renderable()) == ""
    view.on_step(a_run(timeline=prepared_step().predict()))
    console.print(view.live.get_renderable())
    view.on_step(a_run(losses=[1.0, 3.0, 2.0]))
    console.print(view.live.get_renderable())
    assert view.pictures == before + 3
    # Below the words of the step, whose lines are as long as real times are.
    shown, label = console.file.getvalue(), f"\n{'loss':10}"
    below = [part.partition(label)[2] for part in shown.split("t step")]
    picture = [(len(line), sum(c in "█░▁▂▃▄▅▆▇·" for c in line))
               for part in below[1:] for line in part.splitlines()]  # fmt: skip
    known.check_rows("commands", f"picture in {columns} columns", picture)


# Ranks


def test_what_ranks_agree_on_and_say():
    agreed, cut = [], []
    ranks = SimpleNamespace(
        count=4, bucket_bytes=1 << 20, sync_batch_norm=True, agree=agreed.append,
        part_of=cut.append, any=lambda mine: mine,
    )  # fmt: skip
    task = make_task(WORKLOAD, 0)
    options = RunOptions(WORKLOAD, HOW, EXTENT)
    agree_on_run(ranks, options, task, verify=False)
    assert cut == [8]
    facts = agreed[0]
    assert (facts["device"], facts["verify"], facts["epochs"]) == ("cpu", False, 3)
    assert facts["budget"] == "50%"
    known.check_rows("commands", "agreed", [(key,) for key in facts] + [(facts["images"],)])
    agree_on_run(ranks, options, replace(task, train=None), verify=False)
    assert agreed[1]["images"] == "none"
    with pytest.raises(ConfigError):
        agree_on_run(ranks, options, task, verify=True)
    agree_on_run(SimpleNamespace(**{**vars(ranks), "sync_batch_norm": False}), options, task,
                 verify=True)  # fmt: skip
    assert rank_rows(None, 8) == []
    assert said(rank_rows(ranks, 64)) == [("ranks", "4, 16 64 1.00", 11)]
    assert with_cores(HOW, ranks) is HOW
    free = replace(HOW, threads=None)
    assert with_cores(free, None) is free
    assert with_cores(free, ranks).threads >= 1
    assert not is_compared_on_all(None, None)


# Machines, disks, calibration


MEASURED = replace(
    oc.toy_machine(), name="old", interference=1.25, issue_us=2.0, copy_issue_us=3.5,
    latency_us=7.0, map_us_per_byte=1e-4, profile={"a": 1.0, "b": 2.0},
)  # fmt: skip


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("error", [ConfigError("wrong"), RuntimeError("broken")])
def test_what_ends_a_rank_ends_all(error, first, alike, monkeypatch, capsys):
    """All alike, or the rank that failed says so and ends the others."""
    heard = []

    class MadeUp:
        rank, count, is_first = 1, 4, first

        def ends_alike(self, text):
            heard.append(text)
            return alike

        def abort(self):
            heard.append("abort")

    made = MadeUp()
    monkeypatch.setattr(command_ranks, "launched_ranks", lambda: 4)
    monkeypatch.setattr(command_ranks, "world", lambda **asked: asked and made)
    shared = RankOptions(**dict.fromkeys(RankOptions.__dataclass_fields__))
    ended = nullcontext() if not alike else pytest.raises(type(error) if first else SystemExit)
    with warnings.catch_warnings(record=True) as warned, ended as caught:
        warnings.simplefilter("always")
        with command_ranks.ranks_of_run(shared) as ranks:
            assert ranks is made
            warnings.warn("once is enough", stacklevel=1)
            raise error
    said = capsys.readouterr().err
    assert heard == [f"{type(error).__name__}: {error}", *([] if alike else ["abort"])]
    assert len(warned) == first
    assert not alike or first or caught.value.code == (2 if isinstance(error, ConfigError) else 1)
    assert ("rank 1 of 4" in said) is not alike
    assert ("Traceback" in said) == (not alike and isinstance(error, RuntimeError))


@pytest.mark.parametrize("link", ["duplex", "shared"])
def test_what_calibration_measures_prints_and_keeps(link, monkeypatch, tmp_path, capsys):
    seen = []

    def measure(trainer, images, labels, name):
        seen.append((trainer, images.shape, labels.shape, name))
        return replace(MEASURED, name=name, profile={f"call {len(seen)}": 4.0})

    def made(task, workload, memory, *, in_core):
        assert (workload.lr, memory.budget, in_core) == (1e-6, None, True)
        return nullcontext("trainer")

    disk = Disk(2000.0, 3000.0, link, 50.0, str(tmp_path))
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(calibrate_command, "make_trainer", made)
    monkeypatch.setattr(calibrate_command, "measure", measure)
    monkeypatch.setattr(calibrate_command, "measure_disk", lambda folder: disk)
    path, numbers = tmp_path / "m.json", tmp_path / "n.json"
    common = ["lenet", "--threads", "3", "--output", str(path), "--json", str(numbers)]
    assert main(["calibrate", *common, "--batch", "5"]) == 0
    assert load_calibration(path).disk is None
    capsys.readouterr()
    assert main(["calibrate", *common, "--batch", "4", "--spill", str(tmp_path)]) == 0
    first = capsys.readouterr().out.replace(str(tmp_path), "d").splitlines()
    assert main(["calibrate", *common, "--batch", "6", "--data", "digits"]) == 0
    found = load_calibration(path)
    assert (sorted(found.profile), found.disk) == (["call 1", "call 2", "call 3"], disk)
    assert json.loads(numbers.read_text())["machine"]["interference"] == 1.25
    assert json.loads(numbers.read_text())["version"] == 1
    assert main(["calibrate", *common, "--threads", "2"]) == 0
    assert sorted(load_calibration(path).profile) == ["call 4"]
    for model in ("unet", "vdsr"):
        if model in oc.models.MODELS:
            main(["calibrate", model, "--batch", "2", "--image-size", "32", *common[1:]])
    assert seen[0][0] == "trainer"
    assert seen[0][3].endswith(", 3 threads")
    known.check_rows("commands", f"calibrated {link}", [
        *[(*images, *labels) for _, images, labels, _ in seen],
        *[(" ".join(n for row in numbers_in([line]) for n in row), len(line.split()))
          for line in first if "machine" not in line],
    ])  # fmt: skip


@pytest.mark.parametrize("rate", [None, "50MB"])
def test_a_disk_in_place_of_memory(rate, tmp_path):
    how = options_from({"spill": str(tmp_path), "machine": "cpu-generic"}, rate)
    there = replace(find_machine(how), link="shared")
    rows = [(name, text) for name, text in host_rows(how, there) if name != "host"]
    rows += host_rows(HOW, there) + written_rows(how, 3 << 20, 7)
    assert written_rows(HOW, 1, 1) == []
    known.check_rows("commands", f"disk {rate}", [
        *said(rows), *said(host_rows(how, replace(there, link="duplex"))[1:]),
        (there.out_bytes_per_us, there.in_bytes_per_us) if rate else (),
    ])  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        options_from({}, "1MB")
    assert caught.value.code == "OOC-106"
    with pytest.raises(ConfigError) as caught:
        options_from({"spill": str(tmp_path), "link_bandwidth": "1MB"})
    assert caught.value.code == "OOC-106"
    assert parse_rate("2GB/s") == parse_rate("2GB") == 2000


# What would fit


@cache
def of_batch(batch):
    return trace(build("lenet"), (batch, 3, 32, 32), threads=1)


@pytest.mark.parametrize("planner", ["lru", "keep-all", "window"])
def test_what_would_fit_instead(planner):
    rows, chosen = [], get_planner(planner)
    for batch, budget, host in (
        (64, 2_000_000, None), (32, 1_500_000, 40_000), (2, 600_000, None), (1, 300_000, None),
        (16, 100_000, None), (16, 900_000, 100_000),
    ):  # fmt: skip
        question = FitQuestion(of_batch, batch, budget, machine("cpu-generic"), BYTES, host, 3)
        try:
            plan = question.ask(chosen, of_batch(batch), budget)
            rows.append((batch, budget, plan.peak_bytes, plan.makespan_us))
        except Infeasible as refusal:
            others = {name: get_planner(name) for name in ("belady", "lru", "keep-all")}
            rows += [
                (batch, budget, change.kind, change.option, change.us_per_image)
                for change in changes_that_fit(question, refusal, chosen, others)
            ]
    known.check_rows("commands", f"advice of {planner}", rows)


def test_what_a_step_needs_by_itself():
    rows = []
    for batch in (1, 8):
        for granule in (BYTES, Granule(4096), Granule(512, ranges=False)):
            need = need_of(of_batch(batch), machine("v100-pcie"), granule)
            rows.append((need.in_core_bytes, need.peak_call, need.minimum_bytes, need.compute_us,
                         need.in_core_us))  # fmt: skip
    known.check_rows("commands", "needs", rows)


# Learning rates

SPELLED = (
    "constant", "cosine", "cosine:eta_min=0.01", "step", "step:epochs=1,gamma=0.5", "step:epochs=2",
    "multistep:epochs=1+3", "multistep:epochs=2,gamma=0.3", "exponential", "exponential:gamma=0.5",
    "linear", "linear:epochs=2,start_factor=0.5,end_factor=0.9", "onecycle",
    "onecycle:pct_start=0.5,div_factor=10,final_div_factor=100", "onecycle:pct_start=0",
)  # fmt: skip
REFUSED = (
    "step:epochs=0", "step:epochs=-1", "step:epochs=1.5", "step:gamma=-0.1", "step:gamma=x",
    "multistep", "multistep:epochs=1+x", "multistep:epochs=0", "linear:epochs=0",
    "linear:start_factor=-1", "onecycle:div_factor=0", "onecycle:final_div_factor=0",
    "onecycle:pct_start=-1", "cosine:eta_min=-1", "cosine:eta=1", "nothing",
)  # fmt: skip


@pytest.mark.parametrize("words", SPELLED)
def test_learning_rates_over_a_run(words):
    rows = []
    for kind, settings in (("SGD", {"momentum": 0.9}), ("SGD", {}), ("Adam", {})):
        parameter = [nn.Parameter(np.ones(2, np.float32))]
        optimizer = getattr(optim, kind)(parameter, lr=0.1, **settings)
        schedule = find_schedule(words)(RunLength(optimizer, 4, 3, apart=2))
        rates = []
        for _ in range(14):
            group = optimizer.param_groups[0]
            momentum = group.get("momentum") or group.get("betas", (0.0,))[0]
            rates.append(f"{group['lr']:.4g} {momentum:.4g}")
            schedule.step()
        if rates not in rows:
            rows.append(rates)
    known.check_rows("commands", f"rates of {words}", rows)


@pytest.mark.parametrize("words", REFUSED)
def test_schedules_that_cannot_be(words):
    optimizer = optim.SGD([nn.Parameter(np.ones(2, np.float32))], lr=0.1)
    with pytest.raises(ConfigError):
        find_schedule(words)(RunLength(optimizer, 4, 3))


def test_rates_that_depend_on_the_end():
    found = {name for name in SCHEDULES if depends_on_the_end(name)}
    assert found == {"cosine", "onecycle"}
    assert depends_on_the_end("own.py:constant")
    assert RunLength(None, 0, 5).steps == 1
    assert RunLength(None, 2, 5, -3).steps == 7


def test_first_batches_are_those_of_the_data():
    task = make_task(WORKLOAD, 0)
    assert np.isfinite(task.train[0][0]).all()
    assert task.input_shape() == (8, 3, 32, 32)
    assert task.input_shape(3)[0] == 3
