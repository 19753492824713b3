"""The law-checker for splits of networks, for the library's own or for a student's.

A split changes the results of a network, so no law compares its numbers with the unsplit ones,
except where windows do not overlap. The laws are: sizes add up, a row of the image reaches one part
only and none is lost, statistics are those of a part, randomness is a function of seed and step,
and evaluation is whole. Steps are run by the definitions in float64, and a row reaches every value
that changes with it. The networks are small and random. The argument is a function called as
`oc.split`; the result is the number of networks that it split, or a `SplitFailure` that names the
law and the network. Read next: `../split/boundaries.py`; `check_rewrite.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from ooctrain import nn
from ooctrain.engine.incore import run_reference, run_trace
from ooctrain.engine.module import Module
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, OoctrainError, ShapeError, unknown_name
from ooctrain.layers.conv2d import Conv2d
from ooctrain.split.model import split as split_whole
from ooctrain.step.op import to_logical, to_physical
from ooctrain.step.trace import Trace, Variable
from ooctrain.tracing import trace

Splitter = Callable[..., Module]
SCALARS = {"lr": 0.5, "step": 1, "seed": 7}
STEPS = 6
OMEGA = 0.3


class SplitFailure(OoctrainError, AssertionError):
    """A split breaks a law."""

    default_code = "OOC-294"


def check_split(
    split: Splitter = split_whole, *, examples: int = 10, seed: int = 0, laws: Sequence[str] = ()
) -> int:
    """Tries the laws of a split on small random networks.

    Args:
        split: takes what `oc.split` takes: (model, depth, grid, stochastic, omega=, seed=).
        examples: networks for each law; seed: of them.
        laws: names of those that are tried, as in `SPLIT_LAWS`; none: all.

    Returns:
        How many networks it was tried on.

    Raises:
        SplitFailure: a law is broken.
        ConfigError: no law is named so.
    """
    for name in laws:
        if name not in SPLIT_LAWS:
            raise unknown_name("no law of splits is called", name, SPLIT_LAWS, "one of them")
    for name in laws or SPLIT_LAWS:
        for number in range(examples):
            rng = random.Random(f"{seed}/{number}")
            try:
                problem = SPLIT_LAWS[name](split, rng)
            except (ConfigError, ShapeError) as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                raise SplitFailure(
                    f"the split breaks the law {name!r}: {problem}",
                    numbers=f"example {number} with seed {seed}",
                    fix=f'oc.testing.check_split(split, seed={seed}, laws=["{name}"]) again',
                )  # fmt: skip
    return examples * len(laws or SPLIT_LAWS)


# The laws: each says what is wrong, or nothing


def sizes_add_up(split: Splitter, rng: random.Random) -> str:
    """The parts of the output are together as large as the unsplit output."""
    net = random_network(rng, "windows", "norm", "residual")
    whole = _output(_traced(net.model, net)).shape
    made = _made(split, net, rng, depth=rng.random(), step=rng.randrange(STEPS))
    found = _output(_traced(made, net)).shape
    return "" if found == whole else f"{net}: the output is {found}, unsplit {whole}"


def parts_are_independent(split: Splitter, rng: random.Random) -> str:
    """No row of the image reaches two parts, in any step; and no row is lost."""
    net = random_network(rng, "windows", "residual")
    plain = _reach(net.model, net)
    reach = _reach(_made(split, net, rng, depth=1.0, step=rng.randrange(STEPS)), net)
    if lost := sorted(row for row in plain if plain[row] and not reach[row]):
        return f"{net}: rows {lost} of the image reach nothing, and did unsplit"
    found = _groups(reach)
    if len(found) < net.grid[0]:
        return f"{net}: {net.grid[0]} parts are {len(found)}: rows of one reach another"
    return ""


def kernel_is_stride(split: Splitter, rng: random.Random) -> str:
    """Windows that do not overlap: loss and gradients are those of the unsplit network, to the bit
    on whole numbers.
    """
    net = random_network(rng, "tiling")
    made = _made(split, net, rng, depth=1.0, step=rng.randrange(STEPS))
    steps = (_traced(model, net) for model in (net.model, made))
    was, now = (run_trace(step, _values(step, 3), SCALARS, "reference") for step in steps)
    wrong = [name for name in was if not np.array_equal(was[name], now[name])]
    return f"{net}: {', '.join(wrong)} differ" if wrong else ""


def statistics_are_of_parts(split: Splitter, rng: random.Random) -> str:
    """Windows that do not overlap: running statistics are moved as by calls of the unsplit network
    with one patch of the images after the other, row by row.
    """
    net = random_network(rng, "counted")
    step = _traced(_made(split, net, rng, depth=1.0, step=rng.randrange(STEPS)), net)
    values = _values(step, 3)
    found = run_trace(step, values, SCALARS, "reference")
    states = [name for name, _ in net.model.named_buffers()]
    n, channels, height, width = net.shape
    rows, columns = height // net.grid[0], width // net.grid[1]
    part = trace(net.model, (n, channels, rows, columns), sum_of_squares, threads=1)
    held = _values(part, 3) | {name: values[name] for name in net.model.state_dict()}
    for i, j in product(range(0, height, rows), range(0, width, columns)):
        held["input"] = values["input"][:, :, i : i + rows, j : j + columns]
        after = run_trace(part, held, SCALARS, "reference")
        held |= {name: after[name] for name in states}
    wrong = [name for name in states if not np.allclose(found[name], held[name], rtol=1e-9)]
    return f"{net}: {', '.join(wrong)} differ" if wrong else ""


def evaluation_is_whole(split: Splitter, rng: random.Random) -> str:
    """Evaluation is that of the model itself, and so are parameters and their names."""
    net = random_network(rng, "windows", "norm", "residual")
    made = split(net.model, 1.0, net.grid, True, omega=OMEGA, seed=1)
    if list(made.state_dict()) != list(net.model.state_dict()):
        return f"{net}: it has other parameters or names"
    plain, own = (
        trace(m, net.shape, sum_of_squares, threads=1, training=False) for m in (net.model, made)
    )
    return "" if own.fingerprint == plain.fingerprint else f"{net}: its evaluation is another one"


def one_patch_is_the_model(split: Splitter, rng: random.Random) -> str:
    """With one patch, or with depth 0, the step is the model's own."""
    net = random_network(rng, "windows", "norm", "residual")
    plain = _traced(net.model, net)
    for depth, grid in ((1.0, (1, 1)), (0.0, (2, 2))):
        made = split(net.model, depth, grid, False, omega=0.0)
        if _traced(made, net).fingerprint != plain.fingerprint:
            return f"{net}: depth {depth} in {grid} is another step"
    return ""


