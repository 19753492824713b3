"""The settings and values that ranks must have in common before a step begins.

Ranks with different settings wait for each other for ever, or train different networks without a
warning. So each step begins with an exchange of a few bytes: a hash of everything that the step
depends on, learning rates and the number of steps included. A difference is an error on all ranks
that names the ranks and the setting. Values of parameters are compared once for each new step. Read
next: `ranks.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from ooctrain.distributed.ranks import Ranks
from ooctrain.engine.tensor import Tensor
from ooctrain.optim import Optimizer
from ooctrain.step.trace import Trace

AS_BEFORE = "as agreed before"


class Given(Protocol):
    """What a rank was given; `execution.seen.Training` is one."""

    @property
    def optimizer(self) -> Optimizer:
        """Its settings and learning rates count."""

    @property
    def settings(self) -> Any:
        """With `seed`, `budget`, `planner` and `rewrites`."""


def agree_on_step(ranks: Ranks, given: Given, step: Trace, values: Mapping[str, Tensor]) -> None:
    """Makes sure that all ranks are about to do the same.

    Args:
        step: as traced, before any rewrite.
        values: values of parameters, buffers and optimizer slots, by name.

    Raises:
        RanksDiffer: on all ranks.
    """
    if ranks.count == 1:
        return
    new = ranks.agreed_on is not step
    optimizer, settings = given.optimizer, given.settings
    planner = settings.planner
    facts = {
        "model": _structure(step),
        "batch": [v.shape for v in step.variables if v.kind == "input"],
        "seed": settings.seed,
        "budget": settings.budget,
        "planner": planner if isinstance(planner, str) else type(planner).__name__,
        "rewrites": settings.rewrites,
        "optimizer": (type(optimizer).__name__, optimizer.scalars()),
        "step": optimizer.steps_done,
        "bucket": (ranks.bucket_bytes, ranks.ahead, ranks.sync_batch_norm),
        "values": _digest(values) if new else AS_BEFORE,
    }
    ranks.agree(facts)
    ranks.agreed_on = step


def _structure(step: Trace) -> str:
    """Names and shapes of a step; masks of dropout have places that differ from rank to rank."""
    digest = hashlib.sha256()
    for v in step.variables:
        digest.update(f"{v.name}|{v.shape}|{v.dtype}\n".encode())
    for call in step.calls:
        digest.update(f"{call.name}|{type(call.op).__name__}\n".encode())
    return digest.hexdigest()[:16]


def _digest(values: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(values):
        digest.update(name.encode())
        digest.update(values[name].storage.read().tobytes())
    return digest.hexdigest()[:16]
