"""ooctrain: out-of-core CNN training, the reference implementation.

    model = oc.models.build("resnet18", num_classes=10, stem="cifar")
    trace = oc.trace(model, (256, 3, 32, 32))
    plan = oc.plan(trace, "25%", planner="window")
    oc.verify(plan, trace, "25%")

A training step is a straight-line list (`trace`, `plan`); it is proved (`verify`), timed
(`simulate`) and run (`execute`, `Trainer`). Names are loaded on first use, so that planning never
waits for kernels to load. Read next: `step/trace.py`, `sched/schedule.py`, `execution/executor.py`;
docs/architecture.md is the map.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import ooctrain.machine

__version__ = "0.1.0"

# The first import of a room binds its name here. `oc.machine` is a function, so this name is freed
# again; `from ooctrain.machine.calibrate import ...` keeps working, and no later import binds it.
del ooctrain.machine

#: {module: its public names}
_NAMES = {
    "alloc.registry": ("allocators",),
    "api": ("execute", "load_plan", "lower_bound", "plan", "simulate", "verify"),
    "engine.autograd": ("Tensor", "manual_seed", "no_grad", "tensor"),
    "engine.own_op": ("Op",),
    "errors": ("Infeasible", "OoctrainError", "ScheduleError"),
    "rewrite": ("rewrites",),
    "rewrite.tile": ("tile",),
    "execution.planners": ("planners",),
    "sched.planning.chain_view": ("chain_view",),
    "sched.schedule": ("Granule", "LowerBound", "Plan", "Schedule"),
    "sched.timeline": ("Timeline",),
    "step.chain": ("chain",),
    "step.machine": ("Machine",),
    "step.presets": ("machine",),
    "step.trace": ("Trace",),
    "tracing": ("trace",),
    "train": ("Trainer",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
#: {public name: the module that it is}
_MODULES = {
    **{m: m for m in ("alloc", "data", "distributed", "errors", "functional")},
    **{m: m for m in ("models", "nn", "optim", "testing")},
    "utils": "engine.clip",
}
__all__ = sorted([*_HOME, *_MODULES, "__version__"])

if TYPE_CHECKING:
    from ooctrain import alloc, data, distributed, errors, functional, models, nn, optim, testing
    from ooctrain.alloc.registry import allocators
    from ooctrain.api import execute, load_plan, lower_bound, plan, simulate, verify
    from ooctrain.engine import clip as utils
    from ooctrain.engine.autograd import manual_seed, no_grad, tensor
    from ooctrain.engine.own_op import Op
    from ooctrain.engine.tensor import Tensor
    from ooctrain.errors import Infeasible, OoctrainError, ScheduleError
    from ooctrain.execution.planners import planners
    from ooctrain.rewrite import rewrites
    from ooctrain.rewrite.tile import tile
    from ooctrain.sched.planning.chain_view import chain_view
    from ooctrain.sched.schedule import Granule, LowerBound, Plan, Schedule
    from ooctrain.sched.timeline import Timeline
    from ooctrain.step.chain import chain
    from ooctrain.step.machine import Machine
    from ooctrain.step.presets import machine
    from ooctrain.step.trace import Trace
    from ooctrain.tracing import trace
    from ooctrain.train import Trainer


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"ooctrain.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"ooctrain.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'ooctrain' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
