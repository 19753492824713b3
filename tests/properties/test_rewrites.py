"""Law: `fuse` and `share_storage` keep the bits of every output, on random networks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.autograd import manual_seed
from ooctrain.rewrite import fuse, share_storage
from ooctrain.tracing import initial_values, run_trace, trace

CHANNELS = 4
SCALARS = {"lr": 0.1, "step": 2, "seed": 5}
STEPS = ("conv", "conv_bias", "norm", "relu", "leaky", "tanh", "sigmoid", "drop", "pool", "avg",
         "scale", "add", "add", "concat", "slice")  # fmt: skip


class RandomNet(nn.Module):
    """Layers by a list of choices, with shortcuts to any earlier value of the same shape."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan
        self.stem = nn.Conv2d(2, CHANNELS, 3, padding=1)
        makers = {
            "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
            "conv_bias": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1),
            "norm": lambda: nn.BatchNorm2d(CHANNELS),
            "concat": lambda: nn.Conv2d(2 * CHANNELS, CHANNELS, 1),
            "drop": lambda: nn.Dropout(0.3),
        }
        self.parts = nn.ModuleList([makers.get(kind, nn.Identity)() for kind, _ in plan])
        self.head = nn.Linear(CHANNELS, 3)

    def forward(self, x):
        values = [self.stem(x)]
        for part, (kind, choice) in zip(self.parts, self.plan, strict=True):
            y = values[-1]
            same = [v for v in values if v.shape == y.shape]
            other = same[choice % len(same)]
            values.append(self._step(part, kind, y, other))
        return self.head(F.adaptive_avg_pool2d(values[-1], 1).flatten(1))

    def _step(self, part, kind, y, other):
        functions = {
            "relu": F.relu, "leaky": F.leaky_relu, "tanh": F.tanh, "sigmoid": F.sigmoid,
            "scale": lambda v: v * 0.5, "add": lambda v: other + v,
            "concat": lambda v: part(F.concat([v, other], dim=1)),
            "slice": lambda v: F.pad(v[:, :, 1:, :], (0, 0, 0, 1)),
        }  # fmt: skip
        if kind in ("pool", "avg"):
            if min(y.shape[2:]) < 2:
                return y
            return F.max_pool2d(y, 2) if kind == "pool" else F.avg_pool2d(y, 2)
        return functions.get(kind, part)(y)


plans = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), min_size=1, max_size=12)
blocks = st.lists(
    st.sampled_from([
        [("conv", 0), ("norm", 0), ("relu", 0)],
        [("conv", 0), ("norm", 0), ("add", 1), ("relu", 0)],
        [("norm", 0), ("add", 0), ("relu", 0), ("relu", 0)],
        [("relu", 0), ("add", 2), ("relu", 0)],
    ]),
    min_size=1, max_size=3,
).map(lambda lists: [step for steps in lists for step in steps])  # fmt: skip


@settings(max_examples=40)
@given(
    plan=st.one_of(plans, blocks, st.tuples(plans, blocks).map(lambda pair: pair[0] + pair[1])),
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
