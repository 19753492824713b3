"""Blocks: tensors between bands, inputs and results, as variables of one band each.

The rewritten step has the same calls of bands, but these tensors need never be whole. A call that
reads rows of a whole tensor can read the same rows from the blocks of which it is made, or from an
input that is cut into blocks (`pieces.py`). When no reader of the whole is left, it is not put
together. So an image, and the values computed from it, may be larger than the device, and a planner
moves block after block with its ordinary instructions. A reader without a row rule keeps its whole.
Source: ours; docs/tiling.md. Read next: `step/blocks.py`, by which values are given and taken.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from ooctrain.layers.combine import Constant
from ooctrain.layers.kernels.tables import TABLES
from ooctrain.layers.regions import Insert
from ooctrain.rewrite.edit import with_calls
from ooctrain.rewrite.tile.halo import row_axis, with_rows
from ooctrain.rewrite.tile.on_rows import OnRows, View
from ooctrain.step.blocks import block_name, block_of
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, Spec
from ooctrain.step.trace import ITEM_BYTES, Call, Trace, Variable


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows [lo, hi) of an image, and the variable that holds them."""

    variable: int
    image: int
    lo: int
    hi: int


@dataclass(slots=True)
class Whole:
    """A tensor that can do without being whole.

    Args:
        variable: that holds it.
        blocks: that make it up, ascending.
        makers: calls that put it together; none of an input.
    """

    variable: int
    blocks: list[RowBlock]
    makers: list[int] = field(default_factory=list)


def read_blocks(trace: Trace) -> Trace:
    """The trace with blocks in place of wholes that only calls on rows read, or the caller.

    Cost: O(calls + blocks).
    """
    extended, inputs = _cut_inputs(trace)
    found = [*inputs, *_put_together(trace)]
    wholes = {whole.variable: whole for whole in found if _all_read_rows(trace, whole)}
    if not wholes:
        return trace
    blocks = {b.variable for whole in wholes.values() for b in whole.blocks}
    makers = {maker for whole in wholes.values() for maker in whole.makers}
    calls = [
        _reading_blocks(extended, _sparing(call, blocks), wholes)
        for call in trace.calls
        if call.id not in makers
    ]
    cut = {b.variable for whole in inputs if whole.variable in wholes for b in whole.blocks}
    gone = set(extended.initial) - set(trace.initial) - cut | wholes.keys()
    outputs: dict[str, int] = {}
    for name, v in trace.outputs.items():
        if v in wholes:
            several = trace.variables[v].shape[0] > 1
            outputs |= {
                block_name(name, b.image if several else None, b.lo, b.hi): b.variable
                for b in wholes[v].blocks
            }
        else:
            outputs[name] = v
    extended = replace(extended, outputs=MappingProxyType(outputs))
    return with_calls(extended, calls, gone=gone)


# Which wholes there are


def _put_together(trace: Trace) -> list[Whole]:
    """Tensors that are filled and then get block after block."""
    found: dict[int, Whole] = {}  # the version with the blocks so far: what it is made of
    for call in trace.calls:
        if isinstance(call.op, Constant) and len(trace.variables[call.outs[0]].shape) == 4:
            found[call.outs[0]] = Whole(call.outs[0], [], [call.id])
        elif isinstance(call.op, Insert) and call.ins[0] in found:
            _, c, h, w = trace.variables[call.ins[1]].shape
            image, channel, row, column = call.op.start
            _, channels, _, width = trace.variables[call.outs[0]].shape
            alone = len(trace.readers[call.ins[0]]) == 1
            if alone and (channel, column, c, w) == (0, 0, channels, width):
                whole = found[call.outs[0]] = found.pop(call.ins[0])
                whole.variable = call.outs[0]
                whole.blocks.append(RowBlock(call.ins[1], image, row, row + h))
                whole.makers.append(call.id)
    complete = []
    for v, whole in found.items():
        n, _, h, _ = trace.variables[v].shape
        whole.blocks.sort(key=lambda block: (block.image, block.lo))
        if whole.blocks and sum(b.hi - b.lo for b in whole.blocks) == n * h:
            complete.append(whole)
    return complete


