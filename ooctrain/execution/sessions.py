"""A prepared step on its device: the arena is opened, and incoming batches are checked.

A `PreparedStep`, first values and batches as arrays give a device with an open `Session`, and
inputs by variable. Every fault of the device, the threads or a batch is reported before the first
instruction runs. Read next: `executor.py`, which runs the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.host_file import HostFile, KeptFile
from ooctrain.devices.interface import Device
from ooctrain.errors import ConfigError, PlanMismatch, ShapeError
from ooctrain.execution.executor import Session, host_extent_bytes
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.settings import Settings
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.layers.layout import Reshape
from ooctrain.layers.losses import ClassLoss, check_labels
from ooctrain.layers.regions import Slice
from ooctrain.step.blocks import ReadByRows, tensor_of, value_of, whole_of
from ooctrain.step.machine import specs_of
from ooctrain.step.op import computed_by
from ooctrain.step.trace import Call, Trace
from ooctrain.step.user_values import as_numbers

_LARGEST = np.iinfo(np.int64).max
#: a batch of images: an array, or read by rows
Images = np.ndarray | ReadByRows


def open_session(
    prepared: PreparedStep, settings: Settings, values: Mapping[int, np.ndarray] | None,
    wanted: Sequence[int], kept: KeptFile | None = None, leaving_bytes: int = 0,
) -> tuple[Device, Session]:  # fmt: skip
    """A device whose arena is exactly the budget, and the step on it with its first values.

    Args:
        values: {persistent variable id: value, logical layout}; None: see `Session`. Then the
            device takes memory as they are written, and all of it when its `allocate` is called.
        wanted: variables whose value each step hands out.
        kept: the file of earlier sessions and later ones; None: a slab on a disk has its own.
        leaving_bytes: host memory that values give back as they are written.

    Raises:
        PlanMismatch: kernels on this many threads need more scratch than the trace gives them.
        OutOfDeviceMemory: a GPU has less free than the budget.
    """
    plan = prepared.plan
    slab = _slab_of(prepared, settings, kept)
    try:
        if settings.device == "cpu":
            device = _open_cpu(prepared, settings, slab, values is not None, leaving_bytes)
        else:
            device = _open_cuda(prepared, settings, slab)
    except BaseException:
        if isinstance(slab, HostFile):
            slab.close()
        raise
    try:
        allocator = prepared.allocator.make(device.memory)
        return device, Session(plan.trace, plan.schedule, device, allocator, values, wanted)
    except BaseException:
        device.close()
        raise


def _slab_of(prepared: PreparedStep, settings: Settings, kept: KeptFile | None) -> int | HostFile:
    """The size of a host slab in memory, or one on a disk, whose space is taken."""
    plan, spill = prepared.plan, settings.disk
    if spill is None:
        return host_extent_bytes(plan.trace, plan.schedule)
    size_bytes = host_extent_bytes(plan.trace, plan.schedule, HostFile.block_bytes)
    return HostFile(spill, size_bytes) if kept is None else kept.slab(spill, size_bytes)


def _open_cpu(
    prepared: PreparedStep, settings: Settings, slab: int | HostFile, at_once: bool,
    leaving_bytes: int,
) -> Device:  # fmt: skip
    # Not at the top, since it loads Numba, which planning does without.
    from ooctrain.devices.cpu import copy_engine, device, host_vm

    plan = prepared.plan
    if not _serves(plan.trace, settings.thread_count):
        raise PlanMismatch(
            f"the plan's workspaces are too small for {settings.thread_count} threads",
            numbers=f"they serve {threads_served(plan.trace, settings.thread_count)}",
            fix="trace with threads= as many as the step runs on"
            + (f"; it was traced with {plan.trace.threads}" if plan.trace.threads else ""),
        )
    rate = settings.link_bandwidth if settings.disk is None else settings.disk.bytes_per_us
    return device.CpuDevice(
        prepared.allocator.budget_bytes, slab, settings.thread_count,
        copy_engine.CopyLink(prepared.machine.link, rate, rate), settings.debug,
        open_memory=partial(host_vm.open_arena, at_once=at_once), leaving_bytes=leaving_bytes,
    )  # fmt: skip


def _open_cuda(prepared: PreparedStep, settings: Settings, slab: int | HostFile) -> Device:
    chosen = prepared.allocator
    # Each chunk is a piece of physical memory; an allocator that maps nothing takes it all in one.
    return cuda_open.open_device(
        chosen.budget_bytes, slab, piece_bytes=chosen.piece_bytes, link=prepared.machine.link,
        debug=settings.debug,
    )  # fmt: skip


def threads_served(trace: Trace, most: int) -> int:
    """The largest number of threads, up to `most`, whose scratch the trace's workspaces hold."""
    return next((n for n in range(most, 1, -1) if _serves(trace, n)), 1)


