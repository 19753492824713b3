"""Allocators by name: "va", "best-fit", "va:chunk=1MiB", "my_file.py:MyAllocator".

A name and the budget give an `AllocatorChoice`: the allocator's name, its granule, which planners
must know before anything is allocated, and how to make it over an arena. An allocator is a class
whose first parameter is the memory. Its granule is read from an instance over memory without bytes,
so planning needs no device. To add one, write a file with the class and add a line below. Read
next: `base.py`; `replay.py` for the memory without bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ooctrain.alloc.base import Allocator
from ooctrain.alloc.best_fit import BestFit
from ooctrain.alloc.best_fit_caching import CachingBestFit
from ooctrain.alloc.buddy import Buddy
from ooctrain.alloc.bump import Bump
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.first_fit import FirstFit, FirstFitBySize
from ooctrain.alloc.passthrough import Passthrough
from ooctrain.alloc.virtual import VirtualAddressing
from ooctrain.devices.cpu.host_vm import PAGE_BYTES, max_mapped_chunks, why_no_virtual_memory
from ooctrain.devices.interface import Memory
from ooctrain.errors import ConfigError
from ooctrain.plugins import check_call, locate, names, parse_spec
from ooctrain.units import Granule, format_bytes

Factory = Callable[..., Allocator]
_KNOWN: Mapping[str, Factory] = {
    BestFit.name: BestFit,
    CachingBestFit.name: CachingBestFit,
    Buddy.name: Buddy,
    Bump.name: Bump,
    FirstFit.name: FirstFit,
    FirstFitBySize.name: FirstFitBySize,
    Passthrough.name: Passthrough,
    VirtualAddressing.name: VirtualAddressing,
}
#: What is there to be compared with; loaded once it is asked for.
_LATE = {
    "gmlake": "Gmlake",
    "stalloc": "Stalloc",
    "va-nnabla": "NnablaVirtualAddressing",
    "va-paper": "PaperVirtualAddressing",
}
_GROUP = "ooctrain.allocators"
_FALLBACK = BestFit.name


@dataclass(frozen=True, slots=True)
class AllocatorChoice:
    """An allocator that has been chosen but not made.

    Args:
        name: as it was chosen, with parameters; the fallback's where there is no virtual memory.
        granule: how it rounds, for planners.
        budget_bytes: what it can use of the budget (whole granules).
        make: makes it over the device's memory.
        notices: what the user should know: a fallback, bytes of the budget that stay unused.
        maps: whether it needs virtual memory.
        piece_bytes: size of the pieces of physical memory that it maps; None: it maps nothing.
    """

    name: str
    granule: Granule
    budget_bytes: int
    make: Callable[[Memory], Allocator]
    notices: tuple[str, ...] = ()
    maps: bool = False
    piece_bytes: int | None = None


def allocators() -> tuple[str, ...]:
    """Names of all allocators, those of other packages included."""
    return names([*_KNOWN, *_LATE], _GROUP)


def choose_allocator(
    name: str | Factory, budget_bytes: int, probe: Callable[[], str] = why_no_virtual_memory, *,
    binding: bool = True, page_bytes: int = PAGE_BYTES,
) -> AllocatorChoice:  # fmt: skip
    """Resolves a name for a budget.

    Args:
        name: "va", "best-fit", "va:chunk=1MiB", "file.py:Class", or another package's; or what
            makes an allocator over a memory, such as its class.
        budget_bytes: size of the arena.
        probe: says why there is no virtual memory here; empty text where there is.
        binding: False only asks how it rounds in an arena of about this size.
        page_bytes: what the device maps; a chunk is a whole page unless a size was given.

    Raises:
        ConfigError: unknown name or parameter, or (if binding) one that cannot serve the budget.
    """
    if binding:
        _check_limits(name, budget_bytes, probe, page_bytes)
    choice = _choose(name, budget_bytes, page_bytes)
    reason = probe() if choice.maps else ""
    if not reason:
        return choice
    fallback = _choose(_FALLBACK, budget_bytes, page_bytes)
    notice = f"allocator {name} needs virtual memory ({reason}): {_FALLBACK} serves instead"
    return AllocatorChoice(
        fallback.name, fallback.granule, fallback.budget_bytes, fallback.make,
        (notice, *fallback.notices),
    )  # fmt: skip


def choose_dry(name: str, budget_bytes: int) -> AllocatorChoice:
    """The choice for memory without bytes: neither the limits of this system nor its lack of
    virtual memory matter.

    Raises:
        ConfigError: unknown name or parameter.
    """
    return choose_allocator(name, budget_bytes, probe=lambda: "", binding=False)


def _check_limits(
    named: str | Factory, budget_bytes: int, probe: Callable[[], str], page_bytes: int
) -> None:
    """Whether an allocator of chunks can serve the budget: asked before one is made, whose tables
    have a row for each chunk.
    """
    factory, options, memory = _called(named, budget_bytes, page_bytes)
    check_limits = getattr(factory, "check_limits", None)
    if check_limits is not None and not probe():
        check_limits(memory, options["chunk"])


def _called(
    named: str | Factory, budget_bytes: int, page_bytes: int
) -> tuple[Factory, Mapping[str, Any], DryMemory]:
    """What makes the allocator, with which parameters, and memory without bytes to try it on."""
    factory, options = _located(named)
    options = {**_defaults(factory, budget_bytes, page_bytes), **options}
    memory = DryMemory(budget_bytes, page_bytes, max_mapped_chunks())
    if named not in _KNOWN:
        check_call(factory, (memory,), options, _title(named), "allocator")
    return factory, options, memory


def _choose(named: str | Factory, budget_bytes: int, page_bytes: int) -> AllocatorChoice:
    factory, options, memory = _called(named, budget_bytes, page_bytes)
    make = partial(factory, **options)
    sample = make(memory)
    missing = [word for word in _METHODS if not hasattr(sample, word)]
    if missing:
        raise ConfigError(
            f"allocator {_title(named)!r} has no {', '.join(missing)}",
            code="OOC-108",
            fix="ooctrain/alloc/base.py says what an allocator has",
        )
    unused = budget_bytes - sample.budget_bytes
    notice = f"{format_bytes(unused)} of the budget are less than a granule and stay unused"
    maps = sample.granule.ranges or getattr(sample, "needs_virtual_memory", False)
    chosen = named if isinstance(named, str) else sample.name
    piece_bytes = getattr(sample, "chunk_bytes", sample.granule.size_bytes) if maps else None
    return AllocatorChoice(
        chosen, sample.granule, sample.budget_bytes, make, (notice,) if unused else (), maps,
        piece_bytes,
    )  # fmt: skip


def _title(named: str | Factory) -> str:
    return named if isinstance(named, str) else getattr(named, "name", "of its own")


def _located(named: str | Factory) -> tuple[Factory, Mapping[str, Any]]:
    if not isinstance(named, str):
        return named, {}
    if named in _KNOWN:
        return _KNOWN[named], {}
    spec = parse_spec(named)
    known: dict[str, Factory] = {**_KNOWN, **dict.fromkeys(_LATE, BestFit)}
    if spec.name in _LATE and not spec.file:
        module = import_module(f"ooctrain.alloc.{spec.name.replace('-', '_')}")
        known[spec.name] = getattr(module, _LATE[spec.name])
    return locate(named, known, group=_GROUP, what="allocator", given=1)


def _defaults(
    factory: Callable[..., Allocator], budget_bytes: int, page_bytes: int
) -> dict[str, Any]:
    """Parameters that follow from the budget; a chunk is made of whole pages."""
    defaults = getattr(factory, "defaults", None)
    found = dict(defaults(budget_bytes)) if defaults else {}
    if "chunk" in found:
        found["chunk"] = -(-found["chunk"] // page_bytes) * page_bytes
    return found


_METHODS = (
    "name", "granule", "budget_bytes", "allocate", "free", "stats", "check", "snapshot",
    "close",
)  # fmt: skip
