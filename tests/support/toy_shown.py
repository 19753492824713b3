"""What is shown of toys: pictures of a step and of arenas, puzzles, and the lines of commands.

Read next: `known_numbers.py`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.known_numbers import numbers_in, said_in, shapes_of
from support.puzzle_solutions import SOLUTIONS, WRONG

import ooctrain as oc
from ooctrain.alloc.arena_map import arena_text
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_dry
from ooctrain.cli import main
from ooctrain.course.cage.step_data import trace_data
from ooctrain.report import layer_costs
from ooctrain.report import text as report_text
from ooctrain.report.arena import arena_svg
from ooctrain.report.charts import (
    Area,
    Curve,
    Piece,
    areas_svg,
    curves_svg,
    side_by_side_svg,
    stacked_svg,
    strips_svg,
)  # fmt: skip
from ooctrain.report.holdings import group_curves, offsets
from ooctrain.report.listing import list_to_json
from ooctrain.report.moving_memory import moving_svg
from ooctrain.report.notebook import html_of, svg_of
from ooctrain.report.one_step import stays
from ooctrain.report.page import data_text
from ooctrain.report.perfetto import perfetto_trace
from ooctrain.report.record import Record, drawing, read_record
from ooctrain.report.snapshot import snapshot
from ooctrain.report.step import step_svg
from ooctrain.report.svg import timelines_svg
from ooctrain.report.waits import peak_of, waits_of
from ooctrain.testing.allocator_laws import fragmenting, histories
from ooctrain.testing.check_planner import random_case
from ooctrain.testing.check_split import random_network
from ooctrain.testing.law_by_hand import random_arena
from ooctrain.testing.random_traces import random_machine, random_trace
from ooctrain.units import Granule

DRAW = Path(__file__).parents[2] / "docs" / "draw.py"


def cases() -> Iterator[tuple[str, Callable[[Path], Any]]]:
    """(name, what gives plain data, in a folder)."""
    for planner in ("window", "rotor", "naive"):
        yield f"step by {planner}", partial(a_step, planner)
    for seed in (3, 4):
        yield f"random step {seed}", partial(a_random_step, seed)
    yield "what laws draw", drawn_by_laws
    yield "charts", charts
    yield "films", films
    yield "arenas", arenas
    for name in SOLUTIONS:
        if name[0] != "b" and name[0] != "d":  # which take long
            yield f"puzzle {name}", partial(a_puzzle, name)
    for name, words in COMMANDS.items():
        yield f"command {name}", partial(a_command, words)


# Steps


def a_step(planner: str, folder: Path) -> Any:
    """All that is said and drawn of a plan of a chain."""
    machine = oc.toy_machine()
    plan = oc.plan(oc.equal_stages(6), 700, planner, machine)
    shown = shown_of(plan, machine, folder)
    if planner == "window":
        timeline = oc.simulate(plan.schedule, plan.trace, machine)
        log = oc.allocation_log(plan.trace, plan.schedule, plan.peak_bytes, steps=1)
        found = stays(plan, timeline)
        picture = oc.pictures.step_svg(plan, timeline, [100 * (n % 7) for n in range(len(found))])
        shown += [[vars_of(stay) for stay in found], shapes_of(picture), len(log.requests)]
    return shown


def a_random_step(seed: int, folder: Path) -> Any:
    """The same of a random trace with its own plan, and a prediction that it did not keep."""
    rng = random.Random(seed)
    trace, machine = random_trace(rng, calls=9), random_machine(rng)
    plan = oc.plan(trace, 1 << 12, "belady", machine)
    return shown_of(plan, machine, folder, random_machine(rng))


def shown_of(
    plan: oc.Plan, machine: oc.Machine, folder: Path, predicted: oc.Machine | None = None
) -> list[Any]:
    """Pictures, pages and numbers of a plan."""
    timeline = oc.simulate(plan.schedule, plan.trace, machine)
    other = oc.simulate(plan.schedule, plan.trace, predicted) if predicted else None
    path = folder / "record.json"
    numbers = {"model": "m", "budget_bytes": 700, **drawing(plan, timeline, other)}
    path.write_text(json.dumps(numbers), encoding="utf-8")
    record = read_record(str(path))
    things = [plan, plan.schedule, timeline, plan.trace]
    two = {"a": timeline, "b": other or timeline}
    return [
        list_to_json(plan, other), of_record(record), json.loads(data_text(record)),
        [[shapes_of(svg_of(thing)), numbers_in(html_of(thing).split("<svg")[0].split("<tr>"))]
         for thing in things],
        shapes_of(timelines_svg(two, budget_bytes=700)),
        shapes_of(timelines_svg(two, phases={c.name: c.phase for c in plan.trace.calls})),
        terminal(plan, timeline),
    ]  # fmt: skip


def of_record(record: Record) -> list[Any]:
    """What is made of a record."""
    times, curves = group_curves(record.holdings)
    return [
        shapes_of(step_svg(record)), perfetto_trace(record), snapshot(record), times, curves,
        offsets(record.holdings, record.timeline.makespan_us),
        [vars_of(wait) for wait in waits_of(record.timeline)], vars_of(peak_of(record.timeline)),
    ]  # fmt: skip


def terminal(plan: oc.Plan, timeline: oc.Timeline) -> list[Any]:
    """Tables and lanes, as they are printed."""
    said = io.StringIO()
    console = Console(file=said, width=100, color_system=None)
    rows = layer_costs.layer_rows(plan.trace)
    console.print(report_text.layer_table(rows))
    console.print(report_text.lanes(timeline, 60))
    console.print(report_text.memory_bar({"red": 300, "blue": 200}, 700))
    lines = said.getvalue().splitlines()
    texts = [
        report_text.search_rows(plan), report_text.timeline_rows(timeline),
        report_text.placement("va", 1 << 21, 1 << 20), report_text.share(1, 3),
        [report_text.or_dash(value, ".2f") for value in (None, 0, 2.5)],
    ]  # fmt: skip
    flowing = report_text.flowing([f"{n} of {n * n}" for n in range(20)], 40)
    lines += [*flowing.splitlines(), *(report_text.spark([3, 1, 2, 9], c) for c in (2, 3, 9))]
    bars = [[line.count(block) for block in "█░▁▂▃▄▅▆▇·"] for line in lines]
    return [numbers_in(lines), [*map(len, lines)], bars, numbers_in(map(str, texts))]


def vars_of(thing: Any) -> list[Any]:
    """The values of a dataclass with slots."""
    return [getattr(thing, name) for name in thing.__dataclass_fields__]


def charts(folder: Path) -> Any:
    """Strips, curves and areas with all that they may be given."""
    points = [(1.0, 3.0), (2.0, None), (4.0, 40.0), (64.0, 500.0)]
    curves = [Curve("a", points), Curve("b", points[2:], dashed=True, kind=4), Curve("c", points)]
    pieces = [Piece(0, 2, "a long name of a piece"), Piece(2, 2.01, "b", 3), Piece(5, 9, "c", 9)]
    areas = [Area(0, 3, 1, 2, "a", 1), Area(2, 2.001, 0, 5, "b", 7)]
    limits = [("most", 6.0), ("least", 0.5)]
    axes = ("x", "y")
    pictures = [
        strips_svg("t", [("one", pieces), ("two", [])], extent=9, axis="x", legend=["k"] * 9),
        *(curves_svg("t", curves, axes=axes, doubling=d, y_low=y)  # type: ignore[arg-type]
          for d, y in ((False, 0), (True, 1), ("both", 0))),
        areas_svg("t", areas, axes=axes, legend=["k"], limits=limits),
        areas_svg("t", areas, axes=axes, y_top=20),
    ]  # fmt: skip
    return [
        *map(shapes_of, pictures),
        shapes_of(stacked_svg([side_by_side_svg(pictures[:2]), *pictures])),
    ]


def films(folder: Path) -> Any:
    """The moving pictures of the documents, and of a film with other sizes."""
    spec = importlib.util.spec_from_file_location("draw", DRAW)
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    found = draw.films()
    return {
        name: [shapes_of(moving_svg(film)), numbers_in([moving_svg(film, frame_s=0.25)])]
        for name, film in found.items()
    }


def arenas(folder: Path) -> Any:
    """Allocators' layouts, as lines and as pictures."""
    shown = []
    for name in ("best-fit", "va:chunk=4KiB", "buddy"):
        choice = choose_dry(name, 1 << 16)
        arena = choice.make(DryMemory(1 << 16))
        blocks = [arena.allocate(size, f"b{size}") for size in (3000, 9000, 500, 12000, 700)]
        for block in blocks[::2]:
            arena.free(block)
        found = arena.snapshot()
        shown.append([arena_text(found, 40), shapes_of(arena_svg({name: found}))])
    return shown


