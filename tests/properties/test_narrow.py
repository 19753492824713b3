"""Law: `narrow` keeps the bits of every output and makes no call wider, on random networks; a call
that it leaves wide is one in which nothing can be overwritten. It keeps the results of calls in any
order, on storages that spoil what an operation in place may spoil (`support/random_calls.py`).
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from properties.test_rewrites_of_calls import initial, same
from support.random_calls import random_calls
from support.random_nets import RandomNet, block_plans, plans
from support.strict_storage import run_strictly

from ooctrain.engine.autograd import manual_seed
from ooctrain.engine.incore import Mode, initial_values, run_trace
from ooctrain.errors import ConfigError
from ooctrain.layers.combine import AddMasked
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.rewrite import apply_rewrites, fuse, share_storage
from ooctrain.rewrite.narrow import SUMS
from ooctrain.rewrite.narrow import narrow as narrowed
from ooctrain.sched.budget import trace_peak_bytes
from ooctrain.sched.planning.planner import call_need_bytes
from ooctrain.sched.schedule import BYTES
from ooctrain.step.trace import Call, Trace
from ooctrain.tracing import trace

SCALARS = {"lr": 0.1, "step": 2, "seed": 5}
SHAPE = (4, 2, 6, 6)
RESIDUAL = [("conv", 0), ("norm", 0), ("add", 0), ("relu", 0)]
#: Two blocks that add up: the gradient of the first comes through the mask of the second.
BLOCKS = [*RESIDUAL, *RESIDUAL, ("conv", 0), ("norm", 0), ("relu", 0)]
#: The same without batch norm.
IMAGES = [("instance_norm", 0), ("relu", 0), ("depthwise", 0), ("instance_norm", 0), ("add", 1),
          ("relu", 0)]  # fmt: skip


def masks(call: Call) -> bool:
    """Whether a call masks a gradient by the output of a ReLU."""
    return isinstance(call.op, AddMasked) or getattr(call.op, "mask", False)


def masked(call: Call) -> tuple[int, int]:
    """The gradient that it masks, and by what."""
    return call.ins[1 if isinstance(call.op, AddMasked) else 0], call.ins[-1]


def need_bytes(call: Call, step: Trace) -> int:
    return call_need_bytes(call, step, BYTES)


def check_narrow(plan, share: float, parts: int = 1, mode: Mode = "cpu") -> int:
    """Checks the law for one network and one width; returns how many masks were taken out.

    Args:
        plan: of a `RandomNet`.
        share: of the widest call that a call may hold.
        parts: into which the batch is cut.
        mode: of `run_trace`.
    """
    manual_seed(1)
    model = RandomNet(plan)
    step = trace(model, SHAPE, threads=2, accumulate=parts, conv_algorithm="direct")
    rng = np.random.default_rng(0)
    values = initial_values(step, model) | {
        "input": rng.standard_normal(SHAPE, np.float32), "target": np.array([0, 2, 1, 1]),
    }  # fmt: skip
    fused = apply_rewrites(step, ("fuse", "share_storage"))
    widest = max(need_bytes(call, fused) for call in fused.calls)
    most = max(1, int(share * widest))
    narrow = apply_rewrites(fused, (f"narrow:{most}",))
    narrow.check()
    plain, found = (
        run_trace(t, values, SCALARS, threads=2, mode=mode) for t in (fused, narrow)
    )  # fmt: skip
    assert plain.keys() == found.keys()
    for name, value in plain.items():
        assert value.tobytes() == found[name].tobytes(), name
    assert trace_peak_bytes(narrow) <= trace_peak_bytes(fused)
    before = {call.name: call for call in fused.calls}
    for call in narrow.calls:
        old = before.pop(call.name, None)
        assert old is None or need_bytes(call, narrow) <= need_bytes(old, fused), call.name
        assert old is not None or call.reuse, f"{call.name} is not in place"
    assert not before, f"gone: {sorted(before)}"
    _check_what_is_left(narrow, most)
    assert apply_rewrites(narrow, (f"narrow:{most}",)).fingerprint == narrow.fingerprint
    assert share_storage(narrow).calls == narrow.calls, "all that can be in place is"
    return sum(map(masks, fused.calls)) - sum(map(masks, narrow.calls))


def _check_what_is_left(narrow: Trace, most: int) -> None:
    """A sum that is left is narrow or in place. A mask that is left is narrow, with all that share
    it; or its gradient cannot be overwritten: somebody else reads it later, or it is handed out.
    """
    handed_out = set(narrow.outputs.values())
    for call in narrow.calls:
        if getattr(call.op, "residual", False) and need_bytes(call, narrow) > SUMS * most:
            assert call.reuse, call.name
        if masks(call) and need_bytes(call, narrow) > most:
            dy, y = masked(call)
            readers = [narrow.calls[reader] for reader in narrow.readers[dy]]
            same = [other for other in readers if masks(other) and masked(other) == (dy, y)]
            others = [other for other in readers if other not in same]
            kept = dy in handed_out or any(other.ins.count(dy) > 1 for other in same)
            assert kept or any(other.id > same[0].id for other in others), call.name


def check_narrow_calls(seed: int) -> bool:
    """Checks it for some calls; returns whether anything was narrowed."""
    trace = random_calls(random.Random(seed), 8)
    values, fused = initial(trace, seed), fuse(trace)
    strictly = run_strictly(trace, values, SCALARS)
    shared = share_storage(fused)
    for rewritten in (narrowed(shared, 1), share_storage(narrowed(fused, 1))):
        assert same(run_strictly(rewritten, values, SCALARS), strictly)
    return len(narrowed(shared, 1).calls) > len(shared.calls)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    plan=st.one_of(plans, block_plans),
    share=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    parts=st.sampled_from([1, 1, 2]),
)
@example(plan=BLOCKS, share=0.0, parts=2)
@example(plan=IMAGES, share=0.0, parts=1)
def test_narrow_keeps_the_bits_and_makes_no_call_wider(plan, share, parts):
    check_narrow(plan, share, parts)


def test_it_takes_masks_out_where_calls_are_wide_and_nowhere_else():
    assert check_narrow(BLOCKS, 0.0) == 5
    assert check_narrow(BLOCKS, 1.0) == 0
    assert check_narrow(IMAGES, 0.0) == 3


def widths(step: Trace) -> dict[str, int]:
    """{gradient: bytes of the widest call that masks it}."""
    found: dict[str, int] = {}
    for call in filter(masks, step.calls):
        name = step.variables[masked(call)[0]].name
        found[name] = max(found.get(name, 0), need_bytes(call, step))
    return found


def test_the_widest_of_those_that_share_a_mask_decides():
    manual_seed(1)
    step = trace(RandomNet(BLOCKS), SHAPE, threads=2, conv_algorithm="direct")
    fused = apply_rewrites(step, ("fuse", "share_storage"))
    before = widths(fused)
    for most in before.values():
        for limit in (most - 1, most):
            left = {name: width for name, width in before.items() if width <= limit}
            assert widths(narrowed(fused, limit)) == left


#: Calls of which a quarter has a mask that can be taken out; others have one that must stay.
SEEDS = range(24)


def test_it_keeps_the_results_of_any_calls():
    assert sum(check_narrow_calls(seed) for seed in SEEDS) > 5


@pytest.mark.slow
@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1))
def test_it_keeps_the_results_of_many_calls(seed):
    check_narrow_calls(seed)


@pytest.mark.parametrize("name", ["narrow", "narrow:", "narrow:0", "narrow:-1", "narrow:1MiB"])
def test_a_name_without_a_number_of_bytes_is_refused(name):
    with pytest.raises(ConfigError, match="narrow:1073741824"):
        apply_rewrites(random_calls(random.Random(0), 2), (name,))


def test_a_new_call_has_the_scratch_that_its_kernel_asks_for(monkeypatch):
    """Which is none with today's kernels."""
    manual_seed(1)
    step = trace(RandomNet(BLOCKS), SHAPE, threads=2, conv_algorithm="direct")
    fused = apply_rewrites(step, ("fuse", "share_storage"))

    class Greedy:
        def workspace_bytes(self, op, ins, outs, threads):
            return sum(spec.nbytes for spec in (*ins, *outs)) + threads

    monkeypatch.setitem(TABLES, "cpu", Greedy())
    found, before = narrowed(fused, 0), {call.name for call in fused.calls}
    new = [call for call in found.calls if call.name not in before]
    assert new
    for call in new:
        sizes = [found.variables[v].nbytes for v in (*call.ins, call.ins[0])]
        assert call.workspace_bytes == sum(sizes) + 2
