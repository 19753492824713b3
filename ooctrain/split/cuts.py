"""Where each value of a network is cut, from the joint back to the input.

The output split of a layer is the input split of the next (section 3.2), so nothing moves between
patches. Boundaries are chosen at the joint of a sketch, and each layer hands them on to the values
that it reads; the result is {value: first indices of its parts} for rows or columns. Where several
layers read the same value, for example at the start of a shortcut, they share one cut, which each
of them must allow. Where a single value is alive, there is a choice, which may be made at random.

Source: paper 004, sections 3.2 and 3.3 ("a separate output split scheme for each feature map").
Read next: `patches.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ooctrain.errors import ConfigError
from ooctrain.split.boundaries import Cuts, Interval, allowed, drawn, middle, wiggle
from ooctrain.split.joints import Joint, images_of, joints, part_rule
from ooctrain.split.settings import Splitting
from ooctrain.split.sketch import Sketch

AXES = ("rows", "columns")


def cuts_of(
    sketch: Sketch, joint: Joint, axis: int, how: Splitting, step: int
) -> Mapping[int, Cuts]:
    """{value: first indices of its parts} along rows (axis 0) or columns (1), joint to input.

    Args:
        step: of the training; what is drawn is a function of it, the seed, the axis and the place
            in the network.

    Raises:
        ConfigError: a part would have no row, or no cut suits all readers of a value.
    """
    images, parts = images_of(sketch), how.grid[axis]
    lone = {sketch.input.variable, *(found.value.variable for found in joints(sketch))}
    found: dict[int, Cuts] = {}
    wishes: dict[int, list[Sequence[Interval]]] = {}
    for place in range(joint.calls, -1, -1):
        call = sketch.calls[place - 1] if place else None
        outs = [v for v in (call.outs if call else (sketch.input,)) if v.variable in images]
        asked = [wish for out in outs for wish in wishes.get(out.variable, ())]
        free = any(out.variable in lone for out in outs)
        chance = how.stochastic and free
        around = [
            wiggle(i, outs[0].shape[2 + axis], parts, how.omega if chance else 0.0)
            for i in range(1, parts) if outs
        ]  # fmt: skip
        if any(out.variable == joint.value.variable for out in outs):
            between = around
        elif asked:
            between = [_shared(wish, outs[0].name) for wish in zip(*asked, strict=True)]
            if free:
                between = [_nearest(*pair) for pair in zip(between, around, strict=True)]
        else:
            continue  # of no image, or not read before the joint
        key = how.seed, step, axis, place
        starts = [
            drawn(where, (*key, i)) if chance else middle(where) for i, where in enumerate(between)
        ]
        cuts = _checked((0, *starts), outs[0].shape[2 + axis], f"{outs[0].name}, {AXES[axis]}")
        found |= {out.variable: cuts for out in outs}
        if call is None:
            continue
        rule = part_rule(call, images)
        assert rule is not None, "all calls before a joint have one"
        wish = [allowed(rule.windows(call.op)[axis], cut) for cut in cuts[1:]]
        for tensor in call.ins:
            if tensor.variable in images:
                wishes.setdefault(tensor.variable, []).append(wish)
    return found


def _shared(wishes: Sequence[Interval], name: str) -> Interval:
    """Where all readers allow a cut."""
    low, high = max(low for low, _ in wishes), min(high for _, high in wishes)
    if low > high:
        raise ConfigError(
            f"no cut of {name} suits all calls that read it", code="OOC-172",
            numbers=f"they allow {', '.join(f'{a} to {b}' for a, b in wishes)}",
            fix="another depth, so that the patches are joined before",
        )  # fmt: skip
    return low, high


def _nearest(allowed_here: Interval, around: Interval) -> Interval:
    """What is allowed and around the even boundary; else what is allowed and nearest to it."""
    low, high = (min(max(end, allowed_here[0]), allowed_here[1]) for end in around)
    return low, high


def _checked(cuts: Cuts, extent: int, where: str) -> Cuts:
    if any(a >= b for a, b in pairwise((*cuts, extent))):
        raise ConfigError(
            "a patch would have no row or no column", code="OOC-171", where=where,
            numbers=f"{extent} in all, parts would begin at {', '.join(map(str, cuts))}",
            fix="fewer patches, a smaller depth, or larger images",
        )  # fmt: skip
    return cuts
