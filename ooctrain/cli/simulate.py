"""`ooctrain simulate`: the time line of a planned step, drawn in the terminal.

In: a model and a budget, or a plan file. Out: three lanes, the memory below them, and the numbers.
Read next: `report/text.py`, `sched/simulate.py`.
"""

from __future__ import annotations

import click

from ooctrain.api import load_plan
from ooctrain.api import plan as make_plan
from ooctrain.cli import DONE
from ooctrain.cli.limits import limits
from ooctrain.cli.numbers_file import write_numbers
from ooctrain.cli.options import Memory, Workload, json_option, memory_options, workload_options
from ooctrain.cli.terminal import bar_blocks, make_console
from ooctrain.cli.workload import find_machine, make_task, make_trace
from ooctrain.cost import Machine
from ooctrain.report.text import facts, lanes, search_rows, share
from ooctrain.sched.base import TIME_LIMIT_S
from ooctrain.sched.schedule import Plan
from ooctrain.sched.simulate import simulate as run_simulator
from ooctrain.sched.timeline import Timeline
from ooctrain.trace import Trace
from ooctrain.units import format_bytes, format_us

JSON_VERSION = 1


@click.command()
@workload_options
@memory_options
@json_option
@click.option("--plan", "plan_path", metavar="FILE", help="A plan that `plan --save` wrote.")
def simulate(
    workload: Workload, memory: Memory, json_path: str | None, plan_path: str | None
) -> int:
    """Show the time line of a planned step of MODEL."""
    console = make_console()
    machine = find_machine(workload, memory)
    trace = make_trace(make_task(workload), workload)
    made = load_plan(plan_path, trace) if plan_path else _plan(trace, workload, memory, machine)
    timeline = run_simulator(made.schedule, made.trace, machine)
    console.print(lanes(timeline, min(console.width, 120), bar_blocks(console)))
    console.print()
    console.print(facts(_numbers(timeline, made, machine)))
    if json_path:
        content = {"version": JSON_VERSION, "machine": machine.name, "timeline": timeline.to_json()}
        write_numbers(json_path, {**content, "error": None})
    return DONE


def _plan(trace: Trace, workload: Workload, memory: Memory, machine: Machine) -> Plan:
    found = limits(memory, machine, trace)
    return make_plan(
        trace, found.budget_bytes, memory.planner, machine, found.granule,
        memory.time_limit or TIME_LIMIT_S, host_budget=found.host_budget_bytes, seed=workload.seed,
    )  # fmt: skip


def _numbers(timeline: Timeline, made: Plan, machine: Machine) -> list[tuple[str, str]]:
    whole = timeline.makespan_us
    return [
        ("machine", machine.name),
        ("step", format_us(whole)),
        ("compute", f"{format_us(timeline.compute_us)} ({share(timeline.compute_us, whole)})"),
        ("recomputed", format_us(timeline.recompute_us)),
        ("stalled", f"{format_us(timeline.stall_us)} ({share(timeline.stall_us, whole)})"),
        (
            "swapped out",
            f"{format_bytes(timeline.bytes_out)}, {share(timeline.busy_us('D'), whole)} busy",
        ),
        (
            "swapped in",
            f"{format_bytes(timeline.bytes_in)}, {share(timeline.busy_us('H'), whole)} busy",
        ),
        ("peak", format_bytes(timeline.peak_bytes)),
        ("host peak", format_bytes(timeline.host_peak_bytes)),
        ("instructions", str(len(made.schedule))),
        *search_rows(made),
    ]
