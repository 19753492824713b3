"""belady: the value that is needed last leaves first, only the missing bytes, in small pieces.

The planner walks the calls. Where memory is short, it takes the missing bytes from the values whose
next use is farthest away; the shared engine makes the plan from these gaps. Memory is a cache and
the future is known, so this is offline caching. The rule is optimal because values may leave in
fractions: a byte that is away longer relieves every call that a byte away for a shorter time would.
Small pieces let the first bytes of a large value make room (and come back) while its last ones are
still on their way.

Sources: Belady, A study of replacement algorithms (1966); paper 002, section 4, whose GREEDY is
this rule on a chain. Departures: any order of calls and any skips instead of a chain; bytes instead
of activations. Measured (docs/planners.md): within 0.5 % of the LP of offloading alone on seven of
eight networks, 1.3 % on U-Net. Read next: `greedy.py`, `sched/planning/lower.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ooctrain.sched.planning.decisions import Decisions, Gap, runs_once
from ooctrain.sched.planning.host_gaps import HostGaps, check_both_memories
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import check_whole_numbers, host_too_small, infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import Use
from ooctrain.sched.planning.swap import movable_gaps, piece_bytes
from ooctrain.sched.schedule import Granule, Plan, Run
from ooctrain.step.trace import Trace


@dataclass(frozen=True, slots=True)
class Belady:
    """Fractional Belady over gaps, lowered as soon as possible.

    Args:
        pieces: a copy moves at most this fraction of the budget (and at least what is worth its
            latency).

    Cost: O(gaps log gaps) to decide; lowering costs more.
    """

    name = "belady"

    pieces: int = 200

    def __post_init__(self) -> None:
        check_whole_numbers(self.name, {"pieces": self.pieces})

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is what the largest call needs with what never leaves. The
        host's room is counted only where the plan would need more than the host has.
        """
        step = max(question.budget_bytes // self.pieces, question.machine.worth_its_latency_bytes)
        notes = {"piece_bytes": step}
        roomy = replace(question, host_budget_bytes=None)
        decisions = self._decisions(roomy, step)
        host_bytes = question.host_budget_bytes
        if host_bytes is not None:
            check_both_memories(self.name, question)
        plan = plan_of(self.name, roomy, decisions, notes)
        if host_bytes is None or plan.host_peak_bytes <= host_bytes:
            return plan
        return plan_of(self.name, question, self._decisions(question, step), notes)

    def _decisions(self, question: Question, step_bytes: int) -> Decisions:
        return offload(self.name, question, runs_once(question.trace), step_bytes=step_bytes)


def offload(
    name: str, question: Question, runs: tuple[Run, ...], stays: Collection[Use] = (),
    step_bytes: int | None = None,
) -> Decisions:  # fmt: skip
    """The runs, and what Belady's rule sends to the host so that they fit.

    Args:
        stays: after these uses a variable leaves only when all others have left.
        step_bytes: how large the pieces of a gap are; None: `piece_bytes`.

    Raises:
        Infeasible: the runs do not fit though all that can goes to the host, or all that the host
            has room for.

    Cost: O(runs + gaps log gaps).
    """
    budget_bytes, granule = question.budget_bytes, question.granule
    liveness, gaps = question.liveness, movable_gaps(question.trace, runs)
    least, witness = liveness.least_budget(runs, gaps)
    if least > budget_bytes:
        raise infeasible(name, budget_bytes, least, witness)
    if step_bytes is None:
        step_bytes = piece_bytes(budget_bytes, question.machine)
    staying = _gaps_after(stays, gaps, runs, question.trace)
    gone = evictions(name, gaps, liveness.resident_bytes(runs), question, staying)
    pieces = (piece for gap in gone for piece in gap.in_pieces(step_bytes, granule))
    return Decisions(runs, tuple(pieces))


def _gaps_after(
    uses: Collection[Use], gaps: Iterable[Gap], runs: Iterable[Run], trace: Trace
) -> Collection[Gap]:
    """The gaps that lie after some uses and before the next calls of the trace that use them."""
    if not uses:
        return ()
    first: dict[int, int] = {}  # where the calls of the trace run, not those that run again
    for position, run in enumerate(runs):
        first.setdefault(run.call, position)
    return {
        gap for gap in gaps
        if (gap.var, max((u for u in trace.uses[gap.var] if first[u] < gap.before),
                         default=trace.uses[gap.var][0])) in uses
    }  # fmt: skip


def evictions(
    name: str, gaps: Sequence[Gap], resident_bytes: Sequence[int], question: Question,
    stays: Collection[Gap] = (),
) -> Iterator[Gap]:  # fmt: skip
    """The gaps, or their first bytes, that Belady's rule spends on the host.

    Args:
        gaps: whole variables between two uses; together they make room enough.
        resident_bytes: for each call what is there while it runs if nothing leaves.
        stays: gaps that are used only when all others have been.

    Raises:
        Infeasible: the host has not got room enough.

    Cost: O(calls + gaps log gaps); with a host budget that binds O(calls) for each part besides.
    """
    budget_bytes, granule = question.budget_bytes, question.granule
    opening = sorted(gaps, key=lambda gap: (-gap.after, gap.var))
    host = _host_gaps(gaps, question, len(resident_bytes))
    taken = dict.fromkeys(gaps, 0)
    farthest: list[tuple[bool, int, int, Gap]] = []  # heap of open gaps, that ends last first
    away_bytes, returning = 0, [0] * (len(resident_bytes) + 1)
    for position, needed in enumerate(resident_bytes):
        away_bytes -= returning[position]
        while needed - away_bytes > budget_bytes:
            if not farthest:
                raise host_too_small(name)
            gap = farthest[0][-1]
            if gap.before <= position:
                heapq.heappop(farthest)
                continue
            missing = needed - away_bytes - budget_bytes
            part = gap.hi - taken[gap]
            if granule.ranges:
                part = min(part, granule.granted(missing))
            if host is not None:
                part = _fitting(host, gap, taken[gap], part, granule)
            if not part:
                heapq.heappop(farthest)
                continue
            taken[gap] += part
            away_bytes += granule.granted(part)
            returning[gap.before] += granule.granted(part)
            if taken[gap] == gap.hi:
                heapq.heappop(farthest)
        while opening and opening[-1].after == position:
            gap = opening.pop()
            if host is not None:
                host.open(gap)
            heapq.heappush(farthest, (gap in stays, -gap.before, gap.var, gap))
    for gap, size_bytes in taken.items():
        if size_bytes:
            yield Gap(gap.var, 0, size_bytes, gap.after, gap.before)


def _host_gaps(gaps: Sequence[Gap], question: Question, runs: int) -> HostGaps | None:
    """What the host can hold of the gaps; None where all of them fit together."""
    left_bytes = question.host_left_bytes
    if left_bytes is None or sum(gap.hi - gap.lo for gap in gaps) <= left_bytes:
        return None
    trace = question.trace
    inputs = frozenset(v for v in trace.initial if not trace.variables[v].persistent)
    return HostGaps(left_bytes, runs, inputs)


def _fitting(host: HostGaps, gap: Gap, taken: int, part: int, granule: Granule) -> int:
    """As many bytes of a part as still fit on the host, in granules; they are taken."""
    fits = host.fitting(gap, taken, part)
    if fits < part:
        fits = fits - fits % granule.size_bytes if granule.ranges else 0
        fits = host.fitting(gap, taken, fits) if fits > 0 else 0
    if fits:
        host.take(gap, taken, fits)
    return fits
