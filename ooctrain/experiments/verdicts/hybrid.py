"""What figures 3 to 6 and tables 1 and 2 show here, beside what paper 001 prints.

In: the cells and replays of `experiments/paper_001/hybrid.py`. Out: `SENTENCES`, and the `facts`
that fill them. Read next: `sentences.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ooctrain.experiments.paper_001.hybrid import (
    DEVICE,
    FITTED,
    HYBRID,
    OURS,
    PRINTED_LIST,
    RECOMPUTE,
    Cell,
    Replay,
    hybrid_gain,
    largest,
    network_of,
    recompute_overhead,
)
from ooctrain.experiments.verdicts.sentences import Facts, Verdict, more, number, percent

NAMES = {"resnet": "resnet50", "deeplab": "deeplabv3plus_xception65"}

AGREES = (
    "Swapping trains images that recomputation alone does not, and the hybrid as large ones: in "
    "the fitted memory {hybrid_resnet} pixels against {recompute_resnet} for ResNet-50 (the paper: "
    "7000 against 4500), {hybrid_deeplab} against {recompute_deeplab} for DeepLabv3+ (1300 against "
    "800).",
    "The printed list for DeepLabv3+ gains most over swapping alone at {listed_where_deeplab} "
    "pixels in the fitted memory: {listed_deeplab} (the paper: 18.7 % at 1000).",
    "Scaled to the height of our graph, {scaled_fit} of the {printed} printed settings fit in 32 "
    "GiB.",
)
DIFFERS = (
    "Nothing is measured: calls take their roofline times, and memory is the list's bytes, without "
    "workspaces, fragmentation and what TensorFlow keeps. What fills the paper's 32 GB takes half "
    "as much here.",
    "Recomputation alone loses {overhead_resnet} and {overhead_deeplab} (the paper: 15.8 and "
    "16.7 %): batch statistics stay, and norm and ReLU are one call at full memory bandwidth.",
    "The hybrid gains {gain_resnet} and {gain_deeplab} at most with a list that is chosen "
    "automatically (the paper: 37.5 and 18.7 %): a simulated link of 75 GB/s hides nearly all "
    "copies of ResNet-50 in 32 GiB, where the paper's swapping slows down from 4500 pixels on.",
    "As given, printed levels mean something else, since they are levels of another graph: "
    "TensorFlow's have 802 and 1501, ours 321 and 891. In 32 GiB {given_fit_resnet} of ResNet-50's "
    "{printed_resnet} settings fit, and {given_fit_deeplab} of DeepLabv3+'s {printed_deeplab}.",
    "The list chosen automatically is not always the best: the printed one gains {listed_deeplab} "
    "over swapping for DeepLabv3+ in the fitted memory, the best chosen one "
    "{gain_fitted_deeplab}. TFLMS's tuner asks what fits and never how long it takes, so that a "
    "list is good or bad by luck.",
    "auto is no row of the paper. It is up to {auto_resnet} and {auto_deeplab} faster than "
    "swapping in the fitted memory, at {auto_where_resnet} and {auto_where_deeplab} pixels.",
)
SENTENCES = Verdict(AGREES, DIFFERS)


def facts(cells: Sequence[Cell], replays: Sequence[Replay]) -> Facts:
    """The figures that the sentences want, by the names of their holes."""
    on_device = [row for row in replays if row.memory == DEVICE]
    found: dict[str, str | None] = {
        "printed": number(len(on_device) // 2),
        "scaled_fit": number(_fitting(row for row in on_device if row.scaled)),
    }
    asked = {cell.model for cell in cells}
    for name, model in NAMES.items():
        if model not in asked:
            continue
        for key, value in _facts_of(model, cells, on_device).items():
            found[f"{key}_{name}"] = value
    return found


def _fitting(rows: Iterable[Replay]) -> int:
    return sum(row.megapixels_per_s is not None for row in rows)


def _facts_of(model: str, cells: Sequence[Cell], on_device: Sequence[Replay]) -> Facts:
    """Those of one network, without its name."""
    network = network_of(model)
    given = [row for row in on_device if row.model == model and not row.scaled]
    again, both = (largest(cells, model, method, FITTED) for method in (RECOMPUTE, HYBRID))
    gains = [hybrid_gain(cells, network, memory) for memory in (DEVICE, FITTED)]
    listed_where, listed = hybrid_gain(cells, network, FITTED, PRINTED_LIST) or (None, None)
    auto_where, auto = hybrid_gain(cells, network, FITTED, OURS) or (None, None)
    fitted_gain = gains[1][1] if gains[1] else None
    return {
        "hybrid": number(more(both, again)),
        "recompute": number(again),
        "listed": percent(more(listed, fitted_gain), 1),
        "listed_where": number(listed_where),
        "gain_fitted": percent(fitted_gain, 1),
        "overhead": percent(recompute_overhead(cells, network, DEVICE), 1),
        "gain": percent(max((gain[1] for gain in gains if gain), default=None), 1),
        "given_fit": number(_fitting(given)),
        "printed": number(len(given)),
        "auto": percent(auto),
        "auto_where": number(auto_where),
    }
