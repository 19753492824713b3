"""How many files a reader meets between a question and its answer.

Five everyday calls are made twice. During the second, warm one, a profile hook sees every Python
function that begins, in all threads. Counted are the files below `ooctrain/` in which one of them
stands, and how often one began; bodies of modules (imports) are not counted, nor is what Numba
compiled, which Python does not see. Read next: `../docs/reading.md`.

    python -m benchmarks.walks [--files]
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import ooctrain as oc

PACKAGE = Path(oc.__file__).parent
SHAPE, CLASSES, BUDGET = (2, 3, 224, 224), 1000, "50%"


class Walk:
    """What a call met: how often each function of the package began.

    A thread keeps the hook that it began with, so the hook is set before the first call, which
    starts pools and workers, and counts from the second one on.
    """

    def __init__(self) -> None:
        self.begun: Counter[CodeType] = Counter()
        self.counts = False

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profile hook."""
        if self.counts and event == "call":
            self.begun[frame.f_code] += 1

    def calls_of_files(self) -> dict[str, int]:
        """{file, from the package's folder: calls of its functions}."""
        found: Counter[str] = Counter()
        for code, count in self.begun.items():
            path = Path(code.co_filename)
            if code.co_name != "<module>" and PACKAGE in path.parents:
                found[path.relative_to(PACKAGE).as_posix()] += count
        return dict(sorted(found.items()))


@contextmanager
def hooked(walk: Walk) -> Iterator[None]:
    """This thread, and those that begin, are seen by the hook."""
    threading.setprofile(walk.see)
    sys.setprofile(walk.see)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walked(call: Callable[[], object]) -> Walk:
    """The second of two calls."""
    walk = Walk()
    with hooked(walk):
        call()
        walk.counts = True
        call()
        walk.counts = False
    return walk


# The five walks


def eager_convolution() -> Walk:
    """One `Conv2d` of one batch, no gradient asked for."""
    layer = oc.nn.Conv2d(3, 8, 3, padding=1)
    images = oc.tensor(np.ones(SHAPE, np.float32))
    return walked(lambda: layer(images))


def plan() -> Walk:
    """`oc.plan` by belady."""
    trace = traced()
    return walked(lambda: oc.plan(trace, BUDGET, planner="belady"))


def plan_with_allocator() -> Walk:
    """The same for an allocator."""
    trace = traced()
    return walked(lambda: oc.plan(trace, BUDGET, planner="belady", allocator="va"))


def execute() -> Walk:
    """`oc.execute` of such a plan."""
    model = resnet()
    trace = oc.trace(model, SHAPE)
    made = oc.plan(trace, BUDGET, planner="belady", allocator="va")
    arrays = batch()
    return walked(lambda: oc.execute(made, model, arrays))


def train_step() -> Walk:
    """A step of a trainer within a budget."""
    images, labels = batch()
    with oc.Trainer(resnet(), budget=BUDGET, planner="belady") as trainer:
        return walked(lambda: trainer.step(images, labels))


def resnet() -> oc.nn.Module:
    oc.manual_seed(0)
    return oc.models.build("resnet18", CLASSES)


def traced() -> oc.Trace:
    return oc.trace(resnet(), SHAPE)


def batch() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    images = numbers.standard_normal(SHAPE, np.float32)
    return images, numbers.integers(0, CLASSES, SHAPE[0])


WALKS: dict[str, Callable[[], Walk]] = {
    "an eager Conv2d": eager_convolution,
    "oc.plan, belady, ResNet-18": plan,
    "the same for allocator va": plan_with_allocator,
    "oc.execute of that plan": execute,
    "a warm Trainer.step": train_step,
}


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.walks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--files", action="store_true", help="names them, with their calls")
    options = parser.parse_args()
    print(f"{'walk':30} {'files':>5} {'calls':>7}")
    for name, walk in WALKS.items():
        calls = walk().calls_of_files()
        print(f"{name:30} {len(calls):5} {sum(calls.values()):7,}")
        if options.files:
            print(*(f"  {file} {count}" for file, count in calls.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
