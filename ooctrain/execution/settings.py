"""How a step is to be run, apart from what is trained: budgets, planner, allocator, device, seed.

One frozen value that every path to a prepared step takes: the trainer, `oc.plan`, the commands. It
checks what can be checked without a trace; all else is found when the step is prepared. Read next:
`fit.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ooctrain.alloc.registry import AllocatorChoice, choose_allocator
from ooctrain.devices.cpu.host_vm import PAGE_BYTES, why_no_virtual_memory
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.interface import Debug
from ooctrain.devices.spill import Spill
from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.execution.promise import check_memory_setting
from ooctrain.sched.planning.effort import EVALUATIONS, Effort
from ooctrain.sched.planning.planner import Planner, check_evaluations
from ooctrain.step.arguments import checked
from ooctrain.step.machine import Machine
from ooctrain.step.presets import DEVICES, on_disk, usable_cores, with_link
from ooctrain.step.presets import machine as find_machine
from ooctrain.step.trace import Trace

_NO_DEBUG = Debug()
DEFAULT_REWRITES = ("fuse", "share_storage")


@checked
@dataclass(frozen=True, slots=True)
class Settings:
    """How to run, apart from what is trained.

    Args:
        budget: limit of everything on the device: bytes, "512MiB", "25%"; None: as much as in-core
            needs.
        planner: name with parameters, "file.py:Class", or a planner object.
        allocator: name with parameters.
        device: "cpu" or "cuda".
        threads: number for the cpu device's kernels; None: all cores that this process may use.
        machine: what planners plan for: name, `Machine`, or None (the device's calibration, else
            its preset).
        link_bytes_per_us: rate of each copy direction, planned with, and imposed on the cpu device;
            None: as fast as the cores copy.
        host_budget: limit of inputs and swapped variables on the host; None: the machine's.
        spill: the disk on which the host slab lies; None: it lies in memory.
        seed: seed of planners, dropout and data.
        time_limit_s: interrupts a planner that searches; None: nothing does.
        evaluations: limit of a searching planner; None: its own.
        debug: poison, delays, synchronous mode.
        rewrites: applied before planning, in order.
        memory: one budget for all that the process holds, in place of `budget` and `host_budget`
            (`fit.py` divides it); None: these two count.
        same_bits: no plan whose step rounds otherwise than in-core; a planner that was named plans
            as it does.
        at_once: whether there is a plan is all that counts, not how good it is.
    """

    budget: int | str | None = None
    planner: str | Planner = "auto"
    allocator: str = "va"
    device: str = "cpu"
    threads: int | None = None
    machine: str | Machine | None = None
    link_bytes_per_us: float | None = None
    host_budget: int | str | None = None
    seed: int = 0
    time_limit_s: float | None = None
    evaluations: int | None = EVALUATIONS
    debug: Debug = _NO_DEBUG
    rewrites: tuple[str, ...] = DEFAULT_REWRITES
    spill: Spill | None = None
    memory: int | str | None = None
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
        if self.spill is not None and self.link_bytes_per_us is not None:
            raise ConfigError(
                "--link-bandwidth limits copies in memory, but with --spill the host is a disk",
                code="OOC-106", fix="--spill-rate instead of --link-bandwidth",
            )  # fmt: skip

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
        if self.spill is not None:
            return on_disk(named, self.spill.bytes_per_us)
        return named if self.link_bytes_per_us is None else with_link(named, self.link_bytes_per_us)

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
