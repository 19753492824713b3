"""What experiments say beside the papers: the figures are the run's, and what does not hold is not
said."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ooctrain.experiments.paper_000.architectures import Largest
from ooctrain.experiments.paper_000.table1 import BASELINE, LMS, SCHEDULE, SCHEDULE_VA, Cell
from ooctrain.experiments.paper_000.table1 import OURS as AUTO_VA
from ooctrain.experiments.paper_001.hybrid import (
    DEVICE,
    FITTED,
    HYBRID,
    OURS,
    PRINTED_LIST,
    RECOMPUTE,
    SWAP,
    VANILLA,
    Replay,
)
from ooctrain.experiments.paper_001.hybrid import Cell as ImageCell
from ooctrain.experiments.paper_001.hybrid_printed import Tuned
from ooctrain.experiments.paper_002.offload_ratios import BELADY, DYNPROG, GREEDY, VDNN, Group
from ooctrain.experiments.paper_002.offload_ratios import Cell as RatioCell
from ooctrain.experiments.paper_004.hmms import HMMS, LAYER_WISE, Share, Speed
from ooctrain.experiments.verdicts import architectures, hmms, hybrid, offload_ratios, table1
from ooctrain.experiments.verdicts.sentences import Verdict, fill, holes, more, percent

TUNED = Tuned(1, 2, 3)
RESNET, XCEPTION = "resnet50", "deeplabv3plus_xception65"


def table1_cells() -> list[Cell]:
    """{method: {batch: images/s}} as cells; what is not named is not trained."""
    speeds = {
        BASELINE: {190: 300.0, 256: None},
        LMS: {512: 270.0, 928: 180.0, 1440: None},
        SCHEDULE: {512: 240.0, 928: 210.0, 1440: None},
        SCHEDULE_VA: {928: 225.0, 1440: 195.0},
    }
    return [
        Cell(method, batch, 1, 1, speed, 400.0)
        for method, found in speeds.items()
        for batch, speed in found.items()
    ]


def ratio_cells() -> list[RatioCell]:
    """Two chains at a low and a high share; GREEDY faster, DYNPROG slower than VDNN."""
    makespans = {GREEDY: 110.0, DYNPROG: 125.0, VDNN: 120.0, BELADY: 103.0}
    return [
        RatioCell(Group(model, 224, 4), planner, share, 1 << 20, makespan, 100.0, 102.0, 90.0)
        for model in ("resnet18", "densenet121")
        for share in (0.1, 0.9)
        for planner, makespan in makespans.items()
    ]


def architecture_rows() -> tuple[dict, dict]:
    """(largest batches, cells) of the four networks."""
    models = (architectures.DENSENET, architectures.PIX2PIXHD, architectures.XCEPTION,
              architectures.DEEPLAB)  # fmt: skip
    batches = {BASELINE: 4, SCHEDULE: 24, SCHEDULE_VA: 42}
    largest = {m: [Largest(m, method, batch) for method, batch in batches.items()] for m in models}
    cells = {
        model: [
            Cell(BASELINE, 4, 1, 50, 2.0, 3.0), Cell(SCHEDULE, 24, 1, 90, 1.5, 3.0),
            Cell(SCHEDULE_VA, 24, 1, 97, 1.6, 3.0), Cell(SCHEDULE_VA, 42, 1, 98, 1.0, 3.0),
            Cell(AUTO_VA, 42, 1, 99, 1.8, 3.0),
        ]
        for model in models
    }  # fmt: skip
    return largest, cells


def hmms_rows() -> tuple[SimpleNamespace, SimpleNamespace, list[Share], list[Speed]]:
    """(preset, fitted, shares, speeds)."""
    preset = SimpleNamespace(name="preset", flops_per_us=5.6e6)
    fitted = SimpleNamespace(name="fitted", flops_per_us=13.3e6)
    share_of = {("vgg19", False): 1.6, ("resnet18", False): 0.55, ("resnet18", True): 0.8,
                ("resnet50", False): 0.34}  # fmt: skip
    loss_of = {("vgg19", HMMS): 0.0, ("vgg19", LAYER_WISE): 0.15, ("resnet50", HMMS): 0.02,
               ("resnet50", LAYER_WISE): 0.28}  # fmt: skip
    machines = (preset.name, fitted.name)
    shares = [Share(w, m, again, s, 1.0) for w in machines for (m, again), s in share_of.items()]
    speeds = [
        Speed(w, m, method, 1.0, 1, 1, 1.0, loss, None)
        for w in machines
        for (m, method), loss in loss_of.items()
    ]
    return preset, fitted, shares, speeds


def hybrid_rows() -> tuple[list[ImageCell], list[Replay]]:
    """(cells, replays): swapping reaches further than computing again, and a list helps."""
    speeds = {VANILLA: 10.0, RECOMPUTE: 9.0, SWAP: 8.0, HYBRID: 8.4, PRINTED_LIST: 8.8, OURS: 12.0}
    cells = [
        ImageCell(model, size, method, memory, 1, speed, None, 1, 1, "")
        for model, fits in ((RESNET, 3000), (XCEPTION, 400))
        for memory in (DEVICE, FITTED)
        for method, speed in speeds.items()
        for size in ((fits,) if method in (VANILLA, RECOMPUTE) else (fits, 2 * fits))
    ]
    replays = [
        Replay(model, 3000, "swap", scaled, TUNED, TUNED, DEVICE, 1, 5.0 if scaled else None, 1)
        for model in (RESNET, XCEPTION)
        for scaled in (False, True)
    ]
    return cells, replays


def text_of(verdict: Verdict) -> str:
    """All sentences in one text."""
    return "\n".join((*verdict.agrees, *verdict.differs))


def said(module: ModuleType, *found: Any) -> str:
    """What an experiment says of what it found, in one text."""
    return text_of(fill(module.SENTENCES, module.facts(*found)))


FACTS = {
    "table1": (table1, lambda: table1.facts(table1_cells())),
    "offload-ratios": (offload_ratios, lambda: offload_ratios.facts(ratio_cells())),
    "architectures": (architectures, lambda: architectures.facts(*architecture_rows(), 100)),
    "hmms": (hmms, lambda: hmms.facts(*hmms_rows())),
    "hybrid": (hybrid, lambda: hybrid.facts(*hybrid_rows())),
}


@pytest.mark.parametrize("name", FACTS)
def test_each_hole_has_its_fact_and_each_fact_a_hole_where_all_is_known(name):
    module, facts = FACTS[name]
    sentences, known = module.SENTENCES, facts()
    wanted = {hole for s in (*sentences.agrees, *sentences.differs) for hole in holes(s)}
    assert wanted <= set(known)
    assert {hole for hole in wanted if known[hole] is None} == set()
    filled = fill(sentences, known)
    assert len(filled.agrees) == len(sentences.agrees)
    assert len(filled.differs) == len(sentences.differs)
    assert "{" not in text_of(filled)


def test_a_sentence_is_said_only_with_all_its_facts():
    sentences = ("always", "{a} and {b}", "{a}")
    assert fill(Verdict(sentences, ()), {"a": "1", "b": None}).agrees == ["always", "1"]
    known = {"a": "1", "b": "2"}
    assert fill(Verdict((), sentences), known).differs == ["always", "1 and 2", "1"]


def test_figures_are_rounded_as_they_are_read():
    assert (percent(0.704), percent(0.0351, 1), percent(None)) == ("70 %", "3.5 %", None)
    assert (more(2.0, 1.0), more(1.0, 1.0), more(None, 1.0), more(1.0, None)) == (
        2,
        None,
        None,
        None,
    )


def test_table1_says_the_shares_of_its_cells():
    cells = table1_cells()
    text = said(table1, cells)
    for words in ("190 images are trained and 256 are not", "best-fit gets to 928",
                  "addressing to 1440", "keeps 70 % of the speed", "LMS on best-fit 60 %",
                  "90 % against 80 %", "225 images/s instead of 210",
                  "keeps 65 % at 1440"):  # fmt: skip
        assert words in text
    lms_wins = [
        replace(cell, images_per_s=290.0) if (cell.method, cell.batch) == (LMS, 928) else cell
        for cell in cells
    ]
    assert "LMS on best-fit" not in said(table1, lms_wins)


def test_ratios_are_counted_and_a_broken_promise_is_not_kept_by_words():
    cells = ratio_cells()
    text = said(offload_ratios, cells)
    for words in ("4 times, against 0, of 4", "2 times against 0, of 2", "at most 1.25 times",
                  "at most 1.010 times", "VDNN 0 times and slower 4 times"):  # fmt: skip
        assert words in text
    slow = [replace(cell, makespan_us=140.0) if cell.planner == DYNPROG else cell for cell in cells]
    slow_text = said(offload_ratios, slow)
    assert "below 1.3" not in slow_text
    assert "largest ratio of DYNPROG is 1.40" in slow_text


def test_architectures_say_the_factors_and_the_least_that_is_taken():
    largest, cells = architecture_rows()
    text = said(architectures, largest, cells, 100)
    for words in ("trains 1.75 (DenseNet)", "97 % and more", "reaches 6.0, 6.0 and 6.0 times",
                  "keeps 90 % of the in-core speed, schedule + VA 50 %"):  # fmt: skip
        assert words in text
    cells[architectures.DEEPLAB][2] = replace(cells[architectures.DEEPLAB][2], images_per_s=1.4)
    assert "no slower" not in said(architectures, largest, cells, 100)
    only = {architectures.PIX2PIXHD: largest[architectures.PIX2PIXHD]}
    quick = said(architectures, only, {}, 100)
    assert "DenseNet)" not in quick


def test_hmms_says_the_shares_and_losses_of_the_fitted_machine():
    preset, fitted, shares, speeds = hmms_rows()
    text = said(hmms, preset, fitted, shares, speeds)
    for words in ("(160 %; the paper: 100 %)", "is 15.0 % on the fitted", "recomputed 80 %",
                  "reaches 5.6 TFLOP/s; the fit says 13.3", "ResNet-50 loses 28.0 %"):  # fmt: skip
        assert words in text
    short = [replace(row, share=0.9) if row.model == "vgg19" else row for row in shares]
    assert "all it generates" not in said(hmms, preset, fitted, short, speeds)


def test_hybrid_says_where_each_gains_most():
    cells, replays = hybrid_rows()
    text = said(hybrid, cells, replays)
    for words in ("6000 pixels against 3000", "800 against 400", "10.0 % (the paper: 18.7 %",
                  "2 of the 2 printed settings", "loses 10.0 % and 10.0 %", "gains 5.0 % and 5.0 %",
                  "0 of ResNet-50's 1 settings", "up to 50 % and 50 % faster"):  # fmt: skip
        assert words in text
    as_far = [cell for cell in cells if cell.image_size in (3000, 400)]
    assert "Swapping trains images" not in said(hybrid, as_far, replays)