def drawn_by_laws(folder: Path) -> Any:
    """The requests, steps and networks on which laws are tried: a law that drew less saw less."""
    granules = ((Granule(512, ranges=False), 1024), (Granule(4096), 4096), (Granule(1), 100))
    lists = [
        [[vars_of(ask) for ask in program.requests], program.order]
        for granule, unit in granules
        for program in (fragmenting(granule, unit), *histories(granule, unit))
    ]
    networks, steps = [], []
    for seed in range(24):
        rng = random.Random(seed)
        for kind in ("windows", "norm", "residual", "wide", "tiling", "counted", "long"):
            made = random_network(rng, kind)
            networks.append([made.shape, made.grid, numbers_in([repr(made.model)])])
        case = random_case(rng)
        steps.append([trace_data(case.trace)["calls"][-1], vars_of(case.machine)[:6]])
        arena = random_arena(rng)
        steps.append([arena.size, [arena.allocate(n) for n in (3, 5, 2)]])
    return [lists, networks, steps]


# Puzzles


def a_puzzle(name: str, folder: Path) -> Any:
    """The numbers and pictures of a solution and of wrong attempts."""
    answers = [SOLUTIONS[name], *(answer for other, answer, _ in WRONG if other == name)]
    shown = []
    for answer in answers:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            attempt = oc.puzzles.PUZZLES[name].check(answer)
        numbers = [[number.yours, number.target, number.bound] for number in attempt.numbers]
        shown.append([numbers, shapes_of(attempt.picture), *said_in(said.getvalue().splitlines())])
    return shown


