"""What figures 4 and 5 show here, beside what paper 000 prints.

In: the largest batches and the cells of `experiments/paper_000/architectures.py`. Out: `SENTENCES`,
and the `facts` that fill them. Read next: `sentences.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ooctrain.experiments.paper_000.architectures import (
    PRINTED_VA_FACTORS,
    Largest,
    factors,
)
from ooctrain.experiments.paper_000.table1 import (
    BASELINE,
    OURS,
    SCHEDULE,
    SCHEDULE_VA,
    Cell,
    in_core_images_per_s,
    speed_kept,
)
from ooctrain.experiments.verdicts.sentences import Facts, Verdict, number, percent

DENSENET, PIX2PIXHD = "densenet121", "pix2pixhd_perceptual"
XCEPTION, DEEPLAB = "deeplabv3plus_xception65", "deeplabv3plus"
#: Speeds that are the same but for rounding.
SAME = 1e-3

AGREES = (
    "Virtual addressing trains {va_densenet} (DenseNet), {va_pix2pixhd} (Pix2PixHD) and "
    "{va_xception} times (DeepLabv3+ with Xception; {va_deeplab} with ResNet-50) what scheduling "
    "alone does; the paper says 1.5 to 2.",
    "Pix2PixHD with its perceptual loss fits in-core at a batch of {in_core_pix2pixhd} (the "
    "paper: 4), at {speed_pix2pixhd} images per second (around 3).",
    "With virtual addressing a step that does not fit in-core takes just below what there is, "
    "{least_taken} and more, however large the batch, and is no slower than with best-fit.",
)
DIFFERS = (
    "Nothing is measured: speeds are those of a roofline, memory is replayed on paper, without "
    "cuDNN's workspaces and without nnabla's buffers.",
    "The paper does not say which DenseNet. With 121 layers, the smallest of its authors', "
    "{in_core_densenet} images fit in-core, not 512, unless layers share storage for what they "
    "concatenate; the schedule then reaches {schedule_densenet} times as many, where the paper "
    "prints 1.5.",
    "Nor does it say which backbone DeepLabv3+ has: {in_core_xception} images fit with Xception-65 "
    "and {in_core_deeplab} with ResNet-50 (the paper: 6).",
    "Scheduling alone reaches {schedule_densenet}, {schedule_pix2pixhd} and {schedule_xception} "
    "times what fits in-core, the paper's 1.5, 4 and 5.3: our best-fit joins neighbouring holes, "
    "and fused calls with shared storage need less. `ooctrain reproduce fragmentation` says more.",
    "The paper's Pix2PixHD gets faster with the batch; at a roofline a call of four images takes "
    "four times as long as one of one, so that nothing is gained.",
    "auto + va is no row of the paper: it computes again where that costs less than a transfer. At "
    "the largest batch of DenseNet it keeps {auto_densenet} of the in-core speed, schedule + VA "
    "{kept_densenet}.",
)
SENTENCES = Verdict(AGREES, DIFFERS)


def facts(
    largest: Mapping[str, Sequence[Largest]], cells: Mapping[str, Sequence[Cell]],
    physical_bytes: int,
) -> Facts:  # fmt: skip
    """The figures that the sentences want, by the names of their holes."""
    found: dict[str, str | None] = {"least_taken": percent(_least_taken(cells, physical_bytes))}
    names = {"densenet": DENSENET, "pix2pixhd": PIX2PIXHD, "xception": XCEPTION, "deeplab": DEEPLAB}
    for name, model in names.items():
        rows = largest.get(model, ())
        by_method = {row.method: row.batch for row in rows}
        times = factors(rows)
        found[f"in_core_{name}"] = number(by_method.get(BASELINE))
        found[f"schedule_{name}"] = number(times.get(SCHEDULE), ".1f")
        found[f"va_{name}"] = number(_as_printed(times.get(SCHEDULE_VA)), ".2f")
    found["speed_pix2pixhd"] = number(in_core_images_per_s(cells.get(PIX2PIXHD, ())), ".2f")
    found["auto_densenet"] = percent(_kept_at_largest(cells.get(DENSENET, ()), OURS))
    found["kept_densenet"] = percent(_kept_at_largest(cells.get(DENSENET, ()), SCHEDULE_VA))
    return found


def _as_printed(factor: float | None) -> float | None:
    low, high = PRINTED_VA_FACTORS
    return factor if factor is not None and low <= round(factor, 1) <= high else None


def _kept_at_largest(cells: Sequence[Cell], method: str) -> float | None:
    """The share of the in-core speed that a method keeps at the largest batch."""
    own = [cell for cell in cells if cell.method == method]
    last = max(own, key=lambda cell: cell.batch, default=None)
    return None if last is None else speed_kept(last, in_core_images_per_s(cells))


def _least_taken(cells: Mapping[str, Sequence[Cell]], physical_bytes: int) -> float | None:
    """The least share of the memory that virtual addressing takes where nothing fits in-core; None
    if it is slower than best-fit anywhere.
    """
    shares = []
    for rows in cells.values():
        found = {(cell.method, cell.batch): cell for cell in rows}
        for batch in {cell.batch for cell in rows}:
            va = found.get((SCHEDULE_VA, batch))
            in_core = found.get((BASELINE, batch))
            fits = in_core is not None and in_core.images_per_s is not None
            if va is None or va.images_per_s is None or va.reserved_bytes is None or fits:
                continue
            best_fit = found.get((SCHEDULE, batch))
            speed = best_fit.images_per_s if best_fit is not None else None
            if speed is not None and va.images_per_s < speed * (1 - SAME):
                return None
            shares.append(va.reserved_bytes / physical_bytes)
    return min(shares, default=None)
