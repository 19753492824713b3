"""Each law of an allocator, as a test.

A pass over all lists notes which laws do not hold, for the allocator of the fixture `allocator`; no
law ends it, so each is judged for itself. A law that does not hold is then looked at alone, for the
shortest list that breaks it. The gravest come first: blocks that overlap, bytes that change.
Read next:
`../testing/allocator_laws.py`, where the laws are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from ooctrain.alloc.base import innermost
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.alloc.static import Plannable
from ooctrain.laws.plugin import repeat_command
from ooctrain.testing.allocator_laws import LAWS, OF_OTHER_KINDS, Verdicts
from ooctrain.testing.check_allocator import broken_laws, find_broken

#: What is held of every allocator, the gravest first; the others are laws of a kind. Errors that no
#: law names are "".
OF_ALL = (
    "P1", "P4", "P5", "P2", "P6", "P8", "P9", "P10", "P7", "P19", "P11", "P12", "P15", "P16", "",
)  # fmt: skip
OF_PLANNED = ("S1", "S2", "S3", "S4", "S5")
OF_KIND: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "best-fit": ("B1", "B2", "B3", "B4"),
        "gmlake": ("V1", "V3", "V5"),
        "va": ("P13", "V1", "V3", "V4", "V5"),
        "va-nnabla": ("V1", "V3", "V5"),
        "va-paper": ("V1", "V3", "V5"),
    }
)
BACKENDS = ("strict", "memfd", "plain")
SAMPLE_BYTES = 1 << 20


@pytest.fixture(scope="session")
def found() -> dict[tuple[str, int, int], Verdicts]:
    """{(allocator, examples, seed): the laws that do not hold}."""
    return {}


@pytest.mark.parametrize(
    "law", [*OF_ALL, "P18", *(law for law in LAWS if law[0] in "BVS" or law == "P13")],
    ids=lambda law: f"law_{law or 'none_names_it'}",
)  # fmt: skip
def test_allocator(
    law: str, allocator: Any, request: pytest.FixtureRequest,
    found: dict[tuple[str, int, int], Verdicts],
) -> None:  # fmt: skip
    """The allocator keeps the law under random requests, on every back end."""
    make = _maker(allocator)
    if law not in (*OF_ALL, "P18", *_own(make)):
        pytest.skip(f"{OF_OTHER_KINDS}: {LAWS[law]}")
    options = request.config.getoption
    key = (str(allocator), options("law_examples"), options("law_seed"))
    if key not in found:
        found[key] = broken_laws(make, key[1], key[2], BACKENDS)
    verdicts = found[key]
    if law not in verdicts.found:
        if 2 * verdicts.cut > verdicts.lists:
            pytest.skip(f"not judged, as most lists end with {verdicts.found['']}")
        return
    failure = None if options("law_briefly") else find_broken(make, law, *key[1:], BACKENDS)
    said = verdicts.found[law] if failure is None else failure
    pytest.fail(f"{said}\n  {repeat_command(request, 'allocator')}", pytrace=False)


def _maker(allocator: Any) -> Callable[[Any], Any]:
    if isinstance(allocator, str):
        return choose_allocator(allocator, SAMPLE_BYTES, binding=False).make
    return allocator


def _own(make: Callable[[Any], Any]) -> tuple[str, ...]:
    """The laws of its kind."""
    sample = make(DryMemory(SAMPLE_BYTES))
    return (
        *OF_KIND.get(sample.name, ()),
        *(OF_PLANNED if isinstance(innermost(sample), Plannable) else ()),
    )
