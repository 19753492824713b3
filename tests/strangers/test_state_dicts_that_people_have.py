"""State dicts that people have: each loads all of the model, or is refused with what to do.

Wrapped as scripts wrap them, with the prefixes of torch's wrappers, from old and other versions, as
tensors of torch and as other element types. Nothing is ever loaded in part without a word.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ooctrain import nn
from ooctrain.errors import ConfigError, ShapeError


def net(seed=0):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
    )
    rng = np.random.default_rng(seed)
    model.load_state_dict(
        {k: rng.standard_normal(v.shape).astype(np.float32) if v.ndim else v + 7
         for k, v in model.state_dict().items()}
    )  # fmt: skip
    return model


STATE = net(1).state_dict()
COUNT = "1.num_batches_tracked"


class Foreign:
    """A tensor as torch's is seen from outside: on some device, with a gradient."""

    def __init__(self, array, steps=("detach", "cpu"), dtype="torch.float32"):
        self.array, self.steps, self.dtype = array, steps, dtype

    def _next(self, step):
        assert step == self.steps[0]
        return Foreign(self.array, self.steps[1:], self.dtype)

    def detach(self):
        return self._next("detach")

    def cpu(self):
        return self._next("cpu")

    def float(self):
        assert not self.steps
        return Foreign(self.array, (), "torch.float32")

    def __array__(self, dtype=None, copy=None):
        if self.steps or "bfloat" in self.dtype:
            raise TypeError("can't convert a tensor that requires grad or is on a device")
        return np.asarray(self.array, dtype)


def with_prefix(prefix, state=STATE):
    return {prefix + key: value for key, value in state.items()}


#: {what people have: the state dict}
LOADED = {
    "the model's own": STATE,
    "of DistributedDataParallel": with_prefix("module."),
    "of torch.compile": with_prefix("_orig_mod."),
    "compiled, then distributed": with_prefix("module._orig_mod."),
    "distributed, then compiled": with_prefix("_orig_mod.module."),
    "distributed twice": with_prefix("module.module."),
    "a part that was compiled": {
        (f"2._orig_mod.{k[2:]}" if k.startswith("2.") else k): v for k, v in STATE.items()
    },
    "a checkpoint": {"epoch": 3, "state_dict": STATE, "optimizer": {"state": {}}},
    "torchvision's checkpoint": {"model": STATE, "optimizer": {}, "args": None, "epoch": 1},
    "the tutorial's checkpoint": {"model_state_dict": STATE, "loss": 0.4},
    "with an average beside it": {"model": STATE, "model_ema": with_prefix("module.")},
    "wrapped twice": {"model": {"state_dict": with_prefix("module.")}},
    "wrapped and distributed": {"state_dict": with_prefix("module.")},
    "of Lightning": {
        "epoch": 2, "global_step": 40, "pytorch-lightning_version": "2.4.0",
        "state_dict": with_prefix("model."), "loops": {"fit_loop": {}}, "callbacks": {},
        "optimizer_states": [{}], "lr_schedulers": [], "hyper_parameters": {"lr": 0.1},
    },
    "an average of torch's": {"n_averaged": np.array(7), **with_prefix("module.")},
    "an average beside the epoch": {
        "model": {"n_averaged": np.array(7), **with_prefix("module.")}, "epoch": 2},
    "an attribute of another module": with_prefix("net."),
    "whatever the attribute is called": {"state_dict": with_prefix("backbone.")},
    "deep in another module": with_prefix("student.encoder."),
    "an attribute that was compiled": with_prefix("model._orig_mod."),
    "an attribute that was distributed": with_prefix("model.module."),
    "an attribute, distributed": with_prefix("module.model."),
    "an attribute, without counts": {
        k: v for k, v in with_prefix("net.").items() if not k.endswith("tracked")},
    "in another order": dict(reversed(STATE.items())),
    "of float64": {k: v.astype(np.float64) if v.ndim else v for k, v in STATE.items()},
    "a count of one element": {**STATE, COUNT: STATE[COUNT].reshape(1)},
    "a count as a float": {**STATE, COUNT: np.float32(7)},
    "lists": {k: v.tolist() for k, v in STATE.items()},
    "read-only arrays": {k: np.broadcast_to(v, v.shape) for k, v in STATE.items()},
    "tensors of this library": {
        **dict(net(1).named_parameters()), **dict(net(1).named_buffers())},
    "tensors with gradients on a GPU": {k: Foreign(v) for k, v in STATE.items()},
}  # fmt: skip


@pytest.mark.parametrize("what", LOADED)
@pytest.mark.parametrize("strict", [True, False])
def test_it_is_loaded_whole(what, strict):
    model = net()
    assert model.load_state_dict(LOADED[what], strict) == ([], [])
    for key, value in model.state_dict().items():
        assert np.array_equal(value, STATE[key]), key
        assert value.dtype == STATE[key].dtype


def test_without_counts_they_stay():
    model = net()
    before = model.state_dict()[COUNT]
    old = {k: v for k, v in STATE.items() if k != COUNT}
    assert model.load_state_dict(with_prefix("module.", old)) == ([], [])
    assert model.state_dict()[COUNT] == before
    assert np.array_equal(model.state_dict()["0.weight"], STATE["0.weight"])


