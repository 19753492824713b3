"""prefix: compute again what is cheap per byte, offload the rest.

In: a trace, a budget. Out: a plan. The one idea: sort the values of the forward pass by the time to
compute them again per byte they free; drop a prefix of that order, let Belady offload what is still
too much, and take the prefix whose plan is the fastest. With nothing dropped it is `belady`; with
everything cheap dropped, batch norms and ReLUs run twice and convolutions once. Source: ours, the
planner notes, section 0, as the smallest planner that combines both. Read next: `combined.py`,
which searches where this one sorts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ooctrain.cost import Machine, call_durations_ns
from ooctrain.errors import Infeasible
from ooctrain.sched.base import check_host, infeasible
from ooctrain.sched.recompute import least_bytes, offload, plan_of
from ooctrain.sched.rematerialise import droppable, last_forward_use, rematerialise
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.trace import Trace


@dataclass(frozen=True, slots=True)
class Prefix:
    """The best of some prefixes of the values sorted by recompute time per byte.

    Args:
        steps: how many prefixes are tried, evenly spaced, besides none and all.

    Cost: for each prefix that of `lower`.
    """

    steps: int = 16

    @property
    def name(self) -> str:
        """The planner's name in tables."""
        return "prefix"

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of all prefixes."""
        best: Plan | None = None
        refusals: list[Infeasible] = []
        for dropped in self.choices(trace, machine):
            runs = rematerialise(trace, dropped)
            least, witness = least_bytes(trace, runs, machine, granule)
            if least > budget_bytes:
                refusals.append(infeasible(self.name, budget_bytes, least, witness))
                continue
            decisions = offload(trace, runs, budget_bytes, machine, granule)
            notes = {"dropped": len(dropped), "runs_again": len(runs) - len(trace.calls)}
            plan = plan_of(decisions, trace, budget_bytes, machine, granule, notes)
            try:
                check_host(self.name, plan, host_budget_bytes)
            except Infeasible as refusal:
                refusals.append(refusal)
                continue
            if best is None or plan.makespan_us < best.makespan_us:
                best = plan
        if best is None:
            raise min(refusals, key=lambda refusal: refusal.minimum_bytes)
        return best

    def choices(self, trace: Trace, machine: Machine) -> Iterator[tuple[int, ...]]:
        """The prefixes that are tried: none first, all last."""
        order = by_recompute_time(trace, machine)
        lengths = {round(step * len(order) / (self.steps + 1)) for step in range(self.steps + 2)}
        for length in sorted(lengths):
            yield order[:length]


def by_recompute_time(trace: Trace, machine: Machine) -> tuple[int, ...]:
    """The droppable values, those first that take the least time per byte to compute again.

    The time counts whatever has to run before, if this value alone is dropped. Values that nothing
    brings back come last: `rematerialise` keeps them.
    """
    durations = call_durations_ns(trace, machine)

    def time_per_byte(var: int) -> float:
        calls = _brought_back_by(trace, var)
        if calls is None:
            return float("inf")
        return sum(durations[call] for call in calls) / trace.variables[var].nbytes

    return tuple(sorted(droppable(trace), key=lambda var: (time_per_byte(var), var)))


def _brought_back_by(trace: Trace, dropped: int) -> set[int] | None:
    """The calls that run again if one value alone is dropped; None: it cannot be had again."""
    needed = next(use for use in trace.uses[dropped] if use > last_forward_use(trace, dropped))
    lasting = frozenset(trace.end_variables.values())
    calls, lacking = set[int](), [dropped]
    while lacking:
        producer = trace.producer[lacking.pop()]
        if producer is None or not trace.calls[producer].pure:
            return None
        if producer not in calls:
            calls.add(producer)
            lacking += [
                source
                for source in trace.calls[producer].ins
                if trace.uses[source][-1] < needed and source not in lasting
            ]
    return calls
