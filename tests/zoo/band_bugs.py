"""Planted bugs of bands: each is a slip of a line in the rows that a band reads, keeps or writes.

`BAND_BUGS` is {name: a function that plants the bug with pytest's monkeypatch}. Most of them give
the right results with one band, and many also with few layers or thick bands. Read next:
`test_tile_bugs.py`; bugs of recomputed halos are in `tile_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from zoo.planting import plant

from ooctrain.layers.dropout import Dropout
from ooctrain.layers.pooling import MaxPool2dGrad
from ooctrain.layers.regions import Slice
from ooctrain.layers.resampling import Upsample
from ooctrain.rewrite.tile import band_rows, banded_calls, bands, frontier, on_rows
from ooctrain.step.op import OverWindows
from ooctrain.step.rows import RowsRead

Plant = Callable[[pytest.MonkeyPatch], None]
WEAVER, ROWS = bands._RowWeaver, band_rows.BandRows


def _slip(owner: Any, name: str, piece: str, wrong: str) -> Plant:
    """Changes a piece of a function's text."""
    return lambda patch: plant(patch, owner, name, piece, wrong) and None


#: Of a segment that ends with a product, which no case of properties/test_bands.py does.
OF_PRODUCTS = _slip(
    banded_calls, "_backward_rows",
    "near = near or [frontiers[v] for v in cut]", "near += [frontiers[v] for v in cut]",
)  # fmt: skip

BAND_BUGS: dict[str, Plant] = {
    "kept rows one short": _slip(
        WEAVER, "_keep",
        "min(firsts, default=made), made)", "min(firsts, default=made - 1) + 1, made)",
    ),
    "kept rows of the band before only": _slip(
        ROWS, "_parts", "sorted(run.parts[v], key=_first_row)", "run.parts[v][-1:]"
    ),
    "kept and own rows in the wrong order": _slip(
        ROWS, "source",
        "for part, piece in self._covering(run, v, image, rows)]",
        "for part, piece in [*self._covering(run, v, image, rows)][::-1]]",
    ),
    "own rows written over the kept ones": _slip(
        on_rows.OnRows, "_parts_of", "whole[:, start:stop], whole[:, stop:]",
        "whole[:, : stop - start], whole[:, stop:]",
    ),
    "rows below written above": _slip(
        on_rows.OnRows, "_run", "if self.below:", "if self.below and self.above:"
    ),
    "rows of the first image": _slip(
        band_rows, "_view", "(part.image, rows.lo", "(0, rows.lo"
    ),
    "gradient rows dropped one band early": _slip(
        WEAVER, "_keep", "band - 1)", "band)"
    ),
    "gradient rows in ascending order": _slip(
        WEAVER, "backward", "reversed(self.numbers) if self.keeps else self.numbers",
        "self.numbers",
    ),
    "gradients gathered from one row too few": _slip(
        RowsRead, "_gathered", "// w.stride + 1)", "// w.stride)"
    ),
    "weight gradients over kept rows": _slip(
        banded_calls.BandedCalls, "of", "Span(*self.rows[call.id][band : band + 2])",
        "Span(max(self.rows[call.id][band] - self.rules[call.id].reduces, 0), "
        "self.rows[call.id][band + 1])",
    ),
    "weight gradients by the borders of the input": _slip(
        banded_calls, "_backward_rows", "if over_input else forward.outs[0]",
        "if over_input else forward.ins[0]",
    ),
    "weight gradients of the last band": _slip(
        WEAVER, "_step", "add_part(run, self.writer, v, value, None if added else image)",
        "run.totals[v] = value",
    ),
    "bands go into the whole from below": _slip(
        WEAVER, "_made", "image, part.rows.lo))",
        "image, row_count(self.trace, v) - part.rows.hi))",
    ),
    "a part has enough rows if it has the first": _slip(
        ROWS, "source", " and rows.hi <= part.rows.hi", ""
    ),
    "dilation forgotten": _slip(
        frontier, "computable", "- window.reach) //", "- window.kernel) //"
    ),
    "rows between windows come later": _slip(
        frontier, "computable", "min(ended, begun, outputs)", "min(ended, outputs)"
    ),
    "a band of padding alone": _slip(
        frontier, "computable", " and reaches_image else 0", " else 0"
    ),
    "the padding of the layer in each band": _slip(
        OverWindows, "on_rows", "(place.above, place.below, *self.geometry.padding[2:])",
        "self.geometry.padding",
    ),
    "dropout of the first rows": _slip(Dropout, "_on_rows", "h + place.rows.lo", "h"),
    "dropout of the first image": _slip(Dropout, "_on_rows", "n + place.image", "n"),
    "pool index of rows above": _slip(
        MaxPool2dGrad, "row_rule", "(gathered, gathered)",
        "(gathered, RowsRead(replace(gathered.window, pad_lo=gathered.window.pad_lo + 1), True))",
    ),
    "the input that is farthest ahead decides at a join": _slip(
        banded_calls, "frontier_after", "min(computable", "max(computable"
    ),
    "kept for one reader of a fork": _slip(
        WEAVER, "_keep", "min(firsts, default=made)", "max(firsts, default=made)"
    ),
    "gradients meet at the term that is least complete": _slip(
        banded_calls, "_backward_rows", "map(max, zip", "map(min, zip"
    ),
    "gradient rows for one reader of a fork": _slip(
        WEAVER, "_keep", "max(stops, default=made)", "min(stops, default=made)"
    ),
    "weight gradients of a transposed convolution by its output": _slip(
        banded_calls, "_backward_rows", "forward.ins[0] if over_input else ", ""
    ),
    "the first channels of a concatenation": _slip(
        Slice, "_on_rows", "(0, self.start[1], 0, self.start[3])", "(0, 0, 0, self.start[3])"
    ),
    "upsampled as a window": _slip(Upsample, "row_rule", ", gathers=True", ""),
    "an upsampled border half-way": _slip(
        frontier, "computable", "rows * window.stride - window.pad_lo, outputs",
        "rows * window.stride + 1, outputs",
    ),
    "what others read is not put together": _slip(
        banded_calls, "_handed_out", "not ids.issuperset(trace.readers[v])", "not trace.readers[v]"
    ),
    "unread last rows without gradient": _slip(
        WEAVER, "_read_padding", "self._write_zeros(run, call, image, rows)", "return"
    ),
    "rows between windows counted twice": _slip(
        RowsRead, "_gathered",
        "min(outputs, (rows.hi - 1 + w.pad_lo) // w.stride + 1)",
        "min(outputs, (rows.hi - 1 + w.pad_lo + w.stride - w.reach) // w.stride + 1)",
    ),
    "pool index of another band": _slip(
        WEAVER, "_read_forward", "run.parts[v] = [*run.parts.get(v, []), part]",
        "run.parts[v] = [part]",
    ),
    "gradient of a padding by the borders of its output": _slip(
        banded_calls, "_backward_rows", " or len(extents) > 1", ""
    ),
    "gradient of a padding from the top": _slip(
        Slice, "row_rule", "Window(pad_lo=-self.start[2])", "Window()"
    ),
}  # fmt: skip

#: Those of the copies that kernels make; in the definition there are none.
OF_KERNELS = ("own rows written over the kept ones", "rows below written above")
