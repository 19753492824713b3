"""What launches cost the host: microseconds each, and the work of a whole in-core step.

The stub of CUDA's driver has a GPU that takes no time, so all that is left is the host's work, and
processor time is the same when other programs run. Measured are one call, known already, at other
addresses, and with other step scalars; and a step of ResNet-50, by each launcher. The kernels are
hollow (`tests/doubles/hollow_kernels.py`); with `--numba` Numba's launcher is measured too, which
compiles them first (half a minute). Read next: `bench_overhead.py`.

    python -m benchmarks launches [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
from doubles.stub_driver import Stub, environment, why_no_stub

import ooctrain as oc
from benchmarks.common import machine_facts, table, verdict
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.engine.incore import initial_values
from ooctrain.execution.fit import prepare
from ooctrain.execution.sessions import input_values, open_session
from ooctrain.execution.settings import Settings
from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.conv2d import Conv2d, Geometry
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.layers.relu import ReLU
from ooctrain.layers.update import AdamUpdate, SGDUpdate
from ooctrain.models import stem_for
from ooctrain.step.op import Op, Spec, physical_shape
from ooctrain.testing.check_op import SCALARS

#: Wanted: a launch, a step, a step that is launched as a whole.
LAUNCH_US, STEP_MS, GRAPH_MS = 6.0, 25.0, 1.0
CALLS, ROUNDS, BATCH, STEPS = 2000, 5, 4, 6
#: Memory of the stub's GPU, of which only what is touched is taken.
STUB_BYTES, APART = 16 << 30, 1 << 24
PLACES = 64
WEIGHT = Spec((1024,))
CASES: tuple[tuple[str, Op, tuple[Spec, ...]], ...] = (
    ("conv2d", Conv2d(Geometry((1, 1), (1, 1, 1, 1)), (3, 3), "implicit_gemm"),
     (Spec((4, 16, 8, 8)), Spec((16, 16, 3, 3)))),
    ("ReLU", ReLU(), (Spec((4, 16, 8, 8)),)),
    ("batch norm", BatchNormApply(relu=True), (Spec((4, 16, 8, 8)), *[Spec((16,))] * 4)),
    ("SGD", SGDUpdate(0.9, 0.0, 1e-4), (WEIGHT,) * 3),
    ("Adam", AdamUpdate(), (WEIGHT,) * 4),
)  # fmt: skip


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict[str, Any]:
    """Runs in a process over the stub; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_launches", description=__doc__.splitlines()[0])
    parser.add_argument("--numba", action="store_true", help="Numba's launcher too")
    asked = parser.parse_args(arguments)
    if why_no_stub():
        print(f"left out: {why_no_stub()}", flush=True)
        return {"missed": []}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bench_launches", "--over-the-stub"]
    command += ["--numba"] * asked.numba + ["--quick"] * quick
    given = environment(late=0, fresh=0, total_bytes=STUB_BYTES) | {"OOCTRAIN_STUB_REPORT": ""}
    done = subprocess.run(command, env=given, check=True, text=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout.splitlines()[-1])
    rows = [[*row[:-1], verdict(row[-1])] for row in found.pop("rows")]
    print(table(["what", "launcher", "launches", "host us", "wanted", ""], rows), flush=True)
    return {"machine": machine_facts(), **found}


def measure(numba: bool, quick: bool) -> dict[str, Any]:
    """What the process over the stub does."""
    stub, rows, missed, numbers = Stub(), [], [], {}
    stub.reset(late=0, fresh=0, total_bytes=STUB_BYTES, kept=0)

    def note(what: str, launcher: str, launches: float, us: float, wanted: float | None) -> None:
        good = wanted is None or us <= wanted
        shown = "" if wanted is None else f"{wanted:.0f}"
        rows.append([what, launcher, f"{launches:.0f}", f"{us:.1f}", shown, good])
        numbers[f"{what}, {launcher}"] = us
        if not good:
            missed.append(f"{what}, {launcher}: {us:.1f} us")

    for launcher in ("driver", *["numba"] * numba):
        with _launching(launcher):
            for name, op, specs in CASES:
                for how, us, launches in _calls(stub, op, specs, 200 if quick else CALLS):
                    wanted = LAUNCH_US * launches if launcher == "driver" and not how else None
                    note(name + how, launcher, launches, us, wanted)
            us, launches = _step(stub, 3 if quick else STEPS)
            wanted = STEP_MS * 1e3 if launcher == "driver" else None
            note("ResNet-50 step, in-core", launcher, launches, us, wanted)
    with _launching("graph"):
        us, launches = _step(stub, 6 if quick else 2 * STEPS)
        note("ResNet-50 step, in-core", "graph", launches, us, GRAPH_MS * 1e3)
    return {"rows": rows, "missed": missed, "host_us": numbers}


