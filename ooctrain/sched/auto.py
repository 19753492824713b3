"""auto: in-core where it fits, else the best of the planners that are cheap to ask, else a search.

In: a trace and a budget. Out: the plan with the smallest simulated makespan. The one idea: planning
costs milliseconds and a step seconds, so ask several and take the best; where even that is far from
what no list beats, computing again may pay: `dtr` and `superneurons` know how in their ways, and
`combined` searches for as long as it may. No
single window is best everywhere: over ResNet-18, ResNet-50 and VGG-11, two links and five budgets,
the default loses up to 10 % against the best of twelve windows (six sizes, two places for
parameters), a window of size 1 up to 15 %; those asked here lose nothing. Read next: `registry.py`.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ooctrain.cost import Machine
from ooctrain.errors import Infeasible
from ooctrain.sched.base import Planner, least_refusal, make_plan
from ooctrain.sched.belady import Belady
from ooctrain.sched.bounds import lower_bound
from ooctrain.sched.combined import Combined
from ooctrain.sched.dtr import Dtr
from ooctrain.sched.keep_all import KeepAll
from ooctrain.sched.naive import Naive
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.sched.superneurons import SuperNeurons
from ooctrain.sched.window import Window
from ooctrain.trace import Trace

#: A plan within this factor of what no list beats is not worth seconds of search.
NEAR = 1.05
#: Whoever moves parts of variables is asked for multiples of this (`alloc/virtual.py`'s chunk), so
#: that a plan made to the byte can be executed too.
CHUNK_BYTES = 64 << 10


def candidates() -> tuple[Planner, ...]:
    """Whom auto asks where the step does not fit, the most promising first."""
    return (
        Window(),
        Window(size=2, persistent="device"),
        Window(size=1, persistent="host"),
        Window(size=0.75, persistent="host"),
        Belady(),
        Naive(),
    )


def who_compute_again() -> tuple[Planner, ...]:
    """Whom auto asks besides where those are far from the bound."""
    return (SuperNeurons(), Dtr(), Combined())


class Auto:
    """The best plan of `keep-all`, `window` with several windows, `belady` and `naive`; of
    `superneurons`, `dtr` and `combined` too, where that plan is more than `NEAR` from the bound.
    Cost: theirs together.
    """

    name = "auto"

    def plan(
        self, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule = BYTES,
        host_budget_bytes: int | None = None, seed: int = 0, time_limit_s: float | None = None,
    ) -> Plan:  # fmt: skip
        """See `Planner`. The minimum is the least of all asked; a time limit ends the asking."""
        started = time.monotonic()
        best: Plan | None = None
        refusals: list[Infeasible] = []
        bound_us = lower_bound(trace, budget_bytes, machine).makespan_us
        last_resorts = who_compute_again()
        for planner in (KeepAll(), *candidates(), *last_resorts):
            left_s = None if time_limit_s is None else time_limit_s - time.monotonic() + started
            if best is not None and left_s is not None and left_s <= 0:
                return replace(best, notes={**best.notes, "cut_short": True})
            is_last = planner in last_resorts
            if is_last and (best is None or best.makespan_us <= NEAR * bound_us):
                continue
            in_chunks = isinstance(planner, Belady | Combined)
            ask = _ask_in_chunks if in_chunks else type(planner).plan
            try:
                plan = ask(
                    planner, trace, budget_bytes, machine, granule=granule, seed=seed,
                    host_budget_bytes=host_budget_bytes, time_limit_s=left_s,
                )  # fmt: skip
            except Infeasible as refusal:
                if ask is not _ask_in_chunks:  # what it needs in chunks says nothing of bytes
                    refusals.append(refusal)
                continue
            if best is None or plan.makespan_us < best.makespan_us:
                best = replace(plan, notes={**plan.notes, "chosen": planner.name})
            if planner.name == "keep-all":
                return best
        if best is None:
            raise least_refusal("auto", refusals, budget_bytes)
        return best


def _ask_in_chunks(
    planner: Planner, trace: Trace, budget_bytes: int, machine: Machine, *, granule: Granule,
    host_budget_bytes: int | None, seed: int, time_limit_s: float | None,
) -> Plan:  # fmt: skip
    """A plan that moves whole chunks, its ledger in the granule that was asked for."""
    chunks = replace(granule, size_bytes=granule.granted(CHUNK_BYTES))
    plan = planner.plan(
        trace, budget_bytes, machine, granule=chunks if granule.ranges else granule, seed=seed,
        host_budget_bytes=host_budget_bytes, time_limit_s=time_limit_s,
    )  # fmt: skip
    schedule = replace(plan.schedule, granule=granule)
    return make_plan(schedule, trace, machine, plan.notes)