# Commands

LENET = "lenet --batch 8 --threads 1 --machine v100-pcie"
#: {name: commands in one folder}; x.json is what the last one writes. None but
#: `compare` prints how long it took.
COMMANDS = {
    "simulate": [f"simulate {LENET} --budget 40% --planner window --json x.json"],
    "report": [
        f"simulate {LENET} --budget 40% --planner window --json a.json",
        f"simulate {LENET} --budget 60% --planner belady --json b.json",
        "report a.json", "report a.json --against b.json --svg x.svg --html x.html",
        "report b.json --html x2.html", "diff a.json b.json",
    ],
    "plan": [
        f"plan {LENET} --budget 60% --planner belady --allocator best-fit",
        f"plan {LENET} --budget 2% --planner window --depth 1",
        f"plan {LENET} --budget 2MiB --planner keep-all --allocator best-fit --json x.json",
        f"plan {LENET} --list-checkpoints", f"plan {LENET} --budget 200%",
        f"plan {LENET} --budget 80% --planner belady --host-budget 100KiB",
        f"plan {LENET} --budget 50% --planner window --link-bandwidth 1GB/s --accumulate 2",
    ],
    "plan refused": [
        f"plan {LENET} --budget 500KiB --planner belady --host-budget 100KiB",
        f"plan {LENET} --budget 500KiB --planner window --json x.json",
    ],
    "plan networks": [
        f"plan {LENET} --classes 7 --split depth=0.5,grid=2x2,stochastic --budget 50% --planner "
        "window",
        "plan unet --batch 2 --threads 1 --image-size 64 --machine a100-pcie --budget 50% "
        "--planner belady --allocator best-fit-caching --depth 1",
        "plan resnet18 --batch 2 --threads 1 --image-size 40 --machine v100-nvlink --budget 50% "
        "--planner belady --depth 3 --optimizer adam",
        "plan vgg11 --batch 2 --threads 3 --image-size 64 --machine p100-nvlink --budget 90% "
        "--planner belady --crop 48 --pad 4",
    ],
    "replay": [
        f"plan {LENET} --budget 40% --planner window --allocation-log log.json --save p.json",
        "replay log.json --picture x.svg --json x.json", "replay log.json --budget 1MiB",
        "replay log.json --allocator buddy,gmlake,stalloc --budget 2MiB",
    ],
    "diff": [
        f"plan {LENET} --budget 40% --planner window --json a.json --save p.json",
        f"plan {LENET} --budget 60% --planner belady --json b.json --save q.json",
        "diff a.json a.json --exit-code", "diff p.json q.json --exit-code", "diff a.json p.json",
        "diff b.json a.json --json x.json",
    ],
    "compare": [
        "compare lenet --planner window,belady --budget 10%,60% --batch 8,16 --jobs 1 --bound "
        "simple --machine v100-pcie --keep k --json x.json --csv c.csv --figure x.svg",
    ],
}  # fmt: skip


def a_command(commands: list[str], folder: Path) -> Any:
    """What commands print, and what the last one writes and draws."""
    shown: list[Any] = []
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        for words in commands:
            with (
                contextlib.redirect_stdout(io.StringIO()) as said,
                contextlib.redirect_stderr(io.StringIO()) as also,
            ):
                status = main(words.split())
            numbers, counts = said_in((said.getvalue() + also.getvalue()).splitlines())
            if words.startswith("compare"):  # its last column is how long planning took
                numbers = [row[:-1] for row in numbers]
            shown.append([status, numbers, counts])
        for path in sorted(folder.glob("x.*")):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".json":
                shown.append(json.loads(text))
            elif path.suffix == ".svg":
                shown.append(shapes_of(text))
        for path in sorted(folder.glob("*.html")):
            page = path.read_text(encoding="utf-8").partition("<body")[2]
            parts = re.split(r"<(?:script|style|svg).*?</(?:script|style|svg)>", page, flags=re.S)
            shown.append(numbers_in("".join(parts).splitlines()))
    return shown


CASES = dict(cases())
