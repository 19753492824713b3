"""Memory and time of a training step, ours and torch's, counted from outside: the frontier.

Each contestant trains three steps of one network on one batch in a process of its own. The parent
reads its memory while it does: growth is what the system counts (Pss, and pages of the arena that
are mapped nowhere) above what was held when imports and one tiny step were done; VmHWM stands
beside it, though it counts a page of our arena once for each address it is mapped at. Torch runs
in-core, with checkpoints of every segment count from 2 to 2 sqrt(L), with saved tensors on the
disk, in micro-batches (other batch statistics: not exact), and compiled under an activation budget,
in both layouts; ours in-core and at falling `--memory`. Exact methods must give torch's loss after
three steps. What the time limit leaves no room for is named, not guessed. Read next:
`memory_sides.py`.

    python -m benchmarks memory [--quick] [--json FILE]
    python -m benchmarks.bench_memory --network resnet50 --batch 16 --minutes 30 --picture m.svg
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ooctrain as oc
from benchmarks.bench_steps import NETWORKS, Network
from benchmarks.common import machine_facts, table, threads_here, verdict
from benchmarks.memory_sides import MICRO_BATCHES, segment_counts
from ooctrain.devices.cpu.process_memory import MemoryWatch, held
from ooctrain.units import MIB

HAS_TORCH = importlib.util.find_spec("torch") is not None
BATCHES = {"resnet18": 128, "resnet50": 16, "vgg11": 256}
QUICK_BATCH = 16
MINUTES, QUICK_MINUTES = 9.0, 2.0
#: Of what ours grows by in-core.
FALLING = (0.9, 0.75, 0.6, 0.5, 0.4)
#: Losses of exact methods after three steps, relative.
LOSS_BOUND = 1e-3
LONGEST_S = 240.0
#: The goals: time at the memory of torch's fastest method that saves any; memory at torch's
#: in-core time.
WANTED_TIME, WANTED_MEMORY = 0.75, 0.6


@dataclass(frozen=True, slots=True)
class Side:
    """A contestant.

    Args:
        name: as it is shown.
        words: what `memory_sides.py` takes behind the network.
        exact: whether its step is that of the whole batch.
    """

    name: str
    words: tuple[str, ...]
    exact: bool = True


def torch_sides(network: Network, *, quick: bool) -> Iterator[Side]:
    """Torch's, those first that others are compared with."""
    layouts = ("NCHW",) if quick else ("NHWC", "NCHW")
    counts = segment_counts(network)[:1] if quick else segment_counts(network)
    for layout in layouts:
        yield Side(f"torch {layout}", ("torch", layout, "in-core", "0"))
    for layout in layouts:
        words = ("torch", layout, "micro", str(MICRO_BATCHES))
        yield Side(f"torch {layout}, {MICRO_BATCHES} micro-batches", words, exact=False)
    for count in counts:
        for layout in layouts:
            words = ("torch", layout, "checkpoint", str(count))
            yield Side(f"torch {layout}, checkpoint, {count} segments", words)
    for layout in layouts:
        yield Side(f"torch {layout}, saved to disk", ("torch", layout, "disk", "0"))
    if not quick:
        yield Side("torch NCHW, compiled, budget 0.5", ("torch", "NCHW", "compiled", "0"))