def chance_is_a_function(split: Splitter, rng: random.Random) -> str:
    """Boundaries are around even ones, and depend on seed and step alone: the same again, others in
    other steps.
    """
    net = random_network(rng, "wide")

    def steps(seed: int) -> list[str]:
        made = split(net.model, 1.0, net.grid, True, omega=OMEGA, seed=seed)
        found = []
        for number in range(STEPS):
            made.begin_step(number)
            found.append(_traced(made, net).fingerprint)
        return found

    first, again, other = steps(1), steps(1), steps(2)
    if again != first:
        return f"{net}: the same step has other boundaries when it is recorded again"
    if len(set(first)) < 2 or first == other:
        return f"{net}: {STEPS} steps of two seeds have {len(set(first + other))} boundaries"
    made = split(net.model, 1.0, net.grid, True, omega=OMEGA, seed=1)
    made.begin_step(rng.randrange(STEPS))
    starts = sorted(min(rows) for rows in _groups(_reach(made, net)))
    for i, start in enumerate(starts[1:], 1):
        off = start - i * net.shape[2] / net.grid[0]
        if abs(off) > OMEGA * net.shape[2] / net.grid[0]:
            return f"{net}: part {i} begins at row {start}, {off:+.1f} from the even boundary"
    return ""


def depth_is_a_share(split: Splitter, rng: random.Random) -> str:
    """In a chain of n convolutions, as many work on patches as comes nearest to depth n."""
    net = random_network(rng, "chain")
    depth, total = rng.random(), _convolutions(_traced(net.model, net))
    made = _made(split, net, rng, depth=depth, step=0)
    parts = net.grid[0] * net.grid[1]
    on_patches = (_convolutions(_traced(made, net)) - total) / (parts - 1)
    # A depth above 0 splits one at least.
    near = abs(on_patches - max(depth * total, 1)) <= 0.5 + 1e-9
    return "" if near else f"{net}: {on_patches:g} of {total} convolutions at depth {depth:.2f}"


