"""What table 1 shows here, beside what paper 000 prints.

In: the cells of `experiments/paper_000/table1.py`. Out: `SENTENCES`, and the `facts` that fill
them. Read next: `sentences.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.experiments.paper_000.table1 import (
    BASELINE,
    LMS,
    SCHEDULE,
    SCHEDULE_VA,
    Cell,
    in_core_images_per_s,
    largest_batch,
    speed_kept,
)
from ooctrain.experiments.verdicts.sentences import Facts, Verdict, more, number, percent

AGREES = (
    "In-core {in_core_most} images are trained and {in_core_next} are not; best-fit gets to "
    "{best_fit_most}, only virtual addressing to {va_most} (the paper: 190, 256, 928, 1440).",
    "At 928 images the schedule on best-fit keeps {schedule_928} of the speed (the paper: 69 %), "
    "LMS on best-fit {lms_928} (53 %).",
    "At 512 images LMS keeps a little more than the schedule, here as there: {lms_512} against "
    "{schedule_512} (the paper: 81 against 79 %).",
    "Virtual addressing alone makes the schedule faster at 928 images, {va_928_speed} images/s "
    "instead of {schedule_928_speed}, as more memory can be promised to it (409 instead of 400).",
)
DIFFERS = (
    "Images per second are those of a roofline at 8.4 TFLOP/s in float32: {in_core_speed} at best "
    "in-core, where the paper measured 581, and as much less at all batches. Its small batches use "
    "the device badly, and its scheduling costs time even where nothing is swapped; the roofline "
    "knows neither.",
    "Calls take longer here while the link is the paper's, so more of each transfer hides behind "
    "them: schedule + VA keeps {va_1440} at 1440 images, the paper 55 %.",
    "LMS reaches {lms_most} and the schedule {schedule_most} images, the paper's 928: our best-fit "
    "joins all neighbouring holes, and fused calls with shared storage need less. `ooctrain "
    "reproduce fragmentation` says more.",
    "LMS was measured on a P100, and is divided by that machine's in-core speed; here it is "
    "simulated on the same machine as the others. Its three searches ask only what fits.",
    "auto + va is no row of the paper: it computes again where that costs less than a transfer, "
    "and moves parts of variables.",
)
SENTENCES = Verdict(AGREES, DIFFERS)


def facts(cells: Sequence[Cell]) -> Facts:
    """The figures that the sentences want, by the names of their holes."""
    in_core = in_core_images_per_s(cells)
    found = {(cell.method, cell.batch): cell for cell in cells}

    def kept(method: str, batch: int) -> float | None:
        cell = found.get((method, batch))
        return None if cell is None else speed_kept(cell, in_core)

    def speed(method: str, batch: int) -> float | None:
        cell = found.get((method, batch))
        return None if cell is None else cell.images_per_s

    most = {name: largest_batch(cells, name) for name in (BASELINE, LMS, SCHEDULE, SCHEDULE_VA)}
    beyond = [cell.batch for cell in cells if cell.batch > (most[BASELINE] or 0)]
    best_fit = max(most[LMS] or 0, most[SCHEDULE] or 0)
    schedule, va = speed(SCHEDULE, 928), speed(SCHEDULE_VA, 928)
    return {
        "in_core_most": number(most[BASELINE]),
        "in_core_next": number(min(beyond, default=None)),
        "best_fit_most": number(best_fit),
        "va_most": number(more(most[SCHEDULE_VA], best_fit)),
        "lms_most": number(most[LMS]),
        "schedule_most": number(most[SCHEDULE]),
        "schedule_928": percent(more(kept(SCHEDULE, 928), kept(LMS, 928))),
        "lms_928": percent(kept(LMS, 928)),
        "schedule_512": percent(kept(SCHEDULE, 512)),
        "lms_512": percent(more(kept(LMS, 512), kept(SCHEDULE, 512))),
        "schedule_928_speed": number(schedule, ".0f"),
        "va_928_speed": number(more(va, schedule), ".0f"),
        "in_core_speed": number(in_core, ".0f"),
        "va_1440": percent(kept(SCHEDULE_VA, 1440)),
    }