def run_side(network: Network, side: Side, threads: int, limit_s: float) -> dict[str, Any]:
    """A contestant in its process, measured; with `error` where it did not finish."""
    words = [network.name, network.stem, network.batch, network.image, threads, *side.words]
    command = [sys.executable, "-m", "benchmarks.memory_sides", *map(str, words)]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = child.stdout, child.stderr
    assert child.stdin is not None
    assert out is not None
    assert err is not None
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(err), daemon=True)
    reader.start()
    ending = threading.Timer(limit_s, child.kill)
    ending.start()
    try:
        line = out.readline()
        before = held(child.pid)
        if line.strip() != "ready" or before is None:
            return _failed(side, said, child)
        with suppress(OSError):
            Path(f"/proc/{child.pid}/clear_refs").write_text("5")
        resident = _status(child.pid, "VmRSS")
        with MemoryWatch(child.pid) as watch:
            child.stdin.write("go\n")
            child.stdin.flush()
            line = out.readline()
        if not line.startswith("{"):
            return _failed(side, said, child)
        highest = _status(child.pid, "VmHWM")
    finally:
        ending.cancel()
        child.kill()
        child.wait()
        reader.join(1)
    found = json.loads(line)
    return {
        "name": side.name, "exact": side.exact, **found,
        "growth_mib": (watch.most_bytes - before.counted_bytes) / MIB,
        "vmhwm_growth_mib": (highest - resident) / MIB,
        "step_s": min(found["wall_s"][1:]), "step_cpu_s": min(found["cpu_s"][1:]),
    }  # fmt: skip


def _failed(side: Side, said: list[str], child: subprocess.Popen) -> dict[str, Any]:
    child.kill()
    child.wait()
    lines = [line.strip() for line in said if line.strip()]
    least = [line for line in lines if "--memory" in line]
    why = (least or lines or ["killed after its time"])[-1]
    return {"name": side.name, "exact": side.exact, "error": why[:160]}


def _status(process: int, key: str) -> int:
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def measure(network: Network, deadline: float, *, quick: bool) -> dict[str, Any]:
    """All contestants of a network, as far as the time goes."""
    threads, rows = threads_here(), []
    left_out: list[str] = []

    def add(side: Side) -> dict[str, Any] | None:
        rest = deadline - time.monotonic()
        if rest < 5:
            left_out.append(side.name)
            return None
        found = run_side(network, side, threads, min(LONGEST_S, rest))
        rows.append(found)
        shown = found.get("error") or f"{found['growth_mib']:.0f} MiB, {found['step_s']:.2f} s"
        print(f"  {side.name}: {shown}", flush=True)
        return found

    in_core = add(Side("ours", ("ours", "in-core", "0")))
    whole = (in_core or {}).get("growth_mib", 0)
    ours = [
        Side(f"ours, memory {share:.0%}", ("ours", "memory", str(int(share * whole * MIB))))
        for share in (FALLING[1::2] if quick else FALLING)
        if whole
    ]
    theirs = list(torch_sides(network, quick=quick)) if HAS_TORCH else []
    # In turns, so that a time limit cuts both.
    for place in range(max(len(ours), len(theirs))):
        for side in (*theirs[place : place + 1], *ours[place : place + 1]):
            add(side)
    return {
        "network": network.name, "batch": network.batch, "image": network.image,
        "threads": threads, "rows": rows, "left_out": left_out,
    }  # fmt: skip


def goals(found: dict[str, Any]) -> list[tuple[str, float | None, float, bool | None]]:
    """(goal, measured, wanted at most, whether it is met; None: not measured)."""
    rows = [row for row in found["rows"] if "error" not in row]
    ours = [row for row in rows if row["name"].startswith("ours")]
    torch = [row for row in rows if row["name"].startswith("torch")]
    in_core = [row for row in torch if len(row["name"].split(",")) == 1]
    saving = [row for row in torch if row["exact"] and row not in in_core]
    micro = [row for row in torch if not row["exact"]]
    made: list[tuple[str, float | None, float, bool | None]] = []

    def add(name: str, value: float | None, wanted: float) -> None:
        made.append((name, value, wanted, None if value is None else value <= wanted))

    # Who saves nothing is no method for less memory.
    least = min((row["growth_mib"] for row in in_core), default=0.0)
    peer = min(
        (row for row in saving if row["growth_mib"] < least), key=lambda r: r["step_s"],
        default=None,
    )  # fmt: skip
    fits = [r["step_s"] for r in ours if peer and r["growth_mib"] <= peer["growth_mib"]]
    name = f"time at the memory of {peer['name']}" if peer else "time at torch's memory"
    value = min(fits) / peer["step_s"] if peer and fits else None
    add(name, value, WANTED_TIME)
    fastest = min(in_core, key=lambda r: r["step_s"], default=None)
    quick = [r["growth_mib"] for r in ours if fastest and r["step_s"] <= fastest["step_s"]]
    value = min(quick) / fastest["growth_mib"] if fastest and quick else None
    add("memory at torch's in-core time", value, WANTED_MEMORY)
    small = min((row["growth_mib"] for row in micro), default=None)
    value = min(row["growth_mib"] for row in ours) / small if small and ours else None
    add("least memory over that of micro-batches", value, 1.0)
    made.append(("a quarter of in-core with the disk, 1 GB/s: time over in-core", None, 1.5, None))
    return made


