"""The law-checker for rewrites, for the library's own and for a user's.

A rewrite says what it keeps (`rewrite/plugged.py`). Small steps of random chains are run before and
after it, by the definitions in float64, on whole numbers, where sums are exact in any order, and on
others. "bits" requires equal outputs on both, "bound" equal ones on whole numbers and near ones on
others, "meaning changed" outputs of the same shape. A rewrite may refuse a step, but not all of
them. The result is the number of steps that it rewrote, or a `RewriteFailure` that names the law
and the output. Read next: `check_planner.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ooctrain import nn
from ooctrain.engine.incore import run_trace
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, OoctrainError, unknown_name
from ooctrain.rewrite import REWRITES, apply_rewrites, keeps_of
from ooctrain.rewrite.plugged import Keeps, NamedRewrite, as_named
from ooctrain.step.blocks import block_of
from ooctrain.step.trace import Trace, Variable
from ooctrain.tracing import trace

SCALARS = {"lr": 0.5, "step": 1, "seed": 7}
#: On numbers that are not whole, in float64: this much of the largest value of an output.
NEAR = 1e-9
#: What must be in the trace after a rewrite as it was before.
KINDS = ("input", "param", "state")


class RewriteFailure(OoctrainError, AssertionError):
    """A rewrite breaks a law."""

    default_code = "OOC-291"


def check_rewrite(
    rewrite: str | Callable[[Trace], Trace], *, examples: int = 20, seed: int = 0,
    laws: Sequence[str] = (),
) -> int:  # fmt: skip
    """Tries the laws of a rewrite on small random steps.

    Args:
        rewrite: its name with parameters, "file.py:name", or a function of a trace, which may have
            an attribute `keeps`.
        examples: number of steps; seed: of them.
        laws: names of those that are tried, as in `REWRITE_LAWS`; none: all.

    Returns:
        How many steps it rewrote; it may refuse others with a ConfigError.

    Raises:
        RewriteFailure: a law is broken, or all steps are refused.
        ConfigError: no rewrite, or no law, is named so.
    """
    named = _as_named(rewrite)
    for name in laws:
        if name not in REWRITE_LAWS:
            raise unknown_name("no law of rewrites is called", name, REWRITE_LAWS, "one of them")
    done, refusal = 0, None
    for number in range(examples):
        step = random_step(random.Random(f"{seed}/{number}"))
        before = step.fingerprint
        try:
            after = named(step)
        except ConfigError as error:
            refusal = error
            continue
        done += 1
        if Trace(**_parts(step)).fingerprint != before:
            raise _failure(named, "the trace is left as it was", "it changes the trace")
        for name in laws or REWRITE_LAWS:
            problem = REWRITE_LAWS[name](named, step, after)
            if problem:
                raise _failure(named, name, f"{problem}, of example {number} with seed {seed}")
    if not done:
        raise _failure(named, "it rewrites something", f"it refuses all steps: {refusal}")
    return done


def random_step(rng: random.Random) -> Trace:
    """A step of a chain of convolutions, poolings and activations, then a sum of squares, whose
    arithmetic is exact on small whole numbers.
    """
    channels, layers = rng.randint(1, 3), list[nn.Module]()
    image = (rng.randint(1, 2), channels, rng.randint(9, 14), rng.randint(9, 14))
    for place in range(rng.randint(2, 5)):
        kind = "conv" if place == 0 else rng.choice(("conv", "relu", "pool", "conv"))
        if kind == "conv":
            wider, padding = rng.randint(1, 3), rng.randint(0, 1)
            layers.append(nn.Conv2d(channels, wider, 3, padding=padding, bias=rng.random() < 0.7))
            channels = wider
        else:
            layers.append(nn.ReLU() if kind == "relu" else nn.MaxPool2d(2, 1))
    return trace(nn.Sequential(*layers), image, _sum_of_squares, threads=1)


def _sum_of_squares(output: Tensor, target: Tensor) -> Tensor:
    return (output * output).sum()


# The laws: each says what is wrong, or nothing


def same_interface(named: NamedRewrite, before: Trace, after: Trace) -> str:
    """Inputs, parameters and states, outputs and what carries over have the same names and
    shapes, put together where they lie in blocks.
    """
    for kind in KINDS:
        was, now = (_wholes((v.name, v.shape) for v in _of_kind(t, kind)) for t in (before, after))
        if was != now:
            return f"{kind}s were {was} and are {now}"
    was, now = (
        _wholes((name, t.variables[v].shape) for name, v in t.outputs.items())
        for t in (before, after)
    )
    if was != now:
        return f"outputs were {was} and are {now}"
    olds = [sorted(t.variables[v].name for v in t.carries.values()) for t in (before, after)]
    return "" if olds[0] == olds[1] else f"{olds[0]} were updated, now {olds[1]}"


def _of_kind(trace: Trace, kind: str) -> Iterator[Variable]:
    return (v for v in map(trace.variables.__getitem__, trace.initial) if v.kind == kind)


def _wholes(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """{tensor: shape}; of a tensor in blocks that of the whole."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes:
        block = block_of(name)
        if block is None:
            found[name] = shape
            continue
        images, *_, rows, _ = found.get(block.tensor, shape)
        whole = max(images, block.image + 1), *shape[1:-2], max(rows, block.hi), shape[-1]
        found[block.tensor] = whole
    return found