def _cut_inputs(trace: Trace) -> tuple[Trace, list[Whole]]:
    """Inputs that can be cut, and the trace with the variables that their blocks would be.

    The rows that the first call on them reads, band by band, say where: forward a band then reads
    the end of the block before, which is still there, and its own one; backward likewise.
    """
    variables, wholes = list(trace.variables), []
    for v in trace.initial:
        old = trace.variables[v]
        if old.kind != "input" or len(old.shape) not in (3, 4) or not trace.readers[v]:
            continue
        if block_of(old.name) is not None:  # cut by the segment before
            continue
        first = trace.calls[trace.readers[v][0]]
        views = [
            (call, view)
            for call in (trace.calls[reader] for reader in trace.readers[v])
            if call.name.partition("[")[0] == first.name.partition("[")[0]
            for view in _views(call, v)
        ]
        borders = {(view[0], view[2 if first.phase == "forward" else 1]) for _, view in views}
        n, h = old.shape[0], old.shape[row_axis(old.shape)]
        whole = Whole(v, [])
        for image in range(n):
            rows = sorted({0, h, *(row for at, row in borders if at == image)})
            for lo, hi in pairwise(rows):
                name = block_name(old.name, image if n > 1 else None, lo, hi)
                shape = with_rows(old.shape, hi - lo)
                size = math.prod(shape) * ITEM_BYTES[old.dtype]
                whole.blocks.append(RowBlock(len(variables), image, lo, hi))
                variables.append(Variable(len(variables), name, shape, old.dtype, size, "input"))
        wholes.append(whole)
    return replace(trace, variables=tuple(variables)), wholes


# Who reads them


def _all_read_rows(trace: Trace, whole: Whole) -> bool:
    """Whether blocks do for all its readers: each reads rows of it, as its device can."""
    readers = [trace.calls[reader] for reader in trace.readers[whole.variable]]
    handed_out = whole.variable in trace.outputs.values()
    return bool(readers or handed_out) and all(
        len(_views(call, whole.variable)) == call.ins.count(whole.variable)
        and all(_can_read(trace, call, whole, view) for view in _views(call, whole.variable))
        for call in readers
    )


def _views(call: Call, variable: int) -> list[View]:
    """The rows of a variable that a call reads, once for each time that it reads some."""
    if not isinstance(call.op, OnRows):
        return []
    pairs = zip(call.op.views, call.ins, strict=False)
    return [view for view, v in pairs if v == variable and view is not None]


def _can_read(trace: Trace, call: Call, whole: Whole, view: View) -> bool:
    """A GPU's kernels begin at whole groups of four elements."""
    if trace.device == "cpu":
        return True
    images = [trace.variables[v].shape for v in (whole.variable, *call.outs)]
    rows = [math.prod(with_rows(shape, 1)) for shape in images if len(shape) in (3, 4)]
    pieces = _pieces(whole, view)
    inside = len(pieces) == 1 and pieces[0][1] is None
    return inside or all(elements % 4 == 0 for elements in rows)


def _pieces(whole: Whole, view: View) -> list[tuple[int, View | None]]:
    """Blocks in which the rows of a view lie, and which rows of each; None: all."""
    image, lo, hi = view
    found: list[tuple[int, View | None]] = []
    first = bisect_right(whole.blocks, (image, lo), key=lambda block: (block.image, block.hi))
    for place in range(first, len(whole.blocks)):
        block = whole.blocks[place]
        if (block.image, block.lo) >= (image, hi):
            break
        a, b = max(lo, block.lo), min(hi, block.hi)
        every = (a, b) == (block.lo, block.hi)
        found.append((block.variable, None if every else (0, a - block.lo, b - block.lo)))
    return found


def _sparing(call: Call, blocks: set[int]) -> Call:
    """A call that takes over no block's storage: blocks are read for longer than before."""
    if not blocks.intersection(call.reuse.values()):
        return call
    reuse = {out: v for out, v in call.reuse.items() if v not in blocks}
    return replace(call, reuse=MappingProxyType(reuse))


def _reading_blocks(trace: Trace, call: Call, wholes: Mapping[int, Whole]) -> Call:
    """A call that reads rows of blocks where it read rows of wholes."""
    if not wholes.keys() & set(call.ins):
        return call
    assert isinstance(call.op, OnRows), call.name
    values: list[int] = []
    views: list[View | None] = []
    counts: list[int] = []
    start = 0
    for count in call.op.pieces or (1,) * len(call.op.views):
        before = len(values)
        for i in range(start, start + count):
            v, view = call.ins[i], call.op.views[i]
            read = _pieces(wholes[v], view) if v in wholes and view is not None else [(v, view)]
            values += [piece for piece, _ in read]
            views += [rows for _, rows in read]
        counts.append(len(values) - before)
        start += count
    apart = tuple(counts) if len(values) > len(counts) else ()
    op: Op = replace(call.op, views=tuple(views), pieces=apart)
    if not (any(views) or apart or call.op.above or call.op.below):
        op = call.op.op
    ins = (*values, *call.ins[len(call.op.views) :])
    scratch = _workspace(trace, op, specs_of(trace, ins), specs_of(trace, call.outs))
    return replace(call, op=op, ins=ins, workspace_bytes=scratch)


def _workspace(trace: Trace, op: Op, ins: Sequence[Spec], outs: Sequence[Spec]) -> int:
    return TABLES[trace.device].workspace_bytes(op, ins, outs, trace.threads or 1)
