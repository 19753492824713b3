"""Whole training steps against torch: milliseconds, ratios, errors of the gradients.

For each network our step runs in-core through the trainer, with the convolution algorithms `auto`
and with `direct` only, and torch's in both memory layouts with its fused SGD, momentum included.
All contestants start from the same weights and run in one process, in turn, with the same number of
threads; the ratio is to the better layout of torch. Every side's gradients are compared with torch
in float64. Without torch its side is left out. Read next: `torch_models.py`.

    python -m benchmarks steps [--quick] [--json FILE]
    python -m benchmarks.bench_steps --networks vgg11 --rounds 21 --breakdown
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

import ooctrain as oc
from benchmarks.common import interleaved_ms, machine_facts, ratio, table, threads_here, verdict

LR = 1e-3
CLASSES = 10
ROUNDS, QUICK_ROUNDS = 15, 3
HAS_TORCH = importlib.util.find_spec("torch") is not None


@dataclass(frozen=True, slots=True)
class Network:
    """What is trained, and the ratios to torch that are promised (None: none is)."""

    name: str
    stem: str
    batch: int
    image: int
    auto: float
    direct: float | None = None


NETWORKS = (
    Network("resnet18", "cifar", 64, 32, auto=1.3, direct=0.85),
    Network("vgg11", "cifar", 64, 32, auto=1.0),
    Network("resnet50", "imagenet", 8, 224, auto=0.85),
)


class OurStep:
    """Our trainer without a budget, from given weights."""

    def __init__(self, network: Network, algorithm: str, state, x, y, threads: int):
        self.x, self.y = x, y
        model = make_model(network)
        model.load_state_dict(state)
        self.names = [name for name, _ in model.named_parameters()]
        optimizer = oc.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        self.trainer = oc.Trainer(
            model, optimizer=optimizer, threads=threads, conv_algorithm=algorithm
        )

    def step(self) -> float:
        return self.trainer.step(self.x, self.y)

    def gradients(self) -> dict[str, np.ndarray]:
        """Of the first step: the momentum buffer, which began at zero, is the gradient then."""
        arrays = self.trainer.state_arrays()
        return {name: arrays[f"{name}.momentum"].astype(np.float64) for name in self.names}

    def close(self) -> None:
        self.trainer.close()


def make_model(network: Network) -> oc.nn.Module:
    """Ours; without dropout, whose masks no two libraries share."""
    model = oc.models.build(network.name, num_classes=CLASSES, stem=network.stem)
    for module in model.modules():
        if isinstance(module, oc.nn.Dropout):
            module.p = 0.0
    return model


def make_batch(network: Network) -> tuple[np.ndarray, np.ndarray]:
    """Images of noise, labels in turn."""
    shape = (network.batch, 3, network.image, network.image)
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    return images, np.arange(network.batch) % CLASSES


def gradient_error(got: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> float:
    """Norm of the error of all gradients together over the norm of the exact ones."""
    wrong = sum(float(np.sum((got[name] - exact[name]) ** 2)) for name in exact)
    return math.sqrt(wrong / sum(float(np.sum(value**2)) for value in exact.values()))


def measure(network: Network, algorithms: Sequence[str], rounds: int, threads: int) -> dict:
    """One network: all contestants, their times, ratios and errors."""
    oc.manual_seed(0)
    x, y = make_batch(network)
    state = {key: np.array(value) for key, value in make_model(network).state_dict().items()}
    with ExitStack() as stack:
        sides: dict[str, Any] = {}
        for algorithm in algorithms:
            sides[algorithm] = OurStep(network, algorithm, state, x, y, threads)
            stack.callback(sides[algorithm].close)
        exact = None
        if HAS_TORCH:
            peers, exact = torch_sides(network, state, x, y, threads)
            sides |= peers
        errors: dict[str, float] = {}
        for name, side in sides.items():
            side.step()
            if exact is not None:
                errors[name] = gradient_error(side.gradients(), exact)
        steps: dict[str, Callable[[], object]] = {name: s.step for name, s in sides.items()}
        samples = interleaved_ms(steps, rounds)
        shares = {name: our_shares(sides[name].trainer) for name in algorithms}
    return result_of(network, algorithms, samples, errors) | {"our_ms_by_operation": shares}


def torch_sides(network: Network, state, x, y, threads: int):
    """Both layouts of torch, and the gradients of its first step in float64."""
    import torch

    from benchmarks.torch_models import TorchStep

    torch.set_num_threads(threads)
    arguments = (network.name, network.stem, state, x, y, CLASSES, LR)
    exact = TorchStep(*arguments, dtype=torch.float64)
    exact.step()
    layouts = {"torch NCHW": torch.contiguous_format, "torch NHWC": torch.channels_last}
    peers = {name: TorchStep(*arguments, layout=layout) for name, layout in layouts.items()}
    return peers, exact.gradients()


def result_of(network: Network, algorithms: Sequence[str], samples, errors) -> dict:
    """Medians, and the ratio of the better layout's times to ours."""
    result: dict[str, Any] = {
        "network": network.name, "batch": network.batch, "image": network.image,
        "ms": {name: median(times) for name, times in samples.items()},
        "gradient_error": errors, "ratio": {},
        "required": {"auto": network.auto, "direct": network.direct},
    }  # fmt: skip
    peers = {name: times for name, times in samples.items() if name.startswith("torch")}
    if peers:
        best = min(peers.values(), key=median)
        result["ratio"] = {name: ratio(samples[name], best) for name in algorithms}
    return result


