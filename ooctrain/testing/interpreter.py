"""The law-checker: runs a list on real bytes in any order that the table allows.

If a list gives the in-core result in many random orders, with starts and finishes apart, freed
bytes poisoned and addresses reused at once, then the order of the list alone decides the values
after the step; otherwise `LawBroken` is raised. A `random.Random` draws the orders. The conditions
under which an instruction may start come from `byte_list.py`, which is independent of
`../sched/ledger.py`. The interpreter is slow, and meant for variables of a few bytes. Source:
docs/schedule.md. Read next: `tests/support/mutate.py`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ooctrain.sched.schedule import Run, Schedule
from ooctrain.step.trace import Call, Trace
from ooctrain.testing.byte_list import Job, LawBroken, RunnerStep, lay_out


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step leaves behind.

    Args:
        persistent: {initial variable: its value for the next step}.
        outputs: {name: value} of `Trace.outputs`.
        physical_peak_bytes: the most device bytes held at one moment, in granted bytes.
        arena_bytes: what an allocator needs that allocates and frees at issue, in list order.
        host_arena_bytes: the same for the host.
    """

    persistent: Mapping[int, bytes]
    outputs: Mapping[str, bytes]
    physical_peak_bytes: int = 0
    arena_bytes: int = 0
    host_arena_bytes: int = 0


def fake_outputs(trace: Trace, call: Call, ins: Sequence[bytes]) -> list[bytes]:
    """What a call of a test trace computes: a hash of its inputs, so that any wrong byte shows."""
    text = f"{call.name}|".encode() + b"|".join(ins)
    return [
        hashlib.shake_128(f"{position}|".encode() + text).digest(trace.variables[out].nbytes)
        for position, out in enumerate(call.outs)
    ]


def in_core(trace: Trace, start: Mapping[int, bytes]) -> Outcome:
    """The step without any schedule: every value is kept."""
    values = dict(start)
    for call in trace.calls:
        computed = fake_outputs(trace, call, [values[v] for v in call.ins])
        values.update(zip(call.outs, computed, strict=True))
    persistent = {old: values[new] for old, new in trace.end_variables.items()}
    return Outcome(persistent, {name: values[v] for name, v in trace.outputs.items()})


def interpret(
    trace: Trace, schedule: Schedule, start: Mapping[int, bytes], rng: random.Random, *,
    shared_link: bool = False,
) -> Outcome:  # fmt: skip
    """One step of a list in a random order of starts and finishes.

    Args:
        start: values of all initial variables.
        rng: chooses addresses, and what starts or finishes next.
        shared_link: D and H are one stream.

    Raises:
        LawBroken: an illegal instruction, or overlapping reads and writes.

    Cost: O(instructions squared + bytes moved).
    """
    job = lay_out(trace, schedule, rng)
    return _Runner(job, start, rng, shared_link).outcome()


