"""NVIDIA's checkers of memory and of races on some kernels, where they are installed.

Each of compute-sanitizer's tools runs the few small cases of the part "kernels", and its check is
that it found nothing. memcheck sees stray reads too, which guard bytes cannot show; racecheck sees
two threads at one word of shared memory without a barrier between them, whatever order they ran in.
Read next: `kernels.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.apart import read_log
from benchmarks.gpu.bench import Bench, NotRunError

TOOL = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
USUAL_FOLDER = "/usr/local/cuda/bin"
FOUND_STATUS = 86
_LAST_WORDS = 1500


def run(bench: Bench) -> None:
    """One run of each tool over all of them; the first may take half of the time."""
    for share, tool in zip((0.5, 1.0), TOOLS, strict=True):
        left_s = max(5.0, share * (bench.until - time.time()))
        bench.check(tool, _run_tool, bench, tool, left_s, limit_s=left_s + 10)


def _run_tool(bench: Bench, checker: str, left_s: float) -> dict[str, int]:
    if bench.asked.rehearse:
        raise NotRunError("there is no GPU to check")
    tool = shutil.which(TOOL) or shutil.which(TOOL, path=USUAL_FOLDER)
    if tool is None:
        raise NotRunError(f"{TOOL} is missing")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        child = ("-m", "benchmarks.gpu.apart", "kernels", str(log), "{}", str(bench.until))
        command = [tool, "--tool", checker, "--error-exitcode", str(FOUND_STATUS)]
        command += [sys.executable, *child, "--few"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=left_s, check=False,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotRunError(f"{TOOL} was not through after {left_s:.0f} s") from None
        assert done.returncode == 0, (done.stdout + done.stderr)[-_LAST_WORDS:]
        checks = read_log(log)[0]
    wrong = [check.name for check in checks if check.status != "ok"]
    assert not wrong, f"under the checker: {wrong}"
    return {"kernels_checked": len(checks)}
