"""A list laid out on bytes: the table of docs/schedule.md once more, byte by byte, pair by pair.

From a trace, a list and a `random.Random` comes a `Job`: for each instruction the addresses that it
reads and writes and ALL the instructions that must be finished before it. An illegal list raises
`LawBroken`. The code is written anew from the text and imports nothing of `../sched/ledger.py`, so
that a mistake there shows here. The bytes lie in arenas that grow: an arena never refuses, and soon
reuses a freed block, which the `random.Random` picks. In a list that frees a byte too early,
another variable therefore soon occupies that address. It is quadratic and meant for lists of a few
hundred instructions. Read next: `interpreter.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from ooctrain.errors import OoctrainError
from ooctrain.sched.schedule import End, Fence, Free, Run, Schedule, SwapIn, SwapOut
from ooctrain.step.trace import Call, Trace


@dataclass(slots=True)
class ListedByte:
    """A byte of a variable on the device or in a host slot."""

    address: int
    holder: int
    writer: int | None
    readers: set[int] = field(default_factory=set)

    def users(self) -> set[int]:
        """Steps that have written or read it."""
        return self.readers if self.writer is None else self.readers | {self.writer}


class GrowingArena:
    """Blocks of an arena that grows when it must; a freed block is given out again soon."""

    def __init__(self, rng: random.Random, block_bytes: int):
        self.rng, self.block_bytes, self.blocks = rng, block_bytes, 0
        self.free: list[int] = []

    def take(self, count: int) -> list[int]:
        """The addresses of all blocks."""
        taken = []
        for _ in range(count):
            if not self.free:
                self.free.append(self.blocks)
                self.blocks += 1
            last = len(self.free) - 1
            taken.append(
                self.free.pop(last if self.rng.random() < 0.5 else self.rng.randint(0, last))
            )
        return [block * self.block_bytes + i for block in taken for i in range(self.block_bytes)]

    def give(self, addresses: Iterable[int]) -> None:
        """Gives the blocks of these addresses back."""
        self.free += sorted({address // self.block_bytes for address in addresses})


class LawBroken(OoctrainError):
    """A list is illegal, or two instructions that may overlap touch the same bytes.

    Attributes:
        index: position of the instruction; None where it is the list as a whole, or its start.
    """

    default_code = "OOC-290"

    def __init__(self, what: str, *, index: int | None = None, **details: str):
        super().__init__(what, **details)
        self.index = index


@dataclass(slots=True)
class RunnerStep:
    """An instruction as the runner sees it: addresses, and what must be finished before it."""

    index: int
    stream: str
    after: set[int]
    claims: list[int] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    writes: list[list[int]] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    host_reads: list[int] = field(default_factory=list)
    host_writes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Release:
    """Bytes of the device, or of the host, that are given back when some steps are finished."""

    after: set[int]
    addresses: list[int]
    host: bool = False


@dataclass(slots=True)
class Job:
    """The list with addresses: what `_Lister` works out and `interpreter.py` carries out.

    Args:
        trace, schedule: what is carried out.
        steps: {position in the list: step}, without those that only give back.
        releases: in list order.
        start_device, end_device: {(variable, byte of it): address} before and after the list.
        start_host, end_host: the same on the host, by the variable whose value is there.
        captures: {output: (position of the call that computes it, addresses)}.
        arena_bytes, host_arena_bytes: how many addresses were given out.
    """

    trace: Trace
    schedule: Schedule
    steps: dict[int, RunnerStep]
    releases: list[Release]
    start_device: dict[tuple[int, int], int]
    start_host: dict[tuple[int, int], int]
    end_device: dict[tuple[int, int], int]
    end_host: dict[tuple[int, int], int]
    captures: dict[str, tuple[int, list[int]]]
    arena_bytes: int
    host_arena_bytes: int


def lay_out(trace: Trace, schedule: Schedule, rng: random.Random) -> Job:
    """Goes through the list once, in order, and gives out addresses at issue.

    Args:
        rng: chooses among the free addresses; whichever it picks must be safe.

    Raises:
        LawBroken: an illegal instruction, start or end.
    """
    return _Lister(trace, schedule, rng).listed()


class _Lister:
    """The pass over the list. `device` and `host` hold every byte that is there."""

    def __init__(self, trace: Trace, schedule: Schedule, rng: random.Random):
        self.trace, self.schedule, self.rng = trace, schedule, rng
        self.block = schedule.granule.size_bytes
        self.arena, self.host_arena = GrowingArena(rng, self.block), GrowingArena(rng, 1)
        self.device: dict[tuple[int, int], ListedByte] = {}
        #: addresses behind the end of a variable's last block
        self.padding: dict[int, list[int]] = {}
        self.host: dict[tuple[int, int], ListedByte] = {}
        self.steps: dict[int, RunnerStep] = {}
        self.releases: list[Release] = []
        self.barrier: set[int] = set()
        self.now: int | None = None  # position of the instruction that is being listed
        self.ran: list[int] = []
        self.open: tuple[int, list[int]] | None = None
        self.captures: dict[str, tuple[int, list[int]]] = {}
        self.host_uses = self._count_host_uses()
        self.host_leaving: list[tuple[str, int, list[tuple[int, int]]]] = []

    def listed(self) -> Job:
        self._start()
        start_device = {key: byte.address for key, byte in self.device.items()}
        start_host = {key: byte.address for key, byte in self.host.items()}
        for index, instruction in enumerate(self.schedule.instructions):
            self.now = index
            self._list(index, instruction)
        self.now = None
        self._end_run()
        self._check_end()
        return Job(
            self.trace, self.schedule, self.steps, self.releases, start_device, start_host,
            {key: byte.address for key, byte in self.device.items()},
            {(byte.holder, key[1]): byte.address for key, byte in self.host.items()},
            self.captures, self.arena.blocks * self.block, self.host_arena.blocks,
        )  # fmt: skip

    # ------------------------------------------------------------ start and end

    def _slot(self, variable: int) -> int:
        return self.trace.carries.get(variable, variable)

    def _start(self) -> None:
        for variable, lo, hi in self.schedule.start_device:
            self._claim(variable, lo, hi, None)
        for variable, lo, hi in self.schedule.start_host:
            for at, address in zip(range(lo, hi), self.host_arena.take(hi - lo), strict=True):
                self.host[variable, at] = ListedByte(address, variable, None)
        for variable in self.trace.initial:
            for at in range(self.trace.variables[variable].nbytes):
                self._require(
                    (variable, at) in self.device or (variable, at) in self.host, "start", variable
                )

    def _check_end(self) -> None:
        self._require(
            sorted(set(self.ran)) == list(range(len(self.trace.calls))), "a call never runs"
        )
        wanted = set()
        for variable, lo, hi in self.schedule.start_device:
            if variable in self.trace.end_variables:
                wanted |= {(self.trace.end_variables[variable], at) for at in range(lo, hi)}
        self._require(wanted == set(self.device), "end differs from start on the device")
        for variable, lo, hi in self.schedule.start_host:
            end = self.trace.end_variables.get(variable, variable)
            for at in range(lo, hi):
                self._require(
                    self.host[variable, at].holder == end, "stale host copy at the end", end
                )

    def _count_host_uses(self) -> dict[tuple[int, int], int]:
        """For each byte of a slot the last copy that touches it; what the start needs has none."""
        last: dict[tuple[int, int], int] = {}
        for index, item in enumerate(self.schedule.instructions):
            if isinstance(item, SwapOut | SwapIn):
                last.update(((self._slot(item.var), at), index) for at in range(item.lo, item.hi))
        for variable, lo, hi in self.schedule.start_host:
            for at in range(lo, hi):
                last.pop((variable, at), None)
        return last

    def _require(self, truth: bool, what: str, variable: int | None = None) -> None:
        if not truth:
            name = "" if variable is None else self.trace.variables[variable].name
            raise LawBroken(f"illegal list: {what}", index=self.now, where=name)

    # ------------------------------------------------------------ one instruction

    def _list(self, index: int, item: object) -> None:
        match item:
            case Run(call, keep):
                self._end_run()
                self._list_run(index, self.trace.calls[call], keep)
            case End(call):
                self._require(self.open is not None and self.ran[-1] == call, "End without its Run")
                self._end_run()
            case SwapOut(variable, lo, hi):
                self._list_swap_out(index, variable, lo, hi)
            case SwapIn(variable, lo, hi):
                self._list_swap_in(index, variable, lo, hi)
            case Free(variable, lo, hi):
                self._list_free(variable, lo, hi)
            case Fence():
                self.barrier = set(self.steps)
                self._release_host(self.barrier)

    def _list_run(self, index: int, call: Call, keep: tuple[int, ...] | None) -> None:
        self._require(call.id <= max(self.ran, default=-1) + 1, "first runs out of trace order")
        self._require(call.pure or call.id not in self.ran, "an impure call runs twice")
        kept = call.outs if keep is None else keep
        self._require(set(kept) <= set(call.outs), "keep is not an output")
        step = RunnerStep(index, "C", set(self.barrier))
        for variable in dict.fromkeys(call.ins):
            for byte in self._bytes(variable):
                step.after |= {byte.writer} if byte.writer is not None else set()
                byte.readers.add(index)
        step.reads = [[byte.address for byte in self._bytes(v)] for v in call.ins]
        for out in kept:
            held = any((out, at) in self.device for at in range(self.trace.variables[out].nbytes))
            self._require(not held, "an output is resident already", out)
        released_at_end = self._give_places(step, call, kept)
        step.scratch = self.arena.take(self._blocks(call.workspace_bytes))
        step.claims += step.scratch
        if step.claims:
            step.after |= self._all_releases(host=False)
        self._release_host(step.after)
        self.steps[index] = step
        self.ran.append(call.id)
        self.open = (index, released_at_end + step.scratch)
        for name, variable in self.trace.outputs.items():
            if variable in call.touched() and (variable, 0) in self.device:
                self.captures[name] = (index, [byte.address for byte in self._bytes(variable)])

    def _give_places(self, step: RunnerStep, call: Call, kept: tuple[int, ...]) -> list[int]:
        """Where each output is written; returns the addresses that End gives back."""
        scratch: list[int] = []
        for out in call.outs:
            size = self.trace.variables[out].nbytes
            if out in call.reuse:
                source = call.reuse[out]
                places = self._bytes(source)
                for byte in places:
                    step.after |= byte.users() - {step.index}
                addresses = [byte.address for byte in places] + self.padding.pop(source, [])
                for at in range(size):
                    del self.device[source, at]
            else:
                addresses = self.arena.take(self._blocks(size))
                step.claims += addresses
            step.writes.append(addresses[:size])
            if out in kept:
                self._enter(out, 0, addresses, step.index)
            else:
                scratch += addresses
        return scratch

    def _end_run(self) -> None:
        if self.open is not None:
            index, addresses = self.open
            self._release({index} | self.barrier, addresses)
            self.open = None

    def _list_swap_out(self, index: int, variable: int, lo: int, hi: int) -> None:
        step = RunnerStep(index, "D", set(self.barrier))
        for at in range(lo, hi):
            self._require(
                (variable, at) in self.device, "SwapOut of what is not resident", variable
            )
            byte = self.device[variable, at]
            step.after |= {byte.writer} if byte.writer is not None else set()
            byte.readers.add(index)
            step.reads.append([byte.address])
        keys = [(self._slot(variable), at) for at in range(lo, hi)]
        for key in keys:
            step.after |= self.host[key].users() if key in self.host else set()
        self._release_host(step.after, "D")
        for key in keys:
            if key in self.host:
                self.host[key] = ListedByte(self.host[key].address, variable, index)
            else:
                self.host[key] = ListedByte(self.host_arena.take(1)[0], variable, index)
                step.after |= self._all_releases(host=True)
            step.host_writes.append(self.host[key].address)
        self.steps[index] = step
        self._leave_host(step, keys)

    def _list_swap_in(self, index: int, variable: int, lo: int, hi: int) -> None:
        step = RunnerStep(index, "H", self.barrier | self._all_releases(host=False))
        for at in range(lo, hi):
            self._require((variable, at) not in self.device, "SwapIn of what is resident", variable)
            copy = self.host.get((self._slot(variable), at))
            if copy is None or copy.holder != variable:
                raise LawBroken("illegal list: SwapIn without a host copy", index=index)
            step.after |= {copy.writer} if copy.writer is not None else set()
            copy.readers.add(index)
            step.host_reads.append(copy.address)
        step.claims = self._claim(variable, lo, hi, index)
        step.writes = [step.claims[: hi - lo]]
        self._release_host(step.after, "H")
        self.steps[index] = step
        self._leave_host(step, [(self._slot(variable), at) for at in range(lo, hi)])

    def _list_free(self, variable: int, lo: int, hi: int) -> None:
        after, addresses = set(self.barrier), []
        for at in range(lo, hi):
            self._require((variable, at) in self.device, "Free of what is not resident", variable)
            byte = self.device.pop((variable, at))
            after |= byte.users()
            addresses.append(byte.address)
        if hi == self.trace.variables[variable].nbytes:
            addresses += self.padding.pop(variable, [])
        self._release_host(after)
        self._release(after, addresses)

    # ------------------------------------------------------------ bytes

    def _blocks(self, size_bytes: int) -> int:
        return -(-size_bytes // self.block)

    def _bytes(self, variable: int) -> list[ListedByte]:
        for at in range(self.trace.variables[variable].nbytes):
            self._require(
                (variable, at) in self.device, "a call reads what is not resident", variable
            )
        return [self.device[variable, at] for at in range(self.trace.variables[variable].nbytes)]

    def _claim(self, variable: int, lo: int, hi: int, writer: int | None) -> list[int]:
        addresses = self.arena.take(self._blocks(hi - lo))
        self._enter(variable, lo, addresses, writer, hi)
        return addresses

    def _enter(
        self,
        variable: int,
        lo: int,
        addresses: list[int],
        writer: int | None,
        hi: int | None = None,
    ) -> None:
        hi = self.trace.variables[variable].nbytes if hi is None else hi
        for at, address in zip(range(lo, hi), addresses, strict=False):
            self.device[variable, at] = ListedByte(address, variable, writer)
        if hi - lo < len(addresses):
            self.padding[variable] = addresses[hi - lo :]

    def _all_releases(self, *, host: bool) -> set[int]:
        return set().union(*(r.after for r in self.releases if r.host == host))

    def _release(self, after: set[int], addresses: list[int]) -> None:
        self.releases.append(Release(after, addresses))
        self.arena.give(addresses)

    def _leave_host(self, step: RunnerStep, keys: list[tuple[int, int]]) -> None:
        """Notes the host bytes that this copy is the last to touch."""
        last = [key for key in keys if self.host_uses.get(key) == step.index]
        self.host_leaving.append((step.stream, step.index, last))

    def _release_host(self, after: set[int], stream: str = "") -> None:
        """Releases host bytes whose last copy is done when something listed now starts.

        That is: it stands behind that copy on the copy's stream, or waits for the copy or for
        something behind it there.
        """
        latest = {s: max((i for i in after if self.steps[i].stream == s), default=-1) for s in "DH"}
        staying = []
        for lane, index, keys in self.host_leaving:
            if lane != stream and latest[lane] < index:
                staying.append((lane, index, keys))
                continue
            for key in keys:
                byte = self.host.pop(key)
                self.releases.append(Release(byte.users() | {index}, [byte.address], host=True))
                self.host_arena.give([byte.address])
        self.host_leaving = staying
