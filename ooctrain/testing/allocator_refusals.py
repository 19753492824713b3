"""What an allocator must refuse: invalid sizes, blocks that are not live, calls after it is closed.

A refusal is an error of the right kind. An error from deep inside breaks the law just as
serving the request does. The caller, who knows what the allocator showed before, checks that a
refusal changes nothing. Read next: `allocator_client.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ooctrain.alloc.base import Allocator, Block
from ooctrain.errors import ConfigError, InvalidFree, OoctrainError, OutOfDeviceMemory
from ooctrain.testing.allocator_laws import hold

WRONG_SIZES: Sequence[Any] = (0, -1, 1.5, 2**63, None, True)
_FROM_INSIDE = (
    OoctrainError, LookupError, TypeError, ValueError, ArithmeticError, AssertionError,
)  # fmt: skip


def refuses_sizes(allocator: Allocator) -> None:
    """What is not a size is not served."""
    for wrong in WRONG_SIZES:
        _refuses(partial(allocator.allocate, wrong), ConfigError, "P10", f"allocate({wrong!r})")


def refuses_frees(allocator: Allocator, blocks: Sequence[Block]) -> None:
    """Blocks that are not live here are not taken back."""
    for block in blocks:
        _refuses(partial(allocator.free, block), InvalidFree, "P10", f"a free of dead {block.tag}")


def refuses_more(allocator: Allocator, nbytes: int) -> None:
    """More than the largest request that is promised is not served."""
    too_large = partial(allocator.allocate, nbytes, "too large")
    _refuses(too_large, OutOfDeviceMemory, "P9", f"{nbytes} B, more than is promised,")


def refuses_all(allocator: Allocator, dead: Block) -> None:
    """A closed allocator neither gives nor takes."""
    for act in (partial(allocator.allocate, 1), partial(allocator.free, dead)):
        _refuses(act, InvalidFree, "P10", f"{act.func.__name__} of a closed allocator")


def _refuses(act: Callable[[], object], refusal: type[OoctrainError], law: str, what: str) -> None:
    try:
        act()
    except refusal:
        return
    except _FROM_INSIDE as error:
        hold(law, False, f"{what} had to be refused, and meets {error!r}")
        return
    hold(law, False, f"{what} had to be refused, and is served")
