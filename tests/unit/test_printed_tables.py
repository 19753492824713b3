"""The papers' tables, typed once more, row by row as they stand in print: no digit may differ.

Our comparisons show these figures next to ours. A figure that is typed twice by two hands is wrong
in one of the two places at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ooctrain.experiments.paper_000 import architectures, table1
from ooctrain.experiments.paper_001 import hybrid
from ooctrain.experiments.paper_003 import sft_images
from ooctrain.experiments.paper_004 import distributed, hmms_speeds, split_accuracy, split_hmms

#: Paper 000, table 1; the first baseline is that of LMS's machine.
TABLE_1 = """
Batch size     64  128 190 256 512 928 1120 1248 1440
Baseline       235 255 258 X   X   X   X    X    X
LMS            235 255 241 236 209 137 X    X    X
Baseline       336 492 581 X   X   X   X    X    X
Schedule       320 439 533 559 457 400 X    X    X
Schedule + VA  304 389 415 424 446 409 398  347  321
"""

#: Paper 001, tables 1 and 2: data swapping, then hybrid.
RESNET50 = """
3500 4000 4500  5000 5500 6000    6500    7000
743  639  593   529  501  463     429     399
217  74   49    30   28   23      17      9
802  802  802   802  802  802     802     802
-    -    -     -    -    -       -       -
743  639  593   529  477  463     429     399
217  74   68    34   25   30      25      9
802  802  817   808  808  821     821     808
-    -    2,4,6 2    2    2,4,6,7 2,4,5,6 2
"""
DEEPLAB = """
500  600     700  800  900   1000        1100                          1200 1300
1427 1236    650  456  217   174         161                           121  111
906  381     77   30   11    12          6                             3    3
1501 1501    1501 1501 0     22          1501                          1501 22
-    -       -    -    -     -           -                             -    -
1427 1236    650  456  217   174         164                           121  111
906  575     77   30   30    31          6                             3    33
1501 1508    1501 1501 1508  1525        1539                          1501 23
-    1,2,3,4 -    -    2,3,4 1,2,3,4,5,6 8,9,11,12,13,14,15,16,17,18 8,9  8,9,11,12,13,14,15,16,17,18
"""  # noqa: E501


def figures(table: str) -> list[list[str]]:
    """The cells of a table's rows."""
    return [line.split() for line in table.strip().splitlines()]


def numbers(row: Sequence[str]) -> list[int]:
    return [int(cell) for cell in row if cell.isdigit()]


def test_table_1_of_paper_000():
    batches, lms_baseline, lms, baseline, schedule, both = map(numbers, figures(TABLE_1))
    assert list(table1.BATCHES) == batches
    rows = (
        (table1.BASELINE, baseline, baseline),
        (table1.LMS, lms, lms_baseline),
        (table1.SCHEDULE, schedule, baseline),
        (table1.SCHEDULE_VA, both, baseline),
    )
    for name, printed, in_core in rows:
        method = table1.method_named(name)
        assert dict(method.printed) == dict(zip(batches, printed, strict=False)), name
        assert method.printed_in_core == max(in_core), name


def tuned(table: str) -> Iterator[dict[int, tuple[Any, ...]]]:
    """{image size: threshold, ahead, groupby, checkpoints} of data swapping, then of hybrid."""
    sizes, *rows = figures(table)
    for rows_of in (rows[:4], rows[4:]):
        found = {}
        for column, size in enumerate(sizes):
            *levels, listed = (row[column] for row in rows_of)
            checkpoints = () if listed == "-" else tuple(map(int, listed.split(",")))
            found[int(size)] = (*map(int, levels), checkpoints)
        yield found


def test_tables_1_and_2_of_paper_001():
    printed = {"resnet50": RESNET50, "deeplabv3plus_xception65": DEEPLAB}
    for network in hybrid.NETWORKS:
        for ours, theirs in zip((network.swap, network.hybrid), tuned(printed[network.model]),
                                strict=True):  # fmt: skip
            assert {
                size: (t.swapout_threshold, t.swapin_ahead, t.swapin_groupby, t.checkpoints)
                for size, t in ours.items()
            } == theirs


def test_what_paper_001_says_in_words():
    resnet50, deeplab = hybrid.NETWORKS
    assert (resnet50.batch, deeplab.batch) == (1, 16)
    assert (resnet50.levels, deeplab.levels) == (802, 1501)
    assert (resnet50.sizes_of_fit, deeplab.sizes_of_fit) == ((3000, 3500), (400, 500))
    assert (resnet50.sizes_of_knee, deeplab.sizes_of_knee) == ((4000, 4500), (500, 600))
    assert resnet50.largest == {"vanilla": 3000, "recompute": 4500, "swap": 7000, "hybrid": 7000}
    assert deeplab.largest == {"vanilla": 400, "recompute": 800, "swap": 1300, "hybrid": 1300}
    assert (resnet50.recompute_overhead, deeplab.recompute_overhead) == (0.158, 0.167)
    assert (resnet50.gain, deeplab.gain) == ((6500, 0.375), (1000, 0.187))


def test_figures_of_papers_000_003_and_004():
    assert [(n.model, n.printed_in_core, n.printed_factor) for n in architectures.NETWORKS] == [
        ("densenet121", 512, 1.5), ("pix2pixhd_perceptual", 4, 4.0),
        ("deeplabv3plus_xception65", 6, 5.3), ("deeplabv3plus", 6, 5.3),
    ]  # fmt: skip
    assert architectures.PRINTED_VA_FACTORS == (1.5, 2.0)
    assert sft_images.PRINTED_GIB == {"vgg16": 118, "vgg19": 129, "darknet19": 43}
    assert sft_images.PRINTED_SIDE == 10240
    assert hmms_speeds.PRINTED_SHARE == {"vgg19": 1.0, "resnet18": 0.55, "resnet50": 0.4}
    assert hmms_speeds.PRINTED_SHARE_RECOMPUTED == 0.7
    assert hmms_speeds.PRINTED_LOSS == {
        ("vgg19", "layer-wise"): 0.13, ("vgg19", "HMMS"): 0.013,
        ("resnet50", "layer-wise"): 0.129, ("resnet50", "HMMS"): 0.051,
    }  # fmt: skip
    assert split_hmms.PRINTED == {
        ("vgg19", "split + HMMS"): (6, 0.015),
        ("resnet18", "split + bn-recompute + HMMS"): (2, 0.049),
    }
    assert distributed.PRINTED == {10: 2.1}
    assert distributed.PRINTED_LOSS == 0.015
    assert split_accuracy.PRINTED == {
        ("vgg19", "whole"): 94.14, ("vgg19", "split"): 93.02, ("vgg19", "stochastic"): 94.58,
        ("resnet18", "whole"): 95.3, ("resnet18", "split"): 94.8, ("resnet18", "stochastic"): 95.5,
    }  # fmt: skip
    assert split_accuracy.PRINTED_IMAGENET == {
        "alexnet": (0.6, 55.2, 55.0, 55.9), "resnet50": (0.812, 75.9, 74.7, 74.9),
    }  # fmt: skip
