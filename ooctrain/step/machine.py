"""How long calls and transfers take on a machine: roofline, or a measured profile.

A call lasts as long as the slower of its arithmetic and its memory traffic; a transfer lasts
latency + ceil(bytes / bandwidth). Durations are integer nanoseconds, so simulators can be compared
exactly. Nothing is measured implicitly: a profile is part of the `Machine` or absent. Sources:
roofline (Williams et al. 2009); transfers as in paper 002, section 3. Machine presets, each with
its source, are in `presets.py`. Read next: `sched/simulate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from ooctrain.errors import ConfigError
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import Call, Trace
from ooctrain.units import LEAST_BYTES_PER_US, MAX_BYTES

Link = Literal["shared", "duplex"]
#: A copy of this many times its latency loses 5 % to it.
LATENCIES_PER_PIECE = 20
MINIMUM_CALL_NS = 1
#: Of one call, copy or message: eleven days. What is longer is a slip of the pen.
LONGEST_US = 1e12


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk that serves as the host (`--spill`), as measured.

    Args:
        out_bytes_per_us, in_bytes_per_us: to the disk, and from it.
        link: "duplex" where reading while writing is faster than one after the other; the rates
            are then those of both at once.
        latency_us: latency of every copy, besides that of handing it over.
        folder: folder in which it was measured.
    """

    out_bytes_per_us: float
    in_bytes_per_us: float
    link: Link = "shared"
    latency_us: float = 0.0
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A device, its memory and its link to the host.

    Args:
        name: for tables.
        flops_per_us: arithmetic it really reaches, in operations per microsecond.
        memory_bytes_per_us: device memory bandwidth.
        link_bytes_per_us: bandwidth of the link, for each direction unless given apart below.
        link: "shared": one transfer at a time (paper 002's assumption A); "duplex": one a
            direction.
        latency_us: latency of every transfer, on any link.
        pacing_us: no property of the link, but what it costs to imitate a slower one: the cpu
            device keeps to an imposed link by letting the copying thread sleep until that link
            would be done, and it begins and wakes late. So it counts only once a link is imposed:
            `machines.with_link` adds it to `latency_us`. Fitted (`measured.pacing_us_of`); 0 on a
            GPU and on presets, whose links are not imitated.
        device_bytes: device memory.
        link_out_bytes_per_us, link_in_bytes_per_us: bandwidth of device to host, host to device.
        host_bytes: host memory for swapped variables; None: not limited.
        interference: how much slower calls are while a copy runs (1.0: not at all). On the cpu
            device a copy takes processor time.
        call_overhead_us: least duration of a call (launch).
        issue_us: what each instruction of a list costs the thread that issues it. On the cpu device
            that thread works the calls off too, so there it is time of the compute stream.
        copy_issue_us: what a copy costs that thread besides: handing it to another one.
        map_us_per_byte: time of memory that a step maps anew, issue besides
        (`execution/placement.py`).
        network_bytes_per_us: between this machine and others that train with it, each way; usually
            that of a link of 10 Gbit/s.
        network_latency_us: latency of each way that a message goes around.
        profile: measured durations by `profile_key`, in us; where given it replaces the roofline.
        disk: disk that may serve as the host (`presets.on_disk`); None: not measured.
    """

    name: str
    flops_per_us: float
    memory_bytes_per_us: float
    link_bytes_per_us: float
    link: Link = "shared"
    latency_us: float = 0.0
    pacing_us: float = 0.0
    device_bytes: int = 1 << 34
    link_out_bytes_per_us: float | None = None
    link_in_bytes_per_us: float | None = None
    host_bytes: int | None = None
    interference: float = 1.0
    call_overhead_us: float = 0.0
    issue_us: float = 0.0
    copy_issue_us: float = 0.0
    map_us_per_byte: float = 0.0
    network_bytes_per_us: float = 1250.0
    network_latency_us: float = 0.0
    profile: Mapping[str, float] = field(default_factory=dict)
    disk: Disk | None = None

    def __post_init__(self) -> None:
        if self.link not in ("shared", "duplex"):
            raise ConfigError(
                f"link {self.link!r} is neither 'shared' nor 'duplex'",
                code="OOC-105",
                fix="duplex where copies in and out run at the same time, else shared",
            )
        rates = (
            self.flops_per_us,
            self.memory_bytes_per_us,
            self.out_bytes_per_us,
            self.in_bytes_per_us,
            self.network_bytes_per_us,
            *((self.disk.out_bytes_per_us, self.disk.in_bytes_per_us) if self.disk else ()),
        )
        times = (self.latency_us, self.pacing_us, self.call_overhead_us, self.issue_us,
                 self.copy_issue_us, self.map_us_per_byte, self.network_latency_us,
                 *self.profile.values())  # fmt: skip
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise self._broken("a rate that is not positive")
        if min(rates) < LEAST_BYTES_PER_US:
            raise self._broken(f"a rate below {LEAST_BYTES_PER_US} a microsecond")
        if not all(math.isfinite(time_us) and time_us >= 0 for time_us in times):
            raise self._broken("a time that is not 0 or more")
        if max(times) > LONGEST_US:
            raise self._broken(f"a time of more than {LONGEST_US:.0e} us")
        if not (1 <= self.interference <= LONGEST_US):
            raise self._broken("an interference that is not 1 or more")
        sizes = self.device_bytes, 0 if self.host_bytes is None else self.host_bytes
        if not (self.device_bytes > 0 and min(sizes) >= 0 and max(sizes) <= MAX_BYTES):
            raise self._broken("a memory of no size")

    def _broken(self, what: str) -> ConfigError:
        return ConfigError(
            f"machine {self.name!r} has {what}",
            code="OOC-105",
            fix="correct its file; `ooctrain calibrate MODEL --output FILE` writes one",
        )

    @property
    def out_bytes_per_us(self) -> float:
        """Bandwidth from device to host."""
        rate = self.link_out_bytes_per_us
        return self.link_bytes_per_us if rate is None else rate

    @property
    def in_bytes_per_us(self) -> float:
        """Bandwidth from host to device."""
        rate = self.link_in_bytes_per_us
        return self.link_bytes_per_us if rate is None else rate

    @property
    def slowdown(self) -> Fraction:
        """`interference` as a ratio of small numbers, so that whole ns stay exact."""
        return Fraction(self.interference).limit_denominator(1000)

    @property
    def worth_its_latency_bytes(self) -> int:
        """The size from which a copy loses little to its latency."""
        rate = max(self.in_bytes_per_us, self.out_bytes_per_us)
        return int(LATENCIES_PER_PIECE * self.latency_us * rate)

    def transfer_ns(self, size_bytes: int, direction: Literal["out", "in"]) -> int:
        """Duration of one transfer: latency + ceil(bytes / bandwidth)."""
        rate = self.out_bytes_per_us if direction == "out" else self.in_bytes_per_us
        return round(self.latency_us * 1000) + ceil_div_rate(size_bytes * 1000, rate)


def ceil_div_rate(amount: int, rate: float) -> int:
    """ceil(amount / rate), exact where the rate is a whole number."""
    return -(-amount // int(rate)) if rate == int(rate) else math.ceil(amount / rate)


def specs_of(trace: Trace, ids: Sequence[int]) -> list[Spec]:
    """Shapes and element types of variables, as an operation's methods take them."""
    return [Spec(trace.variables[v].shape, trace.variables[v].dtype) for v in ids]


def profile_key(call: Call, trace: Trace) -> str:
    """What two calls must share to last equally long: operation, attributes and shapes."""
    shapes = ",".join("x".join(map(str, trace.variables[v].shape)) for v in call.ins + call.outs)
    return f"{call.op!r}({shapes})"


def call_durations_ns(trace: Trace, machine: Machine) -> list[int]:
    """Duration of every call: its own (`oc.chain`), the profile's, or the roofline's."""
    least_ns = max(round(machine.call_overhead_us * 1000), MINIMUM_CALL_NS)
    rates = machine.flops_per_us, machine.memory_bytes_per_us
    durations = list(_roofline_ns(trace, *rates, least_ns))
    if machine.profile:
        for call in trace.calls:
            measured_us = machine.profile.get(profile_key(call, trace))
            if call.duration_ns is None and measured_us is not None:
                durations[call.id] = max(1, round(measured_us * 1000))
    return durations


@lru_cache(maxsize=4)  # a planner asks for the durations of one step again and again
def _roofline_ns(
    trace: Trace, flops_per_us: float, memory_bytes_per_us: float, least_ns: int
) -> tuple[int, ...]:
    """Duration of every call: its own, or that of its arithmetic or its traffic."""
    return tuple(
        max(
            ceil_div_rate(flops * 1000, flops_per_us),
            ceil_div_rate(bytes_moved * 1000, memory_bytes_per_us),
            least_ns,
        )
        if call.duration_ns is None
        else call.duration_ns
        for call, (flops, bytes_moved) in zip(trace.calls, _work(trace), strict=True)
    )


@lru_cache(maxsize=4)  # machines differ more often than steps
def _work(trace: Trace) -> tuple[tuple[int, int], ...]:
    """(operations, bytes moved) of each call; (0, 0) where it states its own duration."""
    return tuple(
        (0, 0)
        if call.duration_ns is not None
        else _work_of(call.op, specs_of(trace, call.ins), specs_of(trace, call.outs))
        for call in trace.calls
    )


def forget_durations() -> None:
    """Gives back what is kept of steps whose durations were asked for, these steps included."""
    _roofline_ns.cache_clear()
    _work.cache_clear()


def _work_of(op: Op, ins: list[Spec], outs: list[Spec]) -> tuple[int, int]:
    return op.flops(ins, outs), op.bytes_moved(ins, outs)
