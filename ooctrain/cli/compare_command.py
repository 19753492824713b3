"""`ooctrain compare`: planners on the same networks, budgets and machines, against the bound.

Every argument may be a list. The result is a table of the planners and their distances from the
bound, and on demand JSON, CSV, Markdown and a figure. Rows and plans are kept, so an interrupted
comparison continues where it stopped. Nothing is executed. Read next:
`ooctrain/experiments/compare.py`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ooctrain.cli import DOES_NOT_FIT, DONE, FAILED
from ooctrain.cli.options import POSITIVE, file_option, json_option, list_option, options_of
from ooctrain.cli.step_options import Workload, parse_rate
from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import OneOf, UserPath
from ooctrain.errors import ConfigError
from ooctrain.execution.planners import get_planner, planners
from ooctrain.execution.settings import Options
from ooctrain.experiments.compare import (
    BOUNDS,
    CompareCase,
    CompareRow,
    cases,
    compare_csv,
    compare_figure,
    compare_markdown,
    compare_table,
)
from ooctrain.experiments.compare import compare as run_compare
from ooctrain.models import expect_classes, recipe_of
from ooctrain.report.numbers_file import write_file
from ooctrain.step.presets import cache_base
from ooctrain.step.presets import machine as find_machine
from ooctrain.units import format_bytes, parse_budget, parse_bytes

JSON_VERSION = 1
PIPED_COLUMNS = 1000
DEFAULT_PLANNERS = "window,vdnn,lms-auto,belady,prefix,combined"
DEFAULT_BUDGETS = "5%,10%,25%,50%,75%"
DEFAULT_MACHINES = "v100-pcie,v100-32gb-nvlink"


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@list_option("--planner", "planners", default=DEFAULT_PLANNERS,
             text="Planners, comma-separated or repeated, such as window:size=2; `all` runs "
             "every one. Other options with several values are given alike.")  # fmt: skip
@list_option("--budget", "budgets", default=DEFAULT_BUDGETS, text="Bytes, or percentages.")
@list_option("--machine", "machines", default=DEFAULT_MACHINES,
             text="Presets or calibration files; `here` for the saved calibration.")  # fmt: skip
@list_option("--batch", "batches", default="64", text="Images.")
@list_option("--image-size", "image_sizes", text="Heights; default: what a model usually gets.")
@click.option("--granule", default="1", show_default=True, help="What sizes are rounded to.")
@click.option("--bound", type=OneOf("bound", BOUNDS), default="lp", show_default=True,
              help="The LP over all lists, over those whose parameters stay, over those of these "
              "that only offload; a search over those that copy nothing to the host "
              "(--host-budget 0), or run only the forward pass again, too; or the simple bounds.",
              )  # fmt: skip
@options_of(Workload, "classes", "optimizer")
@options_of(Options, "accumulate", "host_budget", "link_bandwidth")
@options_of(
    Options,
    "evaluations",
    default=None,
    text="Effort of a searching planner, a few lists each; default: as many as it makes by itself.",
)
@options_of(Options, "time_limit_s")
@options_of(Options, "seed", text="Of planners that draw random numbers.")
@options_of(Options, "rewrites")
@options_of(Workload, "split")
@click.option(
    "--jobs", type=POSITIVE, help="Processes; default: one for each core, or all ranks of mpiexec."
)
@click.option("--keep", metavar="FOLDER", type=UserPath(file_okay=False),
              help="Where rows, plans and bounds are kept; default: the user's cache.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Compute every row again.")
@file_option("--csv", "csv_path", text="Write the rows here.")
@file_option("--markdown", "markdown_path", text="Write the table here.")
@file_option(
    "--figure",
    "figure_path",
    text="Draw ratio against budget, and speed against batch or image size, as SVG.",
)
@json_option
def compare(
    models: tuple[str, ...], planners: list[str], budgets: list[str], machines: list[str],
    batches: list[str], image_sizes: list[str], granule: str, bound: str,
    link_bandwidth: str | None, rewrites: list[str], jobs: int | None, keep: str | None,
    fresh: bool, csv_path: str | None, markdown_path: str | None, figure_path: str | None,
    json_path: str | None, **same: Any,
) -> int:  # fmt: skip
    """Compare planners on MODEL..., simulated, with a bound for each cell."""
    _require_known(models, machines, budgets, same["classes"])
    sizes = _numbers(image_sizes, "image size") if image_sizes else (None,)
    shapes = list(itertools.product(_numbers(batches, "batch"), sizes))
    granule_bytes = parse_bytes(granule, what="granule")
    link_rate = None if link_bandwidth is None else parse_rate(link_bandwidth)
    wanted = [
        replace(
            case, granule_bytes=granule_bytes, bound=bound, link_bytes_per_us=link_rate,
            rewrites=tuple(rewrites), **same,
        )
        for case in cases(models, shapes, machines, budgets, _planners(planners))
    ]  # fmt: skip
    folder = None if fresh else Path(keep) if keep else cache_base() / "compare"
    rows = _with_progress(wanted, jobs, folder)
    _show(compare_table(rows))
    bounds = ", ".join(dict.fromkeys(row.lower_bound_kind for row in rows if row.ratio))
    if bounds:
        said = f"ratio: the step divided by its lower bound ({bounds}), which no such list beats"
        make_console().print(said, soft_wrap=True, highlight=False)
    for note in dict.fromkeys(itertools.chain.from_iterable(map(_notes, rows))):
        make_console().print(f"note: {note}", soft_wrap=True)
    for path, write in (
        (json_path, _as_json), (csv_path, compare_csv), (markdown_path, compare_markdown),
        (figure_path, compare_figure),
    ):  # fmt: skip
        if path:
            write_file(path, write(rows))
    if any(row.feasible for row in rows):
        return DONE
    return FAILED if any(row.error for row in rows) else DOES_NOT_FIT


def _notes(row: CompareRow) -> Iterator[str]:
    """What the table does not show of a row."""
    if row.error:
        size = f", images of {row.image_size}" if not row.budget_bytes and row.image_size else ""
        where = f"{row.model}, batch {row.batch}{size}, {row.machine}"
        yield f"{row.planner} fails on {where}: {row.error}"
    if row.remarks:
        yield row.remarks
    if row.chosen_rewrites:
        where = f"{row.model}, batch {row.batch}, {row.machine}, {format_bytes(row.budget_bytes)}"
        yield f"{where}: {row.planner} planned the step after {row.chosen_rewrites}"


def _show(table: Table) -> None:
    """In full where it goes into a pipe: a program may read it."""
    console = make_console()
    if not console.is_terminal:
        console.width = PIPED_COLUMNS
    console.print(table)


def _with_progress(
    wanted: list[CompareCase], jobs: int | None, folder: Path | None
) -> list[CompareRow]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    console = make_console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(wanted))

        def done(case: CompareCase) -> None:
            text = f"{case.model} {case.budget} {case.planner}"
            progress.update(task, advance=1, description=text)

        return run_compare(wanted, jobs=jobs, keep=folder, done=done)


def _require_known(
    models: Sequence[str], machines: Sequence[str], budgets: Sequence[str], classes: int | None
) -> None:
    """Raises ConfigError before anything is computed: a word that names nothing, or a network that
    cannot have as many classes."""
    for model in models:
        recipe = recipe_of(model)
        if classes is not None:
            expect_classes(model, classes, recipe.target)
    for machine in machines:
        find_machine(machine)
    for budget in budgets:
        parse_budget(budget)


def _planners(words: list[str]) -> list[str]:
    names = list(planners()) if words == ["all"] else words
    for name in names:
        get_planner(name)  # raises before anything is computed
    return names


def _numbers(words: list[str], what: str) -> list[int]:
    # Python would read "1_0" and the digits of every script.
    found = [int(word) for word in words if word.isascii() and word.isdigit()]
    if not found or len(found) < len(words) or min(found) < 1:
        raise ConfigError(
            f"{what} {','.join(words)!r} is not a list of positive numbers",
            fix="for example 64,128",
        )
    return found


def _as_json(rows: Sequence[CompareRow]) -> str:
    content = {"version": JSON_VERSION, "rows": [asdict(row) for row in rows], "error": None}
    return json.dumps(content, indent=1)
