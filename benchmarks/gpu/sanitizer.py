"""NVIDIA's memory checker over some kernels, where it is installed.

In: the few small cases of the part "kernels". Out: one check: compute-sanitizer found nothing. The
one idea: the checker sees stray reads too, which guard bytes cannot show. Read next: `kernels.py`.
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
from benchmarks.gpu.rehearsal import Kernels

REHEARSED_BY: Kernels = "cpu kernels"
TOOL = "compute-sanitizer"
USUAL_FOLDER = "/usr/local/cuda/bin"
FOUND_STATUS = 86
_LAST_WORDS = 1500


def run(bench: Bench) -> None:
    """One run of the checker over all of them."""
    left_s = max(5.0, bench.until - time.time())
    bench.check("memcheck", _memcheck, bench, left_s, limit_s=left_s + 10)


def _memcheck(bench: Bench, left_s: float) -> dict[str, int]:
    if bench.rehearsing:
        raise NotRunError("there is no GPU to check")
    tool = shutil.which(TOOL) or shutil.which(TOOL, path=USUAL_FOLDER)
    if tool is None:
        raise NotRunError(f"{TOOL} is missing")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        child = ("-m", "benchmarks.gpu.apart", "kernels", str(log))
        command = [tool, "--tool", "memcheck", "--error-exitcode", str(FOUND_STATUS)]
        command += [sys.executable, *child, str(bench.until), "--few"]
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
