"""What a training run shows while it goes on: in 60 columns, at no cost of the steps, and stopped
before each instruction."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.strategies import Case, cases

import ooctrain as oc
from ooctrain.cli import main
from ooctrain.cli.live import MOST_LINES, Lines, Pace, Redrawn, shown
from ooctrain.cli.run.run_record import EpochEnd, RunRecord
from ooctrain.cli.step_options import Extent
from ooctrain.cli.stepping import PROMPT
from ooctrain.execution.checkpoint import load
from ooctrain.explain import explain_code
from ooctrain.report.text import Facts, flowing
from ooctrain.sched.instructions import WORDS, Run
from ooctrain.sched.ledger import walk
from ooctrain.sched.list_words import INSTRUCTIONS, ListGuide

LENET = ["train", "lenet", "--batch", "64", "--threads", "1", "--budget", "40%"]
EXTENT = Extent(3, None, None, None, None, "constant")


@pytest.fixture
def train(capsys, monkeypatch, tmp_path):
    """Runs `train`, with answers on the standard input; gives (status, numbers, lines)."""

    def call(*arguments: str, answers: str = "", columns: int = 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
        path = tmp_path / "numbers.json"
        status = main([*LENET, "--json", str(path), *arguments])
        return status, json.loads(path.read_text()), capsys.readouterr().out.splitlines()

    return call


@pytest.mark.slow
def test_lines_in_a_pipe_say_where_the_run_is_and_fit_60_columns(train, tmp_path):
    path = tmp_path / "run.safetensors"
    epochs = ["--data", "synthetic:samples=128,classes=10", "--epochs", "2"]
    status, numbers, lines = train(*epochs, "--checkpoint", str(path))
    assert status == 0
    assert max(map(len, lines)) <= 60, max(lines, key=len)
    text = "\n".join(lines)
    for word in ("step 3/4", "epoch 2/2", "images/s", "ETA 0:00", "mean loss", "accuracy",
                 "memory at the peak", "parameters", "activations", "gradients"):  # fmt: skip
        assert word in text, word
    assert len([line for line in lines if "mean loss" in line]) == 2
    assert numbers["test_accuracy"] is not None
    last = numbers["curve"][-1]
    assert (last["test_loss"], last["test_accuracy"]) == (
        numbers["test_loss"], numbers["test_accuracy"],
    )  # fmt: skip

    written = path.stat().st_mtime_ns
    status, _, lines = train(*epochs, "--resume", str(path))
    assert status == 0
    assert "nothing is left to do with --epochs 2" in " ".join(map(str.strip, lines))
    assert path.stat().st_mtime_ns == written, "there was nothing to be saved"


@pytest.mark.slow
def test_an_epoch_s_test_changes_no_bit(train, tmp_path):
    """What is trained with a test after each epoch is what is trained in one go."""
    data = ["--data", "synthetic:samples=128,classes=10"]
    tested = train(*data, "--epochs", "3", "--lr-schedule", "constant")[1]["losses"]
    bits_of_tested = np.array(tested).tobytes()
    untested = train(*data, "--epochs", "3", "--lr-schedule", "constant", "--verify")[1]
    assert untested["identical_to_incore"] is True, "in-core no epoch is tested"
    assert np.array(untested["losses"]).tobytes() == bits_of_tested


@pytest.mark.slow
def test_the_bound_of_a_machine_that_nobody_measured_is_the_preset_s(train, monkeypatch, tmp_path):
    monkeypatch.setenv("OOCTRAIN_CALIBRATION", str(tmp_path / "none.json"))
    lines = train("--steps", "2", "--verify", columns=120)[2]
    (bound,) = [line for line in lines if line.startswith("bound")]
    assert "by the preset cpu-generic" in bound


# Stopping before each instruction.


def prompts(lines: list[str]) -> int:
    return sum(line.startswith(PROMPT.strip()) for line in lines)


def test_a_run_that_is_stepped_through_quits_between_two_steps(train, tmp_path):
    path = tmp_path / "stepped.safetensors"
    status, numbers, lines = train(
        "--steps", "3", "--step", "--checkpoint", str(path), answers="\n\n\nq\n"
    )
    assert (status, numbers["error"]) == (0, None)
    assert prompts(lines) == 4
    assert max(map(len, lines)) <= 60, max(lines, key=len)
    assert len(numbers["losses"]) == load(path).run.step == 1
    assert any(line.startswith("stopped") for line in lines)


@pytest.mark.slow
def test_somebody_quits_and_goes_on_and_not_one_bit_knows_of_it(train, tmp_path):
    straight, stepped = tmp_path / "straight.safetensors", tmp_path / "stepped.safetensors"
    whole = train("--steps", "3", "--checkpoint", str(straight))[1]
    train("--steps", "3", "--step", "--checkpoint", str(stepped), answers="\n\nq\n")
    resumed = train("--steps", "3", "--resume", str(stepped))[1]
    assert resumed["losses"] == whole["losses"]
    one, other = load(straight), load(stepped)
    assert one.run == other.run
    assert all(np.array_equal(one.arrays[n], other.arrays[n]) for n in one.arrays)


@pytest.mark.parametrize(("answers", "stops"), [
    ("\n", 2), *(pytest.param(*late, marks=pytest.mark.slow)
                 for late in [("c\n", 1), ("\n\nc\n", 3), ("", 1)]),
])  # fmt: skip
@pytest.mark.slow
def test_going_on_without_stops_ends_as_any_run(train, answers, stops):
    data = ["--data", "synthetic:samples=128,classes=10", "--epochs", "1"]
    status, numbers, lines = train(*data, "--step", answers=answers)
    assert status == 0
    assert prompts(lines) == stops
    assert sum("input has ended" in line for line in lines) == ("c" not in answers)
    assert sum("mean loss" in line for line in lines) == 1
    assert numbers["losses"] == train(*data)[1]["losses"]


@pytest.mark.slow
def test_every_instruction_of_a_step_is_stopped_at_once(train):
    status, _, lines = train("--steps", "1", "--step", answers="\n" * 1000)
    assert status == 0
    heads = [line for line in lines if re.match(r"step 1, \d+/", line)]
    numbered = [int(re.search(r", (\d+)/", line)[1]) for line in heads]
    of = int(heads[0].split("/")[1].split(":")[0])
    assert numbered == sorted(set(numbered))
    assert len(numbered) == prompts(lines) >= of - lines.count("fence")


def test_several_ranks_are_not_stepped_through(train, capsys):
    assert main([*LENET, "--step", "--ranks", "2", "--steps", "1"]) == 2
    assert "--step asks one process" in capsys.readouterr().err


@given(cases())
def test_every_instruction_of_every_list_has_words_and_the_ledger_s_numbers(case: Case):
    guide = ListGuide(case.trace, case.schedule)
    assert guide.rows == walk(case.trace, case.schedule)
    for row in guide.rows:
        words = guide.words(row)
        kind = INSTRUCTIONS[WORDS[type(row.instruction)]]
        assert kind.meaning in words[0]
        assert "Device memory" in words[-1] or "device memory" in words[-1]
        for index in row.waits:
            assert f"{index + 1}, " in " ".join(words)
        assert guide.words(row, briefly=True)[1:] == words[1:]


def test_only_a_call_that_runs_again_is_said_to_have_run_before():
    step = oc.chain([8] * 6, [8] * 6, [3] * 5, [3] * 5, [0] * 5, [0] * 5)
    plan = oc.plan(step, 48, "revolve", oc.Machine("m", 1, 1, link_bytes_per_us=1))
    guide, first = ListGuide(plan.trace, plan.schedule), {}
    runs = [row for row in guide.rows if isinstance(row.instruction, Run)]
    for row in runs:
        words, call = " ".join(guide.words(row)), row.instruction.call
        if call in first:
            assert f"It ran before, as instruction {first[call] + 1};" in words
        else:
            assert "It ran before" not in words
        first.setdefault(call, row.index)
    assert len(first) < len(runs)


def test_explain_knows_the_instructions():
    assert set(INSTRUCTIONS) == set(WORDS.values())
    for word, entry in INSTRUCTIONS.items():
        assert entry.title in explain_code(word)


# What is drawn.


class Ticks:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=60))
def test_the_pace_is_the_mean_of_the_last_steps_without_the_first(lengths):
    clock = Ticks()
    pace = Pace(clock)
    for length in lengths:
        clock.now += length
        pace.count(length * 1e6)
    counted = lengths[1:][-20:] or lengths
    assert pace.step_s() == pytest.approx(sum(counted) / len(counted))
    pace.pause()
    assert pace.step_s() is None
    clock.now += 1000
    pace.count(2e6)
    assert pace.step_s() == pytest.approx(2.0)


@given(st.lists(st.text("ab", min_size=1, max_size=50), min_size=1), st.integers(60, 120))
def test_fields_flow_and_none_is_lost(fields, columns):
    text = flowing(fields, columns)
    assert max(map(len, text.splitlines())) <= columns
    assert re.split(r"\s+", text) == fields


@given(
    st.lists(st.tuples(st.text("abc", max_size=12), st.text("abc ", max_size=200)), max_size=5),
    st.integers(20, 100),
)
def test_facts_fit_every_console(pairs, columns):
    console = Console(width=columns, file=io.StringIO())
    console.print(Facts(tuple(pairs)))
    lines = console.file.getvalue().splitlines()
    assert all(len(line.rstrip()) <= columns for line in lines)
    letters = [c for line in lines for c in line if c != " "]
    assert sorted(letters) == sorted(c for pair in pairs for c in "".join(pair) if c != " ")


class FakeTrainer:
    """A trainer that has done so many steps of a plan."""

    def __init__(self, plan, prepared) -> None:
        self.plan, self.prepared, self.steps_done = plan, prepared, 0


@pytest.fixture(scope="module")
def a_run():
    """A run that never trains: its records are filled by the tests."""
    import ooctrain as oc
    from ooctrain.cli.run.run_record import RunOptions, TrainingRun
    from ooctrain.execution.fit import prepare
    from ooctrain.execution.settings import Settings

    trace = oc.trace(oc.models.build("lenet"), (8, 3, 32, 32))
    prepared = prepare(trace, Settings(budget="50%", planner="lru", machine="cpu-generic"))
    workload = type("Workload", (), {"batch": 8})
    record = RunRecord(losses=[2.3], step_us=[1e4], timeline=prepared.predict())
    return TrainingRun(
        RunOptions(workload, None, EXTENT), None, FakeTrainer(prepared.plan, prepared), record
    )


def terminal(columns: int) -> Console:
    return Console(
        width=columns, file=io.StringIO(), force_terminal=True, color_system=None, highlight=False
    )


@settings(max_examples=10)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 30))
@example(5, 4, 0)
@example(1, 400, 0)
def test_a_pipe_shows_the_first_step_the_last_and_few_between(a_run, per_epoch, epochs, before):
    console = Console(width=200, file=io.StringIO())
    lines = Lines(console, "out-of-core", per_epoch, replace(EXTENT, epochs=epochs))
    total = per_epoch * epochs
    for done in range(before + 1, total + 1):
        a_run.trainer.steps_done = done
        lines.on_step(a_run)
    shown = [int(n) for n in re.findall(r"step +(\d+)/", console.file.getvalue())]
    if total > before:
        assert (shown[0], shown[-1]) == (before + 1, total)
    assert len(shown) <= 1 + max(MOST_LINES, epochs)
    if total <= MOST_LINES:
        assert shown == [*range(before + 1, total + 1)]
    ends = {n for n in range(per_epoch, total + 1, per_epoch) if n > before}
    assert ends <= set(shown)


def test_steps_are_not_held_up_by_pictures(a_run):
    """The picture is made by whoever redraws, four times a second, not by the steps."""
    console = terminal(60)
    with shown(Lines(console, "out-of-core", 100, EXTENT)) as view:
        assert isinstance(view, Redrawn)
        before = view.pictures
        for _ in range(2000):
            a_run.trainer.steps_done += 1
            view.on_step(a_run)
        assert view.pictures - before < 20, "2000 steps, and a few pictures"


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_picture_fits_its_terminal(a_run, columns):
    view = Redrawn(Lines(terminal(columns), "out-of-core", 100, EXTENT))
    view.on_step(a_run)
    view.on_step(a_run)
    a_run.record.epochs.append(EpochEnd(1, 0.5, 0.9))
    paper = terminal(columns)
    paper.print(view._picture())
    view.on_epoch(a_run)
    lines = paper.file.getvalue().splitlines()
    assert max(map(len, lines)) <= min(columns, 110)
    text = "\n".join(lines)
    for word in ("epoch", "images/s", "ETA", "budget", "parameters", "compute", "memory"):
        assert word in text, word


def test_what_is_held_at_the_peak_is_the_peak(a_run):
    from ooctrain.report.holdings import held_at_peak

    plan, timeline = a_run.trainer.plan, a_run.record.timeline
    held = held_at_peak(plan.trace, plan.schedule, timeline)
    assert sum(held.values()) == max(size for _, size in timeline.ledger)
    assert sum(held.values()) <= timeline.peak_bytes