def is_pure(named: NamedRewrite, before: Trace, after: Trace) -> str:
    """The same trace gives the same one again."""
    again = named(before)
    return (
        "" if again.fingerprint == after.fingerprint else "it rewrites differently when asked twice"
    )


def keeps_whole_numbers(named: NamedRewrite, before: Trace, after: Trace) -> str:
    """Equal to the bit where all sums are exact."""
    return _compare(before, after, named.keeps, 0.0, whole=True)


def keeps_others(named: NamedRewrite, before: Trace, after: Trace) -> str:
    """Equal to the bit, or up to rounding, on any numbers."""
    return _compare(before, after, named.keeps, 0.0 if named.keeps == "bits" else NEAR, whole=False)


RewriteLaw = Callable[[NamedRewrite, Trace, Trace], str]
REWRITE_LAWS: Mapping[str, RewriteLaw] = MappingProxyType(
    {
        "same interface": same_interface,
        "rewriting is pure": is_pure,
        "whole numbers": keeps_whole_numbers,
        "other numbers": keeps_others,
    }
)


def _compare(before: Trace, after: Trace, keeps: Keeps, near: float, *, whole: bool) -> str:
    values = _values(before, whole=whole)
    was, now = (_results(t, values) for t in (before, after))
    for name, truth in was.items():
        found = now[name]
        if found.shape != truth.shape:
            return f"{name!r} has shape {found.shape}, not {truth.shape}"
        if keeps == "meaning changed":
            continue
        error = np.abs(found - truth)
        allowed = near * np.abs(truth).max(initial=0)
        if (error > allowed).any():
            place = tuple(map(int, np.unravel_index(error.argmax(), error.shape)))
            kind = "whole numbers" if whole else "other numbers"
            return (
                f"{name!r} differs at {place} on {kind}: {found[place]!r}, expected "
                f"{truth[place]!r} (allowed: {allowed:.3g})"
            )
    return ""


def _values(step: Trace, *, whole: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for variable in map(step.variables.__getitem__, step.initial):
        shape = variable.shape
        drawn = rng.integers(-2, 3, shape) if whole else rng.standard_normal(shape)
        found[variable.name] = drawn.astype("float64")
    return found


def _results(step: Trace, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs, and what the next step begins with."""
    return run_trace(step, values, SCALARS, mode="reference")


def _as_named(rewrite: str | Callable[[Trace], Trace]) -> NamedRewrite:
    if isinstance(rewrite, str):
        keeps = keeps_of(rewrite)
        found = REWRITES[rewrite]
        if isinstance(found, NamedRewrite):
            return found
        return NamedRewrite(rewrite, lambda trace: apply_rewrites(trace, (rewrite,)), keeps)
    return as_named(getattr(rewrite, "__name__", type(rewrite).__name__), rewrite)


def _parts(step: Trace) -> dict:
    """A trace's fields, for one without what it has remembered."""
    return {name: getattr(step, name) for name in step.__dataclass_fields__}


def _failure(named: NamedRewrite, law: str, problem: str) -> RewriteFailure:
    return RewriteFailure(
        f"rewrite {named.name!r} breaks the law {law!r}: {problem}",
        numbers=f"it keeps {named.keeps!r}",
        fix="mend it, or say that it keeps less: keeps = 'bound' or 'meaning changed'",
    )
