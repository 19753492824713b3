"""Torch's ways to use less memory, as steps: the other side of `bench_memory.py`.

In-core; checkpoints of a number of segments (`checkpoint_sequential`, over a chain that is as fine
as the network allows: a block, or a convolution with its norm and ReLU); what autograd saves in
files while it waits (saved-tensor hooks); micro-batches, which change batch statistics; and
`torch.compile` under an activation budget, whose compiler chooses what to compute again. U-Net is
a chain, too, of functions of a tuple: the tensor at work and the skips that wait. Only imported
where torch is installed. Read next: `torch_models.py`; `memory_sides.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from benchmarks.memory_cases import LR, MICRO_BATCHES, Case, Side, make_batch, make_model
from benchmarks.torch_models import TorchStep

COMPILED_BUDGET = 0.5
#: What autograd saves and is smaller than this many numbers stays in memory.
SMALL = 1 << 14


def torch_step(case: Case, side: Side, threads: int) -> Callable[[], float]:
    """A training step of a case by one of torch's ways."""
    torch.set_num_threads(threads)
    state = {key: np.array(value) for key, value in make_model(case).state_dict().items()}
    x, y = make_batch(case)
    form = torch.contiguous_format if side.layout == "NCHW" else torch.channels_last
    trained = TorchStep(case.name, case.stem, state, x, y, case.classes, LR, form)
    del state, x, y
    if side.how == "micro":
        return lambda: _micro_batches(trained)
    if side.how == "disk":
        return lambda: _saved_on_disk(trained)
    forward: Callable = trained.net
    if side.how == "checkpoint":
        parts = chain_of(trained.net)
        assert len(parts) == case.stages

        def forward(images):
            return checkpoint_sequential(parts, side.value, images, use_reentrant=False)

    elif side.how == "compiled":
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = COMPILED_BUDGET
        forward = torch.compile(trained.net)
    return lambda: _step(trained, forward)


def load_compiler() -> None:
    """Compiles something small, so that the compiler's own modules are there."""
    small = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    torch.compile(small)(torch.zeros(2, 3, 8, 8)).sum().backward()


def _step(side: TorchStep, forward: Callable) -> float:
    side.optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(forward(side.x), side.y)
    loss.backward()
    side.optimizer.step()
    return loss.item()


def _micro_batches(side: TorchStep) -> float:
    """The batch in parts, gradients added: batch norm sees a part at a time."""
    side.optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for x, y in zip(side.x.chunk(MICRO_BATCHES), side.y.chunk(MICRO_BATCHES), strict=True):
        loss = nn.functional.cross_entropy(side.net(x), y) * (len(y) / len(side.y))
        loss.backward()
        total += loss.item()
    side.optimizer.step()
    return total


def _saved_on_disk(side: TorchStep) -> float:
    """What autograd saves lies in files while it waits, parameters aside."""
    known = {p.data_ptr() for p in side.net.parameters()}
    with tempfile.TemporaryDirectory() as folder:
        count = 0

        def pack(tensor):
            nonlocal count
            if tensor.data_ptr() in known or tensor.numel() < SMALL:
                return tensor
            path = Path(folder) / str(count)
            count += 1
            stride = tensor.stride()
            flat = torch.as_strided(tensor, (tensor.numel(),), (1,))
            flat.numpy().tofile(path)
            return path, tensor.shape, stride, flat.numpy().dtype

        def unpack(packed):
            if not isinstance(packed, tuple):
                return packed
            path, shape, stride, dtype = packed
            flat = torch.from_numpy(np.fromfile(path, dtype))
            return torch.as_strided(flat, shape, stride)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return _step(side, side.net)


def chain_of(net: Any) -> list[Callable]:
    """The network as a chain: what may be checkpointed between."""
    if hasattr(net, "inc"):
        return list(_unet_chain(net))
    if hasattr(net, "features"):
        return [
            *_vgg_chain(net.features),
            nn.Sequential(net.avgpool, nn.Flatten(1), net.classifier),
        ]
    stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    blocks = [block for n in range(1, 5) for block in getattr(net, f"layer{n}")]
    return [stem, *blocks, nn.Sequential(net.avgpool, nn.Flatten(1), net.fc)]


def _vgg_chain(features: nn.Sequential) -> list[Callable]:
    """A convolution and its ReLU, which works in place, are one stage; so is a pooling."""
    parts: list[Callable] = []
    for layer in features:
        if isinstance(layer, nn.ReLU):
            parts[-1] = nn.Sequential(parts[-1], layer)
        else:
            parts.append(layer)
    return parts


def _unet_chain(net: Any) -> list[Callable]:
    """Stages take and give (tensor at work, skips that wait); the last one gives the logits."""

    def begun(images):
        return net.inc.double_conv[:3](images), ()

    def first_half(down):
        def stage(state):
            x, skips = state
            return down.maxpool_conv[1].double_conv[:3](down.maxpool_conv[0](x)), (*skips, x)

        return stage

    def joined(up):
        def stage(state):
            x, (*skips, skip) = state
            return up.conv.double_conv[:3](torch.cat([skip, up.up(x)], 1)), tuple(skips)

        return stage

    def second_half(double):
        def stage(state):
            x, skips = state
            return double.double_conv[3:](x), skips

        return stage

    chain: list[Callable] = [begun, second_half(net.inc)]
    for number in range(1, 5):
        down = getattr(net, f"down{number}")
        chain += [first_half(down), second_half(down.maxpool_conv[1])]
    for number in range(1, 5):
        up = getattr(net, f"up{number}")
        chain += [joined(up), second_half(up.conv)]
    return [*chain, lambda state: net.outc(state[0])]