def test_narrow_numbers_are_widened():
    narrow = {k: v.astype(np.float16) if v.ndim else v for k, v in STATE.items()}
    model = net()
    model.load_state_dict(narrow)
    assert np.array_equal(model.state_dict()["0.weight"], narrow["0.weight"].astype(np.float32))
    brain = {k: Foreign(v, dtype="torch.bfloat16") for k, v in STATE.items()}
    assert model.load_state_dict(brain) == ([], [])


HALF = {(f"module.{k}" if k.startswith("0.") else k): v for k, v in STATE.items()}
#: {what people have: (what is given, the error, words of what to do)}
REFUSED = {
    "a path": ("weights.safetensors", ConfigError, "oc.load"),
    "a path of torch's": (Path("best.pth"), ConfigError, "save_file"),
    "a path of NumPy's": ("weights.npz", ConfigError, "np.load"),
    "some path": ("weights", ConfigError, "array"),
    "a model": (net(), ConfigError, "state_dict()"),
    "a list": ([1, 2], ConfigError, "name"),
    "nothing": (None, ConfigError, "name"),
    "an empty one": ({}, ConfigError, "no key"),
    "a prefix at some keys": (HALF, ConfigError, "prefix"),
    "a wrapper beside a prefix": ({**with_prefix("module."), "epoch": 3}, ConfigError, "prefix"),
    "two models": ({"generator": STATE, "discriminator": STATE}, ConfigError, "given["),
    "two that may be meant": ({"model": STATE, "state_dict": STATE}, ConfigError, "given["),
    "another network's": ({"features.0.weight": np.zeros(3)}, ConfigError, "rename"),
    "numbers as keys": (dict(enumerate(STATE.values())), ConfigError, "name"),
    "a prefix at all keys but one": (
        {**with_prefix("model."), "loss.weight": np.ones(2)}, ConfigError, "startswith('model.')"),
    "a prefix, and a key too few": (
        dict(list(with_prefix("model.").items())[1:]), ConfigError, "startswith('model.')"),
    "two models side by side": (
        with_prefix("student.") | with_prefix("teacher."), ConfigError, "startswith('student.')"),
    "a prefix without a dot": (with_prefix("model_"), ConfigError, "rename"),
    "another shape": (
        {**STATE, "2.1.weight": np.zeros((5, 4))}, ShapeError, "strict=False"
    ),
    "text": ({**STATE, "0.bias": np.array(["a"] * 4)}, ShapeError, "real numbers"),
    "beyond float32": ({**STATE, "0.bias": np.full(4, 1e300)}, ShapeError, "cannot hold"),
    "half a count": ({**STATE, COUNT: np.float32(2.5)}, ShapeError, "cannot hold"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("strict", [True, False])
def test_it_is_refused_and_nothing_is_changed(what, strict):
    given, error, words = REFUSED[what]
    model = net()
    before = model.state_dict()
    with pytest.raises(error) as refused:
        model.load_state_dict(given, strict)
    assert words in str(refused.value)
    assert all(np.array_equal(value, before[key]) for key, value in model.state_dict().items())


def test_what_is_missing_is_told_or_returned():
    part = {k: v for k, v in STATE.items() if not k.startswith("2.")} | {"old": np.zeros(1)}
    with pytest.raises(ConfigError, match=r"2\.1\.weight"):
        net().load_state_dict(part)
    found = net().load_state_dict(part, strict=False)
    assert found.missing_keys == ["2.1.weight", "2.1.bias"]
    assert found.unexpected_keys == ["old"]


def test_a_model_that_has_a_part_of_that_name_keeps_it():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(2, 2)

    model = Wrapped()
    assert model.load_state_dict(model.state_dict()) == ([], [])
    assert model.load_state_dict(with_prefix("_orig_mod.", model.state_dict())) == ([], [])
    assert model.load_state_dict(with_prefix("model.", model.state_dict())) == ([], [])
    with pytest.raises(ConfigError) as refused:  # that of the part alone
        model.load_state_dict(model.module.state_dict())
    assert "model.module.load_state_dict" in refused.value.fix


def test_a_model_of_one_layer_takes_no_prefix_for_a_part():
    """Keys "0.weight" and "0.bias" are the model's own, and "1.0.weight" is one prefix more."""
    one, two = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert one.load_state_dict(with_prefix("1.", one.state_dict())) == ([], [])
    with pytest.raises(ConfigError):
        one.load_state_dict(two.state_dict())
    found = two.load_state_dict(one.state_dict(), strict=False)
    assert found.missing_keys == ["1.weight", "1.bias"]


@pytest.mark.parametrize("strict", [True, False])
def test_a_part_that_fits_is_not_taken_for_a_prefix(strict):
    """Of keys of which some are the model's own, no prefix is taken off."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2))
    state = {k: v for k, v in model.state_dict().items() if k.startswith("0.")}
    if strict:
        with pytest.raises(ConfigError):
            model.load_state_dict(state)
    else:
        found = model.load_state_dict(state, strict=False)
        assert found.missing_keys == ["1.weight", "1.bias"]
