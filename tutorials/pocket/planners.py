"""planners: which values leave the device, which are computed again, and when.

A planner writes a list that stays within a budget. Here are three, each of them one idea. `naive`
sends everything away after each call, and waits. `belady` lets a value leave only where memory is
short, namely the one whose next use is farthest away. `recompute` drops what lies inside a segment
of the network, and runs the segment again on the way back. The last two decide two things: which
calls run, some of them twice, and in which gaps between two uses a value is away. `write_list`
turns this into a list whose copies run beside the calls. None of them looks at a clock.

Grown-up rooms: `ooctrain/sched/planners` has a file for each published method; what they share is
in `ooctrain/sched/planning`, what no list can beat in `ooctrain/sched/bounds`. They also move parts
of values, weigh times, mix swapping with recomputing, and keep to a host budget. Read next:
allocators.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from steplist import Free, Instruction, Run, SwapIn, SwapOut
from tape import Call, Step

# The words in which planners think. `runs` are the calls as they run, some of them twice; a place
# is a position in that row.

START = -1  # the place of what is there before the first call


@dataclass(frozen=True)
class Gap:
    """A value may be away after one use and before the next."""

    value: str
    after: int
    before: int


def lives(step: Step, runs: Sequence[Call]) -> list[tuple[str, list[int]]]:
    """(value, places of its uses). A value that is computed twice has two lives.

    A life begins where the value is written, or at START, and ends with the last use. Parameters
    are used by the next step as well, behind the last place.
    """
    uses = {value: [START] for value in (*step.on_device, *step.on_host)}
    over = []
    for place, call in enumerate(runs):
        for value in dict.fromkeys(call.reads):
            uses[value].append(place)
        if call.name in uses:
            over.append((call.name, uses[call.name]))
        uses[call.name] = [place]
    for value in step.lasting.values():
        uses[value].append(len(runs))
    return over + list(uses.items())


def gaps_of(step: Step, runs: Sequence[Call]) -> tuple[list[Gap], list[Gap]]:
    """(the gaps before the first use of inputs, which start on the host; all other gaps)."""
    of_inputs, others = [], []
    for value, uses in lives(step, runs):
        for after, before in pairwise(uses):
            if after == START and value in step.on_host:
                of_inputs.append(Gap(value, after, before))
            elif after != START and before - after > 1:
                others.append(Gap(value, after, before))
    return of_inputs, others


def needed(step: Step, runs: Sequence[Call], away: Sequence[Gap]) -> list[int]:
    """For each place the bytes on the device, if values are away in the gaps `away`."""
    held = [0] * len(runs)
    for value, uses in lives(step, runs):
        for place in range(max(uses[0], 0), min(uses[-1] + 1, len(runs))):
            held[place] += step.size[value]
    for gap in away:
        for place in range(gap.after + 1, gap.before):
            held[place] -= step.size[gap.value]
    return held


# The planners.


def keep_all(step: Step) -> list[Instruction]:
    """In-core: nothing leaves, and each value is freed after its last use."""
    of_inputs, _ = gaps_of(step, step.calls)
    return write_list(step, step.calls, of_inputs, budget=sum(step.size.values()))


def naive(step: Step) -> list[Instruction]:
    """In, run, out, free. Only parameters stay.

    No list needs less memory: what a call reads and writes must be on the device together.
    """
    last_use = {value: uses[-1] for value, uses in lives(step, step.calls)}
    stays = {*step.on_device, *step.lasting.values()}
    device, host = set(step.on_device), set(step.on_host)
    instructions = []
    for place, call in enumerate(step.calls):
        reads = list(dict.fromkeys(call.reads))
        instructions += [SwapIn(value) for value in reads if value not in device]
        instructions.append(Run(call.name))
        device.update([*reads, call.name])
        for value in [*reads, call.name]:
            dead = last_use[value] == place
            if value in stays and not dead:
                continue
            if value not in host and not dead:
                instructions.append(SwapOut(value))
                host.add(value)
            instructions.append(Free(value))
            device.remove(value)
    return instructions


def belady(step: Step, budget: int, runs: Sequence[Call] = ()) -> list[Instruction]:
    """Where memory is short, the value leaves whose next use is farthest away (Belady, 1966).

    Memory is a cache whose future is known.

    Args:
        runs: for example those of `segmented`; if there are none, each call runs once.
    """
    runs = runs or step.calls
    away, others = gaps_of(step, runs)
    for place, call in enumerate(runs):
        while needed(step, runs, away)[place] > budget:
            possible = [gap for gap in others if gap.after < place < gap.before]
            if not possible:
                raise MemoryError(f"{call.name} needs more than {budget} bytes")
            farthest = max(possible, key=lambda gap: gap.before)
            others.remove(farthest)
            away.append(farthest)
    return write_list(step, runs, away, budget)


def recompute(step: Step, budget: int) -> list[Instruction]:
    """Keep what crosses the borders of segments, compute the rest again (Chen and others, 2016).

    Many segments have many borders to keep; few segments are long, and a long one needs much memory
    when it runs again. Of all numbers of segments that fit, the quickest is taken.
    """
    counts = sorted({math.ceil(step.turn / length) for length in range(1, step.turn + 1)})
    ways = [step.calls, *(segmented(step, count) for count in counts)]
    for runs in sorted(ways, key=lambda runs: sum(call.time_ns for call in runs)):
        of_inputs, _ = gaps_of(step, runs)
        if max(needed(step, runs, of_inputs)) <= budget:
            return write_list(step, runs, of_inputs, budget)
    raise MemoryError(f"no number of segments fits into {budget} bytes")


def segmented(step: Step, count: int) -> list[Call]:
    """The calls as they run if the forward pass is cut into `count` segments.

    The last segment is kept as a whole, since its way back comes next.
    """
    borders = [round(number * step.turn / count) for number in range(count + 1)]
    segments = [step.calls[first:after] for first, after in pairwise(borders)]
    home = {call.name: number for number, calls in enumerate(segments) for call in calls}
    kept = {*step.on_device, *step.on_host, *(call.name for call in segments[-1])}
    for number, calls in enumerate(segments):
        kept.update(value for call in calls for value in call.reads if home.get(value) != number)
    runs = list(step.calls[: step.turn])
    for call in step.calls[step.turn :]:
        for value in call.reads:
            if value not in kept:
                again = [other for other in segments[home[value]] if other.name not in kept]
                runs += again
                kept.update(other.name for other in again)
        runs.append(call)
        kept.add(call.name)
    return runs


# From decisions to a list.


def write_list(
    step: Step, runs: Sequence[Call], away: Sequence[Gap], budget: int
) -> list[Instruction]:
    """The list of some decisions: each copy has as much time as the budget allows.

    A value is copied out as soon as it is written, freed as late as possible, and fetched as early
    as possible. So every gap shrinks, from its end and from its beginning, while there is room.
    """
    held = needed(step, runs, away)
    outs, frees, ins = ([[] for _ in range(len(runs) + 1)] for _ in range(3))  # before each place
    written = {}
    for value, uses in lives(step, runs):
        written |= {(value, use): uses[0] for use in uses}
        if uses[-1] < len(runs):
            frees[uses[-1] + 1].append(Free(value))
    on_host = set(step.on_host)
    for gap in sorted(away, key=lambda gap: gap.before):
        value, size = gap.value, step.size[gap.value]
        leaves, comes = gap.after + 1, gap.before
        while leaves < comes and held[comes - 1] + size <= budget:
            comes -= 1
            held[comes] += size
        if gap.after != START:
            while leaves < comes and held[leaves] + size <= budget:
                held[leaves] += size
                leaves += 1
            if leaves == comes:
                continue  # there is room for it all the time
            if value not in on_host:
                outs[written[value, gap.after] + 1].append(SwapOut(value))
                on_host.add(value)
            frees[leaves].append(Free(value))
        ins[comes].append(SwapIn(value))
    instructions = []
    for place, call in enumerate(runs):
        instructions += [*outs[place], *frees[place], *ins[place], Run(call.name)]
    return instructions + frees[-1]
