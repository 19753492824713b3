"""Public names beside torch by introspection: the same keywords, in the same places, with the same
defaults. What differs stands in the tables below, and nothing else does.

A keyword of torch that is lacking here is refused by Python, which names it; it never means
something else.
"""

from __future__ import annotations

import inspect
import re

import pytest

from ooctrain import data, nn, optim
from ooctrain import functional as F

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers

EMPTY = inspect.Parameter.empty
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
#: Keywords that torch has everywhere, and no network here can use: placement is the trainer's, all
#: is float32, and the old spellings of `reduction`.
NEVER = {"device", "dtype", "out", "size_average", "reduce", "foreach", "fused", "capturable",
         "differentiable", "remove_duplicate"}  # fmt: skip
#: {name: keywords of torch's that are lacking}
LACKING = {
    "Adam": {"amsgrad", "maximize", "decoupled_weight_decay"}, "AdamW": {"amsgrad", "maximize"},
    "AvgPool2d": {"divisor_override"}, "avg_pool2d": {"divisor_override"},
    "BatchNorm1d": {"bias"}, "BatchNorm2d": {"bias"}, "GroupNorm": {"bias"},
    "Conv2d": {"padding_mode"}, "ConvTranspose2d": {"padding_mode"},
    "DataLoader": {
        "sampler", "batch_sampler", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
        "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers",
        "pin_memory_device", "in_order",
    },
    "InstanceNorm2d": {"momentum", "track_running_stats", "bias"},
    "MaxPool2d": {"return_indices"}, "max_pool2d": {"return_indices"},
    "AdaptiveMaxPool2d": {"return_indices"}, "adaptive_max_pool2d": {"return_indices"},
    "Hardtanh": {"min_value", "max_value"}, "scaled_dot_product_attention": {"enable_gqa"},
    "LRScheduler.step": {"epoch"},
    "Module.load_state_dict": {"assign"}, "Module.named_modules": {"memo"},
    "Module.state_dict": {"destination", "prefix", "keep_vars"},
    "Optimizer.step": {"closure"}, "RMSprop": {"maximize"}, "SGD": {"maximize"},
    "interpolate": {"antialias"},
    "l1_loss": {"weight"}, "mse_loss": {"weight"},
    "softmax": {"_stacklevel"}, "log_softmax": {"_stacklevel"}, "softmin": {"_stacklevel"},
    "random_split": {"generator"},
}  # fmt: skip
#: {name: keywords that torch has not}
ADDED = {
    "DataLoader": {"seed", "prefetch", "transform", "share"}, "batch_norm": {"num_batches_tracked"},
    "Parameter": {"initial"},
    "random_split": {"seed"}, "Module.to": {"device"},
}  # fmt: skip
#: {name: keywords at another place, or with another default}
MOVED = {
    # Here the fourth is drop_last, which takes truth values alone; torch has samplers there.
    "DataLoader": {"shuffle", "drop_last", "num_workers"},
    "Parameter": {"data"},  # there is none without a value
    "Module.named_modules": {"prefix"},  # torch hands on what it has seen, in front
}  # fmt: skip
ROOMS = {
    "nn": (nn, torch.nn), "optim": (optim, torch.optim),
    "lr_scheduler": (optim.lr_scheduler, torch.optim.lr_scheduler),
    "data": (data, torch.utils.data),
}  # fmt: skip


def pairs():
    """(name, ours, torch's) of classes, their methods, functions."""
    for ours, theirs in ROOMS.values():
        for name in sorted(vars(ours)):
            mine = getattr(ours, name)
            if inspect.isclass(mine) and not name.startswith("_") and hasattr(theirs, name):
                other = getattr(theirs, name)
                made = other.__new__ if other is torch.nn.Parameter else other.__init__
                yield name, mine.__init__, made
    for mine, other in ((nn.Module, torch.nn.Module), (optim.Optimizer, torch.optim.Optimizer),
                        (optim.LRScheduler, torch.optim.lr_scheduler.LRScheduler)):  # fmt: skip
        for name in sorted(vars(mine)):
            if callable(getattr(mine, name)) and not name.startswith("_") and hasattr(other, name):
                yield f"{mine.__name__}.{name}", getattr(mine, name), getattr(other, name)
    yield "random_split", data.random_split, torch.utils.data.random_split
    for name in F.__all__:
        other = getattr(torch.nn.functional, name, None) or getattr(torch, name, None)
        if other is not None:
            yield name, getattr(F, name), other


PAIRS = {name: (ours, theirs) for name, ours, theirs in pairs()}


def parameters_of(name, function):
    """{keyword: (place, or None where it has none; default)}, without `self`; None: not known."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        signature = None
    if signature is None or {p.kind for p in signature.parameters.values()} == set(VARIABLE):
        # What is written in C, or chosen by an argument, documents itself: "f(a, b=1) -> Tensor".
        found = re.search(rf"^\s*{name}\((.*?)\) ->", function.__doc__ or "", re.M | re.S)
        if found is None:
            return None
        names: dict = {}
        exec(f"def documented({found[1]}): pass", names)
        signature = inspect.signature(names["documented"])
    plain = [
        p
        for p in signature.parameters.values()
        if p.name not in ("self", "cls") and p.kind not in VARIABLE
    ]
    return {
        p.name: (None if p.kind is p.KEYWORD_ONLY else place, p.default)
        for place, p in enumerate(plain)
    }


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_keywords_places_and_defaults_are_those_of_torch(name):
    ours, theirs = (parameters_of(name, function) for function in PAIRS[name])
    if theirs is None:
        pytest.skip("torch does not say")
    assert set(ours) - set(theirs) == ADDED.get(name, set()), "keywords that torch has not"
    assert set(theirs) - set(ours) - NEVER == LACKING.get(name, set()), "keywords that are lacking"
    moved = set()
    for keyword in set(ours) & set(theirs):
        (place, default), (their_place, their_default) = ours[keyword], theirs[keyword]
        elsewhere = place is not None and place != their_place
        if elsewhere or (default is not their_default and default != their_default):
            moved.add(keyword)
    assert moved == MOVED.get(name, set()), "keywords at another place, or with another default"


def test_the_tables_name_nothing_that_is_not_there():
    assert set(LACKING) | set(ADDED) | set(MOVED) <= set(PAIRS)
    assert len(PAIRS) > 80
