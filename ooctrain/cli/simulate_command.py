"""`ooctrain simulate`: the time line of a planned step, drawn in the terminal.

The step is planned for a model and a budget, or read from a plan file. The drawing has three lanes,
the memory below them, and the numbers. Read next: `report/text.py`, `sched/simulate.py`;
`report_command.py`, which draws the file of --json.
"""

from __future__ import annotations

import click

from ooctrain.api import load_plan
from ooctrain.api import plan as make_plan
from ooctrain.cli.options import json_option
from ooctrain.cli.step_limits import Limits, limits
from ooctrain.cli.step_options import Workload, step_options
from ooctrain.cli.terminal import lanes_on, make_console
from ooctrain.cli.workload import (
    as_on,
    find_machine,
    make_task,
    make_trace,
    network_rows,
)
from ooctrain.execution.settings import Options
from ooctrain.report.numbers_file import write_numbers
from ooctrain.report.record import drawing
from ooctrain.report.text import facts, search_rows, tiling_rows, timeline_rows
from ooctrain.rewrite import REWRITES
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate as run_simulator
from ooctrain.sched.verify import verify
from ooctrain.step.machine import Machine
from ooctrain.step.trace import Trace

JSON_VERSION = 1


@click.command()
@step_options
@json_option
@click.option(
    "--plan",
    "plan_path",
    metavar="FILE",
    help="A plan that `plan --save` wrote for the same --machine and --threads.",
)
def simulate(
    workload: Workload, how: Options, json_path: str | None, plan_path: str | None
) -> None:
    """Show the time line of a planned step of MODEL."""
    how, console = as_on(how), make_console()
    machine = find_machine(how)
    task = make_task(workload, how.seed)
    trace = make_trace(task, workload, how)
    budget_bytes = None
    if plan_path is not None:
        made = load_plan(plan_path, trace, how.rewrites)
        # No budget: such a file says what it needs, not what it may.
        verify(made, trace, None, rewrites=REWRITES)
    else:
        found = limits(how, machine, trace)
        budget_bytes, made = found.budget_bytes, _plan(trace, how, machine, found)
    timeline = run_simulator(made.schedule, made.trace, machine)
    console.print(lanes_on(console, timeline))
    console.print()
    rows = [*network_rows(task, workload), ("machine", machine.name)]
    rows += timeline_rows(timeline)
    rows += [("instructions", str(len(made.schedule))), *tiling_rows(made), *search_rows(made)]
    console.print(facts(rows))
    if json_path:
        content = {
            "version": JSON_VERSION, "model": workload.title, "batch": workload.batch,
            "machine": machine.name, "planner": made.notes.get("planner"),
            "budget_bytes": budget_bytes, **drawing(made, timeline), "error": None,
        }  # fmt: skip
        write_numbers(json_path, content)


def _plan(trace: Trace, how: Options, machine: Machine, found: Limits) -> Plan:
    return make_plan(
        trace, found.budget_bytes, found.planner, machine, found.step.granule,
        how.time_limit_s, evaluations=how.evaluations, host_budget=found.host_budget_bytes,
        seed=how.seed, rewrites=how.rewrites,
    )  # fmt: skip
