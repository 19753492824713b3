"""Memory and time of a training step, ours and torch's, counted from outside: the frontier.

Each contestant trains three steps of one network on one batch in a process of its own, and the
parent reads its memory while it does (`memory_process.py`). Torch runs in-core, with checkpoints
of every segment count from 2 to 2 sqrt(L), with saved tensors on the disk, in micro-batches (other
batch statistics: not exact), and compiled under an activation budget, in both layouts; ours
in-core, at falling `--memory`, and with a disk of 1 GB/s as the host (a faster one is held to that;
a slower one is measured as it is, and what the plan says of 1 GB/s stands beside it). Ours plans
for this machine, which is calibrated first, as `ooctrain calibrate` does. Exact methods must give
torch's losses. With `--results FOLDER` each network has a file there, written after each
contestant; `--resume` measures only what is not in it. What the time limit leaves no room for is
named, not guessed. Read next: `memory_cases.py`; `memory_goals.py`.

    python -m benchmarks memory [--quick] [--json FILE]
    python -m benchmarks.bench_memory --network resnet50 unet --results benchmarks/results --resume
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import machine_facts, table, threads_here, verdict
from benchmarks.memory_cases import (
    CASES,
    Case,
    Side,
    disk_sides,
    growth_text,
    our_sides,
    torch_sides,
)
from benchmarks.memory_goals import goals, losses_differ
from benchmarks.memory_picture import panels_svg
from benchmarks.memory_process import run_side
from benchmarks.memory_sides import calibrated
from ooctrain.devices.cpu.process_memory import held
from ooctrain.devices.spill import look_at
from ooctrain.errors import OoctrainError
from ooctrain.machine.disk_speed import measure_disk
from ooctrain.units import MIB

HAS_TORCH = importlib.util.find_spec("torch") is not None
QUICK_BATCH, QUICK_NETWORKS = 16, ("resnet18",)
#: For each network.
MINUTES, QUICK_MINUTES = 12.0, 2.0
STEPS, LONGEST_S, LEAST_S = 3, 300.0, 5.0


@dataclass
class Run:
    """The contestants of one network, as far as the time goes.

    Args:
        case: what is trained.
        deadline: by `time.monotonic()`; what a contestant takes that compiles is added.
        found: what is known so far, by contestant; those are not measured again.
        file: into which everything is written after each contestant; None: nowhere.
        machine: file of the calibrated machine; "": what is saved, or none.
    """

    case: Case
    deadline: float
    found: dict[str, Any]
    file: Path | None
    machine: str = ""

    def measure(self, folder: str, only: str, *, quick: bool) -> dict[str, Any]:
        """All contestants, or ours with the disk only; ours and theirs in turns, so that a time
        limit cuts both."""
        in_core = self.add(Side("ours", "ours", "in-core"))
        whole = int((in_core or {}).get("growth_mib", 0) * MIB)
        ours = list(our_sides(whole, self.machine, quick=quick)) if whole and not only else []
        if folder and whole and time.monotonic() < self.deadline:
            ours += disk_sides(whole, **self.disk(folder))
        theirs = list(torch_sides(self.case, quick=quick)) if HAS_TORCH and not only else []
        for place in range(max(len(ours), len(theirs))):
            for side in (*theirs[place : place + 1], *ours[place : place + 1]):
                self.add(side)
        return self.found

    def disk(self, folder: str) -> dict[str, Any]:
        """What the disk reaches that is our host, for a `Side`."""
        if "disk" not in self.found:
            place, disk = look_at(folder), measure_disk(folder)
            self.found["disk"] = {
                "file_system": place.file_system, "link": disk.link,
                "out_bytes_per_us": disk.out_bytes_per_us, "in_bytes_per_us": disk.in_bytes_per_us,
                "latency_us": disk.latency_us,
            }  # fmt: skip
        known = self.found["disk"]
        rates = known["out_bytes_per_us"], known["in_bytes_per_us"]
        latency_us = known.get("latency_us", 0.0)  # not in files before 2026-11-24
        return {
            "folder": folder, "rates": rates, "link": known["link"], "latency_us": latency_us,
            "machine": self.machine,
        }  # fmt: skip

    def add(self, side: Side) -> dict[str, Any] | None:
        """Measures a contestant, if there is time."""
        for row in self.found["rows"]:
            if row["name"] == side.name:
                return row
        began, left_out = time.monotonic(), self.found["left_out"]
        left = self.deadline - began
        if left < LEAST_S:
            left_out += [] if side.name in left_out else [side.name]
            return None
        row = run_side(self.case, side, STEPS, self.found["threads"], min(LONGEST_S, left))
        if side.compiles:  # its minutes are not those of the others
            self.deadline += time.monotonic() - began
        self.found["rows"].append(row)
        if side.name in left_out:
            left_out.remove(side.name)
        print(f"  {side.name}: {growth_text(row)}", flush=True)
        self.write()
        return row

    def write(self) -> None:
        """Everything so far."""
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")


def begun(case: Case, file: Path | None, *, resume: bool) -> dict[str, Any]:
    """What is known of a case: from its file, if it is to be resumed and is of the same batch."""
    if resume and file is not None:
        with suppress(OSError, ValueError):
            found = json.loads(file.read_text(encoding="utf-8"))
            if (found["batch"], found["image"]) == (case.batch, case.image):
                return found
    return {
        "machine": machine_facts(), "network": case.name, "batch": case.batch,
        "image": case.image, "threads": threads_here(), "rows": [], "left_out": [],
    }  # fmt: skip


def show(found: dict[str, Any]) -> list[str]:
    """Prints one network's table and goals; returns what is missed."""
    rows = [row for row in found["rows"] if "error" not in row]
    print(table(
        [f"{found['network']}, batch {found['batch']}, {found['image']} px", "growth", "VmHWM",
         "step", "processor", "loss after 3"],
        [[r["name"] + ("" if r["exact"] else " (not exact)"), f"{r['growth_mib']:.0f} MiB",
          f"{r['vmhwm_growth_mib']:.0f} MiB", f"{r['step_s']:.2f} s", f"{r['step_cpu_s']:.2f} s",
          f"{r['losses'][-1]:.5f}"] for r in sorted(rows, key=lambda r: r["growth_mib"])],
    ))  # fmt: skip
    for row in rows:
        if "o_direct" in row:
            print(disk_text(row))
    for row in found["rows"]:
        if "error" in row:
            print(f"did not run: {row['name']}: {row['error']}")
    if found["left_out"]:
        print(f"left out for time: {'; '.join(found['left_out'])}")
    if "disk" in found:
        disk = found["disk"]
        print(
            f"disk: {disk['file_system']}, {disk['out_bytes_per_us']:.0f} MB/s out, "
            f"{disk['in_bytes_per_us']:.0f} MB/s in, {disk['link']}, "
            f"{disk.get('latency_us', 0):.0f} us a copy"
        )
    made, wrong = goals(found), losses_differ(found)
    for name, value, wanted, met in made:
        shown = "not measured" if value is None else f"{value:.2f}, {verdict(bool(met))}"
        print(f"{name}: {shown} (wanted: at most {wanted:g})")
    found["goals"] = made
    found["missed"] = [name for name, _, _, met in made if met is False]
    found["missed"] += [f"loss of {name}" for name in wrong]
    return [f"{found['network']}: {what}" for what in found["missed"]]


