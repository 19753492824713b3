"""`make bench`: every benchmark, or the named ones, each in a process of its own.

The names are steps, ops, conv, prediction, planners, overhead, launches, scale, alloc, packing,
blocks, tile, memory, frontier, ranks, interop; largest runs only where it is named, for it takes
hours. It prints what they print, and with `--json` writes one file of all results; status 1 means
that one failed. A target that is missed is reported in its table and in the closing lines, but that
is no failure: a busy machine misses some. Read next: `README.md`, `common.py`.

    python -m benchmarks [NAME ...] [--json FILE] [--quick]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: All of them; those of kernels are commands with options of their own, and race torch.
NAMES = (
    "steps", "ops", "conv", "prediction", "planners", "overhead", "launches", "scale", "alloc",
    "packing", "blocks", "tile", "memory", "frontier", "ranks", "interop",
)  # fmt: skip
#: Run only where they are named.
LONG = ("largest",)
KERNELS = ("ops", "conv")
NEEDS = dict.fromkeys(KERNELS, "torch") | {"interop": "torchvision"}
QUICK_ROUNDS = "3"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES + LONG))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all?")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in NAMES + LONG:
            parser.error(f"no benchmark is called {name!r}: {', '.join(NAMES + LONG)}")
    names = options.names or list(NAMES)
    results: dict[str, Any] = {"version": 1}
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            print(f"left out: {NEEDS[name]} is not installed here", flush=True)
            continue
        results[name] = _apart(name, options.quick)
        if results[name] is None:
            failed.append(name)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name in names:
        for what in (results.get(name) or {}).get("missed", ()):
            print(f"missed: {name}, {what}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _apart(name: str, quick: bool) -> dict[str, Any] | None:
    """Runs one benchmark in a process of its own; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        if name in KERNELS:
            command = ["-m", f"benchmarks.bench_{name}", "--json", str(result)]
            command += ["--rounds", QUICK_ROUNDS] if quick else []
        else:
            command = ["-m", "benchmarks.__main__", "--apart", name, str(result), str(int(quick))]
        done = subprocess.run([sys.executable, *command], check=False)
        return json.loads(result.read_text()) if done.returncode == 0 else None


def _run(name: str, result: str, quick: str) -> int:
    """What the process of one benchmark does."""
    module = importlib.import_module(f"benchmarks.bench_{name}")
    found = module.main(quick=bool(int(quick)))
    Path(result).write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[2:]) if sys.argv[1:2] == ["--apart"] else main())
