"""`ooctrain calibrate`: measures this machine for `plan`, `simulate` and `train`.

It runs a given model and batch, and writes a calibration file for each device in the cache folder.
Each run adds the calls of its model to those already measured. Read next:
`ooctrain/machine/calibrate.py`.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, replace
from pathlib import Path

import click
import numpy as np

from ooctrain.cli.options import file_option, json_option, options_of
from ooctrain.cli.step_options import Workload, workload_options
from ooctrain.cli.terminal import make_console
from ooctrain.cli.training import make_trainer
from ooctrain.cli.workload import Task, make_task
from ooctrain.data.dataset import Batch, take
from ooctrain.data.synthetic import Synthetic, SyntheticImages, SyntheticPixels
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.errors import ConfigError
from ooctrain.execution.settings import Options
from ooctrain.machine.calibrate import calibrate as measure
from ooctrain.machine.disk_speed import measure_disk
from ooctrain.report.numbers_file import write_numbers
from ooctrain.report.text import facts
from ooctrain.step.machine import Disk, Machine
from ooctrain.step.presets import calibration_path, load_calibration, save_calibration
from ooctrain.units import MIB, format_us

JSON_VERSION = 1


@click.command()
@workload_options
@file_option("--output", text="Where to; default: the cache folder.")
@options_of(Options, "spill")
@json_option
def calibrate(workload: Workload, how: Options, output: str | None, json_path: str | None) -> None:
    """Measure this machine with steps of MODEL, and save the result."""
    path = Path(output) if output else calibration_path(how.device)
    disk = (
        None if how.disk is None else measure_disk(how.disk.folder)
    )  # first: a folder may be none
    task = make_task(workload, how.seed)
    images, labels = _first_batch(task)
    name = f"{platform.node() or 'this machine'}, {_processor(how)}"
    # A learning rate this small keeps the loss finite whatever the images are.
    steady, bare = replace(workload, lr=1e-6), replace(how, machine="cpu-generic")
    with make_trainer(task, steady, bare, in_core=True) as trainer:
        measured = measure(trainer, images, labels, name)
    known = _known(path, name)
    if known is not None:
        measured = replace(measured, profile={**known.profile, **measured.profile}, disk=known.disk)
    merged = replace(measured, disk=disk or measured.disk)
    save_calibration(merged, path)
    console = make_console()
    console.print(facts(_rows(merged)))
    console.print(f"wrote {path}")
    if json_path:
        content = {"version": JSON_VERSION, "path": str(path), "machine": asdict(merged)}
        write_numbers(json_path, {**content, "error": None})


def _first_batch(task: Task) -> Batch:
    """Of the data if any is named, else made up with the kind of target that the model learns."""
    made_up = {"class": Synthetic, "pixels": SyntheticPixels, "image": SyntheticImages}
    dataset = task.train or made_up[task.shape.target](task.batch, task.shape, 0, 0)
    return take(dataset, np.arange(task.batch))


def _processor(how: Options) -> str:
    """What computes: the number of threads, or the GPU by its name."""
    if how.device == "cpu":
        return f"{how.thread_count} threads"
    return cuda_open.look_at_gpu().name


def _known(path: Path, name: str) -> Machine | None:
    """What was measured before on the same machine with as many threads."""
    try:
        before = load_calibration(path)
    except ConfigError:
        return None
    return before if before.name == name else None


def _rows(machine: Machine) -> list[tuple[str, str]]:
    return [
        ("machine", machine.name),
        ("arithmetic", f"{machine.flops_per_us / 1e3:.1f} GFLOP/s"),
        ("memory", f"{machine.memory_bytes_per_us / 1e3:.1f} GB/s"),
        ("copies", f"{machine.link_bytes_per_us / 1e3:.1f} GB/s each way"),
        ("latency", f"{format_us(machine.latency_us)} for each copy"),
        ("pacing", f"{format_us(machine.pacing_us)} more for each copy with --link-bandwidth"),
        ("interference", f"calls take {machine.interference:.2f} x as long during a copy"),
        ("issue", f"{format_us(machine.issue_us)} for each instruction of a list"),
        ("copies' issue", f"{format_us(machine.copy_issue_us)} more for each copy"),
        ("mapping", f"{format_us(machine.map_us_per_byte * MIB)} for each MiB mapped anew"),
        ("calls known", str(len(machine.profile))),
        *_disk_rows(machine.disk),
    ]


def _disk_rows(disk: Disk | None) -> list[tuple[str, str]]:
    if disk is None:
        return []
    out, into = disk.out_bytes_per_us / 1e3, disk.in_bytes_per_us / 1e3
    how = "at the same time" if disk.link == "duplex" else "one at a time"
    rates = f"out {out:.2f}, in {into:.2f} GB/s, {how}, {format_us(disk.latency_us)} for each copy"
    return [("disk", f"{disk.folder}: {rates}")]
