"""Comparisons: rows hold what the parts say, are kept by content, and do not depend on who computes
them.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import ooctrain as oc
from ooctrain.api import step_trace
from ooctrain.cli import main
from ooctrain.experiments.compare import (
    CompareCase,
    CompareRow,
    cases,
    compare,
    compare_csv,
    compare_figure,
    compare_markdown,
    row_of,
)
from ooctrain.sched.bounds.lp_bound import fluid_bound
from ooctrain.sched.budget import trace_minimum_bytes, trace_peak_bytes
from ooctrain.sched.planners.registry import get_planner
from ooctrain.sched.planning.planner import call_need_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import BYTES
from ooctrain.step.presets import machine

SHAPES = [(8, None), (16, None), (32, None)]
CASE = CompareCase("lenet", 16, None, "v100-pcie", "30%", "belady")


@pytest.fixture(scope="module")
def rows():
    wanted = cases(["lenet"], SHAPES, ["v100-pcie"], ["10%", "60%"], ["naive", "belady"])
    return compare(wanted)


def timeless(row: CompareRow) -> CompareRow:
    return replace(row, plan_s=0.0)


def test_a_row_says_what_trace_planner_and_bound_say():
    row = row_of(CASE)
    step = step_trace("lenet", 16, None)
    least, most = trace_minimum_bytes(step, BYTES), trace_peak_bytes(step, BYTES)
    budget = least + round(0.3 * (most - least))
    plan = get_planner("belady").plan(Question(step, budget, machine("v100-pcie")))
    bound = fluid_bound(step, budget, machine("v100-pcie"))
    assert (row.budget_bytes, row.trace_minimum_bytes) == (budget, least)
    assert row.budget_fraction == pytest.approx(0.3, abs=1e-3)
    assert row.makespan_us == plan.makespan_us
    assert row.peak_bytes == plan.peak_bytes
    assert row.lower_bound_us == pytest.approx(bound.makespan_us)
    assert row.ratio == pytest.approx(plan.makespan_us / bound.makespan_us)
    assert row.recompute_us == 0


def test_a_host_budget_is_kept_or_refused_and_named_in_the_row():
    free = row_of(CASE)
    assert free.host_budget_bytes is None
    tight = row_of(replace(CASE, host_budget=f"{free.host_peak_bytes}B"))
    assert (tight.feasible, tight.host_budget_bytes) == (True, free.host_peak_bytes)
    for lacking in ("1B", "0"):
        assert not row_of(replace(CASE, host_budget=lacking)).feasible


def test_a_slower_link_is_another_machine_for_plan_and_bound():
    own, slow = row_of(CASE), row_of(replace(CASE, link_bytes_per_us=100.0))
    assert slow.link_bytes_per_us == 100.0 < own.link_bytes_per_us
    assert slow.makespan_us > own.makespan_us
    assert slow.lower_bound_us > own.lower_bound_us


def test_optimizer_and_micro_batches_are_those_of_the_step():
    plain, adam, halves = (row_of(replace(CASE, **step)) for step in (
        {}, {"optimizer": "adam"}, {"accumulate": 2}
    ))  # fmt: skip
    assert adam.trace_minimum_bytes > plain.trace_minimum_bytes, "two slots for each parameter"
    assert halves.trace_minimum_bytes < plain.trace_minimum_bytes, "half the images at a time"
    assert (adam.optimizer, halves.accumulate) == ("adam", 2)


def test_the_command_takes_them_in_the_words_of_all_commands(tmp_path):
    path = tmp_path / "rows.json"
    asked = "compare lenet --planner naive --budget 30% --machine v100-pcie --batch 16 --fresh"
    asked += " --bound simple --jobs 1 --host-budget 64MiB --link-bandwidth 100MB/s"
    asked += " --optimizer adam --accumulate 2"
    assert main([*asked.split(), "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["host_budget_bytes"], row["link_bytes_per_us"]) == (64 << 20, 100.0)
    assert (row["optimizer"], row["accumulate"]) == ("adam", 2)
    assert main([*asked.split(), "--link-bandwidth", "fast"]) == 2


def test_a_network_of_ones_own_is_compared_too(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ooctrain import nn\n\n"
        "def net(num_classes):\n"
        "    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
        "    return nn.Sequential(*layers, nn.Linear(4, num_classes))\n"
    )
    row = row_of(replace(CASE, model=f"{file}:net", image_size=32))
    assert row.feasible
    assert row.ratio >= 1


RESIDUAL = """
from ooctrain import functional as F, nn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1, bias=False)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x):
        y = F.relu(self.stem(x))
        y = F.relu(self.norm(self.conv(y)) + y)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))

