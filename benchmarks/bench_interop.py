"""Networks of PyTorch here, and plans in PyTorch's own loop, beside PyTorch's own ways.

Three tables. *Import*: what `oc.from_torch` takes beyond the two calls of `torch.export` that it
makes. *Steps*: an imported network beside ours of the same name, and beside the better of torch's
memory layouts, in turn, in one process. *Applied plans*: what a training step of PyTorch leaves on
the device between forward and backward, and how long it takes, plain and by four ways to keep less,
each in a process of its own that takes turns with the plain step. On a CPU, host and device are one
memory: what a way has copied to the host is counted by the way itself, and taken off. Read next:
`bench_steps.py`; `torch_models.py`.

    python -m benchmarks interop [--quick] [--json FILE]
"""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import ooctrain as oc
from benchmarks.common import interleaved_ms, machine_facts, ratio, table, threads_here, verdict

CLASSES, LR, SIDE = 10, 1e-3, 224
#: Seconds of an import beyond `torch.export`; how fast a step is beside ours, and beside torch's.
IMPORT_S, OURS, TORCH = 1.0, 0.97, 0.9
#: (network, batch) whose imported step stands beside ours, and beside torch's.
BESIDE_OURS = ("resnet50", 8)
BESIDE_TORCH = (("mobilenet_v3_large", 16), ("efficientnet_b0", 16))
#: Network, batch and side of the applied plans, and the ways.
APPLIED = ("resnet18", 8, 224)
WAYS = ("save_on_cpu", "checkpoint", "compile", "window 25%", "belady 0%", "combined 10%")
#: Of the memory-budget partitioner of torch.compile.
COMPILE_BUDGET = 0.3


def main(quick: bool = False) -> dict[str, Any]:
    """Prints the tables; returns their numbers, and what was missed."""
    rounds = 3 if quick else 9
    imported = import_times("resnet18" if quick else "resnet50")
    steps = [beside_ours(*BESIDE_OURS, rounds)]
    steps += [beside_torch(*row, rounds) for row in BESIDE_TORCH[: 1 if quick else None]]
    ways = [in_a_process(way, rounds) for way in WAYS]
    quickly = verdict(imported["beyond_s"] <= IMPORT_S)
    print(f"import of {imported['network']}: {imported['beyond_s']:.2f} s beyond torch.export, "
          f"which takes {imported['export_s']:.2f} s ({quickly})\n")  # fmt: skip
    rows = [
        [f"{s['network']}, batch {s['batch']}", s["peer"], f"{s['ours_ms']:.0f}",
         f"{s['peer_ms']:.0f}", f"{s['ratio']:.3f}", verdict(s["ratio"] >= s["wanted"])]
        for s in steps
    ]  # fmt: skip
    print(table(["imported network", "beside", "ms", "its ms", "times as fast", ""], rows) + "\n")
    print(f"{APPLIED[0]}, batch {APPLIED[1]}, {APPLIED[2]} px, in PyTorch's own loop")
    print(
        table(["way", "left MiB", "of plain", "on the host MiB", "time"], [_way(w) for w in ways])
    )
    missed = [f"import {imported['network']}"] if imported["beyond_s"] > IMPORT_S else []
    missed += [f"{s['network']} beside {s['peer']}" for s in steps if s["ratio"] < s["wanted"]]
    return {"machine": machine_facts(), "import": imported, "steps": steps, "applied": ways,
            "missed": missed}  # fmt: skip


def _way(found: dict[str, Any]) -> list[str]:
    if "error" in found:
        return [found["way"], "-", "-", "-", found["error"]]
    mib = 1 << 20
    return [
        found["way"], str(round(found["left_bytes"] / mib)),
        f"{round(100 * found['left_bytes'] / found['plain_left_bytes'])}%",
        f"{found['host_bytes'] / mib:.0f}", f"{found['time']:.2f}",
    ]  # fmt: skip


# Imports and steps


