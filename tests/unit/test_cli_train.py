"""`ooctrain train` on the cpu device: same bits, honest numbers, runs that end well whatever
happens."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.quick import quick

from ooctrain.cli import main
from ooctrain.cli.training import STOPPING, stop_on_signal
from ooctrain.execution.checkpoint import load, save

pytestmark = pytest.mark.usefixtures("default_signals")
LENET = ["train", "lenet", "--batch", "64", "--threads", "1", "--planner", "window"]


@pytest.fixture
def run(capsys, tmp_path):
    """Runs `train` with --json; gives (status, numbers, stdout, stderr)."""

    def call(*arguments: str):
        path = tmp_path / "out.json"
        path.unlink(missing_ok=True)
        status = main([*LENET, "--json", str(path), *arguments])
        captured = capsys.readouterr()
        return status, json.loads(path.read_text()), captured.out, captured.err

    return call


def test_a_verified_run_has_the_bits_of_in_core_and_the_peak_that_was_planned(run):
    options = ["--planner", "auto", "--budget", "40%", "--steps", "4", "--verify"]
    status, numbers, out, err = run(*options)
    assert (status, err) == (0, "")
    assert numbers["identical_to_incore"] is True
    assert numbers["error"] is None
    assert len(numbers["losses"]) == len(numbers["step_us"]) == 4
    assert numbers["peak_bytes"] == numbers["predicted_peak_bytes"] <= numbers["budget_bytes"]
    assert numbers["reserved_peak_bytes"] <= numbers["budget_bytes"] < numbers["incore_peak_bytes"]
    assert numbers["bytes_in"] > 0
    assert "the same bits as in-core" in out
    assert "stem          cifar, for small images of 32 x 32\n" in out


def test_the_first_steps_alone_are_compared(run, tmp_path):
    options = ["--planner", "auto", "--budget", "40%", "--steps", "4", "--verify-steps"]
    status, numbers, out, _ = run(*options, "2")
    assert (status, numbers["identical_to_incore"]) == (0, True)
    assert len(numbers["losses"]) == 4
    assert "2 of 4 steps compared" in out
    _, _, out, _ = run(*options, "9")
    assert "steps compared" not in out


def test_first_steps_that_a_resumed_run_does_not_do_are_not_compared(run, tmp_path):
    file = str(tmp_path / "run.safetensors")
    run("--steps", "2", "--checkpoint", file)
    status, _, _, err = run("--steps", "4", "--resume", file, "--verify-steps", "2")
    assert status == 2
    assert "2 steps were done" in err
    status, numbers, _, _ = run("--steps", "4", "--resume", file, "--verify-steps", "3")
    assert (status, numbers["identical_to_incore"]) == (0, True)


def test_a_tiled_run_is_compared_with_in_core_tiled_alike(run):
    """Tiles add gradients of weights in another order; everything else must not matter."""
    status, numbers, out, _ = run("--planner", "sft", "--budget", "60%", "--steps", "3", "--verify")
    assert status == 0
    assert numbers["identical_to_incore"] is True
    assert "the same bits as in-core, tiled alike:" in out
    assert "summed tile by tile" in out


OTHER_EACH_TIME = """
import numpy as np
import ooctrain as oc

def net(num_classes=10, in_channels=3):
    net = oc.nn.Sequential(oc.nn.Flatten(), oc.nn.Linear(in_channels * 1024, num_classes))
    net[1].bias.copy_(np.random.default_rng().standard_normal(num_classes).astype("f4"))
    return net