def our_shares(trainer: oc.Trainer) -> dict[str, float]:
    """{operation: ms} of the last step, the largest first; "walk": the time between calls."""
    assert trainer.plan is not None
    assert trainer.timeline is not None
    operation = {call.name: call.op.name for call in trainer.plan.trace.calls}
    shares: dict[str, float] = {"walk": trainer.timeline.stall_us / 1e3}
    for event in trainer.timeline.events:
        if event.stream != "C":
            continue
        name = operation[event.name]
        shares[name] = shares.get(name, 0.0) + (event.end_us - event.start_us) / 1e3
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def show(result: dict, *, breakdown: bool) -> str:
    """One network's table."""
    title = f"{result['network']}, batch {result['batch']}, {result['image']} x {result['image']}"
    rows = []
    for name, time_ms in result["ms"].items():
        reached, wanted = result["ratio"].get(name), result["required"].get(name)
        error = result["gradient_error"].get(name)
        rows.append([
            name if name.startswith("torch") else f"ooctrain {name}",
            f"{time_ms:.1f}",
            f"{reached:.2f}" if reached else "",
            f"{wanted:.2f}" if wanted else "",
            f"{error:.1e}" if error is not None else "",
            verdict(reached >= wanted) if reached and wanted else "",
        ])  # fmt: skip
    text = table([title, "ms", "ratio", "wanted", "gradient error", ""], rows)
    if breakdown:
        shares = result["our_ms_by_operation"]["auto"].items()
        text += "\n  " + ", ".join(f"{name} {ms:.1f}" for name, ms in shares if ms >= 0.05)
    return text


def main(arguments: Sequence[str] = (), *, quick: bool = False) -> dict:
    """Runs; returns what goes into the JSON file."""
    known = {network.name: network for network in NETWORKS}
    parser = argparse.ArgumentParser(prog="bench_steps", description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=sorted(known), default=list(known))
    parser.add_argument("--algorithms", nargs="+", default=["auto", "direct"])
    parser.add_argument("--rounds", type=int, default=QUICK_ROUNDS if quick else ROUNDS)
    parser.add_argument("--threads", type=int, default=threads_here())
    parser.add_argument("--breakdown", action="store_true", help="our milliseconds by operation")
    options = parser.parse_args(arguments)
    facts = machine_facts()
    if HAS_TORCH:
        import torch

        facts["torch"] = torch.__version__
    else:
        print("torch is not installed: its side of every comparison is left out")
    print(f"{options.threads} threads, medians of {options.rounds} rounds, ms per step", flush=True)
    results = []
    for name in options.networks:
        results.append(measure(known[name], options.algorithms, options.rounds, options.threads))
        print(show(results[-1], breakdown=options.breakdown), flush=True)
    missed = [
        f"{result['network']} {algorithm}"
        for result in results
        for algorithm, reached in result["ratio"].items()
        if reached < (result["required"][algorithm] or 0.0)
    ]
    return {"machine": facts, "threads": options.threads, "results": results, "missed": missed}


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