def bad_numbers_are_refused(split: Splitter, rng: random.Random) -> str:
    """What makes no sense is a ConfigError: before a step, or when it is traced."""
    net = random_network(rng, "wide")
    wrong: Mapping[str, Callable[[], Any]] = {
        "omega 0.5": lambda: split(net.model, 0.5, (2, 2), True, omega=0.5),
        "omega -0.1": lambda: split(net.model, 0.5, (2, 2), True, omega=-0.1),
        "depth 1.1": lambda: split(net.model, 1.1, (2, 2)),
        "no patches": lambda: split(net.model, 0.5, (0, 2)),
        "a model that is split": lambda: split(split(net.model, 0.5, (2, 2)), 0.5, (2, 2)),
        "more patches than rows": lambda: _traced(
            split(net.model, 0.5, (net.shape[2] + 1, 1)), net
        ),
    }
    for what, tried in wrong.items():
        try:
            tried()
        except ConfigError:
            continue
        return f"{what} is accepted"
    return ""


SplitLaw = Callable[[Splitter, random.Random], str]
SPLIT_LAWS: Mapping[str, SplitLaw] = MappingProxyType(
    {
        "sizes add up": sizes_add_up,
        "parts are independent": parts_are_independent,
        "kernel is stride": kernel_is_stride,
        "statistics are of parts": statistics_are_of_parts,
        "evaluation is whole": evaluation_is_whole,
        "one patch is the model": one_patch_is_the_model,
        "chance is a function": chance_is_a_function,
        "depth is a share": depth_is_a_share,
        "bad numbers are refused": bad_numbers_are_refused,
    }
)


def _made(
    split: Splitter, net: SplitNetwork, rng: random.Random, *, depth: float, step: int
) -> Module:  # fmt: skip
    """A network in patches before a training step; boundaries are drawn in one case of two."""
    made = split(net.model, depth, net.grid, rng.random() < 0.5, omega=OMEGA, seed=rng.randrange(9))
    made.begin_step(step)
    return made


def _traced(model: Module, net: SplitNetwork) -> Trace:
    return trace(model, net.shape, sum_of_squares, threads=1)


def _output(step: Trace) -> Variable:
    """What the loss reads: the network's output."""
    loss = next(call for call in step.calls if call.phase == "loss")
    return step.variables[loss.ins[0]]


def _convolutions(step: Trace) -> int:
    return sum(isinstance(call.op, Conv2d) and call.phase == "forward" for call in step.calls)


def _values(step: Trace, largest: int) -> dict[str, np.ndarray]:
    """Whole numbers above 0, so that no ReLU hides anything."""
    rng = np.random.default_rng(0)
    variables = map(step.variables.__getitem__, step.initial)
    return {v.name: rng.integers(1, largest + 1, v.shape).astype("float64") for v in variables}


def _reach(model: Module, net: SplitNetwork) -> dict[int, frozenset[int]]:
    """{row of the image: rows of the output that change with it}, of a network whose images do not
    know of each other: one for each row, in which it is another, and one as it is.
    """
    _, channels, rows, columns = net.shape
    step = trace(model, (rows + 1, channels, rows, columns), sum_of_squares, threads=1)
    values, output = _values(step, 2), _output(step).id
    values["input"] = np.repeat(values["input"][:1], rows + 1, axis=0)
    values["input"][range(rows), :, range(rows)] += 1
    held = {v: to_physical(values[step.variables[v].name]) for v in step.initial}
    for call in step.calls[: (step.producer[output] or 0) + 1]:
        outs = run_reference(call.op, [held[v] for v in call.ins], SCALARS)
        held |= zip(call.outs, outs, strict=True)
    found = to_logical(held[output])
    changed = (found[:-1] != found[-1:]).any(axis=(1, 3))
    return {row: frozenset(map(int, np.flatnonzero(changed[row]))) for row in range(rows)}


def _groups(reach: Mapping[int, frozenset[int]]) -> list[set[int]]:
    """Rows of the output that no row of the image ties together."""
    groups: list[set[int]] = []
    for rows in filter(None, reach.values()):
        touching = [group for group in groups if group & rows]
        groups = [group for group in groups if not group & rows]
        groups.append(set(rows).union(*touching))
    return groups


