"""The other side of `benchmarks/bench_memory.py`: torch's networks and chains are those of ours."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from benchmarks.memory_cases import CASES, Side  # noqa: E402 (needs torch)
from benchmarks.memory_sides import made  # noqa: E402
from benchmarks.memory_torch import chain_of  # noqa: E402
from benchmarks.torch_models import build  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.slow]
IMAGES = {"resnet50": 64, "vgg19": 32, "unet": 32}


def small(name):
    return replace(CASES[name], batch=2, image=IMAGES.get(name, 32))


@pytest.mark.parametrize("name", list(CASES))
def test_a_chain_is_the_network_cut_into_as_many_stages_as_its_case_says(name):
    case = small(name)
    torch.manual_seed(0)
    net = build(name, case.stem, case.classes).eval()
    for parameter in net.parameters():
        if parameter.ndim == 4:  # so that a signal arrives
            torch.nn.init.kaiming_normal_(parameter)
    x = torch.randn(2, 3, case.image, case.image)
    parts = chain_of(net)
    assert len(parts) == case.stages
    with torch.no_grad():
        state = x
        for part in parts:
            state = part(state)
        expected = net(x)
    assert float(expected.abs().max()) > 1e-3
    assert torch.equal(state, expected)


@pytest.mark.parametrize("name", ["vgg19", "unet"])
def test_two_steps_of_each_way_have_the_losses_of_ours(name):
    case = small(name)
    sides = [
        Side("ours", "ours", "in-core"),
        Side("in-core", "torch", "in-core", layout="NCHW"),
        Side("checkpoint", "torch", "checkpoint", 3, "NHWC"),
        Side("disk", "torch", "disk", layout="NHWC"),
    ]
    losses = []
    for side in sides:
        step = made(case, side, threads=1)
        losses.append([step(), step()])
    for other in losses[1:]:
        assert other[0] == pytest.approx(losses[0][0], rel=1e-5)
        assert other[1] == pytest.approx(losses[0][1], rel=2e-3)
