"""What a memory budget of the whole process is made of, part by part.

`--memory` promises that the process, as the operating system counts it
(`../devices/cpu/process_memory.py`), never holds more: the interpreter with everything that it has
loaded, the arena, the host slab, batches on their way, and the rest. What the process holds by
itself is measured once, when the first step is prepared and before an arena is opened, with the
kernels loaded and unused memory given back; the model's values, which will move to the arena, do
not count. They move one by one, and leave no copy behind (`residence.py`). Arena and slab are
exact; the other parts are bounds that follow from the step. What planning leaves behind is measured
after each plan: a step whose promise has too little for it is planned again (`step_cache.py`).
Kernels have no scratch outside the arena but their stacks. Read next: `fit.py`, which divides what
is left between arena and slab.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ooctrain.devices.cpu.host_vm import PAGE_BYTES
from ooctrain.devices.cpu.process_memory import give_back_at_once, give_back_unused, held
from ooctrain.devices.host_file import IN_FLIGHT
from ooctrain.devices.host_file import PIECE_BYTES as COPIED_BYTES
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError
from ooctrain.execution.guard import may_fail
from ooctrain.rewrite import apply_rewrites
from ooctrain.sched.budget import input_bytes
from ooctrain.sched.host import host_slots
from ooctrain.sched.schedule import Plan
from ooctrain.step.trace import Trace
from ooctrain.units import MIB, format_bytes, parse_bytes

#: What a process holds by itself is rounded up to this, so that a plan does not depend on a page
#: (from run to run it differs by a tenth of a MiB).
OWN_STEP_BYTES = 4 * MIB
#: What the interpreter, the libraries and the kernels hold (2 cores, ResNet-18: 156 MiB), for plans
#: that no process runs.
USUAL_OWN_BYTES = 208 * MIB
#: Python's objects of a list and of measured steps: at first, and for each instruction, of which
#: there are four for each call unless calls are run again or in bands.
LISTS_BYTES, LIST_BYTES_AN_INSTRUCTION, INSTRUCTIONS_A_CALL = 12 * MIB, 2 << 10, 4
#: The part of that which comes when the list runs, so is not there yet when it has been planned.
RUNNING_BYTES_AN_INSTRUCTION = 1 << 8
#: Touched by a thread that computes or copies: its stack, and its share of the C library's heap.
THREAD_BYTES = MIB
#: Three streams, the thread that runs the step, the one that reads ahead, the one that watches.
THREADS_BESIDES = 6
#: Batches that exist at a time, where the next one is read ahead: two laid out for the device, the
#: one in work, the next one, and what that one is made from.
BATCHES_AHEAD = 5
#: The same where it is read in its turn, none laid out before its step; so are batches of more
#: bytes than these.
BATCHES_IN_TURN, MOST_AHEAD_BYTES = 3, 32 * MIB
#: Of what an evaluation hands out: as it lay on the device and in logical layout, or in that and as
#: its classes are looked for.
HANDED_OUT = 3
#: A batch of which parts are evaluated is there as it was given, and as what that was made from.
HELD_WHOLE = 2
#: A value that moves between host and session is there twice, and a piece of it twice more; of each
#: value the pages that it shares with others stay behind.
PIECE_BYTES, PAGES_LEFT = 4 * MIB, 2
#: Of a slab on a disk only the pieces on their way lie in memory, each with its thread, and one for
#: each copy stream; a MiB is for Python's objects of the pieces that wait.
BUFFERS_BYTES = (IN_FLIGHT + 2) * COPIED_BYTES + IN_FLIGHT * THREAD_BYTES + MIB


@dataclass(frozen=True, slots=True)
class Promise:
    """A memory budget and its parts, in bytes.

    Args:
        memory_bytes: the budget: what the process holds at most.
        own_bytes: what it holds by itself: interpreter, libraries, compiled kernels, data.
        list_bytes: Python's objects of lists and measurements, and memory that planning them left.
        stacks_bytes: stacks of threads.
        batch_bytes: batches outside the host slab, and what an evaluation hands out of one.
        values_bytes: persistent values on the host: those that the step does not use (a test
            leaves the optimizer's slots there), and copies of the one that moves while a session
            opens, closes or is saved; and of all that a step changes, where it can be undone.
        arena_bytes: the device's memory.
        slab_bytes: the host's: inputs, and what is swapped out.
    """

    memory_bytes: int
    own_bytes: int
    list_bytes: int
    stacks_bytes: int
    batch_bytes: int
    values_bytes: int
    arena_bytes: int = 0
    slab_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """All parts that are not to be divided."""
        lists = self.list_bytes + self.stacks_bytes
        return self.own_bytes + lists + self.batch_bytes + self.values_bytes

    @property
    def left_bytes(self) -> int:
        """What arena and slab may take together; below 0 where the other parts are too much."""
        return self.memory_bytes - self.fixed_bytes

    @property
    def promised_bytes(self) -> int:
        """All parts together: never more than the budget."""
        return self.fixed_bytes + self.arena_bytes + self.slab_bytes

    def with_list(self, plan: Plan, arena_bytes: int, *, on_disk: bool) -> Promise:
        """All parts of a step, with those that depend on its list.

        Args:
            on_disk: the slab lies there; only its buffers lie in memory.
        """
        instructions = len(plan.schedule.instructions)
        slab_bytes = host_slots(plan.trace, plan.schedule).extent_bytes
        return replace(
            self, arena_bytes=arena_bytes, slab_bytes=BUFFERS_BYTES if on_disk else slab_bytes,
            values_bytes=self.values_bytes + beyond_arena_bytes(plan, arena_bytes),
            list_bytes=max(self.list_bytes, list_bytes(instructions)),
        )  # fmt: skip

    def divided(self) -> str:
        """Arena and slab in words."""
        return f"arena {format_bytes(self.arena_bytes)}, host slab {format_bytes(self.slab_bytes)}"

    def besides(self) -> str:
        """The other parts in words."""
        named = {
            "the process itself": self.own_bytes, "batches": self.batch_bytes,
            "values on the host": self.values_bytes,
            "list and threads": self.list_bytes + self.stacks_bytes,
        }  # fmt: skip
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in named.items())


def check_memory_setting(memory: int | str, others: Sequence[str], device: str) -> None:
    """Whether a memory budget is one.

    Args:
        others: other options that say the same.

    Raises:
        ConfigError: no size, not alone, or not for this device.
    """
    parse_bytes(memory, what="memory")
    if others:
        raise ConfigError(
            f"--memory cannot be combined with {' and '.join(others)}", code="OOC-122",
            fix="--memory alone: it divides itself between device and host",
        )  # fmt: skip
    if device != "cpu":
        raise ConfigError(
            f"--memory counts what the process holds, and the memory of device {device!r} is not "
            "part of it", code="OOC-123", fix="--budget for the device, --host-budget for the host",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnShare:
    """What a process holds without any step.

    Args:
        own_bytes: by itself, the model's values apart.
        values_bytes: all parameters, buffers and optimizer slots, wherever they are.
        left_bytes: what planning has left behind, plans included, as far as it is known.
    """

    own_bytes: int
    values_bytes: int
    left_bytes: int = 0


def own_share(
    trace: Trace, rewrites: Sequence[str], values: Iterable[Tensor], *, searches: bool
) -> OwnShare:
    """What this process holds by itself, now: rounded up, the step's kernels loaded.

    Args:
        rewrites: names of those that the step gets.
        values: all that persists.
        searches: whether a planner will search; then that code is loaded, too.

    Raises:
        ConfigError: this system does not say what a process holds.
    """
    # Late: it loads Numba.
    from ooctrain.execution.compile_apart import kernels_for

    for kernel in kernels_for(call.op for call in apply_rewrites(trace, rewrites).calls):
        kernel.load()
    if searches:
        # Late, too.
        from ooctrain.sched.search.search import compile_search

        compile_search()
    give_back_at_once()
    tensors = list(values)
    alone = held_here() - sum(tensor.storage.leaving_bytes for tensor in tensors)
    return OwnShare(in_steps(alone), values_bytes(tensors))


def values_bytes(values: Iterable[Tensor]) -> int:
    """What all that persists takes, wherever it is."""
    return sum(math.prod(t.shape) * np.dtype(t.dtype).itemsize for t in values)


def held_here() -> int:
    """What this process holds now in bytes, after unused memory has been given back.

    Raises:
        ConfigError: this system does not say.
    """
    give_back_unused()
    found = held()
    if found is None:
        raise ConfigError(
            "this system does not say what a process holds (/proc/self/smaps_rollup)",
            code="OOC-123", fix="--budget and --host-budget, which are counted by the library",
        )  # fmt: skip
    return found.most_bytes


def in_steps(size_bytes: int) -> int:
    """Rounded up, so that a plan does not depend on a page."""
    return -(-size_bytes // OWN_STEP_BYTES) * OWN_STEP_BYTES


def parts_of(
    trace: Trace, memory_bytes: int, own: OwnShare | None, threads: int, whole: int | None = None
) -> Promise:
    """All parts but arena and slab, and what else depends on the list.

    Args:
        own: as measured; None: nothing will run, and the usual is taken.
        whole: samples of the batch that the step's input is a part of; None: it is the batch.
    """
    variables = [trace.variables[v] for v in trace.initial]
    around = 0 if whole is None else _times_around(trace, whole)
    batch = sum(v.value_bytes for v in variables if not v.persistent)
    moving = [v.value_bytes for v in variables if v.persistent]
    largest = max(moving, default=0)
    handed_out = () if trace.carries else trace.outputs.values()  # a training step: the loss alone
    answer = sum(trace.variables[v].value_bytes for v in handed_out)
    resting = 0 if own is None else max(0, own.values_bytes - sum(moving))
    if may_fail(trace):
        resting += sum(trace.variables[v].value_bytes for v in trace.carries.values())
    return Promise(
        memory_bytes,
        USUAL_OWN_BYTES if own is None else own.own_bytes,
        expected_lists_bytes(trace, own),
        THREAD_BYTES * (threads + THREADS_BESIDES),
        (BATCHES_AHEAD if batch <= MOST_AHEAD_BYTES else BATCHES_IN_TURN) * batch
        + HANDED_OUT * answer + math.ceil(around * (batch + answer)),
        resting + largest + 2 * min(largest, PIECE_BYTES) + PAGES_LEFT * PAGE_BYTES * len(moving),
    )  # fmt: skip


def _times_around(trace: Trace, whole: int) -> float:
    """How many times larger than a part of a batch is what lies around it: the rest of the batch,
    and what that was made from; as much of answers, those of all parts and joined.
    """
    named = (trace.variables[v] for v in trace.initial)
    samples = next((v.shape[0] for v in named if v.name == "input" and v.shape), whole)
    return HELD_WHOLE * max(0, whole - samples) / max(1, samples)


def beyond_arena_bytes(plan: Plan, arena_bytes: int) -> int:
    """What persistent values take between arena and host, beyond the arena.

    Each is drawn into an arena that holds nothing else yet, with a copy. Those that wait in the
    slab come home when the arena is empty; those of which a part is there come before, from both.
    """
    trace, schedule = plan.trace, plan.schedule
    persistent = {v for v in trace.initial if trace.variables[v].persistent}
    on_device = {v for v, lo, hi in schedule.start_device if lo < hi}
    split = [hi - lo for v, lo, hi in schedule.start_host if v in persistent & on_device]
    return max(sum(split), values_home_bytes(trace) - arena_bytes)


def values_home_bytes(trace: Trace) -> int:
    """What persistent values take that come home one by one, each with its copy."""
    variables = [trace.variables[v] for v in trace.initial]
    sizes = [v.value_bytes for v in variables if v.persistent]
    return sum(sizes) + max(sizes, default=0)


def least_slab_bytes(trace: Trace, *, on_disk: bool) -> int:
    """Memory of the smallest slab: the inputs, or buffers."""
    return BUFFERS_BYTES if on_disk else input_bytes(trace)


def expected_lists_bytes(trace: Trace, own: OwnShare | None) -> int:
    """Bytes of Python's objects of a usual list, in addition to what planning has left."""
    usual = list_bytes(INSTRUCTIONS_A_CALL * len(trace.calls))
    return usual if own is None else max(usual, own.left_bytes)


def list_bytes(instructions: int) -> int:
    """Bytes of Python's objects of a list, by its number of instructions, beyond short lists.

    A bound by experience: planning thousands of calls leaves gaps between what stays, in which
    nothing else fits, so a promise is compared with `running_bytes` afterwards.
    """
    return LISTS_BYTES + LIST_BYTES_AN_INSTRUCTION * instructions


def running_bytes(left_bytes: int, instructions: int) -> int:
    """What Python's objects take while a list of `instructions` runs, where planning has left
    `left_bytes`, all lists included."""
    return left_bytes + RUNNING_BYTES_AN_INSTRUCTION * instructions
