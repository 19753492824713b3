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

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ooctrain.step.shown import Artist as _Artist

__version__ = "0.1.0"

#: {module: its public names}
_NAMES = {
    "alloc.registry": ("allocators",),
    "api": (
        "execute",
        "load_plan",
        "lower_bound",
        "plan",
        "simulate",
        "split",
        "split_to_fit",
        "verify",
    ),
    "doors": (
        "apply_rewrites",
        "chain_view",
        "fluid_bound",
        "machine",
        "resolve_budget",
        "trace_minimum_bytes",
        "trace_peak_bytes",
    ),
    "engine.autograd": ("Tensor", "manual_seed", "no_grad", "tensor"),
    "engine.draws": ("traced_every_step",),
    "engine.making": (
        "arange",
        "as_tensor",
        "eye",
        "float32",
        "from_numpy",
        "full",
        "full_like",
        "int64",
        "linspace",
        "long",
        "ones",
        "ones_like",
        "rand",
        "rand_like",
        "randint",
        "randn",
        "randn_like",
        "randperm",
        "uint8",
        "zeros",
        "zeros_like",
    ),
    "interop.onnx": ("from_onnx", "to_onnx"),
    "interop.torch": ("from_torch", "to_torch"),
    "functional": (
        "bmm",
        "cat",
        "chunk",
        "concat",
        "flatten",
        "matmul",
        "maximum",
        "minimum",
        "relu",
        "sigmoid",
        "softmax",
        "stack",
        "tanh",
        "where",
    ),
    "engine.own_op": ("Op",),
    "errors": ("Infeasible", "OoctrainError", "ScheduleError"),
    "execution.placement": ("allocation_log",),
    "rewrite": ("rewrites",),
    "rewrite.tile": ("tile",),
    "execution.planners": ("planners",),
    "execution.settings": ("Options",),
    "execution.weights": ("load", "save"),
    "sched.schedule": ("Granule", "LowerBound", "Plan", "Schedule"),
    "sched.timeline": ("Timeline",),
    "step.chain": ("chain", "equal_stages", "toy_machine"),
    "step.machine": ("Machine",),
    "step.trace": ("Trace",),
    "tracing": ("trace",),
    "train": ("Trainer",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
#: {public name: the module that it is}
_MODULES = {
    **{m: m for m in ("alloc", "data", "distributed", "errors", "functional", "interop")},
    **{m: m for m in ("models", "nn", "optim", "planning", "testing", "units")},
    "pictures": "report.pictures",
    "utils": "engine.clip",
    "puzzles": "course.puzzles",
}
__all__ = sorted([*_HOME, *_MODULES, "__version__"])

if TYPE_CHECKING:  # "x as x" is how a type checker knows that a name is public
    from ooctrain import alloc as alloc
    from ooctrain import data as data
    from ooctrain import distributed as distributed
    from ooctrain import errors as errors
    from ooctrain import functional as functional
    from ooctrain import interop as interop
    from ooctrain import models as models
    from ooctrain import nn as nn
    from ooctrain import optim as optim
    from ooctrain import planning as planning
    from ooctrain import testing as testing
    from ooctrain import units as units
    from ooctrain.alloc.registry import allocators as allocators
    from ooctrain.api import execute as execute
    from ooctrain.api import load_plan as load_plan
    from ooctrain.api import lower_bound as lower_bound
    from ooctrain.api import plan as plan
    from ooctrain.api import simulate as simulate
    from ooctrain.api import split as split
    from ooctrain.api import split_to_fit as split_to_fit
    from ooctrain.api import verify as verify
    from ooctrain.course import puzzles as puzzles
    from ooctrain.doors import apply_rewrites as apply_rewrites
    from ooctrain.doors import chain_view as chain_view
    from ooctrain.doors import fluid_bound as fluid_bound
    from ooctrain.doors import machine as machine
    from ooctrain.doors import resolve_budget as resolve_budget
    from ooctrain.doors import trace_minimum_bytes as trace_minimum_bytes
    from ooctrain.doors import trace_peak_bytes as trace_peak_bytes
    from ooctrain.engine import clip as _clip
    from ooctrain.engine.autograd import manual_seed as manual_seed
    from ooctrain.engine.autograd import no_grad as no_grad
    from ooctrain.engine.autograd import tensor as tensor
    from ooctrain.engine.draws import traced_every_step as traced_every_step
    from ooctrain.engine.making import arange as arange
    from ooctrain.engine.making import as_tensor as as_tensor
    from ooctrain.engine.making import eye as eye
    from ooctrain.engine.making import float32 as float32
    from ooctrain.engine.making import from_numpy as from_numpy
    from ooctrain.engine.making import full as full
    from ooctrain.engine.making import full_like as full_like
    from ooctrain.engine.making import int64 as int64
    from ooctrain.engine.making import linspace as linspace
    from ooctrain.engine.making import long as long
    from ooctrain.engine.making import ones as ones
    from ooctrain.engine.making import ones_like as ones_like
    from ooctrain.engine.making import rand as rand
    from ooctrain.engine.making import rand_like as rand_like
    from ooctrain.engine.making import randint as randint
    from ooctrain.engine.making import randn as randn
    from ooctrain.engine.making import randn_like as randn_like
    from ooctrain.engine.making import randperm as randperm
    from ooctrain.engine.making import uint8 as uint8
    from ooctrain.engine.making import zeros as zeros
    from ooctrain.engine.making import zeros_like as zeros_like
    from ooctrain.engine.own_op import Op as Op
    from ooctrain.engine.tensor import Tensor as Tensor
    from ooctrain.errors import Infeasible as Infeasible
    from ooctrain.errors import OoctrainError as OoctrainError
    from ooctrain.errors import ScheduleError as ScheduleError
    from ooctrain.execution.placement import allocation_log as allocation_log
    from ooctrain.execution.planners import planners as planners
    from ooctrain.execution.settings import Options as Options
    from ooctrain.execution.weights import load as load
    from ooctrain.execution.weights import save as save
    from ooctrain.functional import bmm as bmm
    from ooctrain.functional import cat as cat
    from ooctrain.functional import chunk as chunk
    from ooctrain.functional import concat as concat
    from ooctrain.functional import flatten as flatten
    from ooctrain.functional import matmul as matmul
    from ooctrain.functional import maximum as maximum
    from ooctrain.functional import minimum as minimum
    from ooctrain.functional import relu as relu
    from ooctrain.functional import sigmoid as sigmoid
    from ooctrain.functional import softmax as softmax
    from ooctrain.functional import stack as stack
    from ooctrain.functional import tanh as tanh
    from ooctrain.functional import where as where
    from ooctrain.interop.onnx import from_onnx as from_onnx
    from ooctrain.interop.onnx import to_onnx as to_onnx
    from ooctrain.interop.torch import from_torch as from_torch
    from ooctrain.interop.torch import to_torch as to_torch
    from ooctrain.report import pictures as pictures
    from ooctrain.rewrite import rewrites as rewrites
    from ooctrain.rewrite.tile import tile as tile
    from ooctrain.sched.schedule import Granule as Granule
    from ooctrain.sched.schedule import LowerBound as LowerBound
    from ooctrain.sched.schedule import Plan as Plan
    from ooctrain.sched.schedule import Schedule as Schedule
    from ooctrain.sched.timeline import Timeline as Timeline
    from ooctrain.step.chain import chain as chain
    from ooctrain.step.chain import equal_stages as equal_stages
    from ooctrain.step.chain import toy_machine as toy_machine
    from ooctrain.step.machine import Machine as Machine
    from ooctrain.step.trace import Trace as Trace
    from ooctrain.tracing import trace as trace
    from ooctrain.train import Trainer as Trainer

    utils = _clip


class _Package(ModuleType):
    """The first import of a room binds its name in the package. `oc.machine` and `oc.split` are
    functions beside rooms of the same name, so those stay what they are."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"ooctrain.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"ooctrain.{_MODULES[name]}")
    else:
        # Not at the top: a table of words, read when a name is missing.
        words = import_module("ooctrain.engine.torch_names")
        elsewhere = {} if name.startswith("_") or name in words.INSTEAD["oc"] else _in_rooms()
        if name in elsewhere:
            raise AttributeError(f"ooctrain has no {name!r}: {elsewhere[name]}")
        raise words.refusal("ooctrain", name, "oc", __all__)
    globals()[name] = value
    return value


def _in_rooms() -> dict[str, str]:
    """{name: where it is} of what stands in a room with a face of its own."""
    rooms = ("nn", "optim", "optim.schedules", "data", "functional")
    return {
        word: f"oc.{room}.{word}"
        for room in rooms for word in import_module(f"ooctrain.{room}").__all__
    }  # fmt: skip


def _drawn(thing: object, form: str) -> str:
    """The picture that a notebook shows, loaded when the first one is requested."""
    return import_module("ooctrain.report.notebook").drawn(thing, form)


_Artist.draw = _drawn


def __dir__() -> list[str]:
    return list(__all__)
