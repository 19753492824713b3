"""Rewrites: a trace in, a trace out, before planning; each is named in `Plan.rewrites`.

A rewrite is a pure function of a trace, and several are applied in the order of their names. The
original trace and the names therefore suffice to check the plan's trace (rule R602). A name may
carry parameters after a colon: "tile:4x4:conv1", "bands:16", "narrow:1048576". All rewrites keep
the bits, except that tiling keeps them on whole numbers and adds floats in another order. Users'
rewrites are "my_file.py:mine", or entry points of group "ooctrain.rewrites" (`plugged.py`). Read
next: `fuse.py`, `share_storage.py`, `narrow.py`, then `tile/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ooctrain import plugins as specs
from ooctrain.errors import ConfigError, failing_as
from ooctrain.rewrite.fuse import fuse
from ooctrain.rewrite.narrow import NAME as NARROW
from ooctrain.rewrite.narrow import narrow_by_name
from ooctrain.rewrite.pin_small import NAME as PIN_SMALL
from ooctrain.rewrite.pin_small import pin_again, pin_by_name
from ooctrain.rewrite.plugged import ENTRY_POINTS, Keeps, NamedRewrite, plugged_rewrite
from ooctrain.rewrite.reorder import reorder
from ooctrain.rewrite.share_storage import share_storage
from ooctrain.rewrite.tile import remark_by_name, tile_by_name
from ooctrain.step.trace import Trace

Rewrite = Callable[[Trace], Trace]


class Rewrites(Mapping[str, Rewrite]):
    """{name: rewrite}; "tile:4x4" is looked up as "tile" and gets its parameters."""

    plain: Mapping[str, Rewrite] = {
        "fuse": fuse,
        "share_storage": share_storage,
        "reorder": reorder,
    }
    with_parameters = ("tile", "bands", "bands_again", PIN_SMALL, NARROW)

    def __getitem__(self, name: str) -> Rewrite:
        if name.partition(":")[0] == NARROW:
            return lambda trace: narrow_by_name(trace, name)
        if name.partition(":")[0] == PIN_SMALL:
            return lambda trace: pin_by_name(trace, name)
        if name.partition(":")[0] in self.with_parameters:
            return lambda trace: pin_again(tile_by_name(trace, name), trace)
        if name in self.plain:
            return self.plain[name]
        if (found := plugged_rewrite(name)) is not None:
            return found
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from (*self.plain, *self.with_parameters)

    def __len__(self) -> int:
        return len(self.plain) + len(self.with_parameters)


REWRITES = Rewrites()
#: These add floats in another order.
SUMS_ANEW = ("tile", "bands", "bands_again")


def apply_rewrites(trace: Trace, names: Sequence[str]) -> Trace:
    """`trace` after the rewrites, in order.

    Raises:
        ConfigError: a name that no rewrite has.
        PartFailed: one raised an error that is not the library's.
    """
    for name in names:
        rewrite = _known(name)
        with failing_as(f"rewrite {name!r}"):
            trace = rewrite(trace)
    return trace


def rewritten_with_remarks(trace: Trace, names: Sequence[str]) -> tuple[Trace, tuple[str, ...]]:
    """`trace` after the rewrites, and what they do otherwise than their names say: fewer tiles.

    Raises:
        ConfigError: as `apply_rewrites`.
    """
    remarks = []
    for name in names:
        before, trace = trace, apply_rewrites(trace, (name,))
        if name.partition(":")[0] in SUMS_ANEW:
            remarks.append(remark_by_name(before, name))
    return trace, tuple(filter(None, remarks))


def rewrites() -> tuple[str, ...]:
    """Names of all rewrites, those of other packages included; some want parameters."""
    return specs.names(REWRITES, ENTRY_POINTS)


def keeps_of(name: str) -> Keeps:
    """What of a step's results a rewrite keeps. Raises ConfigError: no rewrite has this name."""
    found = _known(name)
    if isinstance(found, NamedRewrite):
        return found.keeps
    return "bound" if name.partition(":")[0] in SUMS_ANEW else "bits"


def keeps_bits(names: Iterable[str]) -> bool:
    """Whether a step after these rewrites has the bits of the step before."""
    return all(keeps_of(name) == "bits" for name in names)


def _known(name: object) -> Rewrite:
    if not isinstance(name, str) or not name or name not in REWRITES:
        if isinstance(name, str):
            specs.refuse_path(name, "rewrite")
        raise ConfigError(
            f"no rewrite {name!r}", code="OOC-106",
            fix=f"one of {', '.join(REWRITES)}, or file.py:name for your own",
        )  # fmt: skip
    return REWRITES[name]
