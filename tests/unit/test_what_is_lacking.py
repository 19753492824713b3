"""A class that lacks what its kind must define is named, with the method, when that is called."""

from __future__ import annotations

import numpy as np
import pytest

import ooctrain as oc
from ooctrain import nn
from ooctrain.engine.algebra import Algebra
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.optim.optimizer import Optimizer
from ooctrain.optim.schedules.scheduler import LRScheduler
from ooctrain.step.op import Op, Spec


class Lacking(Op):
    name = "lacking"


class LackingModule(nn.Module):
    pass


class LackingOp(oc.Op):
    def shape(self, x):
        return x


class LackingOptimizer(Optimizer):
    pass


class LackingSchedule(LRScheduler):
    pass


class LackingNumbers(Algebra):
    shape = (2,)


def weights():
    return [nn.Parameter(np.ones(2, np.float32))]


def optimizer():
    return LackingOptimizer(weights(), {"lr": 0.5})


CALLS = {
    "infer": lambda: Lacking().infer(Spec((1,))),
    "reference": lambda: Lacking().reference(np.ones(1), scalars={}),
    "gradient": lambda: Lacking().vjp(None, [], [], []),
    "forward": lambda: LackingModule()(oc.tensor(np.ones(1, np.float32))),
    "slot_names": lambda: optimizer().slot_names({}),
    "update_op": lambda: optimizer().update_op({}, "lr"),
    "factor": lambda: LackingSchedule(oc.optim.SGD(weights(), lr=0.5)).factor(0, 0.5),
    "LackingNumbers": lambda: LackingNumbers() + LackingNumbers(),
}


@pytest.mark.parametrize("method", CALLS)
def test_who_calls_it_learns_what_is_lacking(method):
    with pytest.raises(TypeError) as caught:
        CALLS[method]()
    assert method in str(caught.value)
    assert "Lacking" in str(caught.value)


def test_an_operation_of_ones_own_computes():
    with pytest.raises(ConfigError) as caught:
        LackingOp()(oc.tensor(np.ones(1, np.float32)))
    assert (caught.value.code, "forward()" in str(caught.value)) == ("OOC-108", True)


def test_what_a_module_has_not_is_named_beside_what_it_has():
    for ask, words in (
        (lambda: nn.Linear(2, 2).get_parameter("wieght"), ("wieght", "weight", "bias")),
        (lambda: nn.Linear(2, 2).get_buffer("mean"), ("mean", "none")),
    ):
        with pytest.raises(AttributeError) as caught:
            ask()
        assert all(word in str(caught.value) for word in words)


def test_some_keys_that_are_lacking_are_named_and_others_counted():
    def words(count):
        model = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(count)])
        with pytest.raises(OoctrainError) as caught:
            model.load_state_dict({})
        return str(caught.value)

    named = next(n for n in range(1, 30) if "more" in words(n)) - 1
    for count in (named, named + 1, named + 3):
        said = words(count)
        assert f"{named - 1}.weight" in said
        assert f"{named}.weight" not in said
        assert ("more" in said, f"{count - named} more" in said) == 2 * (count > named,)