def net(num_classes):
    return Residual()
"""


@pytest.mark.parametrize("planner", ["auto", "combined"])
def test_who_chooses_a_form_is_compared_as_plan_asks_him(planner, tmp_path, capsys):
    """It may take the step made narrow, and the row says so."""
    file = tmp_path / "mine.py"
    file.write_text(RESIDUAL)
    step = step_trace(f"{file}:net", 16, 12)
    # No list of the step as it is fits.
    tight = max(call_need_bytes(call, step, BYTES) for call in step.calls) - 1
    words = f"{file}:net --batch 16 --image-size 12 --machine v100-pcie --budget {tight}"
    words += f" --planner {planner} --evaluations 100 --bound simple --fresh"
    path = tmp_path / "rows.json"
    assert main(["compare", *words.split(), "--json", str(path)]) == 0
    plan = oc.plan(step, tight, planner, "v100-pcie", evaluations=100, rewrites=())
    assert plan.rewrites[0].startswith("narrow:")
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["makespan_us"], row["chosen_rewrites"]) == (plan.makespan_us, *plan.rewrites)
    assert f"{planner} planned the step after {plan.rewrites[0]}" in capsys.readouterr().out


def test_who_does_not_fit_has_a_row_that_says_what_he_needs():
    row = row_of(replace(CASE, planner="keep-all"))
    assert not row.feasible
    assert row.makespan_us is None
    assert row.minimum_bytes > row.budget_bytes


@pytest.mark.parametrize("planner", ["banded", "sft"])
def test_who_tiles_the_step_has_a_row_too(planner):
    """`compare --planner all` said that there is no planner `banded`."""
    assert row_of(replace(CASE, planner=planner)).planner == planner


def test_a_row_names_the_least_budget_of_its_planner_where_it_plans_too():
    for planner in ("belady", "vdnn", "keep-all"):
        row = row_of(replace(CASE, planner=planner, budget="100%"))
        assert row.feasible
        at_least = replace(CASE, planner=planner, bound="simple", budget=str(row.minimum_bytes))
        assert row_of(at_least).feasible
        refused = row_of(replace(at_least, budget=str(row.minimum_bytes - 1)))
        assert (refused.feasible, refused.minimum_bytes) == (False, row.minimum_bytes)


def test_what_runs_again_is_counted():
    row = row_of(replace(CASE, planner="rotor", budget="100%"))
    assert row.recompute_us == 0
    again = row_of(CompareCase("resnet18", 16, 32, "v100-pcie", "60%", "rotor"))
    assert again.recompute_us > 0
    assert again.bytes_out == 0


def kinds_of(folder: Path) -> Counter:
    """How many rows, plans (refusals of no memory among them) and bounds a folder keeps."""
    return Counter(path.name.partition("-")[0] for path in folder.iterdir())


def test_rows_plans_and_bounds_are_kept_by_content(tmp_path):
    first = row_of(CASE, tmp_path)
    assert kinds_of(tmp_path) == {"row": 1, "plan": 2, "bound": 1}
    assert row_of(CASE, tmp_path) == first  # planning time included: it was read
    row_of(replace(CASE, planner="window"), tmp_path)
    assert kinds_of(tmp_path) == {"row": 2, "plan": 4, "bound": 1}
    in_bytes = row_of(replace(CASE, budget=str(first.budget_bytes)), tmp_path)
    assert in_bytes == first
    other_bound = row_of(replace(CASE, bound="lp-offload"), tmp_path)
    assert other_bound.plan_s == first.plan_s
    assert other_bound.lower_bound_us > first.lower_bound_us
    assert kinds_of(tmp_path) == {"row": 4, "plan": 4, "bound": 2}


def test_what_is_damaged_is_computed_again(tmp_path):
    first = row_of(CASE, tmp_path)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("1", "2"))
    assert timeless(row_of(CASE, tmp_path)) == timeless(first)
    assert row_of(CASE, tmp_path) == row_of(CASE, tmp_path)
    assert kinds_of(tmp_path) == {"row": 1, "plan": 2, "bound": 1}


@pytest.mark.slow
def test_two_processes_find_what_one_finds(rows):
    wanted = cases(["lenet"], SHAPES, ["v100-pcie"], ["10%", "60%"], ["naive", "belady"])
    told = []
    again = compare(wanted[:3], jobs=2, done=told.append)
    assert list(map(timeless, again)) == list(map(timeless, rows[:3]))
    assert sorted(map(str, told)) == sorted(map(str, wanted[:3]))


def test_no_row_is_below_its_bound(rows):
    for row in rows:
        assert row.ratio >= 1 - 1e-6


def test_the_same_numbers_in_every_form(rows):
    table = list(csv.DictReader(compare_csv(rows).splitlines()))
    assert [float(line["makespan_us"]) for line in table] == [row.makespan_us for row in rows]
    assert compare_markdown(rows).count("\n") == len(rows) + 2
    figure = compare_figure(rows)
    assert figure.count("<svg ") == 1 + 3 + 2  # ratio for each batch; speed for each share
    assert "belady" in figure


FAILING = """
class Divides:
    name = "divides"

    def plan(self, question):
        return 1 / 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_error_in_a_planner_of_one_s_own_names_its_line_in_any_process(tmp_path, capsys, jobs):
    own = tmp_path / "own.py"
    own.write_text(FAILING)
    words = ["compare", "lenet", "--batch", "8", "--budget", "50%", "--machine", "v100-pcie"]
    words += ["--planner", f"naive,{own}:Divides", "--bound", "simple", "--jobs", jobs, "--fresh"]
    assert main(words) == 1
    shown = capsys.readouterr().err
    assert "your own code raised ZeroDivisionError: division by zero" in shown
    assert f"{own}, line 6, in plan" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("word", ["1_0", "\u0661\u0662", "8,0", "8,-1", "8,many", "1.5"])