"""


def test_a_network_that_is_another_each_time_has_not_the_bits_of_in_core(tmp_path):
    (tmp_path / "net.py").write_text(OTHER_EACH_TIME)
    status = main(["train", f"{tmp_path}/net.py:net", "--steps", "1", "--batch", "8", "--verify",
                   "--json", str(tmp_path / "own.json")])  # fmt: skip
    numbers = json.loads((tmp_path / "own.json").read_text())
    assert (status, numbers["identical_to_incore"], numbers["error"]) == (1, False, None)
    assert len(numbers["incore_step_us"]) == 1


@pytest.mark.slow
def test_a_link_that_is_slow_makes_steps_slow_and_changes_no_bit(run):
    fast = run("--budget", "40%", "--steps", "3")[1]
    slow = run("--budget", "40%", "--steps", "3", "--link-bandwidth", "20MB")[1]
    assert slow["losses"] == fast["losses"]
    moved_us = min(slow["bytes_in"], slow["bytes_out"]) / 20
    assert min(slow["step_us"]) > moved_us


def test_a_resumed_run_ends_with_the_bits_of_one_that_was_never_stopped(run, tmp_path):
    whole, first = tmp_path / "whole.safetensors", tmp_path / "first.safetensors"
    straight = run("--steps", "25", "--epochs", "2", "--checkpoint", str(whole))[1]
    assert run("--steps", "7", "--epochs", "2", "--checkpoint", str(first))[0] == 0
    # Memory may differ between the parts of a run: not one bit depends on it.
    resumed = run("--steps", "25", "--epochs", "2", "--resume", str(first), "--budget", "40%")[1]
    assert resumed["losses"] == straight["losses"]
    one, other = load(whole), load(first)
    assert one.run == other.run
    assert all(np.array_equal(one.arrays[n], other.arrays[n]) for n in one.arrays)


@pytest.mark.slow
def test_a_verified_run_that_was_resumed_is_compared_from_its_first_step(run, tmp_path):
    path = str(tmp_path / "run.safetensors")
    assert run("--steps", "2", "--checkpoint", path)[0] == 0
    status, numbers, _, _ = run("--steps", "4", "--resume", path, "--budget", "40%", "--verify")
    assert status == 0
    assert numbers["identical_to_incore"] is True
    assert len(numbers["incore_step_us"]) == len(numbers["losses"]) == 4


def test_a_run_says_how_it_goes_on_and_that_nothing_was_saved(run, tmp_path):
    path = str(tmp_path / "run.safetensors")
    assert "not saved" in run("--steps", "1")[2]
    saved = " ".join(run("--steps", "1", "--checkpoint", path)[2].split())
    assert "--resume FILE goes on from there" in saved
    assert "not saved" not in saved


def test_a_broken_checkpoint_is_named_before_anything_is_planned(run, tmp_path):
    path = tmp_path / "run.safetensors"
    path.write_bytes(b"not a checkpoint")
    # A budget that does not fit would end the run with status 3, were it looked at first.
    status, numbers, out, err = run("--resume", str(path), "--budget", "1MiB")
    assert status == 1
    assert "is broken" in err
    assert out == ""
    assert numbers["error"].startswith("[OOC-310]")


def test_resuming_from_nowhere_makes_no_folder(run, tmp_path):
    gone = tmp_path / "gone" / "run.safetensors"
    status, numbers, _, _ = run("--steps", "1", "--resume", str(gone))
    assert status == 1
    assert numbers["error"].startswith("[OOC-311]")
    assert not gone.parent.exists()


def test_another_run_s_checkpoint_is_refused_with_the_setting_named(run, tmp_path):
    path = str(tmp_path / "run.safetensors")
    assert run("--steps", "1", "--checkpoint", path)[0] == 0
    status, numbers, _, err = run("--steps", "2", "--resume", path, "--batch", "8")
    assert status == 1
    assert "another batch" in err
    assert "another batch" in numbers["error"]
    assert "Traceback" not in err


def test_a_broken_checkpoint_falls_back_to_the_previous_one(run, tmp_path):
    path = tmp_path / "run.safetensors"
    assert run("--steps", "4", "--checkpoint", str(path), "--checkpoint-steps", "2")[0] == 0
    path.write_bytes(path.read_bytes()[:100])
    status, numbers, _, err = run("--steps", "5", "--resume", str(path))
    assert status == 0
    assert len(numbers["losses"]) == 5
    assert "warning" in err
    assert str(path) in err
    assert "run.safetensors.1" in err


def test_a_loss_that_is_no_number_is_one_clear_block_and_keeps_the_checkpoint(run, tmp_path):
    path = tmp_path / "run.safetensors"
    arguments = [
        "--lr",
        "1e30",
        "--steps",
        "20",
        "--checkpoint",
        str(path),
        "--checkpoint-steps",
        "1",
    ]
    status, numbers, _, err = run(*arguments)
    assert status == 1
    assert "the loss of step" in err
    assert "Traceback" not in err
    assert "the loss of step" in numbers["error"]
    assert load(path).run.step == len(numbers["losses"]) >= 1


def test_what_does_not_fit_has_status_3_and_says_the_least_budget(run):
    status, numbers, _, err = run("--budget", "1MiB")
    assert status == 3
    assert "budget" in err
    assert numbers["losses"] == []
    assert numbers["error"].startswith("[OOC-120]")


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "ooctrain", *LENET, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_lines(process: subprocess.Popen, lines: int) -> None:
    """Reads stdout until so many steps have been printed, or there is no more."""
    seen = 0
    while seen < lines and (line := process.stdout.readline()):
        seen += "step" in line


@pytest.mark.parametrize("number", quick([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 1))
def test_ctrl_c_kill_and_hangup_stop_after_the_step_and_leave_a_checkpoint(tmp_path, number):
    path = tmp_path / "run.safetensors"
    process = start("--epochs", "10000", "--checkpoint", str(path), "--budget", "40%")
    wait_for_lines(process, 3)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted after step" in err
    assert "--resume" in err
    assert "Traceback" not in err
    saved = load(path).run
    assert f"after step {saved.step}" in err
    assert len(saved.history["losses"]) == saved.step


def test_a_signal_asks_once_and_ctrl_c_after_it_stops_at_once(capfd):
    """Terminals and clusters send theirs twice, and a shell's `nohup` is obeyed."""
    before = [signal.getsignal(number) for number in STOPPING]
    with stop_on_signal() as stopped:
        assert not stopped()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(number)
            assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in STOPPING] == before
    assert capfd.readouterr().err.count("stopping after this step") == 1
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal() as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert not stopped()
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize(
    "path", ["/proc/run.safetensors", "{folder}", "{folder}/" + "x" * 250, "/dev/null"]
)
def test_a_checkpoint_that_cannot_be_written_is_found_before_the_first_step(run, tmp_path, path):
    status, numbers, out, err = run("--steps", "2", "--checkpoint", path.format(folder=tmp_path))
    assert status in (1, 2)
    assert numbers["error"].startswith(("[OOC-314]", "[OOC-117]"))
    assert not numbers.get("losses")
    assert out == ""
    assert "Traceback" not in err


