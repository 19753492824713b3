"""Steps are counted by parameter: what is frozen meanwhile, or comes later, counts its own updates.

Adam corrects its bias by the number of updates that a parameter has seen, SGD dampens from the
second on; the eager engine counts as PyTorch does, and a trainer must agree with it to the bit,
whatever is frozen, set free or added to the optimizer between the steps.
"""

from __future__ import annotations

from hashlib import sha256
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import ooctrain as oc
from ooctrain import functional as F
from ooctrain import nn, optim
from ooctrain.engine.eager import EagerRunner
from ooctrain.engine.tensor import Tape, use_tape

OPTIMIZERS = {
    "adam": lambda p: optim.Adam(p, lr=0.03), "adamw": lambda p: optim.AdamW(p, lr=0.03),
    "dampened": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.03, momentum=0.5, centered=True),
}  # fmt: skip
PARAMETERS = ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias")
#: Before a step: which parameters are trained, and how many join the optimizer.
histories = st.lists(
    st.tuples(st.sets(st.sampled_from(PARAMETERS), min_size=1), st.integers(0, 2)),
    min_size=2, max_size=6,
)  # fmt: skip


def network():
    oc.manual_seed(2)
    return nn.Sequential(
        nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3),
    )  # fmt: skip


def batch(number):
    rng = np.random.default_rng(number)
    return rng.standard_normal((4, 5), np.float32), rng.integers(0, 3, 4)


class Run:
    """A network and an optimizer that knows the last layer at first."""

    def __init__(self, kind):
        self.model = network()
        self.optimizer = OPTIMIZERS[kind](self.model[4].parameters())
        self.later = [*self.model[2].parameters(), *self.model[0].parameters()]

    def change(self, trained, joining):
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad = name in trained
        for _ in range(min(joining, len(self.later))):
            self.optimizer.add_param_group({"params": self.later.pop(0), "lr": 0.01})

    def eagerly(self, history):
        with use_tape(Tape(EagerRunner(threads=1))):
            for number, before in enumerate(history):
                self.change(*before)
                self.optimizer.zero_grad()
                x, y = batch(number)
                F.cross_entropy(self.model(oc.tensor(x)), oc.tensor(y)).backward()
                self.optimizer.step()
        return self.result()

    def by_a_trainer(self, history, path=None):
        """With a path, another trainer goes on from a checkpoint in the middle."""
        trainer = oc.Trainer(self.model, optimizer=self.optimizer, threads=1)
        for number, before in enumerate(history):
            if path is not None and number == len(history) // 2:
                trainer.save(path)
                trainer.close()
                for parameter in self.model.parameters():
                    parameter.copy_(np.zeros(parameter.shape))
                self.optimizer.steps.clear()
                self.optimizer.steps_done = 0
                trainer = oc.Trainer(self.model, optimizer=self.optimizer, threads=1)
                trainer.resume(path)
            self.change(*before)
            trainer.step(*batch(number))
        trainer.close()
        return self.result()

    def result(self):
        values = {
            name: sha256(value).hexdigest() for name, value in self.model.state_dict().items()
        }
        counts = {name: self.optimizer.steps.get(p, 0) for name, p in self.model.named_parameters()}
        return values, counts


def expected_counts(history):
    """How often each parameter is updated."""
    counts, known = dict.fromkeys(PARAMETERS, 0), {"4.weight", "4.bias"}
    later = ["2.weight", "2.bias", "0.weight", "0.bias"]
    for trained, joining in history:
        known |= {later.pop(0) for _ in range(min(joining, len(later)))}
        for name in known & set(trained):
            counts[name] += 1
    return counts


@settings(max_examples=8)
@given(kind=st.sampled_from(sorted(OPTIMIZERS)), history=histories, resumed=st.booleans())
def test_a_trainer_counts_steps_as_the_eager_engine_does(kind, history, resumed):
    with TemporaryDirectory() as folder:
        path = f"{folder}/run.safetensors" if resumed else None
        values, counts = Run(kind).by_a_trainer(history, path)
    assert counts == expected_counts(history)
    assert (values, counts) == Run(kind).eagerly(history)
