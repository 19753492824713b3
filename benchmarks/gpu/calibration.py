"""This GPU as a `Machine`, for which later plans are made.

A preset's numbers come from a data sheet, these from steps of ResNet-50 like those that are
predicted. The file, named after the GPU, lies next to the report, and `--machine` takes it; the
report has the numbers that a preset states: link both ways, rates, launch, latency. Read next:
`ooctrain/machine/calibrate.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import ooctrain as oc
from benchmarks.gpu.bench import Bench, NotRunError
from benchmarks.gpu.networks import PLAIN
from benchmarks.gpu.steps import STEP_LIMIT_S
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.errors import ConfigError
from ooctrain.machine.calibrate import calibrate
from ooctrain.step.presets import save_calibration
from ooctrain.train import Trainer

BATCH, SIDE, CLASSES, LEAST_STEPS = 32, 224, 1000, 4
#: So small that the loss stays finite whatever the images are.
LR = 1e-6


def run(bench: Bench) -> None:
    """One check: the machine as measured."""
    bench.check("as a machine", _measure, bench, limit_s=STEP_LIMIT_S)


def _measure(bench: Bench) -> dict[str, float | str]:
    name = cuda_open.look_at_gpu().name
    file = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".json"
    shape = (BATCH, 3, SIDE, SIDE)
    oc.manual_seed(0)
    model = oc.models.build("resnet50", CLASSES, "imagenet")
    if bench.small:
        shape, model = PLAIN.shape, PLAIN.build()
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal(shape, np.float32), rng.integers(0, 10, shape[0])
    optimizer = oc.optim.SGD(model.parameters(), lr=LR)
    with Trainer(model, optimizer=optimizer, device="cuda", machine="h200-pcie") as trainer:
        trainer.prepare(images.shape)
        try:
            found = calibrate(trainer, images, labels, name, 1 if bench.small else LEAST_STEPS)
        except (ArithmeticError, ConfigError, np.linalg.LinAlgError):
            if not bench.asked.rehearse:
                raise
            raise NotRunError("all steps ran; no line fits the times of a rehearsal") from None
    if not bench.asked.rehearse:
        save_calibration(found, Path(bench.asked.folder) / file)
    return {
        "tflops": found.flops_per_us / 1e6, "memory_gb_s": found.memory_bytes_per_us / 1e3,
        "link_out_gb_s": (found.link_out_bytes_per_us or found.link_bytes_per_us) / 1e3,
        "link_in_gb_s": (found.link_in_bytes_per_us or found.link_bytes_per_us) / 1e3,
        "call_us": found.call_overhead_us, "issue_us": found.issue_us,
        "copy_latency_us": found.latency_us, "interference": found.interference,
        "map_us_a_mib": found.map_us_per_byte * (1 << 20), "file": file,
    }  # fmt: skip