class Leaves(io.StringIO):
    """A reader that leaves at the first step."""

    def write(self, text):
        if "images/s" in text:
            raise BrokenPipeError
        return super().write(text)


def test_a_reader_that_leaves_ends_the_run_after_its_step(monkeypatch, tmp_path):
    path, output = tmp_path / "kept.safetensors", Leaves()
    monkeypatch.setattr(sys, "stdout", output)
    assert main([*LENET, "--steps", "3", "--checkpoint", str(path)]) == 1
    assert load(path).run.step == 1
    assert "training" in output.getvalue()


@pytest.mark.slow
def test_a_run_in_a_memory_leaves_nothing_running(run):
    before = threading.active_count()
    status, numbers, _, _ = run("--memory", "6GiB", "--steps", "1")
    assert (status, numbers["memory_bytes"]) == (0, 6 << 30)
    assert 0 < numbers["promised_bytes"] <= 6 << 30
    # That it holds is asked of processes of their own (tests/properties/test_memory_promise.py):
    # what this one shares with other workers of pytest counts for more when one of them ends.
    assert numbers["counted_peak_bytes"] > 0
    assert threading.active_count() == before


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_run_with_a_checkpoint(tmp_path):
    """As `| head -1` does."""
    path = tmp_path / "run.safetensors"
    process = start("--epochs", "10000", "--checkpoint", str(path))
    wait_for_lines(process, 2)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 1
    assert err == ""
    assert load(path).run.step >= 1


