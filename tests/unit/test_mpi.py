"""Ranks that are processes, started by mpiexec; without it, or without mpi4py, all is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from ooctrain.cli import main
from ooctrain.distributed.mpi import find_mpiexec
from ooctrain.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 120
TRAIN = ("train", "lenet", "--batch", "16", "--steps", "2", "--threads", "1", "--lr", "0.01")


def launcher() -> str:
    """Where mpiexec is; empty where it is not."""
    try:
        return find_mpiexec()
    except ConfigError:
        return ""


with_mpi = pytest.mark.skipif(
    not launcher(), reason='no mpiexec or no mpi4py: pip install "ooctrain[mpi]"'
)


def on_processes(count: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python on so many ranks."""
    command = [launcher(), "-n", str(count), sys.executable, *words]
    return run(command)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


@with_mpi
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_train_verifies_on_ranks_and_goes_on_on_one(count, tmp_path, capsys):
    path = str(tmp_path / "run.safetensors")
    words = [*TRAIN, "--budget", "60%", "--planner", "belady", "--checkpoint", path]
    done = on_processes(count, "-m", "mpi4py", "-m", "ooctrain", *words, "--verify")
    assert done.returncode == 0, done.stderr
    assert "the same bits as in-core" in done.stdout
    assert f"{count}, each with {16 // count} of 16 images" in done.stdout
    assert done.stdout.count("training ") == 1, "one rank prints"
    resumed = [*TRAIN[:5], "3", *TRAIN[6:], "--resume", path]
    assert main([*resumed, "--verify"]) == 2  # one rank cannot do the first steps' sums again
    assert f"steps that were done by {count} ranks" in capsys.readouterr().err
    assert main(resumed) == 0


TILED = """
from ooctrain import nn

class Wide(nn.Sequential):
    def __init__(self, num_classes=10, stem="cifar", in_channels=3):
        super().__init__(
            nn.Conv2d(in_channels, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1),
            nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes),
        )
"""


@with_mpi
@pytest.mark.slow
def test_a_tiling_that_the_planner_chose_is_verified_on_all_ranks(tmp_path):
    """In bands gradients are sums over bands: the same ranks run again, in-core in these bands."""
    own = tmp_path / "own.py"
    own.write_text(TILED)
    words = ["train", f"{own}:Wide", "--data", "synthetic", "--image-size", "48", "--batch", "4"]
    words += ["--steps", "2", "--threads", "1", "--lr", "0.1", "--budget", "700KiB", "--verify"]
    done = on_processes(
        2, "-m", "ooctrain", *words, "--allocator=best-fit", "--planner=banded:untiled=false"
    )
    assert done.returncode == 0, done.stderr
    assert "the same bits as in-core, tiled alike" in done.stdout


#: The second rank fails in its second step, as its first argument says; without `-m mpi4py`.
FAILING = """
import os, sys, time
import ooctrain.train
from ooctrain.cli import main
step = ooctrain.train.Trainer.step
def failing(self, x, y):
    if self.ranks.rank == 1 and self.steps_done == 1:
        print("failing at", time.time(), file=sys.stderr, flush=True)
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), 9)
        raise {"raise": ValueError, "memory": MemoryError}[sys.argv[1]]("planted")
    return step(self, x, y)
ooctrain.train.Trainer.step = failing
sys.exit(main(sys.argv[2:]))
"""


@with_mpi
@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "memory", "kill"])
def test_a_rank_that_fails_ends_all_within_ten_seconds(how):
    done = on_processes(2, "-c", FAILING, how, *TRAIN)
    ended = time.time()
    assert done.returncode == (9 if how == "kill" else 1)
    failed = float(done.stderr.partition("failing at ")[2].split()[0])
    assert ended - failed < 10
    if how != "kill":
        assert done.stderr.count("rank 1 of 2 ends all") == 1


@with_mpi
@pytest.mark.slow
def test_a_rank_that_is_killed_is_one_error_and_status_one(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        FAILING.replace("sys.exit(main(sys.argv[2:]))", "").replace("sys.argv[1]", '"kill"')
    )
    paths = os.pathsep.join(filter(None, (str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "ooctrain", *TRAIN, "--ranks", "2"], capture_output=True,
        text=True, check=False, timeout=LONGEST_S, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("OOC-330") == 1
    assert "BAD TERMINATION" not in done.stdout + done.stderr


@with_mpi
@pytest.mark.slow
def test_ranks_that_were_given_another_seed_are_named():
    seeds = [["-n", "1", sys.executable, "-m", "ooctrain", *TRAIN, "--seed", s] for s in "01"]
    done = run([launcher(), *seeds[0], ":", *seeds[1]])
    assert done.returncode == 1
    assert done.stderr.count("OOC-330") == 1
    assert "rank 1: seed 1, rank 0: 0" in done.stderr


#: The library as another version, on the rank that runs this.
OTHER_VERSION = """
import sys
import ooctrain
ooctrain.__version__ = "0.0.9"
from ooctrain.cli import main
sys.exit(main(sys.argv[1:]))
"""


@with_mpi
@pytest.mark.slow
def test_ranks_of_another_version_are_named_before_anything_is_planned():
    own = ["-n", "1", sys.executable, "-m", "ooctrain", *TRAIN]
    other = ["-n", "1", sys.executable, "-c", OTHER_VERSION, *TRAIN]
    done = run([launcher(), *own, ":", *other])
    assert done.returncode == 1
    assert done.stderr.count("OOC-330") == 1
    assert "rank 1: version 0.0.9, rank 0: " in done.stderr
    assert "training " not in done.stdout


@with_mpi
@pytest.mark.slow
def test_a_batch_that_cannot_be_cut_is_wrong_usage():
    done = on_processes(3, "-m", "ooctrain", *TRAIN)
    assert done.returncode == 2
    assert done.stderr.count("a batch of 16 cannot be cut into equal parts for 3 ranks") == 1


def test_without_mpi_the_command_to_install_it_is_named(monkeypatch, capsys):
    monkeypatch.setattr("ooctrain.distributed.mpi.find_spec", lambda name: None)
    assert main([*TRAIN, "--ranks", "2"]) == 2
    assert 'pip install "ooctrain[mpi]"' in capsys.readouterr().err


@pytest.mark.skipif(find_spec("mpi4py") is not None, reason="mpi4py is installed")
def test_without_mpi4py_a_launched_rank_says_so(monkeypatch, capsys):
    monkeypatch.setenv("PMI_SIZE", "2")
    assert main(list(TRAIN)) == 2
    assert "mpi4py is missing" in capsys.readouterr().err
