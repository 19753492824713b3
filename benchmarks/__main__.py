"""`make bench`: every benchmark beside this file, one process each, so that none disturbs another.

In: names, such as "ops predict"; none: all. Out: what they print; status 1 if one fails. Read next:
`bench_predict.py`, the shortest.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
#: Benchmarks that compare with torch, and are left out where it is not installed.
NEEDS_TORCH = ("import torch",)


def main(names: list[str]) -> int:
    known = {path.stem.removeprefix("bench_"): path for path in sorted(FOLDER.glob("bench_*.py"))}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark is called {unknown[0]!r}: {', '.join(known)}", file=sys.stderr)
        return 2
    has_torch = importlib.util.find_spec("torch") is not None
    failed = 0
    for name in names or known:
        needs_torch = any(text in known[name].read_text() for text in NEEDS_TORCH)
        print(f"== {name}", flush=True)
        if needs_torch and not has_torch:
            print("left out: torch is not installed here", flush=True)
            continue
        command = [sys.executable, "-m", f"benchmarks.{known[name].stem}"]
        failed += bool(subprocess.run(command, cwd=FOLDER.parent, check=False).returncode)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