class _Runner:
    """Carries a job out on bytes: starts and finishes whatever may start or finish, at random."""

    def __init__(self, job: Job, start: Mapping[int, bytes], rng: random.Random, shared_link: bool):
        self.trace, self.job, self.rng, granule = job.trace, job, rng, job.schedule.granule
        self.device, self.host = bytearray(job.arena_bytes), bytearray(job.host_arena_bytes)
        self._poison(self.device, range(job.arena_bytes))
        self._poison(self.host, range(job.host_arena_bytes))
        for memory, places in ((self.device, job.start_device), (self.host, job.start_host)):
            for (variable, at), address in places.items():
                memory[address] = start[variable][at]
        self.lanes: dict[str, list[RunnerStep]] = {}
        for step in job.steps.values():
            lane = "link" if shared_link and step.stream in "DH" else step.stream
            self.lanes.setdefault(lane, []).append(step)
        self.running: dict[str, tuple[RunnerStep, list[bytes]]] = {}
        self.finished: set[int] = set()
        self.pending = list(job.releases)
        self.held = granule.fixed_bytes + sum(
            granule.granted(hi - lo) for _, lo, hi in job.schedule.start_device
        )
        self.outputs: dict[str, bytes] = {}

    def outcome(self) -> Outcome:
        self.peak = self.held
        # Lopsided weights reach the extreme orders: a stream that hardly moves, one that always
        # does.
        weight = {lane: self.rng.choice([0.01, 1.0, 100.0]) for lane in self.lanes}
        self._release_what_is_done()
        while any(self.lanes.values()) or self.running:
            ready = [lane for lane in self.lanes if lane in self.running or self._may_start(lane)]
            lane = self.rng.choices(ready, [weight[lane] for lane in ready])[0]
            if lane in self.running:
                self._finish(lane)
            else:
                self._begin(lane)
        return Outcome(
            self._persistent(),
            self.outputs,
            self.peak,
            self.job.arena_bytes,
            self.job.host_arena_bytes,
        )

    def _may_start(self, lane: str) -> bool:
        return bool(self.lanes[lane]) and self.lanes[lane][0].after <= self.finished

    def _begin(self, lane: str) -> None:
        step = self.lanes[lane].pop(0)
        for other, _ in self.running.values():
            _check_overlap(step, other)
        self.held += len(step.claims)
        self.peak = max(self.peak, self.held)
        if step.stream == "H":
            snapshot = [bytes(self.host[a] for a in step.host_reads)]
        else:
            snapshot = [bytes(self.device[a] for a in addresses) for addresses in step.reads]
        self.running[lane] = (step, snapshot)
        self._poison(self.device, _writes(step))
        self._poison(self.host, step.host_writes)

    def _finish(self, lane: str) -> None:
        step, snapshot = self.running.pop(lane)
        if step.stream == "C":
            run = self.job.schedule.instructions[step.index]
            assert isinstance(run, Run)
            values = fake_outputs(self.trace, self.trace.calls[run.call], snapshot)
        else:
            values = snapshot
        for addresses, value in zip(step.writes, values, strict=step.stream == "C"):
            for address, byte in zip(addresses, value, strict=True):
                self.device[address] = byte
        for address, value in zip(step.host_writes, values, strict=False):
            self.host[address] = value[0]
        self.finished.add(step.index)
        for name, (index, addresses) in self.job.captures.items():
            if index == step.index:
                self.outputs[name] = bytes(self.device[a] for a in addresses)
        self._release_what_is_done()

    def _release_what_is_done(self) -> None:
        waiting = []
        for release in self.pending:
            if release.after <= self.finished:
                self._poison(self.host if release.host else self.device, release.addresses)
                self.held -= 0 if release.host else len(release.addresses)
            else:
                waiting.append(release)
        self.pending = waiting

    def _poison(self, memory: bytearray, addresses: Iterable[int]) -> None:
        for address in addresses:
            memory[address] = self.rng.randrange(256)

    def _persistent(self) -> dict[int, bytes]:
        """Values for the next step; where a byte is on both sides, both must agree."""
        values = {}
        for old, new in self.trace.end_variables.items():
            value = bytearray()
            for at in range(self.trace.variables[new].nbytes):
                copies = set()
                if (new, at) in self.job.end_device:
                    copies.add(self.device[self.job.end_device[new, at]])
                if (new, at) in self.job.end_host:
                    copies.add(self.host[self.job.end_host[new, at]])
                if len(copies) != 1:
                    raise LawBroken(
                        f"device and host disagree on {self.trace.variables[new].name!r}"
                    )
                value.append(copies.pop())
            values[old] = bytes(value)
        return values


def _writes(step: RunnerStep) -> list[int]:
    return (
        [address for addresses in step.writes for address in addresses] + step.scratch + step.claims
    )


def _check_overlap(one: RunnerStep, other: RunnerStep) -> None:
    """Two running instructions must not touch the same byte if one of them writes it."""
    writes, others = set(_writes(one)), set(_writes(other))
    reads = {address for addresses in one.reads for address in addresses}
    others_reads = {address for addresses in other.reads for address in addresses}
    clash = writes & (others | others_reads) or others & reads
    host = set(one.host_writes) & {*other.host_writes, *other.host_reads}
    host |= set(other.host_writes) & set(one.host_reads)
    if clash or host:
        raise LawBroken(
            f"instructions {one.index} and {other.index} may run at the same time, "
            "and one writes what the other touches",
            index=max(one.index, other.index),
        )
