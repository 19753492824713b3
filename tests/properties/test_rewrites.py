"""Law: `fuse` and `share_storage` keep the bits of every output, on random networks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_nets import RandomNet, block_plans, plans

from ooctrain.engine.autograd import manual_seed
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.rewrite import fuse, share_storage
from ooctrain.tracing import trace

SCALARS = {"lr": 0.1, "step": 2, "seed": 5}


@settings(max_examples=40)
@given(
    plan=st.one_of(plans, block_plans),
    parts=st.sampled_from([1, 1, 2]),
    clip=st.sampled_from([None, None, 0.1]),
    training=st.sampled_from([True, True, True, False]),
)
def test_rewrites_keep_the_bits(plan, parts, clip, training):
    manual_seed(1)
    model = RandomNet(plan)
    step = trace(
        model, (4, 2, 6, 6), threads=2, accumulate=parts, clip=clip, training=training,
        conv_algorithm="direct",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    inputs = {
        "input": rng.standard_normal((4, 2, 6, 6), np.float32),
        "target": np.array([0, 2, 1, 1]),
    }
    values = initial_values(step, model) | inputs
    plain = run_trace(step, values, SCALARS)
    for rewritten in (fuse(step), share_storage(step), share_storage(fuse(step))):
        rewritten.check()
        results = run_trace(rewritten, values, SCALARS, threads=2)
        assert results.keys() == plain.keys()
        for name, value in plain.items():
            assert value.tobytes() == results[name].tobytes(), name
