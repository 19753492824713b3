"""Laws of the engine on random networks: traced is eager; gradients are derivatives."""

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.random_nets import RandomNet, block_plans, plans

from ooctrain import functional as F
from ooctrain.engine.autograd import manual_seed, tensor
from ooctrain.engine.backward import record_backward
from ooctrain.engine.eager import EagerRunner
from ooctrain.engine.incore import initial_values, run_trace
from ooctrain.engine.tensor import Tape, use_tape
from ooctrain.optim import SGD
from ooctrain.tracing import trace

SHAPE = (4, 2, 6, 6)
SCALARS = {"lr": 0.1, "step": 0, "seed": 0}
#: One layer three times, between others and on its own output.
SHARED = [("shared", 0), ("tanh", 0), ("conv", 0), ("shared", 0), ("add", 1)]


def batch():
    images = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    return images, np.array([0, 2, 1, 1])


def build(plan):
    manual_seed(1)
    return RandomNet(plan)


@settings(max_examples=30)
@given(plan=st.one_of(plans, block_plans), parts=st.sampled_from([1, 1, 2]))
@example(SHARED, 1)
@example(SHARED, 2)
def test_a_traced_step_is_the_eager_step_to_the_bit(plan, parts):
    # A step in parts draws the masks of the batch; two eager passes draw those of a part, twice.
    assume(parts == 1 or not any(name.startswith("dropout") for name, _ in plan))
    check_traced(plan, parts)


def check_traced(plan, parts):
    """A step of SGD with momentum: parameters and running statistics."""
    model, (x, t) = build(plan), batch()
    step = trace(model, SHAPE, threads=2, accumulate=parts, conv_algorithm="direct")
    given_values = initial_values(step, model) | {"input": x, "target": t}
    results = run_trace(step, given_values, SCALARS, threads=2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with use_tape(Tape(EagerRunner(threads=1), "direct")):
        for images, labels in zip(np.split(x, parts), np.split(t, parts), strict=True):
            (F.cross_entropy(model(tensor(images)), tensor(labels)) * (1 / parts)).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert value.tobytes() == np.ascontiguousarray(results[name]).tobytes(), name


@settings(max_examples=30)
@given(plan=st.one_of(plans, block_plans), parts=st.sampled_from([1, 2]), seed=st.integers(0, 99))
@example(SHARED, 1, 1)
@example(SHARED, 2, 1)
def test_gradients_are_the_derivatives_of_the_loss(plan, parts, seed):
    check_derivatives(plan, parts, seed)


def check_derivatives(plan, parts, seed):
    """Along random directions in the space of all parameters, in float64.

    A ReLU or a maximum may change sides within the difference; so of three directions one must fit.
    """
    model, (x, t) = build(plan), batch()
    step = trace(model, SHAPE, threads=1, accumulate=parts, optimizer=None)
    values = initial_values(step, model) | {"input": x, "target": t}
    results = run_trace(step, values, SCALARS, "reference")
    rng, errors = np.random.default_rng(seed), []
    for _ in range(3):
        names = [name for name, _ in model.named_parameters()]
        direction = {name: rng.standard_normal(values[name].shape) for name in names}
        expected = sum(np.vdot(results[f"grad:{name}"], direction[name]) for name in names)
        losses = [shifted_loss(step, values, direction, shift) for shift in (1e-6, -1e-6)]
        errors.append(abs((losses[0] - losses[1]) / 2e-6 - expected) / max(1e-3, abs(expected)))
    assert min(errors) < 1e-5


def shifted_loss(step, values, direction, shift):
    moved = {name: values[name] + shift * d for name, d in direction.items()}
    return float(run_trace(step, values | moved, SCALARS, "reference")["loss"])


@settings(max_examples=20)
@given(plan=st.one_of(plans, block_plans), parts=st.sampled_from([1, 2]))
@example(SHARED, 1)
@example(SHARED, 2)
def test_a_leaf_is_handed_over_once_and_with_all_of_its_gradient(plan, parts):
    check_handed_over(plan, parts)


def check_handed_over(plan, parts):
    """What an update may follow on: nothing is added to the gradient afterwards."""
    model, (x, t) = build(plan), batch()
    tape = Tape(EagerRunner(threads=1), "direct")
    with use_tape(tape):
        for images, labels in zip(np.split(x, parts), np.split(t, parts), strict=True):
            seen = []

            def note(leaf, seen=seen):
                seen.append((leaf, leaf.grad.numpy().copy()))

            loss = F.cross_entropy(model(tensor(images)), tensor(labels))
            record_backward(tape, loss, on_gradient=note)
            assert len({id(leaf) for leaf, _ in seen}) == len(seen), "handed over twice"
            for leaf, value in seen:
                assert value.tobytes() == leaf.grad.numpy().tobytes(), leaf.name
    assert {id(leaf) for leaf, _ in seen} == {
        id(p) for p in model.parameters() if p.grad is not None
    }
