"""`train --memory` keeps its promise under a hard limit, and says so where it cannot.

A child trains under a control group whose memory and swap end at what was promised, where such a
group may be made: what is over it is killed. In any case the parent looks at the child from outside
all the time. The limit is never RLIMIT_DATA, which does not see the arena.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.memory_group import run_limited

from ooctrain.cli import main
from ooctrain.cli import train_command as command
from ooctrain.devices.cpu.process_memory import held
from ooctrain.execution import step_cache
from ooctrain.execution.promise import OwnShare
from ooctrain.execution.residence import Residence
from ooctrain.units import MIB

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(held() is None, reason="no smaps_rollup here"),
]


def trained(arguments: list[str], limit_bytes: int):
    command = [sys.executable, "-m", "ooctrain", "train", *arguments]
    return run_limited(command, limit_bytes, 900, ROOT)


def test_a_resnet_trains_in_the_memory_that_was_promised(tmp_path):
    """In-core it needs 395 MiB of arena alone."""
    path, limit = tmp_path / "numbers.json", 600 * MIB
    asked = ["resnet18", "--data", "digits", "--batch", "64", "--steps", "3"]
    asked += ["--checkpoint", str(tmp_path / "kept.safetensors"), "--json", str(path)]
    # The first run may compile the kernels; that of the limit loads them.
    done = trained([*asked, "--memory", str(limit)], limit)
    assert done.status == 0, done.out
    numbers = json.loads(path.read_text())
    assert numbers["budget_bytes"] < numbers["incore_peak_bytes"]
    assert numbers["promised_bytes"] <= numbers["memory_bytes"] == limit
    assert 0 < done.most_bytes <= limit
    assert numbers["counted_peak_bytes"] <= limit
    assert re.search(r"promised 600 MiB, counted \d+ MiB at most", done.out)
    assert "PROMISE BROKEN" not in done.out


#: All that moves values between arena and host: checkpoints, tests, batches read ahead, the end.
ALL_OF_A_TRAINER = """
import sys
import numpy as np
import ooctrain as oc

memory, path, spill = int(sys.argv[1]), sys.argv[2], (sys.argv[3:] or [None])[0]
rng = np.random.default_rng(0)
model = oc.models.build("resnet18", stem="cifar")
optimizer = oc.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
batch = rng.standard_normal((128, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, 128)
with oc.Trainer(model, "cross_entropy", optimizer, memory=memory, spill=spill) as trainer:
    trainer.step(*batch)
    trainer.save(path)
    trainer.evaluate([batch])
    trainer.fit((batch[0] + i, batch[1]) for i in range(2))
    trainer.save(path)
"""


@pytest.mark.parametrize(("limit", "disk"), [(534 * MIB, []), (400 * MIB, [ROOT])])
def test_a_trainer_that_saves_and_tests_keeps_its_promise(tmp_path, limit, disk):
    """With a disk, parameters that had waited there came home beside the arena: 436 MiB of 400."""
    script = tmp_path / "trains.py"
    script.write_text(ALL_OF_A_TRAINER)
    command = [sys.executable, script, str(limit), tmp_path / "kept.safetensors", *disk]
    first = run_limited(command, 1 << 32, 900, ROOT)
    assert first.status == 0, first.out
    done = run_limited(command, limit, 900, ROOT)
    assert done.status == 0, done.out
    assert 0 < done.most_bytes <= limit


#: What an epoch is made of: steps, a test of more samples, the shorter last batch, checkpoints.
TURNS = """
import sys
import numpy as np
import ooctrain as oc

memory, path = int(sys.argv[1]), sys.argv[2]
rng = np.random.default_rng(0)
model = oc.models.build("resnet18", num_classes=10, stem="cifar")
optimizer = oc.optim.Adam(model.parameters(), lr=1e-3)
x, y = rng.standard_normal((200, 3, 32, 32), np.float32), rng.integers(0, 10, 200)
with oc.Trainer(model, memory=memory, optimizer=optimizer) as trainer:
    for _ in range(3):
        trainer.step(x[:32], y[:32])
        trainer.predict(x)
        trainer.step(x[:7], y[:7])
        trainer.save(path)
        trainer.resume(path)
        trainer.step(x[:32], y[:32])
        trainer.evaluate([(x, y)])
"""


def test_training_that_takes_turns_with_tests_keeps_its_promise(tmp_path):
    """A test in bands of 8,224 calls left Python's objects behind that no promise had counted: 484
    MiB of 420."""
    script, limit = tmp_path / "residence.py", 420 * MIB
    script.write_text(TURNS)
    command = [sys.executable, script, str(limit), tmp_path / "kept.safetensors"]
    done = run_limited(command, limit, 900, ROOT)
    assert done.status == 0, done.out
    assert 0 < done.most_bytes <= limit


def test_a_first_run_keeps_its_promise_too(tmp_path, monkeypatch):
    """Nothing has been compiled on this machine: compiling in the process took 187 MiB more."""
    monkeypatch.setenv("OOCTRAIN_CACHE", str(tmp_path / "cold"))
    asked = ["resnet18", "--data", "digits", "--batch", "64", "--steps", "2"]
    done = trained([*asked, "--memory", "600MiB"], 600 * MIB)
    assert done.status == 0, done.out
    assert "PROMISE BROKEN" not in done.out
    assert 0 < done.most_bytes <= 600 * MIB


@pytest.mark.parametrize(
    ("network", "batch", "too_little"), [("lenet", "32", "20MiB"), ("resnet18", "64", "300MiB")]
)
def test_too_little_is_refused_and_the_least_that_is_named_does(
    tmp_path, network, batch, too_little
):
    """For the second it is in bands, and looking for it leaves gaps in Python's heap: 406 MiB of
    402."""
    asked = [network, "--data", "digits", "--batch", batch, "--steps", "2", "--threads", "1"]
    refused = trained([*asked, "--memory", too_little], 1 << 32)
    assert refused.status == 3, refused.out
    assert "[OOC-124]" in refused.out
    least = int(re.search(r"--memory (\d+)", refused.out)[1])
    done = trained([*asked, "--memory", str(least)], least)
    assert done.status == 0, done.out
    assert done.most_bytes <= least


def test_a_broken_promise_is_said_by_name_and_fails(monkeypatch, capsys):
    """Here the process is taken for smaller than it is."""
    monkeypatch.setattr(step_cache, "own_share", lambda *_, **searches: OwnShare(0, 0))
    status = main(["train", "lenet", "--batch", "8", "--steps", "1", "--memory", "60MiB"])
    printed = capsys.readouterr()
    assert status == 1
    assert "PROMISE BROKEN" in printed.out
    assert "[OOC-125]" in printed.err


def test_the_count_is_of_the_whole_run(monkeypatch):
    """It began after the data had been read, and ended before the values came home."""
    running, found = [], []

    class Noted(command.MemoryWatch):
        def __init__(self):
            super().__init__()
            running.append(self)

        def close(self):
            super().close()
            running.clear()

    make_task, close_session = command.make_task, Residence._close_session

    def reading(*given):
        found.append(bool(running))
        return make_task(*given)

    def closing(residence):
        if residence.open is not None:
            found.append(bool(running))
        close_session(residence)

    monkeypatch.setattr(command, "MemoryWatch", Noted)
    monkeypatch.setattr(command, "make_task", reading)
    monkeypatch.setattr(Residence, "_close_session", closing)
    # So much that this process is within it, whatever other tests have left there.
    words = ["train", "lenet", "--batch", "8", "--steps", "1", "--memory", "16GiB"]
    assert main(words) == 0
    assert found == [True, True, True], "data is read, sessions that trained and tested are closed"
