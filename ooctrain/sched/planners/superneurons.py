"""superneurons: outputs of expensive layers stay or are swapped, all others are recomputed.

Three techniques build on each other. Liveness frees values without further readers. A cache of
tensors swaps the least recently used when memory is short. Cost-aware recomputation frees the
outputs of all layers but convolutions, linear layers, concatenations, joins and forks. In the
backward pass a segment between two of these is computed once and kept, unless it needs more than
the largest layer does: then each layer's values are computed for it alone, so that the peak is that
of the largest layer. The plan is the faster of two stacks of these techniques that fit.

Sources: Wang et al., SuperNeurons (2018), sections 3.2 to 3.4; the authors' code
(superneurons-release): `CHECKPOINT_LAYERS` in mem_control.h; recompute.cpp, by which the *outputs*
of checkpoint layers are what is never freed, and a segment is compared with the largest working
set. Departures: compile-time switches say there what is on, we take the faster stack; batch
statistics stay; swap-ins start as soon as the shared engine finds room, there at the convolution
before; a second value of a segment stays until its reader is done. Read next: `bn_recompute.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence

from ooctrain.errors import Infeasible
from ooctrain.layers.batch_norm import BatchNormApply, BatchNormStats
from ooctrain.layers.combine import Add, Concat
from ooctrain.layers.conv2d import Conv2d
from ooctrain.layers.conv_transpose import ConvTranspose2d
from ooctrain.layers.instance_norm import InstanceNormStats
from ooctrain.layers.linear import Linear
from ooctrain.sched.planning.decisions import Decisions, Gap, movable_gaps, runs_once
from ooctrain.sched.planning.lower import plan_of
from ooctrain.sched.planning.planner import call_need_bytes, infeasible, least_of
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.rematerialise import rematerialise, segments
from ooctrain.sched.schedule import Granule, Plan, Run
from ooctrain.step.op import computed_by
from ooctrain.step.trace import Call, Trace

CHECKPOINT_LAYERS = (Conv2d, ConvTranspose2d, Linear, Concat, Add)
#: They read a layer's output together with the layer that follows, so they make no fork of it.
STATISTICS = (BatchNormStats, InstanceNormStats)


class SuperNeurons:
    """Liveness, a cache of tensors, cost-aware recomputation. Cost: two lowered lists."""

    name = "superneurons"

    def plan(self, question: Question) -> Plan:
        """See `Planner`. The minimum is the least of the two stacks, with all swapped that may."""
        best: Plan | None = None
        refusals: list[Infeasible] = []
        for recompute in (False, True):
            try:
                plan = self._stack(question, recompute=recompute)
            except Infeasible as refusal:
                refusals.append(refusal)
                continue
            if best is None or plan.makespan_us < best.makespan_us:
                best = plan
        if best is None:
            raise least_of(refusals)
        return best

    def _stack(self, question: Question, *, recompute: bool) -> Plan:
        trace, granule, budget_bytes = question.trace, question.granule, question.budget_bytes
        dropped: Collection[int] = ()
        runs = runs_once(trace)
        if recompute:
            dropped, again = cost_aware(trace, granule)
            runs = rematerialise(trace, dropped, again=again)
        gaps = list(_in_cache(trace, runs, dropped))
        liveness = question.liveness
        least, witness = liveness.least_budget(runs, gaps)
        if least > budget_bytes:
            raise infeasible(self.name, budget_bytes, least, witness)
        kept = liveness.resident_bytes(runs)
        swapped = tuple(least_recently_used(gaps, kept, budget_bytes, granule))
        notes = {"dropped": len(dropped), "runs_again": len(runs) - len(trace.calls)}
        return plan_of(self.name, question, Decisions(runs, swapped), notes)


def cost_aware(trace: Trace, granule: Granule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(values that are computed again, those of them that each reader gets anew).

    The latter are the segments larger than the largest need of a layer.
    """
    largest = max((call_need_bytes(call, trace, granule) for call in trace.calls), default=0)
    dropped: list[int] = []
    again: list[int] = []
    for values in segments(trace, checkpoint_outputs(trace)).values():
        dropped += values
        if sum(granule.granted(trace.variables[var].nbytes) for var in values) > largest:
            again += values
    return tuple(dropped), tuple(again)


def checkpoint_outputs(trace: Trace) -> tuple[int, ...]:
    """The outputs of convolutions, linear layers, concatenations, joins and forks."""
    return tuple(
        out
        for call in trace.calls
        if call.phase == "forward"
        for out in call.outs
        if _is_dear(call) or _is_fork(trace, out)
    )


def _is_dear(call: Call) -> bool:
    op = computed_by(call.op)
    return isinstance(op, CHECKPOINT_LAYERS) or (isinstance(op, BatchNormApply) and op.residual)


def _is_fork(trace: Trace, var: int) -> bool:
    """Whether several layers read a value on their way forward."""
    readers = [trace.calls[reader] for reader in trace.readers[var]]
    ops = [computed_by(call.op) for call in readers if call.phase == "forward"]
    layers = [op for op in ops if not isinstance(op, STATISTICS)]
    return len(layers) > 1


def _in_cache(trace: Trace, runs: Sequence[Run], dropped: Collection[int]) -> Iterator[Gap]:
    """Gaps of what the forward pass makes and keeps."""
    for gap in movable_gaps(trace, runs):
        producer = trace.producer[gap.var]
        made = producer is not None and trace.calls[producer].phase in ("forward", "loss")
        if made and gap.var not in dropped:
            yield gap


def least_recently_used(
    gaps: Sequence[Gap], resident_bytes: Sequence[int], budget_bytes: int, granule: Granule
) -> Iterator[Gap]:
    """Where memory is short, the gaps that began first, whole.

    Args:
        gaps: which together make room enough.
        resident_bytes: for each run what is there while it runs if nothing leaves.

    Cost: O(runs + gaps log gaps).
    """
    opening = sorted(gaps, key=lambda gap: (-gap.after, gap.var))
    oldest: list[tuple[int, int, Gap]] = []
    away_bytes, returning = 0, [0] * (len(resident_bytes) + 1)
    for position, needed in enumerate(resident_bytes):
        away_bytes -= returning[position]
        while needed - away_bytes > budget_bytes:
            gap = heapq.heappop(oldest)[2]
            if gap.before > position:
                granted = granule.granted(gap.hi)
                away_bytes += granted
                returning[gap.before] += granted
                yield gap
        while opening and opening[-1].after == position:
            gap = opening.pop()
            heapq.heappush(oldest, (gap.after, gap.var, gap))
