"""Whole steps as graphs over the stub driver: the bits of walked steps, by the PTX interpreter.

What cannot be recorded is refused by name; a step whose loss is not a number changes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doubles.stub_driver import environment, why_no_stub

from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx

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
from doubles.stub_driver import Stub
from doubles.ptx_machine import LaunchRunner, Texts

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

def trained(launcher, optimizer, batches=BATCHES, ahead=False, **how):
    import os
    os.environ["OOCTRAIN_LAUNCHER"] = launcher
    model = network()
    how = {"planner": "keep-all", "allocator": "va", **how}
    trainer = oc.Trainer(model, optimizer=optimizer(model), device="cuda", **how)
    said = []
    for number, (x, y) in enumerate(trainer.ahead(batches) if ahead else batches):
        trainer.optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        try:
            said.append(trainer.step(x, y))
        except TrainingStopped:
            said.append("stopped")
    replays = trainer._residence.open.session.captured
    facts = [replays._recorded is not None, str(replays.refusal or "")]
    timed = trainer.timeline.makespan_us >= 0
    swaps = sum(type(i).__name__ == "SwapOut" for i in trainer.plan.schedule)
    state = {name: value.tobytes() for name, value in sorted(trainer.state_arrays().items())}
    trainer.close()
    bits = hashlib.sha256(repr((said, state)).encode()).hexdigest()
    return {"said": said, "bits": bits, "recorded": facts[0], "refusal": facts[1], "timed": timed,
            "swaps": swaps, "graphs": stub.calls("cuGraphLaunch")}
"""
END = """
told["faults"] = [str(fault) for fault in runner.faults]
names = "contexts_made hidden_waits pageable_copies used_bytes streams events host graphs execs"
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
told["ahead"] = trained("graph", make, ahead=True)
""", tmp_path)  # fmt: skip
    walked, recorded, ahead = found["walked"], found["recorded"], found["ahead"]
    assert (ahead["recorded"], ahead["bits"]) == (True, walked["bits"])
    assert (walked["graphs"], walked["recorded"]) == (0, False)
    assert recorded["recorded"], recorded["refusal"]
    assert recorded["graphs"] >= 8  # two parts, since the host looks at the loss
    assert recorded["said"] == walked["said"]
    assert recorded["bits"] == walked["bits"]
    assert recorded["timed"]


@pytest.mark.slow
def test_what_cannot_be_recorded_is_refused_by_name_and_walked(tmp_path):
    """A step that maps, and a kernel that does not say what changes: the reason, and the bits."""
    found = told("""
make = lambda model: oc.optim.SGD(model.parameters(), lr=0.1)
network = lambda: (oc.manual_seed(0), nn.Sequential(nn.Flatten(), nn.Linear(192, 5)))[1]
told["walked"] = trained("driver", make, BATCHES[:3])
told["maps"] = trained("graph", make, BATCHES[:3], allocator="passthrough")
from dataclasses import replace
from ooctrain.layers.kernels.cuda import update
update._sgd_plain = replace(update._sgd_plain, changing=())
told["says nothing"] = trained("graph", make, BATCHES[:3])
""", tmp_path)  # fmt: skip
    assert "[OOC-154] a step maps memory" in found["maps"]["refusal"]
    assert "sgd: update._sgd_plain" in found["says nothing"]["refusal"]
    for case in found.values():
        assert not case["recorded"]
        assert case["graphs"] == 0
        assert case["bits"] == found["walked"]["bits"]


BUGS = {
    "the numbers of the first recorded step": (
        "from ooctrain.devices.cuda.launches import StepNumbers as owner",
        "write",
        "if not group.read or any(",
        "if not group.read and any(",
    ),
    "a loss that is not a number passes": (
        "from ooctrain.execution.guard import RecordedGuard as owner",
        "is_sound",
        "bool(np.isfinite(self._bytes.view(dtype)).all())",
        "True",
    ),
    "pieces behind the look are left out": (
        "from ooctrain.execution.captured_steps import CapturedSteps as owner",
        "run",
        "[cut.rest :]",
        "[cut.rest + 3 :]",
    ),
    "nothing is ever recorded": (
        "from ooctrain.execution.captured_steps import CapturedSteps as owner",
        "serves",
        "guarded != self._guarded",
        "True",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_bugs_in_recorded_steps_are_found(tmp_path, name):
    where, method, piece, wrong = BUGS[name]
    planted = f"""
import pytest
from zoo.planting import plant
{where}
plant(pytest.MonkeyPatch(), owner, {method!r}, {piece!r}, {wrong!r})
"""
    with pytest.raises(AssertionError):
        check_swaps_and_a_bad_loss(tmp_path, planted)


@pytest.mark.slow
def test_swaps_are_recorded_and_a_loss_that_is_no_number_changes_nothing(tmp_path):
    check_swaps_and_a_bad_loss(tmp_path)


def check_swaps_and_a_bad_loss(tmp_path, planted=""):
    """Batch norm's running statistics change before the loss is known, parameters behind it."""
    found = told(planted + """
make = lambda model: oc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
bad = (np.full_like(BATCHES[0][0], np.inf), BATCHES[0][1])
batches = BATCHES[:3] + [bad] + BATCHES[4:5]
how = {"planner": "belady", "allocator": "best-fit", "budget": "50%"}
for launcher in ("driver", "graph"):
    told[launcher] = trained(launcher, make, batches, **how)
""", tmp_path)  # fmt: skip
    walked, recorded = found["driver"], found["graph"]
    assert recorded["recorded"], recorded["refusal"]
    assert recorded["swaps"] > 0
    assert recorded["said"][3] == "stopped"
    assert recorded["said"] == walked["said"]
    assert recorded["bits"] == walked["bits"]
