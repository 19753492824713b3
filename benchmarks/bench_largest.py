"""The largest batch that trains in 2 GiB of process memory: ours beside torch's best exact method.

Each try is a process of its own, which trains and is counted from outside; what counts is the
total, interpreter, libraries and all (`memory_process.py`). Torch's methods are in-core,
checkpoints of every segment count from 2 to 2 sqrt(L), and saved tensors on the disk, in both
layouts: each is measured at two small batches, or at one where the results have another from
`bench_memory.py`; memory grows with the batch in a line that is nearly straight, and those that it
takes furthest are tried around its end. Ours gets `--memory 2GiB`, with the disk as the host and
without: by planning alone the largest batch for which there is a plan is found, doubling and then
halving; then that batch is trained, and must keep to the memory, or a smaller one is tried.
`--memory` sets aside what a process may need at most; beside it stands ours with a `--budget` of
what is left for the arena, which promises nothing: it is counted, and lowered by what was too much.
No times are taken. Read next: `bench_memory.py`.

    python -m benchmarks largest [--quick] [--json FILE]
    python -m benchmarks.bench_largest --network resnet50 --results benchmarks/results --resume
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.bench_memory import usable
from benchmarks.common import machine_facts, table, threads_here, verdict
from benchmarks.memory_cases import CASES, LAYOUTS, Case, Side, checkpoint_sides, mib
from benchmarks.memory_process import run_side
from ooctrain.devices.cpu.process_memory import held
from ooctrain.units import MIB, format_bytes, parse_bytes

HAS_TORCH = importlib.util.find_spec("torch") is not None
NETWORKS, QUICK_NETWORKS = ("resnet50", "vgg19", "unet"), ("resnet18",)
MEMORY, QUICK_MEMORY = "2GiB", "420MiB"
#: Two batches whose memory gives the line.
SMALL = {"resnet18": (16, 32), "resnet50": (4, 8), "vgg11": (32, 64), "vgg19": (2, 4),
         "unet": (1, 2)}  # fmt: skip
#: A second step has the momentum, too.
TORCH_STEPS, OUR_STEPS = 2, 1
LONGEST_S = 1800.0
WANTED = 4.0
#: The first batch that is planned where nobody says what torch's largest is.
START = 16
#: Batches are found up to this part of themselves; and the most tries beside the line's end.
FINENESS, MOST_TRIES = 16, 8
#: Of the memory that a small batch leaves: so much more the second one takes.
RISE = 0.1
#: Methods whose lines end furthest: so many are tried.
TRIED = 3


@dataclass(frozen=True, slots=True)
class Search:
    """Tries of one network.

    Args:
        case: its batch is none of the tries'.
        limit_bytes: for all that a process holds.
        tries: made so far, in a file's form; those are not made again.
        file: into which they are written; None: nowhere.
        frontier: {side's name: growth in MiB} at `frontier_batch`, as `bench_memory.py` measured.
    """

    case: Case
    limit_bytes: int
    tries: list[dict[str, Any]]
    file: Path | None
    frontier: Mapping[str, float] = field(default_factory=dict)
    frontier_batch: int = 0

    def run(self, side: Side, batch: int, steps: int) -> dict[str, Any]:
        """A try; without steps it is only planned."""
        for row in self.tries:
            if (row["name"], row["batch"], row["steps"]) == (side.name, batch, steps):
                return row
        found = run_side(self.case.of(batch), side, steps, threads_here(), LONGEST_S)
        row = {"network": self.case.name, "batch": batch, "steps": steps, **found}
        self.tries.append(row)
        shown = row.get("error") or f"{row['total_mib']:.0f} MiB"
        what = "trained" if steps else "planned"
        print(f"  {side.name}, batch {batch}, {what}: {shown}", flush=True)
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.tries, indent=1) + "\n", encoding="utf-8")
        return row

    def fits(self, side: Side, batch: int, steps: int) -> bool:
        """Whether it ran, and held no more than it may."""
        row = self.run(side, batch, steps)
        return "error" not in row and row["total_mib"] <= mib(self.limit_bytes)

    def line_end(self, side: Side) -> int:
        """The batch at which a straight line through two others reaches the limit."""
        first, second = SMALL[self.case.name]
        low = self.run(side, first, TORCH_STEPS)
        if "error" in low:
            return 0
        if side.name in self.frontier:
            second = self.frontier_batch
            more = self.frontier[side.name] - low["growth_mib"]
        else:
            second, more = self.risen(side, second, low["total_mib"])
        slope = max(more / (second - first), 0.1)
        return max(0, int(first + (mib(self.limit_bytes) - low["total_mib"]) / slope))

    def risen(self, side: Side, batch: int, low_mib: float) -> tuple[int, float]:
        """The first batch, doubled, that takes a good deal more than a smaller one did, and how
        much more: what chance adds to two small batches gives no line."""
        while True:
            more = self.run(side, batch, TORCH_STEPS).get("total_mib", math.inf) - low_mib
            if more >= RISE * (mib(self.limit_bytes) - low_mib):
                return batch, more
            batch *= 2

    def around(self, side: Side, batch: int) -> int:
        """The largest batch that fits, looked for from one that should: each next one lies where a
        line through the nearest batches that do and do not fit reaches the limit."""
        most, low, high = mib(self.limit_bytes), 0, 0
        low_mib, high_mib = 0.0, math.inf
        for _ in range(MOST_TRIES):
            row = self.run(side, max(batch, 1), TORCH_STEPS)
            total_mib = math.inf if "error" in row else row["total_mib"]
            if total_mib <= most:
                low, low_mib = max(batch, 1), total_mib
            else:
                high, high_mib = max(batch, 1), total_mib
            step = max(1, low // FINENESS)
            if high and high - low <= step:
                break
            if not high:
                batch = low + step
            elif low and math.isfinite(high_mib):
                batch = low + int((most - low_mib) / (high_mib - low_mib) * (high - low))
                batch = min(max(batch, low + 1), high - 1)
            else:
                batch = int(high * most / high_mib) if math.isfinite(high_mib) else high // 2
        return low

    def largest_planned(self, side: Side, start: int) -> int:
        """The largest batch for which there is a plan: doubling, then halving the distance."""
        low, high = 0, start
        while self.fits(side, high, 0):
            low, high = high, 2 * high
        while high - low > max(1, low // FINENESS):
            middle = (low + high) // 2
            if self.fits(side, middle, 0):
                low = middle
            else:
                high = middle
        return low

    def largest_trained(self, side: Side, start: int) -> int:
        """The same, trained. A budget of the arena promises nothing: where the process held more
        than it may, the next try has so much less. 0 where none of the tries kept to the memory.
        """
        batch = self.largest_planned(side, start)
        for _ in range(MOST_TRIES):
            if batch < 1 or self.fits(side, batch, OUR_STEPS):
                return max(batch, 0)
            over_mib = self.run(side, batch, OUR_STEPS).get("total_mib", 0) - mib(self.limit_bytes)
            if side.how == "arena" and over_mib > 0:
                less = math.ceil(over_mib) * MIB
                side = replace(
                    side, name=f"{side.name}, {format_bytes(less)} less", value=side.value - less
                )
                batch = self.largest_planned(side, batch)
            else:
                batch -= max(1, batch // FINENESS)
        return 0


def torch_sides(case: Case) -> Iterator[Side]:
    """Torch's exact methods."""
    for layout in LAYOUTS:
        yield Side(f"torch {layout}", "torch", "in-core", layout=layout)
    yield from checkpoint_sides(case, LAYOUTS, case.segment_counts)
    for layout in LAYOUTS:
        yield Side(f"torch {layout}, saved to disk", "torch", "disk", layout=layout)


def our_sides(limit_bytes: int, folder: str) -> Iterator[Side]:
    """Ours: with a budget for the arena and the disk, and as `--memory` promises, with it and
    without."""
    side = Side("ours, --memory", "ours", "total", limit_bytes)
    if folder:
        yield replace(side, name="ours, --budget --spill", how="arena", folder=folder)
        yield replace(side, name="ours, --memory --spill", folder=folder)
    yield side


def best_of_torch(search: Search) -> tuple[str, int]:
    """Name and batch of the method that gets furthest."""
    ends = {side: search.line_end(side) for side in torch_sides(search.case)}
    first = sorted(ends, key=lambda side: -ends[side])[:TRIED]
    for side in first:
        print(f"  {side.name}: the line ends at batch {ends[side]}", flush=True)
    name, best = first[0].name, search.around(first[0], ends[first[0]])
    for side in first[1:]:  # who does not hold a little more than the best is not looked at further
        more = best + max(1, best // FINENESS)
        if search.fits(side, more, TORCH_STEPS):
            name, best = side.name, search.around(side, more)
    return name, best


def measure(search: Search, folder: str, only: str) -> dict[str, Any]:
    """One network; of one side, if only that is asked for."""
    theirs = best_of_torch(search) if HAS_TORCH and only != "ours" else ("not asked for", 0)
    start = max(int(WANTED) * theirs[1], START)
    if only == "torch":
        return {"network": search.case.name, "torch": theirs[0], "torch_batch": theirs[1],
                "ours": "not asked for", "our_batch": 0, "times": None}  # fmt: skip
    ours = {
        side.name: search.largest_trained(side, start)
        for side in our_sides(search.limit_bytes, folder)
    }
    name = max(ours, key=lambda each: ours[each])
    return {
        "network": search.case.name, "image": search.case.image, "stem": search.case.stem,
        "memory_bytes": search.limit_bytes, "torch": theirs[0], "torch_batch": theirs[1],
        "ours": name, "our_batch": ours[name], "our_batches": ours,
        "times": ours[name] / theirs[1] if theirs[1] else None,
    }  # fmt: skip


def known_tries(file: Path | None, *, resume: bool) -> list[dict[str, Any]]:
    """Those of an earlier run."""
    if resume and file is not None:
        with suppress(OSError, ValueError):
            return json.loads(file.read_text(encoding="utf-8"))
    return []


def known_frontier(case: Case, folder: Path | None) -> tuple[Mapping[str, float], int]:
    """What `bench_memory.py` left in the results, and at which batch."""
    if folder is not None:
        with suppress(OSError, ValueError):
            found = json.loads((folder / f"memory-{case.name}.json").read_text(encoding="utf-8"))
            rows = [row for row in found["rows"] if "growth_mib" in row]
            return {row["name"]: row["growth_mib"] for row in rows}, found["batch"]
    return {}, 0


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    parser = argparse.ArgumentParser(prog="bench_largest", description=__doc__.splitlines()[0])
    networks = list(QUICK_NETWORKS if quick else NETWORKS)
    parser.add_argument("--network", nargs="+", choices=list(CASES), default=networks)
    parser.add_argument("--memory", default=QUICK_MEMORY if quick else MEMORY)
    parser.add_argument("--spill", default=tempfile.gettempdir(), metavar="FOLDER")
    parser.add_argument("--results", type=Path, metavar="FOLDER")
    parser.add_argument("--only", choices=["ours", "torch"], default="")
    parser.add_argument("--resume", action="store_true", help="keep the tries in the results")
    options = parser.parse_args(arguments)
    if options.resume and not options.results:
        parser.error("--resume goes on from the files in --results FOLDER")
    if held() is None:
        print("left out: this system does not say what a process holds")
        return {"missed": []}
    limit, folder, results = parse_bytes(options.memory), usable(options.spill), []
    for name in options.network:
        file = options.results and options.results / f"largest-{name}-tries.json"
        print(f"{name}, {format_bytes(limit)} for the process", flush=True)
        case, tries = CASES[name], known_tries(file, resume=options.resume)
        search = Search(case, limit, tries, file, *known_frontier(case, options.results))
        results.append(measure(search, folder, options.only))
    print(table(
        ["", "torch's best", "batch", "ours", "batch", "times", ""],
        [[r["network"], r["torch"], str(r["torch_batch"]), r["ours"], str(r["our_batch"]),
          *([f"{r['times']:.1f}", verdict(r["times"] >= WANTED)] if r["times"] else ["", ""])]
         for r in results],
    ))  # fmt: skip
    missed = [
        f"{r['network']}: {r['times']:.1f} times torch's largest batch, wanted {WANTED:g}"
        for r in results if r["times"] and r["times"] < WANTED
    ]  # fmt: skip
    result = {"machine": machine_facts(), "results": results, "missed": missed}
    if options.results:
        options.results.mkdir(parents=True, exist_ok=True)
        file = options.results / "largest.json"
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
