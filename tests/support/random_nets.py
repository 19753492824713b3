"""Random small networks for property tests: layers and shortcuts by a list of choices.

A module is built from a list of (kind of layer, number); `plans` draws such lists with Hypothesis.
The number chooses the earlier value of the same shape from which a shortcut comes, so that forks,
chains of sums and values with many readers all occur, and shrinking finds the smallest. Read next:
`testing/random_traces.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from ooctrain import functional as F
from ooctrain import nn
from ooctrain.engine.tensor import Tensor

Step = tuple[str, int]
CHANNELS = 4
#: Names of steps; one that stands twice is drawn twice as often.
STEPS = ("conv", "conv_bias", "norm", "relu", "leaky", "tanh", "sigmoid", "dropout", "pool", "avg",
         "scale", "add", "add", "concat", "slice", "shared", "instance_norm", "depthwise",
         "transposed", "reflect", "resize", "product", "quotient", "gate", "gelu", "relu6",
         "clamp", "softmax", "prelu", "turned", "group_norm", "layer_norm",
         "dropout2d")  # fmt: skip
#: Beyond this many pixels nothing is enlarged.
MOST_PIXELS = 400


class RandomNet(nn.Module):
    """(N, 2, H, W) to three logits; shortcuts come from any earlier value of the same shape."""

    def __init__(self, plan: Sequence[Step]):
        super().__init__()
        self.plan = plan
        self.stem = nn.Conv2d(2, CHANNELS, 3, padding=1)
        self.shared = nn.Conv2d(CHANNELS, CHANNELS, 1)
        makers: dict[str, Callable[[], nn.Module]] = {
            "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
            "conv_bias": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1),
            "norm": lambda: nn.BatchNorm2d(CHANNELS),
            "concat": lambda: nn.Conv2d(2 * CHANNELS, CHANNELS, 1),
            "dropout": lambda: nn.Dropout(0.3),
            "instance_norm": lambda: nn.InstanceNorm2d(CHANNELS),
            "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
            "transposed": lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, stride=2),
            "prelu": lambda: nn.PReLU(CHANNELS),
            "dropout2d": lambda: nn.Dropout2d(0.3),
            "group_norm": lambda: nn.GroupNorm(2, CHANNELS),
        }
        self.parts = nn.ModuleList([makers.get(kind, nn.Identity)() for kind, _ in plan])
        self.head = nn.Linear(CHANNELS, 3)

    def forward(self, x: Tensor) -> Tensor:
        values = [self.shared(self.stem(x))]
        for part, (kind, choice) in zip(self.parts, self.plan, strict=True):
            y = values[-1]
            same = [v for v in values if v.shape == y.shape]
            other = same[choice % len(same)]
            values.append(self._apply(part, kind, y, other))
        return self.head(F.adaptive_avg_pool2d(values[-1], 1).flatten(1))

    def _apply(self, part: nn.Module, kind: str, y: Tensor, other: Tensor) -> Tensor:
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "relu": F.relu, "leaky": F.leaky_relu, "tanh": F.tanh, "sigmoid": F.sigmoid,
            "scale": lambda v: v * 0.5, "add": lambda v: other + v,
            "double": lambda v: v + v, "product": lambda v: other * v,
            "quotient": lambda v: v / (other * other + 1.0), "gelu": F.gelu, "relu6": F.relu6,
            "gate": lambda v: v * F.hardsigmoid(other.mean((2, 3), keepdim=True)),
            "clamp": lambda v: v.clamp(-0.5, 1.5), "softmax": lambda v: F.softmax(v, 1),
            "turned": lambda v: v.transpose(2, 3),
            "layer_norm": lambda v: F.layer_norm(v, v.shape[1:]),
            "concat": lambda v: part(F.concat([v, other], dim=1)),
            "slice": lambda v: F.pad(v[:, :, 1:, :], (0, 0, 0, 1)), "shared": self.shared,
        }  # fmt: skip
        height, width = y.shape[2:]
        if kind == "transposed":
            return part(F.max_pool2d(y, 2) if min(height, width) > 1 else y)
        if kind in ("reflect", "resize", "instance_norm"):
            if min(height, width) < 2 or height * width > MOST_PIXELS:
                return y
            if kind == "reflect":
                return F.pad(y, (1, 1, 0, 1), mode="reflect")
            if kind == "resize":
                return F.interpolate(y, (height + 1, 2 * width), mode="bilinear")
            return part(y)
        if kind in ("pool", "avg"):
            if min(y.shape[2:]) < 2:
                return y
            return F.max_pool2d(y, 2) if kind == "pool" else F.avg_pool2d(y, 2)
        return functions.get(kind, part)(y)


plans = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), min_size=1, max_size=12)
block_plans = st.lists(
    st.sampled_from([
        [("conv", 0), ("norm", 0), ("relu", 0)],
        [("conv", 0), ("norm", 0), ("add", 1), ("relu", 0)],
        [("norm", 0), ("add", 0), ("relu", 0), ("relu", 0)],
        [("relu", 0), ("add", 2), ("relu", 0)],
        [("norm", 0), ("double", 0), ("relu", 0)],
        [("instance_norm", 0), ("relu", 0), ("depthwise", 0), ("instance_norm", 0), ("add", 1),
         ("relu", 0)],
    ]),
    min_size=1, max_size=3,
).map(lambda lists: [step for steps in lists for step in steps])  # fmt: skip
