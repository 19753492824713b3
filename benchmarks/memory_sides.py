"""The contestants of `bench_memory.py`: one process each, which trains three steps when it is told.

A side is a function from a network, a batch and a parameter to (step, note): our trainer in-core or
within a memory, or torch in-core, with checkpoints, with saved tensors on the disk, in
micro-batches, or compiled under an activation budget. All start from the same weights and get the
same batch. A side runs one tiny step first, which loads kernels and libraries; then it says
"ready", waits for a line, and runs. What it grows by is measured by the parent, from outside.
Read next: `bench_memory.py`.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_steps import CLASSES, LR, Network, make_batch, make_model

Step = Callable[[], float]
STEPS = 3
TINY = 2  # images of the step that loads everything
MICRO_BATCHES = 4


def our_step(network: Network, how: str, growth_bytes: int, threads: int) -> Step:
    """Our trainer.

    Args:
        how: "in-core" or "memory".
        growth_bytes: with "memory": what the process may grow by from now on.
    """
    import ooctrain as oc
    from ooctrain.devices.cpu.process_memory import held

    oc.manual_seed(0)
    model = make_model(network)
    x, y = make_batch(network)
    optimizer = oc.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    memory = None
    if how == "memory":
        now = held()
        assert now is not None
        memory = now.most_bytes + growth_bytes
    trainer = oc.Trainer(model, optimizer=optimizer, threads=threads, memory=memory)
    return lambda: trainer.step(x, y)


def torch_step(network: Network, layout: str, how: str, count: int, threads: int) -> Step:
    """Torch's step.

    Args:
        layout: "NCHW" or "NHWC".
        how: "in-core", "checkpoint" (`count` segments), "disk", "micro" or "compiled".
    """
    import torch

    from benchmarks.torch_models import TorchStep

    torch.set_num_threads(threads)
    import ooctrain as oc

    oc.manual_seed(0)
    state = {key: np.array(value) for key, value in make_model(network).state_dict().items()}
    x, y = make_batch(network)
    form = torch.contiguous_format if layout == "NCHW" else torch.channels_last
    side = TorchStep(network.name, network.stem, state, x, y, CLASSES, LR, form)
    del state, x, y
    if how == "in-core":
        return side.step
    if how == "micro":
        return lambda: _micro_batches(side)
    if how == "checkpoint":
        parts = _stages(side.net)

        def checkpointed(images):
            return torch.utils.checkpoint.checkpoint_sequential(
                parts, count, images, use_reentrant=False
            )

        return lambda: _step(side, checkpointed)
    if how == "compiled":
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = 0.5
        return _with_forward(side, torch.compile(side.net))
    return lambda: _saved_on_disk(side)


def _with_forward(side: Any, forward: Callable) -> Step:
    return lambda: _step(side, forward)


def _step(side: Any, forward: Callable) -> float:
    import torch

    side.optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(forward(side.x), side.y)
    loss.backward()
    side.optimizer.step()
    return loss.item()


def _micro_batches(side: Any) -> float:
    """The batch in parts, gradients added: batch norm sees a part at a time."""
    import torch

    side.optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for x, y in zip(side.x.chunk(MICRO_BATCHES), side.y.chunk(MICRO_BATCHES), strict=True):
        loss = torch.nn.functional.cross_entropy(side.net(x), y) * (len(y) / len(side.y))
        loss.backward()
        total += loss.item()
    side.optimizer.step()
    return total


def _saved_on_disk(side: Any) -> float:
    """What autograd saves lies in files while it waits, parameters aside."""
    import torch

    known = {p.data_ptr() for p in side.net.parameters()}
    with tempfile.TemporaryDirectory() as folder:
        count = 0

        def pack(tensor):
            nonlocal count
            if tensor.data_ptr() in known or tensor.numel() < 1 << 14:
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


def _stages(net: Any) -> list[Any]:
    """The network as a chain: what may be checkpointed between."""
    from torch import nn

    if hasattr(net, "features"):
        head = [net.avgpool, nn.Flatten(1), net.classifier]
        return [*net.features, nn.Sequential(*head)]
    stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    blocks = [block for n in range(1, 5) for block in getattr(net, f"layer{n}")]
    return [stem, *blocks, nn.Sequential(net.avgpool, nn.Flatten(1), net.fc)]


def segment_counts(network: Network) -> list[int]:
    """From 2 to 2 sqrt(L), for L stages of the chain."""
    stages = {"resnet18": 10, "resnet50": 18, "vgg11": 14}[network.name]
    return list(range(2, math.floor(2 * math.sqrt(stages)) + 1))


def main(words: list[str]) -> None:
    """What the process of a side does: words are name, stem, batch, image, threads, side."""
    name, stem, batch, image, threads, side = words[:6]
    make = our_step if side == "ours" else torch_step
    asked = words[6:]

    def made(images: int) -> Step:
        network = Network(name, stem, images, int(image), auto=0.0)
        if side == "ours":
            return our_step(network, asked[0], int(asked[1]), int(threads))
        return torch_step(network, asked[0], asked[1], int(asked[2]), int(threads))

    assert make is not None
    if side == "ours":  # the tiny step has memory enough
        tiny = Network(name, stem, TINY, int(image), auto=0.0)
        our_step(tiny, "in-core", 0, int(threads))()
    else:
        made(MICRO_BATCHES if asked[1] == "micro" else TINY)()
    print("ready", flush=True)
    sys.stdin.readline()
    losses, wall, cpu = [], [], []
    step = made(int(batch))
    for _ in range(STEPS):
        began, used = time.perf_counter(), time.process_time()
        losses.append(step())
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    print(json.dumps({"losses": losses, "wall_s": wall, "cpu_s": cpu}), flush=True)
    sys.stdin.readline()
    sys.stdout.flush()
    os._exit(0)  # nothing is to be freed in order


if __name__ == "__main__":
    main(sys.argv[1:])
