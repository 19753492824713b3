"""Codes OOC-170 to OOC-172: a network cannot be split into patches as requested.

These codes concern the depth, the grid, the random boundaries or the network. Numbers out of range
are refused when they are given; a request that fails only for certain images is refused when the
step is traced. Read next: `lists.py`; `../split/`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooctrain.explain.explanation import Explanation

SPLITTING: Mapping[str, Explanation] = {
    "OOC-170": Explanation(
        "a split out of range",
        "The depth of a split is a share of the convolutions, 0 to 1; its grid is two whole "
        "numbers of 1 or more; omega lies in [0, 0.5), since at 0.5 two boundaries might be drawn "
        "in one place.",
        "oc.split(model, stochastic=True, omega=0.5)",
        "oc.split(model, 0.5, (2, 2), True, omega=0.2), or --split depth=0.5,grid=2x2,stochastic",
    ),
    "OOC-171": Explanation(
        "more patches than rows",
        "Each patch needs a row and a column of every layer up to the joint. The grid is larger "
        "than the image there, or boundaries that suit all layers leave a patch with nothing.",
        "oc.trace(oc.split(oc.models.build('lenet'), 0.5, (64, 1)), (1, 3, 32, 32))",
        "fewer patches, a smaller depth, or larger images",
    ),
    "OOC-172": Explanation(
        "a network that cannot be split",
        "It is split already, has no convolution, defines its own loss, or has no place where a "
        "single image is all that later layers read, so that patches could be joined there; or the "
        "readers of a value allow no common boundary.",
        "oc.split(oc.split(model))",
        "split the model itself (`model.whole`), or the part of it that reads the images",
    ),
}
