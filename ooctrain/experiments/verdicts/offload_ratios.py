"""What figures 4 to 18 show here, beside what paper 002 prints.

In: the chains' cells of `experiments/paper_002/offload_ratios.py`. Out: `SENTENCES`, and the
`facts` that fill them. Read next: `sentences.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.experiments.paper_002.offload_ratios import (
    BELADY,
    DENSENETS,
    DYNPROG,
    GREEDY,
    LOW_SHARE,
    Cell,
    wins,
    worst,
)
from ooctrain.experiments.verdicts.sentences import Facts, Verdict, more, number, percent

#: Below it the ratio of DYNPROG remains on DenseNets, in print.
PRINTED_MOST = 1.3
#: What "nearly the bound" means of the optimum in parts.
NEARLY = 1.05

AGREES = (
    "GREEDY is faster than VDNN more often than slower: {greedy_faster} times, against "
    "{greedy_slower}, of {asked}; and in low memory, to a share of {low}, {greedy_faster_low} "
    "times against {greedy_slower_low}, of {asked_low}.",
    "On the long chains of DenseNets DYNPROG takes at most {dynprog_densenets} times the bound: "
    "below 1.3, as printed.",
    "Theorem 2: once parts of an activation may move, the optimum (`belady`) takes at most "
    "{belady} times what the LP over all lists that only offload says. What whole activations cost "
    "is the distance to it.",
)
DIFFERS = (
    "Nothing is measured: times are those of a roofline. The paper does not say where it cut its "
    "networks into layers; here wherever one value crosses (`oc.chain_view`).",
    "DYNPROG is faster than VDNN {dynprog_faster} times and slower {dynprog_slower} times, in low "
    "memory {dynprog_faster_low} and {dynprog_slower_low}. There, in 500 slots, hardly anything is "
    "feasible, and where nothing is it offloads everything.",
    "The largest ratio of DYNPROG is {dynprog_most}, on {dynprog_where}; the LP itself is at "
    "{lp_there} there. The paper's sentence is about its largest DenseNets.",
    "Proposition 3 is no bound for lists that compute values again: on the steps themselves "
    "`combined` is compared with an LP bound that allows it.",
    "DYNPROG follows 4000 states from each stage, not all; where we tried 20000 the ratio was the "
    "same to 0.1 %.",
    "Inception v3 begins at 299 pixels, since at 224 the filter of its auxiliary classifier is "
    "larger than its input; from where that branches off all is one virtual layer.",
)
SENTENCES = Verdict(AGREES, DIFFERS)


def facts(cells: Sequence[Cell]) -> Facts:
    """The figures that the sentences want, by the names of their holes."""
    greedy, greedy_low = wins(cells, GREEDY), wins(cells, GREEDY, LOW_SHARE)
    dynprog, dynprog_low = wins(cells, DYNPROG), wins(cells, DYNPROG, LOW_SHARE)
    most = worst(cells, DYNPROG)
    where = None if most is None else f"{most.group.model} at {most.group.image_size} pixels"
    dense = worst([cell for cell in cells if cell.group.model in DENSENETS], DYNPROG)
    parts = [cell.makespan_us / cell.lp_us for cell in cells if cell.planner == BELADY]
    return {
        "greedy_faster": number(more(greedy.faster, greedy.slower)),
        "greedy_slower": number(greedy.slower),
        "asked": number(greedy.asked),
        "low": percent(LOW_SHARE),
        "greedy_faster_low": number(more(greedy_low.faster, greedy_low.slower)),
        "greedy_slower_low": number(greedy_low.slower),
        "asked_low": number(greedy_low.asked),
        "dynprog_densenets": number(_below(dense.ratio if dense else None, PRINTED_MOST), ".2f"),
        "belady": number(_below(max(parts, default=None), NEARLY), ".3f"),
        "dynprog_faster": number(dynprog.faster),
        "dynprog_slower": number(dynprog.slower),
        "dynprog_faster_low": number(dynprog_low.faster),
        "dynprog_slower_low": number(dynprog_low.slower),
        "dynprog_most": number(most.ratio if most else None, ".2f"),
        "dynprog_where": where,
        "lp_there": number(most.lp_ratio if most else None, ".2f"),
    }


def _below(value: float | None, limit: float) -> float | None:
    return value if value is not None and value < limit else None