def _serves(trace: Trace, threads: int) -> bool:
    needed = TABLES[trace.device].workspace_bytes
    return all(
        needed(call.op, specs_of(trace, call.ins), specs_of(trace, call.outs), threads)
        <= call.workspace_bytes
        for call in trace.calls
    )


def as_images(value: Any) -> Images:
    """A batch of images as it is given: read by rows, or an array of numbers.

    Raises:
        ShapeError: neither.
    """
    return value if isinstance(value, ReadByRows) else as_numbers(value, "input")


def expect_batch(input_shape: Sequence[int]) -> None:
    """Raises ConfigError: an input of this shape is not a batch."""
    if len(input_shape) < 2:
        raise ConfigError(
            f"input of shape {tuple(input_shape)} has no batch axis", code="OOC-110",
            fix="images are (N, C, H, W)",
        )  # fmt: skip


def input_values(trace: Trace, x: Images, y: np.ndarray | None) -> dict[int, Any]:
    """A batch by variable, in the element types that the trace wants.

    Args:
        x: an array; or images that are read by rows, for a step that takes them in blocks.

    Returns:
        Arrays; of images that are read by rows what becomes an array when its turn comes.

    Raises:
        ShapeError: a batch of another shape or without real numbers, or labels that are not class
            numbers.
        ConfigError: no target where the step takes one, or one where it takes none.
    """
    given: dict[str, Images] = {"input": x} if y is None else {"input": x, "target": y}
    variables = [v for v in trace.variables if v.kind == "input"]
    wanted = {tensor_of(v.name) for v in variables}
    if wanted != set(given):
        raise ConfigError(
            f"the step takes {' and '.join(sorted(wanted)) or 'no batch'}, given are "
            f"{' and '.join(given)}", code="OOC-111",
            fix="a target for a step with a loss, none for one without",
        )  # fmt: skip
    whole: dict[str, Images] = {}
    for name, value in given.items():
        shape, dtype = whole_of(name, variables)
        read = value if isinstance(value, ReadByRows) else as_numbers(value, name)
        if tuple(read.shape) != shape:
            if name == "target" and dtype == "int64":
                raise ShapeError(
                    f"the labels have shape {tuple(read.shape)}, one for each "
                    f"{'image' if len(shape) == 1 else 'pixel'} is {shape}",
                    fix=f"class numbers of shape {shape}",
                )
            raise ShapeError(
                f"{name} has shape {tuple(read.shape)}, the step was planned for {shape}",
                fix="give batches of one shape, or plan again for this one",
            )
        whole[name] = _checked(name, read, dtype)
    inputs = {v.id: value_of(v.name, whole) for v in variables}
    for v, value in inputs.items():
        if isinstance(value, ReadByRows):  # the step takes it whole
            inputs[v] = np.concatenate(
                [np.asarray(value.rows(n, 0, value.shape[2])) for n in range(value.shape[0])]
            )
    for call in trace.calls:
        op = computed_by(call.op)
        if isinstance(op, ClassLoss):
            _check_labels(inputs, call, trace, op.ignore_index)
    return inputs


def _checked(name: str, value: Images, dtype: str) -> Images:
    if dtype == "int64" and value.dtype.kind not in "iu":
        raise ShapeError(
            f"{name} has element type {value.dtype}, class numbers are integers",
            fix="labels.astype(np.int64)",
        )
    if dtype == "int64" and value.dtype == np.uint64 and np.any(np.asarray(value) > _LARGEST):
        raise ShapeError(f"{name} has numbers beyond int64", fix="count classes from 0")
    if value.dtype != dtype and (dtype == "uint8" or isinstance(value, ReadByRows)):
        raise ShapeError(
            f"{name} has element type {value.dtype}, the model takes {dtype}",
            fix="nn.FromBytes() as the first layer takes uint8, a model without it float32",
        )
    return value if isinstance(value, ReadByRows) else np.ascontiguousarray(value, dtype=dtype)


def _check_labels(
    inputs: Mapping[int, np.ndarray], call: Call, trace: Trace, ignore_index: int
) -> None:
    """Of a call on rows the labels of these rows, which may lie in several values."""
    classes = trace.variables[call.ins[0]].shape[1]
    for target in (v for v in call.ins if trace.variables[v].dtype == "int64"):
        labels = value_on_host(trace, target, inputs)
        if labels is not None:
            check_labels(labels, classes, ignore_index)


def value_on_host(
    trace: Trace, variable: int, inputs: Mapping[int, np.ndarray]
) -> np.ndarray | None:
    """The value of an input, or of a part of one; None of what is computed."""
    if variable in inputs:
        return inputs[variable]
    producer = trace.producer[variable]
    if producer is None or not isinstance(trace.calls[producer].op, Slice | Reshape):
        return None
    call = trace.calls[producer]
    source = value_on_host(trace, call.ins[0], inputs)
    return None if source is None else call.op.reference(source, scalars={})[0]