def losses_differ(found: dict[str, Any]) -> list[str]:
    """Exact methods whose loss after the steps is not that of the first exact one."""
    rows = [row for row in found["rows"] if "error" not in row and row["exact"]]
    if not rows:
        return []
    expected = rows[0]["losses"][-1]
    limit = LOSS_BOUND * abs(expected)
    return [r["name"] for r in rows if not abs(r["losses"][-1] - expected) <= limit]


def picture(found: dict[str, Any]) -> str:
    """Memory to the right, time up: one point for each contestant, a curve for each kind; torch in
    the layout that is faster in-core."""
    kinds: dict[str, list[tuple[float, float]]] = {}
    ran = {row["name"]: row for row in found["rows"] if "error" not in row}
    in_core = [name for name in ("torch NHWC", "torch NCHW") if name in ran]
    layout = min(in_core, key=lambda name: ran[name]["step_s"], default="torch NHWC")
    for name, row in ran.items():
        library, *way = name.split(", ")
        if library in ("ours", layout):
            kind = "ours" if library == "ours" else " ".join(["torch", *way[:1]])
            kinds.setdefault(kind, []).append((row["growth_mib"], row["step_s"]))
    curves = [oc.pictures.Curve(kind, sorted(points)) for kind, points in kinds.items()]
    title = f"{found['network']}, batch {found['batch']}: memory and time of a step"
    return oc.pictures.curves_svg(
        title, curves, axes=("growth of the process, MiB", "seconds a step")
    )


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_memory", description=__doc__.splitlines()[0])
    names = [network.name for network in NETWORKS]
    parser.add_argument("--network", choices=names, default="resnet18")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--minutes", type=float, default=QUICK_MINUTES if quick else MINUTES)
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if held() is None:
        print("left out: this system does not say what a process holds")
        return {"missed": []}
    base = next(network for network in NETWORKS if network.name == options.network)
    batch = options.batch or (QUICK_BATCH if quick else BATCHES[base.name])
    network = Network(base.name, base.stem, batch, base.image, base.auto)
    facts, deadline = machine_facts(), time.monotonic() + 60 * options.minutes
    found = measure(network, deadline, quick=quick)
    rows = [row for row in found["rows"] if "error" not in row]
    print(table(
        ["", "growth", "VmHWM", "step", "processor", "loss after 3"],
        [[r["name"] + ("" if r["exact"] else " (not exact)"), f"{r['growth_mib']:.0f} MiB",
          f"{r['vmhwm_growth_mib']:.0f} MiB", f"{r['step_s']:.2f} s", f"{r['step_cpu_s']:.2f} s",
          f"{r['losses'][-1]:.5f}"] for r in sorted(rows, key=lambda r: r["growth_mib"])],
    ))  # fmt: skip
    for row in found["rows"]:
        if "error" in row:
            print(f"did not run: {row['name']}: {row['error']}")
    if found["left_out"]:
        print(f"left out for time: {'; '.join(found['left_out'])}")
    made, wrong = goals(found), losses_differ(found)
    for name, value, wanted, met in made:
        shown = "not measured" if value is None else f"{value:.2f}, {verdict(bool(met))}"
        print(f"{name}: {shown} (wanted: at most {wanted:g})")
    missed = [name for name, _, _, met in made if met is False]
    missed += [f"loss of {name}" for name in wrong]
    if options.picture:
        options.picture.write_text(picture(found), encoding="utf-8")
    result = {"machine": facts, **found, "goals": made, "missed": missed}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
