"""All planners by name: those that make lists, and those that rewrite the step first.

A name is "sft:tiles=4", "banded:planner=belady", or any name of `sched/planners/registry.py`.
`sched/` plans the step that it is given and knows no rewrites, so planners that need both are
defined here, above both: two planners that tile the step, which `auto` tries in addition to its
own, and one that answers at once, where only whether there is a plan counts. Read next:
`rewrite/tile/sft_planner.py`, `rewrite/tile/banded.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ooctrain.errors import Infeasible, PartFailed
from ooctrain.rewrite.tile.banded import MORE_CALLS, Banded, can_be_banded, offers_for
from ooctrain.rewrite.tile.offers import tiled_as_offered
from ooctrain.rewrite.tile.sft_planner import Sft, with_tiling
from ooctrain.sched.bounds.closed import lower_bound
from ooctrain.sched.budget import trace_minimum_bytes
from ooctrain.sched.planners import registry
from ooctrain.sched.planners.auto import Auto
from ooctrain.sched.planners.belady import Belady
from ooctrain.sched.planners.registry import Factories
from ooctrain.sched.planning.host_gaps import is_short_of_host
from ooctrain.sched.planning.planner import Planner, ask, host_too_small, least_refusal
from ooctrain.sched.planning.question import Question
from ooctrain.sched.schedule import Plan
from ooctrain.step.machine import call_durations_ns

#: A tiled step is planned where no list of the untiled one comes as near as this to its calls.
NEAR = 1.05
#: Tilings that `LeanBands` writes.
WRITTEN = 2


def tilings(question: Question, best: Plan | None) -> Sequence[Planner]:
    """The planners of a tiled step that `auto` runs: none while a list of the untiled step may be
    as good as `best`, or where the bits of the untiled one are asked for.

    A tiled step computes as long as the untiled one, or longer. So it can only help where no list
    of the untiled step fits, or where what no list beats is longer than that.
    """
    if question.same_bits:
        return ()
    if best is not None:
        computing_us = sum(call_durations_ns(question.trace, question.machine)) / 1000
        bound = lower_bound(question.trace, question.budget_bytes, question.machine)
        if bound.makespan_us <= NEAR * computing_us:
            return ()
    if not can_be_banded(question.trace):
        return ()
    return (LeanBands() if question.effort.at_once else Banded(untiled=False),)


def auto(evaluations: int | None = None) -> Auto:
    """`auto`, which plans tilings too."""
    return Auto(tilings, evaluations)


PLANNERS: Factories = MappingProxyType(
    {**registry.PLANNERS, "auto": auto, "banded": Banded, "sft": Sft}
)


# These look names up as their namesakes in `sched/planners/registry.py` do, in this larger table.
get_planner = partial(registry.get_planner, known=PLANNERS)
as_planner = partial(registry.as_planner, known=PLANNERS)
planners = partial(registry.planners, PLANNERS)


class LeanBands:
    """The step in bands, in one of the tilings that are estimated to need no more than there is:
    the first of `WRITTEN` that has a plan. `banded` compares many, and writes each of them.
    """

    name = "lean-bands"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of all that were written."""
        trace, budget_bytes = question.trace, question.budget_bytes
        moves = ("nothing",) if is_short_of_host(question) else ("borders", "all")
        offers = [o for o in offers_for(trace, question.machine, untiled=False) if o.moves in moves]
        refusals: list[Infeasible] = []
        fitting = [offer for offer in offers if 0 < offer.need_bytes <= budget_bytes]
        for offer in fitting[:WRITTEN]:
            try:
                tiled = tiled_as_offered(trace, offer)
                if tiled is None or len(tiled.calls) > MORE_CALLS:
                    continue
                plan = ask(Belady(), replace(question, trace=tiled))
            except PartFailed:
                continue
            except Infeasible as refusal:
                refusals.append(refusal)
            else:
                return with_tiling(plan, offer, trace_minimum_bytes(tiled, question.granule))
        raise least_refusal(self.name, refusals or [host_too_small(self.name)], budget_bytes)
