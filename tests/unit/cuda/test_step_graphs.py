"""Whole steps as graphs over the stub driver: the same bits as walked steps, by the PTX interpreter;
what cannot be recorded is refused by name; a step whose loss is no number changes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx
from ooctrain.testing.driver.stub.build import environment, why_no_stub

REASON = why_no_stub() or why_no_ptx()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
ROOT = Path(__file__).parents[3]

BEGIN = """
import hashlib, json, warnings
warnings.simplefilter("ignore")
import numpy as np
import ooctrain as oc
from ooctrain import nn
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.launches import DriverKernels
from ooctrain.errors import TrainingStopped
from ooctrain.layers.kernels.cuda.runtime import cubins
from ooctrain.testing.driver.stub.stub import Stub
from ooctrain.testing.emulator.ptx_driver import LaunchRunner, Texts

cubins._link = lambda ptx, target: b""  # images are PTX, which the interpreter reads
stub, told = Stub(total_bytes=1 << 28, version=13050), {}
runner = LaunchRunner(Texts(), stub.hole)
stub.on_launch(runner)
cuda_open.require_compiler = lambda gpu: None

def network():
    oc.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 16, 5))

rng = np.random.default_rng(0)
BATCHES = [(rng.standard_normal((2, 3, 8, 8), np.float32), rng.integers(0, 5, 2)) for _ in range(7)]

def trained(launcher, optimizer, batches=BATCHES, **how):
    import os
    os.environ["OOCTRAIN_LAUNCHER"] = launcher
    model = network()
    how = {"planner": "keep-all", "allocator": "va", **how}
    trainer = oc.Trainer(model, optimizer=optimizer(model), device="cuda", **how)
    said = []
    for number, (x, y) in enumerate(batches):
        trainer.optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        try:
            said.append(trainer.step(x, y))
        except TrainingStopped:
            said.append("stopped")
    replays = trainer._residence.open.session._replays
    facts = [replays._recorded is not None, str(replays.refusal or "")]
    timed = trainer.timeline.makespan_us >= 0
    state = {name: value.tobytes() for name, value in sorted(trainer.state_arrays().items())}
    trainer.close()
    bits = hashlib.sha256(repr((said, state)).encode()).hexdigest()
    return {"said": said, "bits": bits, "recorded": facts[0], "refusal": facts[1], "timed": timed,
            "graphs": stub.calls("cuGraphLaunch")}
"""
END = """
told["faults"] = [str(fault) for fault in runner.faults]
names = "contexts_made hidden_waits pageable_copies used_bytes streams events host graphs execs sticky"
told["counts"] = {name: stub.number(name) for name in names.split()}
print(json.dumps(told))
"""


def told(code: str, folder: Path) -> dict:
    given = environment() | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "OOCTRAIN_CUBINS": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + code + END], env=given, text=True,
        capture_output=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found.pop("faults")
    counts = found.pop("counts")
    assert counts.pop("contexts_made") == 1
    assert not any(counts.values()), counts
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    ["SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)", "Adam(model.parameters())"],
    ids=["sgd", "adam"],
)
def test_recorded_steps_have_the_bits_of_walked_ones(tmp_path, optimizer):
    """Seven steps, another learning rate in each, dropout drawn anew: four of them by graphs."""
    found = told(f"""
make = lambda model: oc.optim.{optimizer}
told["walked"] = trained("driver", make)
told["recorded"] = trained("graph", make)
""", tmp_path)  # fmt: skip
    walked, recorded = found["walked"], found["recorded"]
    assert (walked["graphs"], walked["recorded"]) == (0, False)
    assert recorded["recorded"], recorded["refusal"]
    assert recorded["graphs"] >= 8  # two parts, since the host looks at the loss
    assert recorded["said"] == walked["said"]
    assert recorded["bits"] == walked["bits"]
    assert recorded["timed"]
