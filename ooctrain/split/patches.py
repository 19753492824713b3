"""Records a sketched network patch by patch.

A `Layout` holds the sketch, the joint and the cuts of every value; the network's output is recorded
on the tape in force. One patch goes through all layers before the next begins, so only a part of
each image is alive at a time, and all patches use the same workspace in turn. Backward visits them
in the opposite order. Each patch is cut off the input, and at the joint the parts are put together
(equations 4, 6 and 7). Everything behind the joint is recorded as it was sketched.

Source: paper 004, sections 3.1 and 3.2. Read next: `model.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ooctrain.engine.tensor import Tensor, call, current_tape
from ooctrain.layers.batch_norm import BatchNormStats, BatchNormUpdate
from ooctrain.layers.combine import Concat
from ooctrain.layers.dropout import Dropout
from ooctrain.layers.regions import Slice
from ooctrain.split.boundaries import Cuts, extent_of, paddings, sizes
from ooctrain.split.cuts import Joint, Sketch, SketchedCall, images_of
from ooctrain.step.rows import TilePlace, Window

ROWS, COLUMNS = 2, 3
Values = dict[int, Tensor]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A network and where it is cut.

    Args:
        sketch, joint: the network, and where its patches are joined.
        cuts: {value: first indices of its parts} of rows and of columns.
    """

    sketch: Sketch
    joint: Joint
    cuts: tuple[Mapping[int, Cuts], Mapping[int, Cuts]]

    def grid(self) -> Pair:
        """Patches in a column and in a row."""
        rows, columns = (len(cuts[self.joint.value.variable]) for cuts in self.cuts)
        return rows, columns

    def part_of(self, value: Tensor, patch: Pair) -> tuple[Pair, Pair]:
        """((first row, rows), (first column, columns)) of a patch of a value."""
        found = []
        for axis, cuts in enumerate(self.cuts):
            starts, number = cuts[value.variable], patch[axis]
            found.append((starts[number], sizes(starts, value.shape[ROWS + axis])[number]))
        return found[0], found[1]


def record(layout: Layout, source: Tensor) -> Any:
    """What the network returns for `source`, its patches recorded one after the other."""
    before = [_numbered(each) for each in layout.sketch.calls[: layout.joint.calls]]
    rows, columns = layout.grid()
    joined = [[_patch(layout, before, source, (i, j)) for j in range(columns)] for i in range(rows)]
    joint = layout.joint.value
    with current_tape().at(path=f"{joint.name.removesuffix('.out')}.joined", leaf=True):
        whole = _beside([_beside(strip, COLUMNS) for strip in joined], ROWS)
    values = {joint.variable: whole}
    for each in layout.sketch.calls[layout.joint.calls :]:
        _record(layout.sketch, _numbered(each), values, each.site.path)
    return _returned(layout.sketch, layout.sketch.output, values)


def _patch(layout: Layout, calls: Sequence[SketchedCall], source: Tensor, patch: Pair) -> Tensor:
    """One patch, from the input to the joint."""
    label, images = f"[{patch[0]},{patch[1]}]", images_of(layout.sketch)
    with current_tape().at(path=f"input{label}", leaf=True):
        values = {0: _block(source, *layout.part_of(layout.sketch.input, patch))}
    rows: dict[int, int] = {}  # values per channel that statistics are over
    for each in calls:
        path = f"{each.site.path or 'patch'}{label}"
        if isinstance(each.op, BatchNormStats):
            part = values[each.ins[0].variable]
            rows |= dict.fromkeys(
                (out.variable for out in each.outs), part.numel() // part.shape[1]
            )
        elif isinstance(each.op, BatchNormUpdate):
            each = replace(each, op=replace(each.op, rows=rows[each.ins[0].variable]))
        windows, block = each.op.window(), None
        if windows and not each.op.patchwise and images.intersection(t.variable for t in each.ins):
            place, block = _place(layout, each, windows, patch)
            each = replace(each, op=each.op.on_tile(place))
        _record(layout.sketch, each, values, path, block)
    return values[layout.joint.value.variable]


