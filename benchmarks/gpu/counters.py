"""The GPU's own counters on four kernels: issue share, stalls, bandwidth, by Nsight Compute.

A kernel that is slower than its instructions promise waits for something, and the stalls name it.
So for one kernel of each kind (fp32 convolution, the same in TF32, batch norm, max pooling) the
promise of its SASS is compared with the GPU's counters. `--clock-control none`: the GPU's clocks
are left as they are. Source: Nsight Compute, metrics of WarpStateStats. Read next:
`kernel_speed.py`.

    python -m benchmarks.gpu.counters NAME    runs one of the kernels, for ncu to look at
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.gpu.bench import Bench, NotRunError
from benchmarks.gpu.kernel_speed import BIG, Case, conv_cases
from benchmarks.gpu.workbench import Workbench
from ooctrain.layers.batch_norm import BatchNormApply
from ooctrain.layers.pooling import MaxPool2d, PoolGeometry
from ooctrain.step.op import Spec

TOOL, USUAL_FOLDER = "ncu", "/usr/local/cuda/bin"
ARENA_BYTES, HOST_BYTES = 2 << 30, 64 << 20
NAMES = ("conv fp32", "conv TF32", "batch norm", "max pool")
LIMIT_S = 45.0
_STALLS = ("long_scoreboard", "short_scoreboard", "mio_throttle", "math_pipe_throttle", "barrier",
           "not_selected", "wait")  # fmt: skip
#: {ncu's metric: our name}
METRICS: Mapping[str, str] = {
    "gpu__time_duration.sum": "duration",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_share_pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_pct",
    "dram__bytes.sum.per_second": "bandwidth",
    "launch__registers_per_thread": "registers",
    **{f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": f"stalled_{name}"
       for name in _STALLS},
}  # fmt: skip


def run(bench: Bench) -> None:
    """One run of the tool for each kernel."""
    for name in NAMES:
        bench.check(name, _count, bench, name, limit_s=LIMIT_S + 10)


def _count(bench: Bench, name: str) -> dict[str, float | str]:
    if bench.asked.rehearse:
        raise NotRunError("there is no GPU whose counters could be read")
    tool = shutil.which(TOOL) or shutil.which(TOOL, path=USUAL_FOLDER)
    if tool is None:
        raise NotRunError(f"{TOOL} is missing")
    command = [
        tool,
        "--clock-control",
        "none",
        "--csv",
        "--launch-skip",
        "1",
        "--launch-count",
        "1",
    ]
    command += ["--metrics", ",".join(METRICS), sys.executable, "-m", "benchmarks.gpu.counters"]
    try:
        done = subprocess.run(
            [*command, name], capture_output=True, text=True, timeout=LIMIT_S, check=False,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NotRunError(f"{TOOL} was not through after {LIMIT_S:.0f} s") from None
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        raise NotRunError("counters may be read by the administrator only (ERR_NVGPUCTRPERM)")
    found = read_counters(done.stdout)
    assert found, (done.stdout + done.stderr)[-500:]
    return found


def read_counters(text: str) -> dict[str, float | str]:
    """Our names and numbers from the tool's CSV, in the units that it chose."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[str, float | str] = {}
    for row in csv.DictReader(lines):
        found.setdefault("kernel", readable(row["Kernel Name"]))
        if row["Metric Name"] in METRICS:
            name = METRICS[row["Metric Name"]]
            unit = "" if row["Metric Unit"] in ("", "%", "inst", "register/thread") else "_"
            unit += re.sub(r"\W+", "_per_", row["Metric Unit"]) if unit else ""
            found[name + unit] = float(row["Metric Value"].replace(",", ""))
    return found


def readable(name: str) -> str:
    """A kernel's name without its mangled arguments."""
    return name.split("(")[0][:80]


def case_of(name: str) -> Case:
    """The operation and its shapes."""
    algorithm = "tf32" if name == "conv TF32" else "implicit_gemm"
    if name.startswith("conv"):
        cases = conv_cases(64, 256, 28, 256, 3, 1)
        return next(case for case in cases if case[0].algorithm == algorithm)
    x, c = Spec(BIG), Spec(BIG[1:2])
    if name == "batch norm":
        return BatchNormApply(relu=True), (x, c, c, c, c)
    return MaxPool2d(PoolGeometry((2, 2), (2, 2))), (x,)


def main(name: str) -> int:
    """Launches a kernel, for the tool to look at."""
    with Workbench(ARENA_BYTES, HOST_BYTES) as workbench:
        workbench.time_op(*case_of(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
