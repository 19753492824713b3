"""What a step in bands holds between its passes is known before it is written, and no more is said.

`banded` writes no tiling of which that alone is more than device and host hold together. So the law
is `handed_over_bytes <= alive_bytes` of the step that is then written, for chains and graphs, norms
and skips, batches of one image and of several. The image that stands for all others is the first.
Read next: `ooctrain/rewrite/tile/offers.py`, `ooctrain/rewrite/tile/banded.py`, which ask.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from properties.test_bands import Cut, cuts, graph_trace
from support.quick import all_but
from support.tile_graphs import graphs
from zoo.planting import plant_everywhere

import ooctrain as oc
from ooctrain.api import step_trace
from ooctrain.errors import ConfigError, Infeasible
from ooctrain.rewrite import apply_rewrites
from ooctrain.rewrite.tile import bands, offers
from ooctrain.rewrite.tile.banded import Banded
from ooctrain.rewrite.tile.banded_calls import banded_calls
from ooctrain.rewrite.tile.offers import alive_as_offered, known_alive_bytes
from ooctrain.sched.budget import input_bytes
from ooctrain.sched.planning.question import Question
from ooctrain.sched.planning.residency import alive_bytes
from ooctrain.step.trace import Trace

BEFORE = ((), ("fuse",), ("fuse", "share_storage"))


def is_alive_in_what_is_written(graph: Any, images: int, cut: Cut, before: tuple[str, ...]) -> int:
    """The law for one graph; returns what is known of it."""
    model, (_, *image) = graph
    untiled = graph_trace(model, (images, *image))
    assume(untiled is not None)
    trace = apply_rewrites(untiled, before)
    source = banded_calls(trace, 1, "first", "last").forward[0].ins[0]
    extent = trace.variables[source].shape[2]
    rows = sorted({0, extent}.union(row for row in cut.rows if row < extent))
    calls = banded_calls(trace, 1, "first", "last", rows)
    try:
        written = bands.weave_bands(trace, calls, cut.again)
    except ConfigError:
        return 0
    known = bands.handed_over_bytes(trace, calls, cut.again)
    assert known <= alive_bytes(written)
    return known


def the_law(examples: int) -> list[int]:
    """Tries the law on graphs that are the same in each run; what is known of each."""
    found = list[int]()

    @settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(graphs(norms=True), st.integers(1, 3), cuts, st.sampled_from(BEFORE))
    def law(graph: Any, images: int, cut: Cut, before: tuple[str, ...]) -> None:
        found.append(is_alive_in_what_is_written(graph, images, cut, before))

    law()
    return found


def test_no_more_is_known_than_is_alive() -> None:
    found = the_law(25)
    assert sum(known > 0 for known in found) > len(found) // 3


@pytest.mark.slow
def test_no_more_is_known_than_is_alive_in_many_graphs() -> None:
    assert len(the_law(1500)) >= 1000


BUGS = {
    "what is read forward alone counts": ("made & read)", "made)"),
    "all that backward reads counts": ("made & read)", "read)"),
    "an image more": ("return images *", "return (images + 1) *"),
}


@pytest.mark.parametrize("bug", all_but(BUGS, "an image more"))
def test_the_law_bites(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_everywhere(monkeypatch, bands, "handed_over_bytes", *BUGS[bug])
    with pytest.raises(AssertionError):
        the_law(400)


def unet(batch: int = 4) -> Trace:
    """A U-Net with norms, whose tilings of the whole network take longest to write."""
    return apply_rewrites(step_trace("unet", batch, 64), ("fuse", "share_storage"))


@pytest.mark.parametrize("kind", ["bands", "bands_again"])
def test_half_of_what_a_network_in_bands_needs_is_known(kind: str) -> None:
    trace, name = unet(), f"{kind}:2:inc.double_conv.0.fwd:outc.conv.fwd"
    needed = alive_as_offered(trace, (name,))
    assert needed is not None
    assert 0.5 * needed < known_alive_bytes(trace, (name,)) <= needed
    assert known_alive_bytes(trace, ("tile:2x2:inc.double_conv.0.fwd:inc.double_conv.3.fwd",)) == 0
    assert known_alive_bytes(trace, ("bands:2:no.such.fwd:outc.conv.fwd",)) == 0


@pytest.mark.slow
def test_a_refusal_is_the_same_with_fewer_tilings_written(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, machine = unet(), oc.machine("cpu-generic")
    written, refusals = list[int](), list[str]()
    write, host = offers.tile_by_name, input_bytes(trace)

    def counted(step: Trace, name: str) -> Trace:
        written[-1] += 1
        return write(step, name)

    def nothing_known(step: Trace, names: tuple[str, ...]) -> int:
        return 0

    monkeypatch.setattr(offers, "tile_by_name", counted)
    for forgets in (False, True):
        offers.tiled_by.cache_clear()
        offers.alive_as_offered.cache_clear()
        written.append(0)
        if forgets:
            monkeypatch.setattr("ooctrain.rewrite.tile.banded.known_alive_bytes", nothing_known)
        with pytest.raises(Infeasible) as refused:
            Banded().plan(Question(trace, alive_bytes(trace) // 4, machine, host_budget_bytes=host))
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]
    assert written[0] + 2 < written[1]