# Networks: each kind exercises one feature, "windows" all kernels, strides and paddings with k >=
# s, "tiling" those with k = s, "counted" a norm among such windows, "residual" a block whose
# shortcut skips rows, "norm" statistics of parts, "chain" and "wide" plain 3 x 3 convolutions,
# "wide" with space for many boundaries.

LARGEST_KERNEL = 5


@dataclass(frozen=True, slots=True)
class SplitNetwork:
    """A model, the images it is given, and the patches it is tried in."""

    model: Module
    shape: tuple[int, int, int, int]
    grid: tuple[int, int]

    def __str__(self) -> str:
        layers = " ".join(repr(self.model).split())
        return f"{layers} on {self.shape} in {self.grid[0]} x {self.grid[1]}"


class Shortcut(nn.Module):
    """A residual block that halves the image: 3 x 3, stride 2, in parallel 1 x 1, stride 2."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, 2, 3, 2, 1)
        self.second = nn.Conv2d(2, 2, 3, padding=1)
        self.beside, self.relu = nn.Conv2d(channels, 2, 1, 2), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.first(x)) + self.beside(x))


def sum_of_squares(output: Tensor, target: Tensor) -> Tensor:
    """A loss that is exact on whole numbers."""
    return (output * output).sum()


def random_network(rng: random.Random, *kinds: str) -> SplitNetwork:
    """A network of one of the kinds."""
    kind = rng.choice(kinds)
    channels, grid = rng.randint(1, 2), (rng.randint(2, 3), rng.randint(1, 2))
    if kind == "tiling":
        return _tiling(rng, channels, grid)
    if kind == "counted":
        return _counted(rng, channels, grid)
    height = rng.randint(24, 31) if kind in ("wide", "residual") else rng.randint(20, 30)
    if kind == "windows":
        layers = [_window(rng, channels), *(_window(rng, 2, 0.3) for _ in range(rng.randint(0, 1)))]
    elif kind == "residual":
        layers = [nn.Conv2d(channels, 2, 3, padding=1), Shortcut(2)]
    elif kind == "norm":
        layers = [nn.Conv2d(channels, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(),
                  nn.MaxPool2d(3, 2, 1)]  # fmt: skip
    elif kind == "wide":
        layers, grid = [nn.Conv2d(channels, 2, 3, padding=1), nn.ReLU()], (3, 1)
    else:
        count = rng.randint(2, 5)
        layers = [nn.Conv2d(channels if i == 0 else 2, 2, 3, padding=1) for i in range(count)]
    return SplitNetwork(nn.Sequential(*layers), (1, channels, height, rng.randint(16, 20)), grid)


def _window(rng: random.Random, channels: int, poolings: float = 0.0) -> Module:
    """A convolution, or a pooling in some of the cases, with k >= s and any padding below k."""
    stride = rng.randint(1, 2)
    kernel = rng.randint(stride, LARGEST_KERNEL if stride == 1 else 3)
    padding = rng.randint(0, kernel - 1) if kernel > 1 else 0
    if rng.random() < poolings:
        return nn.AvgPool2d(kernel, stride, min(padding, kernel // 2))
    return nn.Conv2d(channels, 2, kernel, stride, padding)


def _tiling(rng: random.Random, channels: int, grid: tuple[int, int]) -> SplitNetwork:
    """Windows side by side: k = s."""
    first, second = rng.randint(1, 3), 2
    layers = [nn.Conv2d(channels, 2, first, first), nn.Dropout(), nn.MaxPool2d(second)]
    layers += [nn.Conv2d(2, 2, 1)]
    side = first * second * rng.randint(3, 4)
    return SplitNetwork(nn.Sequential(*layers), (2, channels, side, side), grid)


def _counted(rng: random.Random, channels: int, grid: tuple[int, int]) -> SplitNetwork:
    """A norm among windows side by side, on images that can only be cut into equal patches."""
    size = rng.randint(1, 3)
    layers = [nn.Conv2d(channels, 2, size, size), nn.BatchNorm2d(2), nn.MaxPool2d(2)]
    rows, columns = (2 * 2 * size * parts for parts in grid)
    return SplitNetwork(nn.Sequential(*layers), (2, channels, rows, columns), grid)