@contextmanager
def _launching(launcher: str) -> Iterator[None]:
    """Whoever opens the GPU launches so; launches of our own are hollow."""
    from doubles.hollow_kernels import HollowStore

    from ooctrain.devices.cuda.launches import DriverKernels

    os.environ["OOCTRAIN_LAUNCHER"] = launcher
    store: Any = HollowStore()
    ours = lambda driver, stream: DriverKernels(driver, stream, store, launcher == "graph")  # noqa: E731
    made = cuda_open.make_kernels if launcher == "numba" else ours
    # No kernel leaves values, so that the compiler's trial would fail.
    with mock.patch.multiple(cuda_open, make_kernels=made, require_compiler=lambda gpu: None):
        yield


def _calls(
    stub: Stub, op: Op, specs: Sequence[Spec], calls: int
) -> Iterator[tuple[str, float, float]]:
    """(which calls, processor time of one, launches of one): known ones; at other addresses; with
    other scalars."""
    driver = cuda_open.open_cuda_driver()
    stream, memory = driver.create_stream(), driver.allocate(PLACES * APART)
    kernels = cuda_open.make_kernels(driver, stream)
    outs = op.infer(*specs)
    space = CUDA.workspace_bytes(op, specs, outs, 1)

    def arrays(shift: int) -> tuple[list[Any], list[Any], Any]:
        at = [memory + APART * n + 4096 * shift for n in range(len(specs) + len(outs) + 1)]
        made = [
            kernels.array(place, physical_shape(spec.shape), spec.dtype)
            for place, spec in zip(at, [*specs, *outs], strict=False)
        ]
        whole = kernels.array(at[-1], (space,), "uint8")
        return made[: len(specs)], made[len(specs) :], whole

    places = [arrays(shift) for shift in range(calls // 10)]
    known = [places[0]] * calls
    scalars = [SCALARS] * calls
    # As in a step: the same operation on many parameters, all with this step's scalars.
    steps = [{**SCALARS, "lr": 0.1 / (n + 1), "step": n} for n in range(10)]
    changing = [values for values in steps for _ in places]

    def run(where: Sequence[Any], numbers: Sequence[Any]) -> float:
        began = time.process_time()
        for (ins, made, whole), values in zip(where, numbers, strict=False):
            kernels.launch(op, ins, made, whole, values)
        return (time.process_time() - began) * 1e6 / min(len(where), len(numbers))

    run(known[:2], scalars)
    before = stub.number("launches")
    run(known[:10], scalars)
    launches = (stub.number("launches") - before) / 10
    yield "", min(run(known, scalars) for _ in range(ROUNDS)), launches
    yield " at other addresses", run(places[1:], scalars), launches
    if op.scalar_names:
        yield " with other scalars", run(places * len(steps), changing), launches
    driver.destroy_stream(stream)
    driver.free(memory)


def _step(stub: Stub, steps: int) -> tuple[float, float]:
    """(processor time, launches) of a step of ResNet-50, all of it in the GPU's memory."""
    oc.manual_seed(0)
    model = oc.models.build("resnet50", 1000, stem_for(224, 224))
    trace = oc.trace(model, (BATCH, 3, 224, 224), device="cuda")
    how = Settings(None, "keep-all", "va", "cuda")
    prepared = prepare(trace, how)
    planned, by_name = prepared.plan.trace, initial_values(trace, model)
    values = {v: by_name[planned.variables[v].name] for v in planned.end_variables}
    images = np.zeros((BATCH, 3, 224, 224), np.float32)
    inputs = input_values(planned, images, np.zeros(BATCH, np.int64))
    device, session = open_session(prepared, how, values, (planned.outputs["loss"],))
    times, launches = [], 0
    # Turning and copying a batch takes what its size takes, and is left out.
    given = {variable: session._bytes_given(inputs, variable) for variable in inputs}
    session._bytes_given = lambda _values, variable: given[variable]
    device.write = device.feed = lambda *_: None
    for step in range(steps):
        before, began = stub.number("launches"), time.process_time()
        session.run_step(inputs, {"lr": 0.01 / (step + 1), "seed": 0, "step": step})
        times.append((time.process_time() - began) * 1e6)
        launches = stub.number("launches") - before
    session.close()
    device.close()
    return median(times[steps // 2 :]), launches


if __name__ == "__main__":
    if "--over-the-stub" in sys.argv:
        print(json.dumps(measure("--numba" in sys.argv, "--quick" in sys.argv)))
    else:
        main(sys.argv[1:])