@pytest.mark.slow
def test_a_terminal_that_is_closed_ends_the_run_with_a_checkpoint(tmp_path):
    """The system sends SIGHUP, and whatever is printed from then on fails."""
    path = tmp_path / "run.safetensors"
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "ooctrain", *LENET, "--epochs", "10000"]
    process = subprocess.Popen(
        [*command, "--checkpoint", str(path)], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while b"loss" not in seen:
        seen += os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(timeout=60) == 1
    saved = load(path).run
    assert len(saved.history["losses"]) == saved.step >= 1


@pytest.mark.slow
def test_a_run_without_any_output_trains(tmp_path):
    """As `>&- 2>&-` has it: nothing else takes the numbers of the closed streams."""
    path, json_path = tmp_path / "run.safetensors", tmp_path / "out.json"
    arguments = [*LENET, "--steps", "2", "--checkpoint", str(path), "--json", str(json_path)]
    command = shlex.join([sys.executable, "-m", "ooctrain", *arguments])
    done = subprocess.run(f"{command} <&- >&- 2>&-", shell=True, timeout=120)
    assert json.loads(json_path.read_text())["error"] is None
    assert done.returncode == 0
    assert load(path).run.step == 2


@pytest.mark.slow
def test_a_resnet18_learns_the_digits_in_a_quarter_of_the_memory_with_the_bits_of_in_core(tmp_path):
    path = tmp_path / "out.json"
    arguments = ["--data", "digits", "--epochs", "5", "--budget", "25%", "--verify"]
    command = [sys.executable, "-m", "ooctrain", "train", "resnet18", *arguments]
    # A process can be ended, where a step that never comes would hold up all tests.
    done = subprocess.run([*command, "--json", str(path)], timeout=900)
    assert done.returncode == 0
    numbers = json.loads(path.read_text())
    assert numbers["identical_to_incore"] is True
    assert numbers["test_accuracy"] >= 0.97
    assert numbers["peak_bytes"] == numbers["predicted_peak_bytes"] <= numbers["budget_bytes"]
    assert numbers["budget_bytes"] < 0.6 * numbers["incore_peak_bytes"]


@pytest.mark.slow
def test_runs_killed_at_random_moments_end_with_the_bits_of_one_that_was_not(tmp_path):
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    # The link keeps each step at it for a while: a test that has to wait for its turn is in time.
    goal = ["--epochs", "3", "--checkpoint-steps", "1", "--budget", "40%"]
    goal += ["--link-bandwidth", "50MB/s"]
    straight = start(*goal, "--checkpoint", str(whole))
    straight.communicate(timeout=300)
    assert straight.returncode == 0
    rng = np.random.default_rng(0)
    kills = 0
    for _ in range(40):
        resume = ["--resume", str(killed)] if killed.exists() else ["--checkpoint", str(killed)]
        process = start(*goal, *resume)
        wait_for_lines(process, int(rng.integers(1, 4)))  # a pipe gets a line for every 11 steps
        time.sleep(float(rng.uniform(0, 0.3)))
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate(timeout=60)
        if killed.exists() and load(killed).run.step == load(whole).run.step:
            break
    finish = start(*goal, "--resume", str(killed))
    finish.communicate(timeout=300)
    assert finish.returncode == 0
    assert kills >= 3
    one, other = load(whole), load(killed)
    assert one.run == other.run
    assert all(one.arrays[n].tobytes() == other.arrays[n].tobytes() for n in one.arrays)


@pytest.mark.slow
def test_a_disk_that_fills_up_is_one_clear_line_and_keeps_the_last_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    arguments = [*LENET, "--steps", "2", "--checkpoint", str(path)]
    assert main(arguments) == 0
    before = path.read_bytes()
    resumed = [*LENET, "--steps", "3", "--resume", str(path)]
    script = (
        "import resource, signal, sys\n"
        "from ooctrain.execution import checkpoint\n"
        "from ooctrain.cli import main\n"
        "save = checkpoint.save\n"
        "def on_a_full_disk(*given, **options):\n"
        "    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "    save(*given, **options)\n"
        "checkpoint.save = on_a_full_disk\n"
        f"sys.exit(main({resumed!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "(ulimit -f); the last one is kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_model_is_told_by_its_first_wrong_array(run, tmp_path):
    path = tmp_path / "run.safetensors"
    assert run("--steps", "1", "--checkpoint", str(path))[0] == 0
    found = load(path)
    arrays = {**found.arrays, "conv1.weight": np.zeros((1, 2), np.float32)}
    save(path, arrays, found.run, keep=1)
    Path(f"{path}.1").unlink(missing_ok=True)
    status, _, _, err = run("--steps", "2", "--resume", str(path))
    assert status == 1
    assert "'conv1.weight'" in err
