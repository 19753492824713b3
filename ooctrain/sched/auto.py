"""auto: in-core where it fits, else the best of the planners that are cheap to ask.

In: a trace and a budget. Out: the plan with the smallest simulated makespan. The one idea: planning
costs milliseconds and a step seconds, so ask several and take the best. No single window is best
everywhere: over ResNet-18, ResNet-50 and VGG-11, two links and five budgets, the default loses up
to 10 % against the best of twelve windows (six sizes, two places for parameters), a window of size
1 up to 15 %; those asked here lose nothing. Read next: `registry.py`.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ooctrain.cost import Machine
from ooctrain.errors import Infeasible
from ooctrain.sched.base import HOST_LACKS, Planner, infeasible
from ooctrain.sched.keep_all import KeepAll
from ooctrain.sched.naive import Naive
from ooctrain.sched.schedule import BYTES, Granule, Plan
from ooctrain.sched.window import Window
from ooctrain.trace import Trace


def candidates() -> tuple[Planner, ...]:
    """Whom auto asks where the step does not fit, the most promising first."""
    return (
        Window(),
        Window(size=2, persistent="device"),
        Window(size=1, persistent="host"),
        Window(size=0.75, persistent="host"),
        Naive(),
    )


class Auto:
    """The best plan of `keep-all`, `window` with several windows, and `naive`. Cost: theirs
    together.
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
        for planner in (KeepAll(), *candidates()):
            try:
                plan = planner.plan(
                    trace, budget_bytes, machine, granule=granule, seed=seed,
                    host_budget_bytes=host_budget_bytes, time_limit_s=time_limit_s,
                )  # fmt: skip
            except Infeasible as refusal:
                refusals.append(refusal)
                continue
            if best is None or plan.makespan_us < best.makespan_us:
                best = replace(plan, notes={"chosen": planner.name, **plan.notes})
            if planner.name == "keep-all":
                return best
            if time_limit_s is not None and time.monotonic() - started > time_limit_s:
                return replace(best, notes={**best.notes, "cut_short": True})
        if best is None:
            raise _least(refusals, budget_bytes)
        return best


def _least(refusals: list[Infeasible], budget_bytes: int) -> Infeasible:
    honest = [refusal for refusal in refusals if refusal.minimum_bytes != HOST_LACKS]
    if not honest:
        return refusals[0]
    least = min(honest, key=lambda refusal: refusal.minimum_bytes)
    return infeasible("auto", budget_bytes, least.minimum_bytes, least.witness_call)
