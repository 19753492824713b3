"""Laws of Split-CNN (paper 004, section 3): sizes add up, parts know nothing of each other, chance
is a function of seed and step, and whatever is planned from a split network runs to its bits.

The networks are small random ones, and those of the paper. Read next:
`ooctrain/testing/check_split.py`, which has the laws; `tests/zoo/test_split_bugs.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
from errata.test_errata_004 import random_splits
from hypothesis import example, given
from hypothesis import strategies as st
from support.quick import quick

import ooctrain as oc
from ooctrain import functional as F
from ooctrain.engine.incore import run_trace
from ooctrain.split.boundaries import allowed, paddings, sizes
from ooctrain.split.model import SplitModel
from ooctrain.step.rows import Window
from ooctrain.testing.check_split import SPLIT_LAWS, check_split

SCALARS = {"lr": 0.5, "step": 0, "seed": 0}


@pytest.mark.parametrize("law", SPLIT_LAWS)
def test_our_split_keeps_the_laws(law):
    assert check_split(examples=3, laws=(law,)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("law", SPLIT_LAWS)
def test_our_split_keeps_the_laws_in_many_cases(law):
    assert check_split(examples=300, seed=1, laws=(law,)) == 300


# One dimension: equations 1, 2 and 5


@example(seed=1)
@given(seed=st.integers(0, 10_000))
def test_paddings_make_up_for_any_cut_between_the_bounds(seed):
    """Random kernel >= stride, padding, sizes, cuts anywhere in [lb, ub]: sizes are as unsplit."""
    check_paddings(seed, 5)


def check_paddings(seed: int, count: int) -> None:
    for case in random_splits(count, seed):
        window = Window(case.k, case.s, 1, case.p_b, case.p_e)
        for output, cut in zip(case.outputs[1:], case.inputs[1:], strict=True):
            low, high = allowed(window, output)
            assert low <= cut <= high
        found = [
            (rows + begin + end - case.k) // case.s + 1
            for rows, (begin, end) in zip(
                sizes(case.inputs, case.width), paddings(window, case.outputs, case.inputs),
                strict=True,
            )
        ]  # fmt: skip
        assert found == sizes(case.outputs, case.out_width)


@pytest.mark.parametrize("output", [1, 2, 7])
def test_a_shortcut_that_skips_rows_shares_a_cut_with_the_branch_beside_it(output):
    """1 x 1, stride 2: [lb, ub] is empty, and the cut 2 O is one that 3 x 3, stride 2 allows."""
    assert allowed(Window(1, 2), output) == (2 * output, 2 * output)
    assert allowed(Window(3, 2, 1, 1, 1), output) == (2 * output - 1, 2 * output)


# Beside a network that is split by hand


class ByHand(oc.nn.Module):
    """Convolution, batch norm, ReLU, pooling on the two halves of an image, each for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = oc.nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.norm, self.pool = oc.nn.BatchNorm2d(3), oc.nn.MaxPool2d(2)
        self.last = oc.nn.Conv2d(3, 2, 3, padding=1)

    def first(self, x):
        return self.pool(F.relu(self.norm(self.conv(x))))

    def forward(self, x):
        above, below = self.first(x[:, :, 0:6]), self.first(x[:, :, 6:12])
        return self.last(F.cat((above, below), 2))


class Whole(ByHand):
    def forward(self, x):
        return self.last(self.first(x))


def squares(output, target):
    return (output * output).sum()


def test_it_is_the_network_that_is_split_by_hand():
    """Loss, gradients and running statistics, which each part moves in its turn, to the bit."""
    results = []
    for model in (ByHand(), oc.split(Whole(), 0.5, (2, 1))):
        step = oc.trace(model, (3, 2, 12, 8), squares, threads=1)
        rng = np.random.default_rng(3)
        values = {
            v.name: rng.standard_normal(v.shape)
            for v in sorted((step.variables[i] for i in step.initial), key=lambda v: v.name)
        }
        results.append(run_trace(step, values, SCALARS, "reference"))
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        assert np.array_equal(value, results[1][name]), name


# The networks of the paper

