"""What the commands write with --json has exactly the keys that docs/json.md documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ooctrain.cli import main

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
SMALL = ["lenet", "--batch", "8", "--threads", "1"]
#: What every tool that reads `train --json` may rely on.
PROMISED = {
    "version", "model", "batch", "budget_bytes", "planner", "allocator", "granule_bytes", "device",
    "losses", "peak_bytes", "predicted_peak_bytes", "reserved_peak_bytes", "host_peak_bytes",
    "step_us", "warmup_steps", "predicted_step_us", "incore_peak_bytes", "bytes_out", "bytes_in",
    "identical_to_incore",
}  # fmt: skip


def documented(title: str) -> set[str]:
    """Keys in the table below a heading that contains `title`."""
    section = next(part for part in TEXT.split("\n## ")[1:] if title in part.splitlines()[0])
    first_cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    return {key for cell in first_cells for key in re.findall(r"`(\w+)`", cell)}


def written(path: Path, *arguments: str) -> dict:
    main([*arguments, "--json", str(path)])
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "arguments",
    [["--steps", "1"], ["--budget", "1KiB"], ["--data", "none"]],
    ids=["well", "does not fit", "fails at once"],
)
def test_train_writes_what_is_documented_on_failure_too(tmp_path, arguments):
    numbers = written(tmp_path / "x.json", "train", *SMALL, *arguments)
    assert set(numbers) == documented("train --json")
    assert set(numbers) >= PROMISED
    assert (numbers["error"] is None) == (arguments[0] == "--steps")


@pytest.mark.parametrize("budget", ["1GiB", "1KiB"])
def test_plan_writes_what_is_documented(tmp_path, budget):
    numbers = written(tmp_path / "x.json", "plan", *SMALL, "--budget", budget)
    assert set(numbers) == documented("plan --json")


def test_simulate_writes_what_is_documented(tmp_path):
    numbers = written(tmp_path / "x.json", "simulate", *SMALL)
    assert set(numbers) == documented("simulate --json")


def test_diff_writes_what_is_documented(tmp_path):
    written(tmp_path / "a.json", "simulate", *SMALL)
    numbers = written(tmp_path / "x.json", "diff", *[str(tmp_path / "a.json")] * 2)
    assert set(numbers) == documented("diff --json")


def test_compare_and_simulate_say_that_nothing_went_wrong(tmp_path):
    planned = ["--planner", "naive", "--budget", "50%", "--machine", "v100-pcie", "--batch", "8"]
    compared = ["compare", "lenet", *planned, "--bound", "simple", "--jobs", "1", "--fresh"]
    for arguments in (compared, ["simulate", *SMALL]):
        assert written(tmp_path / "x.json", *arguments)["error"] is None


def test_replay_writes_what_is_documented(tmp_path):
    log = tmp_path / "log.jsonl"
    main(["plan", *SMALL, "--allocation-log", str(log)])
    numbers = written(tmp_path / "x.json", "replay", str(log))
    assert set(numbers) == documented("replay --json")
    row_keys = set(numbers["rows"][0])
    section = TEXT.split("## `ooctrain replay --json`")[1].split("\n## ")[0]
    assert row_keys <= set(re.findall(r"`(\w+)`", section))


def test_an_allocation_log_has_the_documented_header_and_requests(tmp_path):
    log = tmp_path / "log.jsonl"
    main(["plan", *SMALL, "--allocation-log", str(log)])
    header, *requests = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    section = TEXT.split("## Allocation logs")[1].split("\n## ")[0]
    assert set(header) == set(re.findall(r"`(\w+)`", section.split("A request is")[0])) - {
        "size_bytes", "ranges"
    }  # fmt: skip
    documented_keys = set(re.findall(r'"(\w+)"', section.split("A request is")[1]))
    assert {key for request in requests for key in request} <= documented_keys


def test_doctor_writes_what_is_documented(tmp_path):
    numbers = written(tmp_path / "x.json", "doctor")
    assert set(numbers) == documented("doctor --json")


@pytest.mark.parametrize("code", [["R203"], ["OOC-120"], [], ["OOC-9"]], ids=str)
def test_explain_writes_what_is_documented(tmp_path, code):
    numbers = written(tmp_path / "x.json", "explain", *code)
    assert (numbers["error"] is None) == (code != ["OOC-9"])
    if numbers["error"] is None:
        assert set(numbers) == documented("explain --json")
        assert all(row["title"] and row["meaning"] and row["example"] for row in numbers["codes"])
        assert len(numbers["codes"]) == 1 or not code
        assert [row["code"] for row in numbers["codes"]][:1] == (code or ["OOC-000"])


def test_grade_writes_what_is_documented(tmp_path):
    (tmp_path / "mine.py").write_text("")
    assignment = Path(__file__).parents[2] / "tutorials" / "assignments" / "lru_planner"
    grade = ("grade", str(assignment), f"{tmp_path / 'mine.py'}:Mine")
    numbers = written(tmp_path / "x.json", *grade)
    assert set(numbers) == documented("grade --json")
    section = TEXT.split("## `ooctrain grade --json`")[1].split("\n## ")[0]
    assert set(numbers["rows"][0]) <= set(re.findall(r"`(\w+)`", section))


def test_a_plan_file_holds_what_is_documented(tmp_path):
    path = tmp_path / "plan.json"
    assert main(["plan", *SMALL, "--save", str(path)]) == 0
    assert set(json.loads(path.read_text())) == documented("Plan files")


def test_a_calibration_file_holds_what_is_documented(tmp_path):
    from ooctrain.step.presets import machine, save_calibration

    save_calibration(machine("cpu-generic"), tmp_path / "c.json")
    assert set(json.loads((tmp_path / "c.json").read_text())) == documented("Calibration files")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet", "unet", "pix2pixhd"])
def test_calibrate_writes_what_is_documented_whatever_the_network_learns(tmp_path, model):
    small = (model, "--batch", "1", "--image-size", "32", "--threads", "1")
    numbers = written(tmp_path / "n.json", "calibrate", *small, "--output", str(tmp_path / "c"))
    assert set(numbers) == documented("calibrate --json")
    assert numbers["error"] is None
    assert min(numbers["machine"]["profile"].values()) > 0
    assert json.loads((tmp_path / "c").read_text())["machine"] == numbers["machine"]
