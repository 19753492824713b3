"""Errata of paper 001 (swapping and recomputation hybrid): its sentences are run on its tables.

Tables 1 and 2 stand here as printed. Numbers of different graphs are not comparable, and sentences
about a table can be checked against the table. Source: paper 001, sections 3.1, 4.4, tables 1 and
2. The table of errata is docs/errata.md.
"""

from __future__ import annotations

from unit.test_swap_planners import step

from ooctrain.experiments.paper_001 import hybrid
from ooctrain.sched.planners.lms import LevelGraph, Lms, search

#: table 1, ResNet50: image size -> (swapout_threshold, swapin_ahead), data swapping, hybrid
RESNET50 = {
    size: tuple(
        (tuned.swapout_threshold, tuned.swapin_ahead)
        for tuned in (hybrid.RESNET50.swap[size], hybrid.RESNET50.hybrid[size])
    )
    for size in range(4500, 7001, 500)
}


def levels(edges: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """Topological level of each node: one more than its furthest source."""
    level: dict[str, int] = {}
    for node, sources in edges.items():
        level[node] = 1 + max((level[s] for s in sources), default=-1)
    return level


def test_001_levels_of_edited_graph() -> None:
    """Editing for recomputation renumbers the levels: thresholds before and after do not mean the
    same.
    """
    plain = {"conv": (), "relu": ("conv",), "loss": ("relu",), "relu.bwd": ("loss", "relu")}
    plain["conv.bwd"] = ("relu.bwd", "conv")
    edited = {"conv": (), "relu": ("conv",), "loss": ("relu",), "relu.again": ("conv", "loss")}
    edited["relu.bwd"] = ("loss", "relu.again")
    edited["conv.bwd"] = ("relu.bwd", "conv")
    distance = [g["conv.bwd"] - g["conv"] for g in (levels(plain), levels(edited))]
    assert distance == [4, 5]
    # So LMS levels them: x is conv's input, r relu's output, made once more in the second.
    steps = (
        step("f1: x -> c", "f2: c -> r", "f3: r -> l", "b2: l r -> gr", "b1: gr c -> gc"),
        step("f1: x -> c", "f2: c -> r", "f3: r -> l", "b0: c l -> s", "b2: l s -> gr",
             "b1: gr c -> gc"),
    )  # fmt: skip
    assert [graph.level[-1] - graph.level[0] for graph in map(LevelGraph, steps)] == [4, 5]
    # The same edge is swapped at threshold 5 in one graph and not in the other.
    assert [d >= 5 for d in distance] == [False, True]


def test_001_swapin_ahead_grows() -> None:
    """Section 4.4: with recomputation swapin_ahead could be made larger. At 5500 pixels it is
    smaller.
    """
    grown = {size: hybrid[1] >= swap[1] for size, (swap, hybrid) in RESNET50.items()}
    assert not all(grown.values())
    assert [size for size, yes in grown.items() if not yes] == [5500]
    # The one size at which the threshold differs, too: the searches are three one-dimensional ones.
    assert [size for size, (swap, hybrid) in RESNET50.items() if swap[0] != hybrid[0]] == [5500]


def test_001_tuning_has_no_time() -> None:
    """Largest feasible threshold, then largest feasible ahead: feasible is not fast."""
    # (threshold, ahead) -> step time of the feasible settings of a made-up graph
    times = {(3, 1): 9, (2, 1): 8, (2, 4): 5, (1, 6): 6}
    threshold = max(t for t, _ in times)
    ahead = max(a for t, a in times if t == threshold)
    assert times[threshold, ahead] == 9
    assert min(times.values()) == 5
    feasible = {*times, (1, 1)}
    fits = lambda lms: (lms.swapout_threshold, lms.swapin_ahead) in feasible  # noqa: E731
    found = search(Lms(1, 1, 0), 6, fits)
    assert (found.swapout_threshold, found.swapin_ahead) == (3, 1)