def disk_text(row: dict[str, Any]) -> str:
    """What the system says of a contestant's disk, and what the model says of one of 1 GB/s."""
    cache = "past" if row["o_direct"] else "THROUGH"
    return (
        f"{row['name']}: {cache} the page cache, {row['slab_file_mib']:.0f} MiB of file, "
        f"{row['disk_written_mib']:.0f} MiB written a step; with its measured calls the plan takes "
        f"{row['predicted_here_s']:.2f} s on this disk, {row['predicted_1gbs_s']:.2f} s on one of "
        "1 GB/s"
    )


def usable(folder: str) -> str:
    """The folder, or "" where it is no disk."""
    try:
        print(f"the host on a disk: {look_at(folder).text}", flush=True)
    except OoctrainError as error:
        print(f"left out: ours with the disk: {error}", flush=True)
        return ""
    return folder


def options_of(arguments: Sequence[str], *, quick: bool) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench_memory", description=__doc__.splitlines()[0])
    networks = list(QUICK_NETWORKS if quick else CASES)
    parser.add_argument("--network", nargs="+", choices=list(CASES), default=networks)
    parser.add_argument("--batch", type=int, help="in place of each network's own")
    parser.add_argument("--minutes", type=float, default=QUICK_MINUTES if quick else MINUTES,
                        help="for each network")  # fmt: skip
    parser.add_argument("--only", choices=["disk"], default="", help="ours with the disk")
    parser.add_argument("--spill", default=tempfile.gettempdir(), metavar="FOLDER")
    parser.add_argument("--results", type=Path, metavar="FOLDER")
    parser.add_argument("--resume", action="store_true", help="keep what is in the results")
    parser.add_argument("--quick", action="store_true", help="few contestants, small batches")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="a panel for each network")
    options = parser.parse_args(arguments)
    if options.resume and not options.results:
        parser.error("--resume goes on from the files in --results FOLDER")
    return options


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    quick = quick or "--quick" in arguments
    options = options_of(arguments, quick=quick)
    if held() is None:
        print("left out: this system does not say what a process holds")
        return {"missed": []}
    folder, results, missed = usable(options.spill), [], []
    for name in options.network:
        case = CASES[name].of(options.batch or (QUICK_BATCH if quick else CASES[name].batch))
        own = "" if case.batch == CASES[name].batch else f"-{case.batch}"
        file = options.results and options.results / f"memory-{name}{own}.json"
        found = begun(case, file, resume=options.resume)
        print(f"{name}, batch {case.batch}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            machine = calibrated(case, found["threads"], Path(scratch) / "machine.json")
            run = Run(case, time.monotonic() + 60 * options.minutes, found, file, machine)
            results.append(run.measure(folder, options.only, quick=quick))
        missed += show(found)
        run.write()
    if options.picture:
        options.picture.write_text(panels_svg(results), encoding="utf-8")
    return {"machine": machine_facts(), "results": results, "missed": missed}


if __name__ == "__main__":
    main(sys.argv[1:])