def _place(
    layout: Layout, each: SketchedCall, windows: tuple[Window, Window], patch: Pair
) -> tuple[TilePlace, tuple[Pair, Pair]]:
    """Where a call's part lies and how it is padded, and the block of the part that it reads.

    Where a padding is negative the part has rows that no window reads (equation 5): they are cut
    off, unless they are left over behind the last window anyway.
    """
    source, out = each.ins[0], each.outs[0]
    sides, block, starts = list[int](), list[Pair](), list[int]()
    for axis, window in enumerate(windows):
        cuts, number = layout.cuts[axis], patch[axis]
        begin, end = paddings(window, cuts[out.variable], cuts[source.variable])[number]
        rows = sizes(cuts[source.variable], source.shape[ROWS + axis])[number]
        wanted = sizes(cuts[out.variable], out.shape[ROWS + axis])[number]
        first, last = max(0, -begin), rows - max(0, -end)
        padded = rows - first + max(0, begin)
        if (padded - extent_of(window)) // window.stride + 1 == wanted:
            last = rows
        sides += [max(0, begin), max(0, end)]
        block.append((first, last - first))
        starts.append(cuts[source.variable][number] + first)
    top, bottom, left, right = sides
    full = source.shape[0], source.shape[1], source.shape[ROWS], source.shape[COLUMNS]
    return TilePlace((top, bottom, left, right), (starts[0], starts[1]), full), (block[0], block[1])


def _record(
    sketch: Sketch, each: SketchedCall, values: Values, path: str,
    block: tuple[Pair, Pair] | None = None,
) -> None:  # fmt: skip
    """Records a sketched call, of the block of its first input if one is given; fills `values`."""
    tape = current_tape()
    with tape.at(path=path, leaf=each.site.leaf, verb=each.site.verb), _recorded(each):
        ins = [_present(sketch, tensor, values) for tensor in each.ins]
        if block is not None:
            ins[0] = _block(ins[0], *block)
        if each.targets:
            tape.update(each.op, ins, each.targets, {})
            return
        outs = tape.call(each.op, ins)
    values |= {old.variable: new for old, new in zip(each.outs, outs, strict=True)}


@contextmanager
def _recorded(each: SketchedCall) -> Iterator[None]:
    """As the call was sketched: for backward, or not."""
    if each.recorded:
        yield
    else:
        with current_tape().paused():
            yield


def _present(sketch: Sketch, tensor: Tensor, values: Values) -> Tensor:
    """What a tensor of the sketch is on the tape in force."""
    if tensor in sketch.constants:
        return current_tape().runner.constant(sketch.constants[tensor])
    if tensor.variable is None:
        return tensor  # a parameter or a buffer
    found = values[tensor.variable]
    return found if tensor is sketch.values[tensor.variable] else found.detach()


def _numbered(each: SketchedCall) -> SketchedCall:
    """Dropout gets the number of its mask from the tape in force, one for all patches."""
    if not isinstance(each.op, Dropout):
        return each
    return replace(each, op=replace(each.op, call=current_tape().next_dropout()))


def _block(whole: Tensor, rows: Pair, columns: Pair) -> Tensor:
    """Some rows and columns of images."""
    n, c, h, w = whole.shape
    if (rows, columns) == ((0, h), (0, w)):
        return whole
    return call(Slice(whole.shape, (0, 0, rows[0], columns[0]), (n, c, rows[1], columns[1])), whole)


def _beside(parts: Sequence[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else call(Concat(axis), *parts)


def _returned(sketch: Sketch, output: Any, values: Values) -> Any:
    """What the network returned, in the same lists, tuples and dictionaries."""
    if isinstance(output, Tensor):
        return _present(sketch, output, values)
    if isinstance(output, list | tuple):
        return type(output)(_returned(sketch, part, values) for part in output)
    if isinstance(output, dict):
        return {key: _returned(sketch, part, values) for key, part in output.items()}
    return output
