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

#: {public name: module that defines it}; a module of the package where both are equal
_HOME = {
    "Granule": "ooctrain.sched.schedule",
    "Infeasible": "ooctrain.errors",
    "LowerBound": "ooctrain.sched.schedule",
    "Machine": "ooctrain.step.machine",
    "OoctrainError": "ooctrain.errors",
    "Op": "ooctrain.engine.own_op",
    "Plan": "ooctrain.sched.schedule",
    "Schedule": "ooctrain.sched.schedule",
    "ScheduleError": "ooctrain.errors",
    "Tensor": "ooctrain.engine.tensor",
    "Timeline": "ooctrain.sched.timeline",
    "Trace": "ooctrain.step.trace",
    "Trainer": "ooctrain.train",
    "allocators": "ooctrain.alloc.registry",
    "chain": "ooctrain.step.chain",
    "chain_view": "ooctrain.sched.planning.chain_view",
    "execute": "ooctrain.api",
    "load_plan": "ooctrain.api",
    "lower_bound": "ooctrain.api",
    "machine": "ooctrain.step.presets",
    "manual_seed": "ooctrain.engine.autograd",
    "no_grad": "ooctrain.engine.autograd",
    "plan": "ooctrain.api",
    "planners": "ooctrain.sched.planners.registry",
    "simulate": "ooctrain.api",
    "tensor": "ooctrain.engine.autograd",
    "tile": "ooctrain.rewrite.tile",
    "trace": "ooctrain.tracing",
    "verify": "ooctrain.api",
}
_MODULES = ("alloc", "data", "errors", "functional", "models", "nn", "optim", "testing")

__all__ = [
    "Granule",
    "Infeasible",
    "LowerBound",
    "Machine",
    "OoctrainError",
    "Op",
    "Plan",
    "Schedule",
    "ScheduleError",
    "Tensor",
    "Timeline",
    "Trace",
    "Trainer",
    "__version__",
    "alloc",
    "allocators",
    "chain",
    "chain_view",
    "data",
    "errors",
    "execute",
    "functional",
    "load_plan",
    "lower_bound",
    "machine",
    "manual_seed",
    "models",
    "nn",
    "no_grad",
    "optim",
    "plan",
    "planners",
    "simulate",
    "tensor",
    "testing",
    "tile",
    "trace",
    "utils",
    "verify",
]

if TYPE_CHECKING:
    from ooctrain import alloc, data, errors, functional, models, nn, optim, testing
    from ooctrain.alloc.registry import allocators
    from ooctrain.api import execute, load_plan, lower_bound, plan, simulate, verify
    from ooctrain.engine import clip as utils
    from ooctrain.engine.autograd import manual_seed, no_grad, tensor
    from ooctrain.engine.own_op import Op
    from ooctrain.engine.tensor import Tensor
    from ooctrain.errors import Infeasible, OoctrainError, ScheduleError
    from ooctrain.rewrite.tile import tile
    from ooctrain.sched.planners.registry import planners
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
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"ooctrain.{name}")
    elif name == "utils":
        value = import_module("ooctrain.engine.clip")
    else:
        raise AttributeError(f"module 'ooctrain' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
