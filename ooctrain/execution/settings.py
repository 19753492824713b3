"""How a step is traced and run, apart from what is trained: each option declared once.

`Settings` is the frozen value that every path to a prepared step takes: budgets, planner,
allocator, device, seed. `Options` adds how the step is traced; a user gives it to a `Trainer`, and
the commands make it of their words. Type, default and help of an option stand here, beside each
other, and nowhere else: `cli/options.py` makes the options of the commands of them. What can be
checked without a trace is checked here; all else is found when the step is prepared. Read next:
`fit.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Annotated, Any

from ooctrain.alloc.registry import AllocatorChoice, choose_allocator
from ooctrain.devices.cpu.host_vm import PAGE_BYTES, why_no_virtual_memory
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.interface import Debug
from ooctrain.devices.spill import Spill, as_spill
from ooctrain.engine.clip import Clip
from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.execution.promise import check_memory_setting
from ooctrain.sched.planning.effort import EVALUATIONS, Effort
from ooctrain.sched.planning.planner import Planner, check_evaluations
from ooctrain.step.arguments import Taker, checked
from ooctrain.step.machine import Machine
from ooctrain.step.option import option
from ooctrain.step.presets import DEVICES, on_disk, usable_cores, with_link
from ooctrain.step.presets import machine as find_machine
from ooctrain.step.trace import Trace

DEFAULT_REWRITES = ("fuse", "share_storage")
#: Seeds are written to checkpoints as numbers of 64 bits.
MAX_SEED = (1 << 63) - 1
MOST_THREADS = 1024
NO_DEBUG = Debug()


def _debug(value: Any) -> Debug:
    if value is not None and not isinstance(value, Debug):
        raise TypeError
    return value or NO_DEBUG


@checked
@dataclass(frozen=True, slots=True)
class Settings:
    """How to run, apart from what is trained.

    Args:
        budget: limit of everything on the device: bytes, "512MiB", "25%"; None: as much as in-core
            needs. A percentage of a trainer is that of the largest step that was trained; before
            the first one, an evaluation has that of the step which would train its batch.
        planner: name with parameters, "file.py:Class", or a planner object.
        allocator: name with parameters, or "file.py:Class".
        device: "cpu" or "cuda".
        threads: number for the cpu device's kernels; None: all cores that this process may use.
        machine: what planners plan for: name, `Machine`, or None (the device's calibration, else
            its preset).
        link_bandwidth: rate of each copy direction in bytes per microsecond, planned with, and
            imposed on the cpu device; None: as fast as the cores copy.
        host_budget: limit of inputs and swapped variables on the host; None: the machine's.
        seed: seed of planners, dropout and data.
        time_limit_s: interrupts a planner that searches; None: nothing does.
        evaluations: limit of a searching planner; None: its own.
        debug: poison, delays, synchronous mode; None: none of them.
        rewrites: applied before planning, in order.
        spill: a folder of the disk on which the host slab lies, or a `Spill`; None: it lies in
            memory (docs/spill.md).
        memory: one budget for all that the process holds, as the system counts it, in place of
            `budget` and `host_budget` (`fit.py` divides it); None: these two count.
        same_bits: no plan whose step rounds otherwise than in-core; a planner that was named plans
            as it does.
        at_once: whether there is a plan is all that counts, not how good it is.
    """

    budget: int | str | None = option(
        None, 'Device memory: "512MiB", "8GB", or "25%" from least to most.', metavar="SIZE"
    )
    planner: str | Planner = option(
        "auto", 'Name, with parameters ("window:size=2"), or file.py:Class.', shown=True
    )
    allocator: str = option("va", "Name, with parameters, or file.py:Class.", shown=True)
    device: str = option("cpu", None, choices=DEVICES, shown=True)
    threads: int | None = option(
        None, "CPU threads (default: all cores, or the preset's when only planning).",
        least=1, most=MOST_THREADS,
    )  # fmt: skip
    machine: str | Machine | None = option(
        None, "Preset or calibration file; default: `here`, the saved calibration.", metavar="NAME"
    )
    link_bandwidth: float | None = option(
        None, 'Bandwidth of the link, per second and direction: "2GB".', metavar="SIZE"
    )
    host_budget: int | str | None = option(
        None, "Host memory for the inputs and what is swapped out; 0: for the inputs alone.",
        metavar="SIZE",
    )  # fmt: skip
    seed: int = option(0, "Of weights, data order, dropout.", least=0, most=MAX_SEED, shown=True)
    time_limit_s: float | None = option(
        None,
        "Seconds after which a search is interrupted; the plan then depends on the machine.",
        flag="time-limit", example=10.0,
    )  # fmt: skip
    evaluations: int | None = option(
        EVALUATIONS, f"Effort of a searching planner, a few lists each; default: {EVALUATIONS}.",
        least=1,
    )  # fmt: skip
    debug: Annotated[Debug, Taker("a Debug, or None", _debug)] = NO_DEBUG
    rewrites: Sequence[str] = option(
        DEFAULT_REWRITES,
        'Rewrites of the step, in order: "bands:16:features.0:features.16", or file.py:name.',
        flag="rewrite",
    )
    spill: Spill | str | PathLike[str] | None = option(
        None,
        "What is swapped out lies on this folder's disk, not in RAM.",
        metavar="FOLDER",
        folder=True,
    )
    memory: int | str | None = option(
        None, "Of the whole process, in place of both budgets; cpu device.", metavar="SIZE"
    )
    same_bits: bool = False
    at_once: bool = False

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(
                f"unknown device {self.device!r}",
                code="OOC-106",
                fix=f"one of {', '.join(DEVICES)}",
            )
        if self.threads is not None and self.threads < 1:
            raise ConfigError(
                f"{self.threads} threads are too few", code="OOC-106",
                fix="threads=1, or None for all cores",
            )  # fmt: skip
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ConfigError(
                f"the time limit {self.time_limit_s} is not above 0", code="OOC-106",
                fix="seconds above 0, or None for no limit",
            )  # fmt: skip
        if self.memory is not None:
            given = {"--budget": self.budget, "--host-budget": self.host_budget}
            others = [name for name, value in given.items() if value is not None]
            check_memory_setting(self.memory, others, self.device)
        self._check_spill()
        check_evaluations("settings", self.evaluations)

    def _check_spill(self) -> None:
        if self.disk is not None and self.link_bandwidth is not None:
            raise ConfigError(
                "--link-bandwidth limits copies in memory, but with --spill the host is a disk",
                code="OOC-106", fix="--spill-rate instead of --link-bandwidth",
            )  # fmt: skip

    @property
    def disk(self) -> Spill | None:
        """The disk that is the host; None: the host is memory."""
        return as_spill(self.spill)

    @property
    def thread_count(self) -> int:
        """Threads as asked for, else one for each core that this process may use."""
        return self.threads or usable_cores()

    @property
    def effort(self) -> Effort:
        """What a search may do whose time begins now."""
        if self.at_once:
            return Effort.none(self.evaluations)
        if self.time_limit_s is None:
            return Effort(self.evaluations)
        return Effort.within(self.time_limit_s, self.evaluations)

    def find_machine(self) -> Machine:
        """The machine as named, with the link as imposed, or the disk in its place."""
        named = find_machine(self.machine, self.device)
        if self.disk is not None:
            return on_disk(named, self.disk.bytes_per_us)
        return named if self.link_bandwidth is None else with_link(named, self.link_bandwidth)

    def chooser(self, trace: Trace) -> Callable[[int, bool], AllocatorChoice]:
        """Chooses allocators for arenas, after a look at whether the device is there and can run
        the trace at all.

        Raises:
            PlanMismatch: the trace has the other device's algorithms and workspaces.
            DeviceUnavailable, ConfigError: see `devices.cuda_open`.
        """
        if trace.device != self.device:
            raise PlanMismatch(
                f"the step was traced for device {trace.device!r}, not {self.device!r}",
                fix=f"oc.trace(..., device={self.device!r})",
            )
        if self.device == "cpu":
            page_bytes, problem = PAGE_BYTES, why_no_virtual_memory()
        else:
            gpu = cuda_open.look_at_gpu()
            cuda_open.require_kernels(trace, gpu)
            cuda_open.require_compiler(gpu)
            page_bytes, problem = gpu.granularity_bytes, gpu.mapping_problem

        def choose(arena_bytes: int, binding: bool) -> AllocatorChoice:
            return choose_allocator(
                self.allocator, arena_bytes, lambda: problem, binding=binding,
                page_bytes=page_bytes,
            )  # fmt: skip

        return choose


@checked
@dataclass(frozen=True, slots=True)
class Options(Settings):
    """How a trainer traces, plans and runs its steps: `Settings`, and how a step is traced.

    Args:
        accumulate: parts that a batch goes through in; loss and gradients are those of the batch.
        conv_algorithm: "auto", or see `oc.trace`.
        allow_tf32: see `oc.trace`.
        clip: `engine.clip.ClipNorm`, `ClipEach` or a number for the norm; of the gradients of all
            the model's parameters that require one.

    The others are those of `Settings`.
    """

    accumulate: int = option(1, "Micro-batches in a step.", least=1, shown=True)
    conv_algorithm: str = option(
        "auto",
        "auto, direct, im2col, winograd2, winograd4; cuda: implicit_gemm, tf32, tiled, naive.",
        shown=True,
    )
    allow_tf32: bool = option(
        False, "On a GPU: convolutions round their inputs to 10 bits of mantissa."
    )
    clip: Clip | float | None = None

    @property
    def settings(self) -> Settings:
        """How a step is run, once it is traced."""
        return Settings(**{each.name: getattr(self, each.name) for each in fields(Settings)})
