"""A user's program, as `mypy --strict` and pyright read it: nothing here may be an error."""

import numpy as np

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn


class Head(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x: oc.Tensor, scale: float = 1.0) -> oc.Tensor:
        return self.linear(x * scale)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = Head(4 * 8 * 8, 10)

    def forward(self, x: oc.Tensor) -> oc.Tensor:
        return self.head(F.relu(self.conv(x)).flatten(1), scale=0.5)


def train(model: Small) -> float:
    trace: oc.Trace = oc.trace(model, (4, 3, 8, 8))
    plan: oc.Plan = oc.plan(trace, "50%", planner="window")
    oc.verify(plan, trace, "50%")
    timeline: oc.Timeline = oc.simulate(plan.schedule, plan.trace, oc.machine("v100-pcie"))
    print(plan.peak_bytes, timeline.makespan_us)
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1)
    with oc.Trainer(model, optimizer=optimizer, budget="100%", threads=1) as trainer:
        loss: float = trainer.step(np.zeros((4, 3, 8, 8), np.float32), np.zeros(4, np.int64))
        arrays: dict[str, np.ndarray] = trainer.state_arrays()
    assert arrays
    return loss


if __name__ == "__main__":
    print(train(Small()))
