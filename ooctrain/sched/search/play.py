"""The engine of `sched/planning/lower.py`, compiled, for the makespan alone.

From an `ExpandedStep`, the bytes of its gaps that are on the host, and limits, it computes the
makespan in ns, or -1 if the step gets stuck. The events and their order are those of that engine,
on arrays, with what copies do to calls and what issuing takes; only host slots that two values
share are left out (a parameter and its update, a value copied out in two lives). The list that
counts is always the one that `lower` writes. Read next: `anneal.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooctrain.sched.search.jit import compiled, inner
from ooctrain.step.machine import Machine

NEVER = 1 << 62
#: Runs whose room is compared at a time.
TOGETHER = 64


class Link(NamedTuple):
    """How bytes travel.

    Args:
        shared: whether both directions share it.
        latency_ns: latency of each transfer.
        out_rate, in_rate: bytes per us.
        pass_ns, work_ns: while a copy runs for `pass_ns`, a call does `work_ns` of its work.
        issue_ns, copy_issue_ns: time that an instruction, and also a copy, adds to the next call.
    """

    shared: bool
    latency_ns: int
    out_rate: float
    in_rate: float
    pass_ns: int = 1
    work_ns: int = 1
    issue_ns: int = 0
    copy_issue_ns: int = 0


def link_of(machine: Machine) -> Link:
    """The link of a machine, and what copies do to its calls."""
    return Link(
        machine.link == "shared", round(machine.latency_us * 1000),
        float(machine.out_bytes_per_us), float(machine.in_bytes_per_us),
        *machine.slowdown.as_integer_ratio(),
        round(machine.issue_us * 1000), round(machine.copy_issue_us * 1000),
    )  # fmt: skip


class SearchLimits(NamedTuple):
    """Limits that every choice keeps.

    Args:
        chunk_bytes: largest transfer; 0: whole values.
        host_bytes: for copies on the host; below 0: enough for all.
        grain_bytes: granule of the allocator.
    """

    budget_bytes: int
    chunk_bytes: int
    link: Link
    host_bytes: int = -1
    grain_bytes: int = 1


@inner
def fits(room, size, first, before):
    """The first run of [first, before) during which `size` bytes do not fit; -1: they always fit,
    and are taken from the room.
    """
    begin = first
    while begin < before:
        # A loop that never ends early compares several numbers at a time.
        end, short = min(begin + TOGETHER, before), False
        for run in range(begin, end):
            short |= room[run] < size
        if short:
            for run in range(begin, end):
                if room[run] < size:
                    return run
        begin = end
    for run in range(first, before):
        room[run] -= size
    return -1


@inner
def way_ns(link, size, rate):
    """How long `size` bytes travel at `rate` bytes per us."""
    return link.latency_ns + np.int64(np.ceil(size * 1000 / rate))


@compiled
def host_margin(step, pieces, limits):
    """Bytes that all copies together leave on the host, from the start of run s - 1 to that of run
    s; empty: they all fit, or they never do.
    """
    count = pieces.size.size if limits.host_bytes >= 0 else 0
    room = np.full(step.runs.size + 1 if count else 0, limits.host_bytes, np.int64)
    last = pieces.before.copy()
    for piece in range(count):
        last[pieces.copy[piece]] = max(last[pieces.copy[piece]], pieces.before[piece])
    for piece in range(count):
        if pieces.copy[piece] == piece and pieces.after[piece] >= 0:
            for slot in range(pieces.after[piece] + 1, last[piece] + 1):
                room[slot] -= pieces.size[piece]
    for slot in range(room.size):
        if room[slot] < 0:
            return room[:0]
    return room


@inner
def device_margin(step, pieces, budget_bytes):
    """For each run, the budget less all that must or will be there by then."""
    runs = step.runs.size
    room = budget_bytes - step.resident
    change = np.zeros(runs + 1, np.int64)  # of what is away, from one run to the next
    for piece in range(pieces.size.size):
        if pieces.after[piece] + 1 < pieces.before[piece]:
            change[pieces.after[piece] + 1] += pieces.size[piece]
            change[pieces.before[piece]] -= pieces.size[piece]
    away = 0
    for run in range(runs):
        away += change[run]
        room[run] += away
    return room


@inner
def next_to_leave(pieces, outgoing, ended, first, copied, stays, on_host):
    """The place in `outgoing` of the piece that may leave; -1: none. Where the host cannot hold
    the first one from run `first` on, another may go before: one that is written.
    """
    for place in range(outgoing.size):
        piece = outgoing[place]
        if pieces.written[piece] > ended:
            return -1
        if stays[piece] or copied[pieces.copy[piece]]:
            continue
        if fits(on_host, pieces.size[piece], first, pieces.after[piece] + 1) < 0:
            return place
    return -1


@compiled
def play(t, step, evicted, limits):
    """Makespan in ns; -1 if the step gets stuck. Cost: O(events + prefetches x runs ahead).

    One function, for Numba counts references to each array that it hands to another.
    """
    budget_bytes, link = limits.budget_bytes, limits.link
    runs = step.runs.size
    pieces = cut(step, evicted, limits.chunk_bytes)
    count = pieces.size.size
    room = device_margin(step, pieces, budget_bytes)
    on_host = host_margin(step, pieces, limits)
    awaited = np.zeros(runs + 1, np.int64)
    for piece in range(count):
        awaited[pieces.before[piece]] += 1
    releasing = by_run(pieces.after, runs)
    outgoing = releasing[by_run(pieces.written[releasing], runs)]
    is_out, copied = pieces.after < 0, pieces.after < 0  # copied: of those that are copies
    stays = np.zeros(count, np.bool_)
    issue, copy_issue = link.issue_ns, link.issue_ns + link.copy_issue_ns
    unpaid = 0  # of what has been listed since the last run
    now, position, ended, held = 0, 0, -1, step.start
    next_out = next_in = next_release = 0
    going = coming = -1
    blocked = -1  # the run during which the next piece does not fit; room never grows
    run_left = out_ends = in_ends = NEVER
    while next_release < count and pieces.after[releasing[next_release]] < 0:
        next_release += 1
    while True:
        # All that can start now starts: a run before copies, copies out before copies in, unless on
        # a shared link the next run waits for data.
        moved = True
        while moved:
            moved = False
            idle = run_left == NEVER
            first = position if idle else position + 1
            starved = idle and position < runs and awaited[position] > 0
            may_run = idle and position < runs and not starved
            if may_run and held + step.claim[position] <= budget_bytes:
                held += step.claim[position]
                run_left = t.duration_ns[step.runs[position]] + unpaid + issue
                unpaid = 0
                moved = True
                continue
            for turn in range(2):
                if (turn == 0) != (link.shared and starved):
                    while next_out < count and (
                        stays[outgoing[next_out]] or copied[pieces.copy[outgoing[next_out]]]
                    ):
                        next_out += 1
                    if going >= 0 or (link.shared and coming >= 0) or next_out == count:
                        continue
                    place = next_out
                    if on_host.size:
                        place += next_to_leave(
                            pieces, outgoing[next_out:], ended, first, copied, stays, on_host
                        )
                    if place < next_out or pieces.written[outgoing[place]] > ended:
                        continue
                    going = outgoing[place]
                    copied[pieces.copy[going]] = True
                    out_ends = now + way_ns(link, pieces.size[going], link.out_rate)
                    unpaid += copy_issue
                elif next_in < count:
                    piece, size = next_in, pieces.size[next_in]
                    free_link = coming < 0 and not (link.shared and going >= 0)
                    if is_out[piece]:
                        may_settle = free_link and held + size <= budget_bytes
                    else:
                        due = idle and pieces.before[piece] == position
                        gone = pieces.after[piece] > ended or copied[pieces.copy[piece]]
                        may_settle = (due or free_link) and not gone
                    if not may_settle or blocked >= first:
                        continue
                    blocked = fits(room, size, first, pieces.before[piece])
                    if blocked >= 0:
                        continue
                    next_in += 1
                    if is_out[piece]:
                        held += size
                        coming = piece
                        in_ends = now + way_ns(link, size, link.in_rate)
                        unpaid += copy_issue
                    else:
                        stays[piece] = True
                        awaited[pieces.before[piece]] -= 1
                else:
                    continue
                moved = True
                break
        # The clock goes to the next end of something. While `pass_ns` go by, a run does `work_ns`.
        copying = going >= 0 or coming >= 0
        pass_ns, work_ns = (link.pass_ns, link.work_ns) if copying else (1, 1)
        run_ends = NEVER
        if run_left != NEVER:
            run_ends = now - (-run_left * pass_ns // work_ns)
        nearest = min(run_ends, out_ends, in_ends)
        if nearest == NEVER:
            break
        if run_left != NEVER:
            run_left -= (nearest - now) * work_ns // pass_ns
        now = nearest
        if out_ends == now:
            if pieces.after[going] <= ended:
                is_out[going] = True
                unpaid += issue
                held -= pieces.size[going]
            going, out_ends = -1, NEVER
        if in_ends == now:
            awaited[pieces.before[coming]] -= 1
            coming, in_ends = -1, NEVER
        if run_ends == now:
            run_left, ended = NEVER, position
            position += 1
            held -= step.end[ended] + step.dead[ended]
            unpaid += issue * (1 + step.deaths[ended])
            while next_release < count and pieces.after[releasing[next_release]] == ended:
                piece = releasing[next_release]
                next_release += 1
                copy = pieces.copy[piece]
                if copied[copy] and (going < 0 or pieces.copy[going] != copy):
                    is_out[piece] = True
                    unpaid += issue
                    held -= pieces.size[piece]
    return now if position == runs else -1


# What travels: the gaps of a step and the bytes of each that are on the host, cut into pieces, in
# the order of their next use. The readable twin is `sched/planning/lower.py`.


class Pieces(NamedTuple):
    """What travels, in the order of the next use.

    Args:
        size: bytes.
        written: the run that writes them; -1: they are there before the step.
        after, before: the runs around the gap; after = -1: they are on the host before the step.
        copy: the first piece that brings these bytes to the host: later ones need not.
    """

    size: np.ndarray
    written: np.ndarray
    after: np.ndarray
    before: np.ndarray
    copy: np.ndarray


@compiled
def cut(step, evicted, chunk_bytes):
    """The pieces of at most `chunk_bytes` (0: whole gaps) that the gaps of a step move. An input
    comes in whole, but for what leaves again in pieces.
    """
    gaps = evicted.size
    in_pieces = np.zeros(step.life_first.size, np.int64)  # of each life, what is cut at all
    for gap in range(gaps):
        life = step.gap_life[gap]
        if step.gap_after[gap] >= 0:
            in_pieces[life] = max(in_pieces[life], evicted[gap])
    count = 0
    for gap in range(gaps):
        parts = min(evicted[gap], in_pieces[step.gap_life[gap]]) if chunk_bytes else 0
        count += (-(-parts // chunk_bytes) if parts else 0) + (evicted[gap] > parts)
    size = np.empty(count, np.int64)
    written = np.empty(count, np.int64)
    after = np.empty(count, np.int64)
    before = np.empty(count, np.int64)
    copy = np.empty(count, np.int64)
    hosted = np.zeros(step.life_first.size, np.int64)  # bytes [0, hosted) left in an earlier gap,
    first = np.zeros(step.life_first.size, np.int64)  # from this piece on
    piece = 0
    for gap in range(gaps):
        life = step.gap_life[gap]
        begins = piece
        parts = min(evicted[gap], in_pieces[life]) if chunk_bytes else 0
        lo = 0
        while lo < evicted[gap]:
            hi = min(parts, lo + chunk_bytes) if lo < parts else evicted[gap]
            size[piece] = hi - lo
            written[piece] = step.life_first[life]
            after[piece] = step.gap_after[gap]
            before[piece] = step.gap_before[gap]
            known = hi <= hosted[life]
            before_it = first[life] + (lo // chunk_bytes if chunk_bytes else 0)
            copy[piece] = copy[before_it] if known else piece
            piece += 1
            lo = hi
        if evicted[gap] > hosted[life]:
            hosted[life] = evicted[gap]
            first[life] = begins
    return Pieces(size, written, after, before, copy)


# A counting sort by run, and a heap of numbers, the largest first. Runs are numbers below a known
# bound, so sorting by them takes no comparisons. Source: Knuth, The Art of Computer Programming,
# volume 3.


@inner
def by_run(position, runs):
    """An order in which `position`, numbers in [-1, runs), ascends; equals keep theirs."""
    begins = np.zeros(runs + 2, np.int64)
    for place in range(position.size):
        begins[position[place] + 2] += 1
    for run in range(1, runs + 2):
        begins[run] += begins[run - 1]
    order = np.empty(position.size, np.int64)
    for place in range(position.size):
        run = position[place] + 1
        order[begins[run]] = place
        begins[run] += 1
    return order


@inner
def push(heap, size, number):
    """Puts a number on a heap of `size` numbers, the largest first."""
    place = size
    while place and heap[(place - 1) // 2] < number:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = number


@inner
def pop(heap, size):
    """Takes the largest number from a heap of `size` numbers."""
    number = heap[size - 1]
    place = 0
    while 2 * place + 1 < size - 1:
        child = 2 * place + 1
        if child + 1 < size - 1 and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= number:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = number
