"""PyTorch's everyday words beside torch itself: the recorded values are torch's."""

from __future__ import annotations

import numpy as np
import pytest
from strangers.test_pytorchs_words import DRAWN, RESIZED, VALUES, net, same

import ooctrain as oc
from ooctrain import functional as F

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers


@pytest.mark.parametrize("words", VALUES)
def test_a_word_has_the_recorded_value(words):
    torch.relu, torch.nn.functional  # noqa: B018
    computed, wanted = VALUES[words]
    assert same(computed(torch), wanted)


@pytest.mark.parametrize("wrapped", [
    lambda model: model, torch.nn.DataParallel, torch.compile,
    lambda model: torch.nn.DataParallel(torch.compile(model)),
])  # fmt: skip
def test_state_dicts_of_torch_are_taken_as_they_are(wrapped):
    peer = wrapped(net(torch))
    for state in (peer.state_dict(), dict(peer.named_parameters()) | dict(peer.named_buffers())):
        model = net(oc)
        assert model.load_state_dict({"state_dict": state, "epoch": 1}) == ([], [])
        plain = [value.detach().numpy() for value in state.values()]
        found = (
            model.load_state_dict(state),
            [model.state_dict()[key] for key in net(oc).state_dict()],
        )
        assert len(found[1]) == len(plain)
        assert all(any(np.array_equal(a, b) for b in plain) for a in found[1])


@pytest.mark.parametrize("name", DRAWN)
def test_first_values_have_the_recorded_deviation(name):
    arguments, deviation, _ = DRAWN[name]
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(64, 32, 3, 3))
    getattr(torch.nn.init, name)(weight, *arguments)
    assert abs(float(weight.detach().std()) / deviation - 1) < 0.02


@pytest.mark.parametrize(("mode", "factor"), RESIZED)
def test_a_fraction_resizes_to_the_recorded_values(mode, factor):
    rows = torch.arange(5.0).reshape(1, 1, 1, 5)
    found = torch.nn.functional.interpolate(rows, scale_factor=(1, factor), mode=mode)
    assert np.allclose(found.numpy()[0, 0, 0], RESIZED[mode, factor], atol=1e-6)


@pytest.mark.parametrize("factor", [0.5, 1.5, (2, 3), 0.3, 1 / 3, 2.5, (0.75, 1.25), 0.7, 1.3])
@pytest.mark.parametrize(
    ("mode", "corners"), [("nearest", None), ("bilinear", None), ("bilinear", True)]
)
@pytest.mark.parametrize("anew", [None, True])
def test_interpolate_with_factors(factor, mode, corners, anew):
    x = np.random.default_rng(0).standard_normal((2, 2, 5, 7)).astype(np.float32)
    how = {"scale_factor": factor, "mode": mode, "align_corners": corners,
           "recompute_scale_factor": anew}  # fmt: skip
    found = F.interpolate(oc.tensor(x), **how).numpy()
    wanted = torch.nn.functional.interpolate(torch.tensor(x), **how).numpy()
    assert found.shape == wanted.shape
    assert np.allclose(found, wanted, atol=1e-5)