def torch_network(name: str) -> Any:
    """Of torchvision, without dropout, whose masks no two libraries share."""
    import torch
    from torchvision import models

    torch.manual_seed(0)
    net = models.get_model(name, weights=None, num_classes=CLASSES).train()
    for part in net.modules():
        for rate in ("p", "stochastic_depth_prob"):
            if isinstance(getattr(part, rate, None), float):
                setattr(part, rate, 0.0)
    return net


def import_times(name: str) -> dict[str, Any]:
    """Seconds of `torch.export` in both modes, and of `from_torch` beyond them."""
    from ooctrain.interop.importing import exported_list

    net, shape = torch_network(name), (2, 3, SIDE, SIDE)
    exported_list(net, shape, True)  # PyTorch's own modules are loaded
    started = time.perf_counter()
    for training in (False, True):
        exported_list(net, shape, training)
    exported = time.perf_counter()
    oc.from_torch(net, shape)
    ended = time.perf_counter()
    export_s = exported - started
    return {"network": name, "export_s": export_s, "beyond_s": ended - exported - export_s}


def batch_of(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of noise, labels in turn."""
    shape = (batch, 3, SIDE, SIDE)
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    return images, np.arange(batch) % CLASSES


def trainer_of(model: oc.nn.Module) -> oc.Trainer:
    optimizer = oc.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    return oc.Trainer(model, optimizer=optimizer, threads=threads_here())


def beside_ours(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """The imported network, and the one of `oc.models`."""
    x, y = batch_of(batch)
    models = {
        "imported": oc.from_torch(torch_network(name), x.shape),
        "oc.models": oc.models.build(name, num_classes=CLASSES, stem="imagenet"),
    }
    trainers = {side: trainer_of(model) for side, model in models.items()}
    samples = interleaved_ms({s: lambda t=t: t.step(x, y) for s, t in trainers.items()}, rounds)
    for trainer in trainers.values():
        trainer.close()
    return _compared(name, batch, samples, "imported", "oc.models", OURS)


def beside_torch(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """The imported network, and the original in both memory layouts."""
    import torch

    torch.set_num_threads(threads_here())
    x, y = batch_of(batch)
    net = torch_network(name)
    with trainer_of(oc.from_torch(net, x.shape)) as trainer:
        contestants: dict[str, Callable[[], object]] = {"imported": lambda: trainer.step(x, y)}
        for layout in (torch.contiguous_format, torch.channels_last):
            words = "torch NCHW" if layout is torch.contiguous_format else "torch NHWC"
            contestants[words] = torch_step(copy.deepcopy(net), x, y, layout)
        samples = interleaved_ms(contestants, rounds)
    better = min(("torch NCHW", "torch NHWC"), key=lambda side: median(samples[side]))
    return _compared(name, batch, samples, "imported", better, TORCH)


def torch_step(net: Any, x: np.ndarray, y: np.ndarray, layout: Any) -> Callable[[], object]:
    """A training step of PyTorch, with its fused SGD."""
    import torch

    net = net.to(memory_format=layout)
    images = torch.from_numpy(x).contiguous(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(net(images), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _compared(name: str, batch: int, samples: Any, ours: str, peer: str, wanted: float) -> dict:
    return {
        "network": name, "batch": batch, "peer": peer, "ours_ms": median(samples[ours]),
        "peer_ms": median(samples[peer]), "ratio": ratio(samples[ours], samples[peer]),
        "wanted": wanted,
    }  # fmt: skip


# A plan, and other ways, in PyTorch's own loop


def in_a_process(way: str, rounds: int) -> dict[str, Any]:
    """What the process of one way has found; with `error` where it has not."""
    command = [sys.executable, "-m", "benchmarks.bench_interop", way, str(rounds)]
    # What is freed goes back to the system, so that resident memory is what is held.
    tight = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **tight},
                          check=False)  # fmt: skip
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return {"way": way, "error": (done.stderr.strip().splitlines() or ["ended"])[-1][:80]}


def measured(way: str, rounds: int) -> dict[str, Any]:
    """In this process: bytes that are left after the forward pass, and the time of a step, both
    beside the plain loop."""
    import torch

    name, batch, side = APPLIED
    torch.set_num_threads(threads_here())
    net, twin = torch_network(name), torch_network(name)
    x, y = torch.randn(batch, 3, side, side), torch.arange(batch) % CLASSES
    left: dict[str, int] = {}
    host = {"plain": lambda: 0}
    steps: dict[str, Callable[[], object]] = {}
    with WAYS_BY_NAME[way.split()[0]](twin, x, way) as (forward, host[way]):
        for each, run in (("plain", net), (way, forward)):

            def step(each: str = each, run: Any = run) -> None:
                before = resident_bytes()
                loss = torch.nn.functional.cross_entropy(run(x), y)
                left[each] = resident_bytes() - before - host[each]()
                loss.backward()
                for part in (net, twin):
                    part.zero_grad(set_to_none=True)

            steps[each] = step
        samples = interleaved_ms(steps, rounds)
    return {
        "way": way, "left_bytes": left[way], "plain_left_bytes": left["plain"],
        "host_bytes": host[way](), "time": 1 / ratio(samples[way], samples["plain"]),
    }  # fmt: skip


def resident_bytes() -> int:
    """Of this process, as the system counts them."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Plain:
    """A way as a context: its forward pass, and how much it has put on the host."""

    def __init__(self, net: Any, x: Any, way: str):
        self.net, self.x, self.way = net, x, way

    def __enter__(self) -> tuple[Callable[..., Any], Callable[[], int]]:
        return self.forward, lambda: 0

    def __exit__(self, *_error: object) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return self.net(x)


class SaveOnCpu(Plain):
    """`torch.autograd.graph.save_on_cpu`: all that autograd saves, weights too, each time anew.
    What is on the CPU already it would keep as it is; here it is copied, as from a GPU."""

    def __enter__(self) -> tuple[Callable[..., Any], Callable[[], int]]:
        self.moved = 0
        return self.forward, lambda: self.moved

    def forward(self, x: Any) -> Any:
        import torch

        self.moved = 0
        hooks = torch.autograd.graph.save_on_cpu()

        def copied(tensor: Any) -> Any:
            self.moved += tensor.numel() * tensor.element_size()
            return tensor.device, tensor.clone()

        hooks.pack_hook = copied
        with hooks:
            return self.net(x)


class Checkpoint(Plain):
    """`torch.utils.checkpoint` of each block."""

    def forward(self, x: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        net = self.net
        x = net.maxpool(net.relu(net.bn1(net.conv1(x))))
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            for block in stage:
                x = checkpoint(block, x, use_reentrant=False)
        return net.fc(net.avgpool(x).flatten(1))


class Compiled(Plain):
    """`torch.compile` whose partitioner has a budget; without its code generator, which would be
    another comparison."""

    def __enter__(self) -> tuple[Callable[..., Any], Callable[[], int]]:
        import torch
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = COMPILE_BUDGET
        return torch.compile(self.net, backend="aot_eager_decomp_partition"), lambda: 0


class Applied(Plain):
    """A plan of this library: "belady 0%"."""

    def __enter__(self) -> tuple[Callable[..., Any], Callable[[], int]]:
        planner, budget = self.way.split()
        shape = tuple(self.x.shape)
        step = oc.trace(oc.from_torch(self.net, shape), shape, optimizer=None)
        plan = oc.plan(step, budget, planner=planner, rewrites=())
        self.block = oc.interop.torch.applied(plan, self.net)
        report = self.block.__enter__()
        return self.net, lambda: report.moved_bytes

    def __exit__(self, *error: Any) -> None:
        self.block.__exit__(*error)


WAYS_BY_NAME: dict[str, type[Plain]] = {
    "save_on_cpu": SaveOnCpu, "checkpoint": Checkpoint, "compile": Compiled,
} | dict.fromkeys(("window", "belady", "combined"), Applied)  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
