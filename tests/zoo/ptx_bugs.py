"""Planted bugs in compiled kernels: a line or two of the PTX of real kernels changed.

`BUGS` is {name: `Bug`}. The Python source of these kernels is right, so that neither its reader nor
an emulator that translates it can see the bug; a compiler's mistake, a wrong constraint of inline
PTX or a wrong width look just like this. A piece that is no longer in the text is an error, and
does not pass silently. Read next: `kernel_bugs.py` for bugs in the source, `test_ptx_bugs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Edit = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Bug:
    """One change.

    Args:
        case: of `test_ptx_bugs.CASES`: what runs.
        kernel: whose text is changed.
        edit: the change.
        said: what the interpreter says, or "wrong result".
    """

    case: str
    kernel: str
    edit: Edit
    said: str


def changed(pattern: str, new: str, which: int | None = 0) -> Edit:
    """Replaces one occurrence of a pattern, or every one (None)."""

    def edit(text: str) -> str:
        found = list(re.finditer(pattern, text))
        assert found, f"{pattern!r} does not stand in the text"
        chosen = found if which is None else [found[which]]
        for match in reversed(chosen):
            text = text[: match.start()] + match.expand(new) + text[match.end() :]
        return text

    return edit


BARRIER = r"bar\.sync\s+0;"
#: An instruction for the threads below 100 only.
FOR_SOME = (
    r".reg .pred %zoo; .reg .b32 %place; mov.u32 %place, %tid.x;"
    r" setp.lt.u32 %zoo, %place, {count}; @%zoo {instruction}"
)
SHUFFLE = r"shfl\.sync\.bfly\.b32\s+[^;]*;"
MMA_A = r"(mma\.sync[^;]*?\}, \{)([^,}]*),([^,}]*),([^,}]*),"
MMA_B = r"(mma\.sync[^;]*?\}, \{[^}]*\}, \{)([^,}]*),([^,}]*)\}"
TF32, TILED, RELU = "conv_tf32._correlate", "conv_tiled._correlate", "elementwise.relu_of"
FEW, LAST_OF_FOUR = (
    "conv_tf32_few._correlate",
    r"(st\.shared\.v4[^{]*\{[^,]*,)([^,]*),([^,]*),[^}]*",
)
LOSS, PRODUCT = "losses._cross_entropy", "matmul.multiply"

BUGS: dict[str, Bug] = {
    # Tensor cores and asynchronous copies
    "copies are not waited for": Bug(
        "tensor cores", TF32, changed(r"cp\.async\.wait_group\s+\d+;", "", None),
        "ReadOfUnwritten.*before the copy was waited for",
    ),
    "waits for one group too few": Bug(
        "tensor cores", TF32, changed(r"(cp\.async\.wait_group\s+)1;", r"\g<1>2;"),
        "ReadOfUnwritten.*before the copy was waited for",
    ),
    "the copies of a step make no group": Bug(
        "tensor cores", TF32, changed(r"cp\.async\.commit_group;", "", -1),
        "ReadOfUnwritten.*before the copy was waited for|wrong result",
    ),
    "no barrier after the copies": Bug(
        "tensor cores", TF32, changed(BARRIER, ""), "Race|before the copy was waited for"
    ),
    "a copy to a misaligned place": Bug(
        "tensor cores", TF32, changed(r"(cp\.async\.cg\.shared\.global \[%r\d+)\]", r"\g<1>+4]"),
        "Misaligned.*16 bytes",
    ),
    "rows of a's fragment swapped": Bug(
        "tensor cores", TF32, changed(MMA_A, r"\g<1>\g<3>,\g<2>,\g<4>,"), "wrong result"
    ),
    "columns of a's fragment swapped": Bug(
        "tensor cores", TF32, changed(MMA_A, r"\g<1>\g<4>,\g<3>,\g<2>,"), "wrong result"
    ),
    "rows of b's fragment swapped": Bug(
        "tensor cores", TF32, changed(MMA_B, r"\g<1>\g<3>,\g<2>}"), "wrong result"
    ),
    "matrices handed out in another order": Bug(
        "tensor cores", TF32,
        changed(r"(ldmatrix[^{]*\{)([^,]*),([^,]*),", r"\g<1>\g<3>,\g<2>,"), "wrong result",
    ),
    "cut to TF32 instead of rounded": Bug(
        "tensor cores, rounding", TF32,
        changed(r"cvt\.rn\.tf32\.f32 (%r\d+, %r\d+;)", r"mov.b32 \1", None), "wrong result",
    ),
    "ties away from zero instead of to even": Bug(
        "tensor cores, rounding", TF32, changed(r"cvt\.rn\.tf32", "cvt.rna.tf32", None),
        "wrong result",
    ),
    "no barrier after the taps": Bug("few channels", FEW, changed(BARRIER, ""), "Race|Unwritten"),
    "a channel stands where zeros belong": Bug(
        "few channels", FEW, changed(LAST_OF_FOUR, r"\g<1>\g<2>,\g<3>,\g<3>", None), "wrong result"
    ),
    # Shared memory and barriers
    "no barrier after filling": Bug("tiled", TILED, changed(BARRIER, ""), "Race|ReadOfUnwritten"),
    "no barrier before filling again": Bug("tiled", TILED, changed(BARRIER, "", 1), "Race"),
    "a barrier for some": Bug(
        "tiled", TILED, changed(BARRIER, FOR_SOME.format(count=100, instruction="bar.sync 0;")),
        "NotForAll.*not reached by all threads",
    ),
    "a barrier of the warp only": Bug(
        "tiled", TILED, changed(BARRIER, "bar.warp.sync -1;"), "Race|ReadOfUnwritten"
    ),
    "one word further in the tile": Bug(
        "tiled", TILED, changed(r"(st\.shared\.f32\s+\[%rd\d+)\]", r"\g<1>+4]"),
        "Race|ReadOfUnwritten|OutOfBounds|wrong result",
    ),
    "a quad of the tile from an odd place": Bug(
        "product", PRODUCT, changed(r"(ld\.shared\.v4\.f32\s+[^[]*\[%\w+)(?:\+\d+)?\]", r"\1+4]"),
        "Misaligned.*16 bytes",
    ),
    # Exchanges within a warp
    "a shuffle with the wrong partner": Bug(
        "loss", LOSS, changed(r"(shfl\.sync\.bfly\.b32\s+[^,]*,[^,]*, )[^,]*,", r"\g<1>4,", -1),
        "wrong result",
    ),
    "a shuffle for some": Bug(
        "loss", LOSS,
        changed(f"({SHUFFLE})", FOR_SOME.format(count=16, instruction=r"\1")),
        "NotForAll.*not reached by all of its lanes",
    ),
    # Addresses and indices
    "a quad from an odd place": Bug(
        "elements", RELU, changed(r"(ld\.global\.v4\.f32\s+[^[]*\[%rd\d+)\]", r"\g<1>+4]"),
        "Misaligned.*16 bytes",
    ),
    "a quad too far": Bug(
        "elements", RELU, changed(r"(ld\.global\.v4\.f32\s+[^[]*\[%rd\d+)\]", r"\g<1>+1040]"),
        "OutOfBounds.*array 0",
    ),
    "one element beyond the end": Bug(
        "elements", RELU, changed(r"setp\.ge\.s64", "setp.gt.s64", None), "OutOfBounds"
    ),
    "a place of 32 bits": Bug(
        "elements beyond 4 GiB", RELU,
        changed(r"(shl\.b64\s+(%rd\d+), %rd\d+, 2;)", r"\1 and.b64 \2, \2, 4294967295;", None),
        "wrong result",
    ),
    "an index of 8 bits": Bug(
        "tiled", TILED, changed(r"cvt\.s64\.s32", "cvt.s64.s8", None),
        "wrong result|Race|OutOfBounds|ReadOfUnwritten",
    ),
    # What an instruction computes
    "rounded down instead of to nearest": Bug(
        "product", PRODUCT, changed(r"fma\.rn\.f32", "fma.rm.f32", None), "wrong result"
    ),
    "the smaller instead of the larger": Bug(
        "loss", LOSS, changed(r"setp\.gt\.f32", "setp.lt.f32", None), "wrong result"
    ),
    "an atomic addition": Bug(
        "elements", RELU, changed(r"st\.global\.f32", "red.global.add.f32", None),
        "UnknownInstruction.*red",
    ),
}  # fmt: skip