def test_a_batch_that_is_no_number_is_refused(word, capsys):
    assert main(["compare", "lenet", "--batch", word, "--machine", "v100-pcie"]) == 2
    assert "not a list of positive numbers" in capsys.readouterr().err


def test_the_command_writes_all_of_it_and_goes_on_where_it_was(tmp_path, capsys):
    words = ["compare", "lenet", "--batch", "8", "--budget", "50%", "--machine", "v100-pcie"]
    words += ["--planner", "naive,window:size=2,count=unique", "--jobs", "1"]
    words += ["--keep", str(tmp_path / "kept"), "--json", str(tmp_path / "a.json")]
    words += ["--csv", str(tmp_path / "a.csv"), "--markdown", str(tmp_path / "a.md")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "window:size=2,count=unique" in shown
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["version"] == 1
    assert [row["planner"] for row in found["rows"]] == ["naive", "window:size=2,count=unique"]
    assert set(found["rows"][0]) == set(asdict(row_of(CASE)))
    assert main(words) == 0
    assert json.loads((tmp_path / "a.json").read_text()) == found


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["compare", "lenet", "--planner", "nobody"], 2),
        (["compare", "lenets"], 2),
        (["compare", "lenet", "--batch", "0"], 2),
        (["compare", "lenet", "--budget", "nanGB"], 2),
        (["compare"], 2),
        (["compare", "lenet", "--budget", "10%", "--planner", "keep-all", "--batch", "8",
          "--machine", "v100-pcie"], 3),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(words, status, tmp_path, capsys):
    if len(words) > 1:
        words += ["--keep", str(tmp_path), "--jobs", "1"]
    assert main(words) == status
    assert "Traceback" not in capsys.readouterr().err