NETWORKS = [
    (name, stem, size) for name, stem, size in (
        ("alexnet", "imagenet", 224), ("vgg11", "imagenet", 224), ("vgg16", "imagenet", 224),
        ("vgg19", "imagenet", 224), ("resnet18", "imagenet", 224), ("resnet50", "imagenet", 224),
        ("vgg19_bn", "cifar", 32), ("resnet18", "cifar", 32),
    )
]  # fmt: skip


@pytest.mark.parametrize(("name", "stem", "size"), quick(NETWORKS, 0, names=3))
def test_networks_of_the_paper_at_25_50_75_81_percent(name, stem, size):
    model = oc.models.build(name, 10, stem)
    shape = (2, 3, size, size)
    outputs = [v.shape for v in oc.trace(model, shape, threads=1).variables if v.name == "fc.out"]
    for depth in (0.25, 0.5, 0.75, 0.812):
        for stochastic in (False, True):
            made = oc.split(model, depth, (2, 2), stochastic)
            step = oc.trace(made, shape, threads=1)
            assert [v.shape for v in step.variables if v.name == "fc.out"] == outputs
            found = made.shape_of(shape)
            assert abs(found.share - depth) <= 0.15
            assert len(found.rows) == len(found.columns) == 2


def test_resnet_50_has_a_joint_at_the_papers_depth():
    """43 of 53 convolutions are 81.1 %; the paper: 81.2 %."""
    found = oc.split(oc.models.build("resnet50"), 0.812).shape_of((1, 3, 224, 224))
    assert (found.convolutions, found.of, found.joint) == (43, 53, "layer3.5.relu")


# Planned, swapped, recomputed like any trace


def images(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.standard_normal((4, 1, 16, 16)).astype(np.float32), rng.integers(0, 10, 4)


def small() -> SplitModel:
    oc.manual_seed(0)
    layers = [
        oc.nn.Conv2d(1, 4, 3, padding=1), oc.nn.BatchNorm2d(4), oc.nn.ReLU(),
        oc.nn.Conv2d(4, 4, 3, padding=1), oc.nn.ReLU(), oc.nn.MaxPool2d(2),
        oc.nn.Conv2d(4, 4, 3, padding=1), oc.nn.ReLU(), oc.nn.Flatten(), oc.nn.Linear(256, 10),
    ]  # fmt: skip
    return oc.split(oc.nn.Sequential(*layers), 0.67, (2, 2), True, omega=0.4, seed=5)


def trained(steps: int, **settings) -> tuple[list[float], dict[str, np.ndarray], list[tuple]]:
    model, seen = small(), []
    with oc.Trainer(model, threads=1, **settings) as trainer:
        losses = []
        for number in range(steps):
            losses.append(trainer.step(*images(number)))
            seen.append(model.shape_of((4, 1, 16, 16)).rows)
            assert trainer.timeline.peak_bytes <= trainer.prepared.budget_bytes
        return losses, trainer.state_arrays(), seen


@pytest.mark.parametrize(
    ("steps", "settings"),
    quick(
        [
            (50, {"budget": "20%", "planner": "belady"}),
            (50, {"budget": "30%", "planner": "combined"}),
            (10, {"budget": "30%", "planner": "auto", "allocator": "best-fit"}),
        ], names=2,
    ),
)  # fmt: skip
def test_steps_of_drawn_boundaries_have_the_bits_of_in_core_and_keep_the_budget(steps, settings):
    in_core, state, boundaries = trained(steps)
    losses, found, again = trained(steps, **settings)
    assert losses == in_core
    assert boundaries == again
    assert len(set(boundaries)) > 1
    assert all(np.array_equal(state[name], found[name]) for name in state)


@pytest.mark.slow
def test_a_resumed_training_goes_on_with_the_same_boundaries(tmp_path):
    whole, state, boundaries = trained(6)
    path = str(tmp_path / "run.safetensors")
    with oc.Trainer(small(), threads=1) as trainer:
        for number in range(3):
            trainer.step(*images(number))
        trainer.save(path)
    model = small()
    with oc.Trainer(model, threads=1) as trainer:
        trainer.resume(path)
        for number in range(3, 6):
            assert trainer.step(*images(number)) == whole[number]
            assert model.shape_of((4, 1, 16, 16)).rows == boundaries[number]
        found = trainer.state_arrays()
    assert all(np.array_equal(state[name], found[name]) for name in state)
