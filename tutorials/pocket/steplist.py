"""steplist: a step out-of-core is a list of four kinds of lines, and this is what they mean.

`Run` computes a value, `SwapOut` copies one to the host, `SwapIn` copies it back, and `Free` gives
its memory back. Three streams work at once, each in the order of the list: one computes, one copies
out, one copies in. Three questions about a list have short answers: how much memory does it take
(`ledger`), is it right (`verify`), how long does it take (`simulate`)? The first two look at the
order alone. That is sound because of one rule of the third: whatever claims memory waits for every
`Free` listed before it. So the device never holds more than the ledger says, however long each line
takes.

Grown-up room: `ooctrain/sched`. It also moves parts of values, counts host memory and scratch, lets
a call write in place of what it reads, has a page for each rule, and draws the list. Read next:
planners.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tape import Step

COMPUTE, OUT, IN = "compute", "out", "in"


@dataclass(frozen=True)
class Run:
    """Computes a value from those that its call reads, on stream COMPUTE."""

    value: str


@dataclass(frozen=True)
class SwapOut:
    """Copies a value to the host, on stream OUT; it stays on the device until it is freed."""

    value: str


@dataclass(frozen=True)
class SwapIn:
    """Copies a value from the host to the device, on stream IN."""

    value: str


@dataclass(frozen=True)
class Free:
    """Gives the memory of a value back once everything listed before is done with it."""

    value: str


Instruction = Run | SwapOut | SwapIn | Free


def ledger(step: Step, instructions: Sequence[Instruction]) -> list[int]:
    """Bytes on the device: before the first instruction, and after each."""
    held = [sum(step.size[value] for value in step.on_device)]
    for instruction in instructions:
        match instruction:
            case Run(value) | SwapIn(value):
                held.append(held[-1] + step.size[value])
            case Free(value):
                held.append(held[-1] - step.size[value])
            case SwapOut():
                held.append(held[-1])
    return held


def verify(step: Step, instructions: Sequence[Instruction], budget: int) -> None:
    """Proves that a list computes the step within a budget, no matter who wrote the list.

    It walks the list once, and knows only what is where.
    """
    reads = {call.name: call.reads for call in step.calls}
    device, host = set(step.on_device), set(step.on_host)
    ran = []
    for index, instruction in enumerate(instructions):
        value, where = instruction.value, f"line {index}, {instruction}"
        on_device = value in device
        match instruction:
            case Run():
                absent = set(reads[value]) - device
                assert not absent, f"{where}: {', '.join(absent)} not on the device"
                assert not on_device, f"{where}: already on the device"
                device.add(value)
                if value not in ran:
                    ran.append(value)
            case SwapOut():
                assert on_device, f"{where}: not on the device"
                host.add(value)
            case SwapIn():
                assert value in host, f"{where}: not on the host"
                assert not on_device, f"{where}: already on the device"
                device.add(value)
            case Free():
                assert on_device, f"{where}: not on the device"
                device.remove(value)
    assert ran == list(reads), "a call does not run, or two run in the wrong order"
    assert device == set(step.lasting.values()), "the next step would not find what it needs"
    peak = max(ledger(step, instructions))
    assert peak <= budget, f"{peak} bytes in a budget of {budget}"


@dataclass(frozen=True)
class Span:
    """When a line is at work, in ns, and on which stream; a `Free` is a moment, on none."""

    stream: str
    start: int
    end: int


def copy_ns(size: int, link: int) -> int:
    """How long a copy takes over a link with `link` bytes per microsecond, rounded up."""
    return -(-size * 1000 // link)


def simulate(step: Step, instructions: Sequence[Instruction], link: int) -> list[Span]:
    """The span of each instruction.

    A line starts as soon as its stream is idle and everything that it waits for is done. A `Run`
    waits for the values that it reads, a `SwapOut` for its value, a `SwapIn` for the copy on the
    host; and what claims memory, `Run` and `SwapIn`, for every `Free` listed before it.
    """
    calls = {call.name: call for call in step.calls}
    idle_at = {COMPUTE: 0, OUT: 0, IN: 0}
    there_at = dict.fromkeys(step.on_device, 0)  # {value: when it is on the device}
    on_host_at = dict.fromkeys(step.on_host, 0)
    unused_at = dict(there_at)  # {value: when everything listed so far is done with it}
    released_at = 0  # when everything freed so far is given back
    spans = []

    def work(stream: str, time_ns: int, *waits: int) -> int:
        start = max(idle_at[stream], *waits)
        idle_at[stream] = start + time_ns
        spans.append(Span(stream, start, start + time_ns))
        return start + time_ns

    for instruction in instructions:
        value = instruction.value
        match instruction:
            case Run():
                reads = calls[value].reads
                arrivals = [there_at[read] for read in reads]
                end = work(COMPUTE, calls[value].time_ns, released_at, *arrivals)
                there_at[value] = unused_at[value] = end
                for read in reads:
                    unused_at[read] = max(unused_at[read], end)
            case SwapOut():
                end = work(OUT, copy_ns(step.size[value], link), there_at[value])
                on_host_at[value] = end
                unused_at[value] = max(unused_at[value], end)
            case SwapIn():
                end = work(IN, copy_ns(step.size[value], link), released_at, on_host_at[value])
                there_at[value] = unused_at[value] = end
            case Free():
                released_at = max(released_at, unused_at[value])
                spans.append(Span("", unused_at[value], unused_at[value]))
    return spans


def makespan(spans: Sequence[Span]) -> int:
    """How long a step takes, in ns."""
    return max(span.end for span in spans)
