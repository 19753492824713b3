"""State dicts as people have them: wrapped, with the prefixes of wrappers, from other frameworks.

A file of weights rarely has just the model's keys. A training script saves the state dict among
other things ({"state_dict": ...}); a model that was trained on several GPUs or compiled has a
prefix at each key ("module.", "_orig_mod."); one of Lightning, or of any other module that had
the model as a part, has the part's name there ("model.", "net."); an old one has no counts of
batches. All that is undone here where it is certain what is meant, and refused, with what to do,
where it is not.
Sources: the state dicts of PyTorch's DistributedDataParallel and torch.compile, of torchvision's
and Lightning's checkpoints. Read next: `module.py`, `Module.load_state_dict`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError, ShapeError, did_you_mean
from ooctrain.step.user_values import as_numbers

#: Keys under which scripts save a state dict among other things, the surest first.
WRAPPERS = ("state_dict", "model_state_dict", "model", "model_state", "net", "network", "weights")
#: How many models torch's `AveragedModel` has averaged; no value of the model.
AVERAGED = "n_averaged"
#: What wrappers of a model put before its keys.
PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")
#: Counted by newer batch norms alone, and of no influence unless momentum is None.
COUNTS = "num_batches_tracked"
#: {ending of a file: how it becomes a state dict}.
_READERS = {
    ".safetensors": "model.load_state_dict(oc.load(path)); a trainer's own file is for "
    "trainer.resume(path)",
    ".npz": "model.load_state_dict(np.load(path))",
    **dict.fromkeys(
        (".pt", ".pth", ".bin", ".ckpt", ".tar", ".pkl"),
        "pickled files are not read: in torch, safetensors.torch.save_file(model.state_dict(), "
        "'weights.safetensors'), then oc.load here",
    ),
}
_MOST_DEPTH, _MOST_NAMED = 4, 4


def plain_state(given: Any, own: Collection[str]) -> dict[str, Any]:
    """The state dict in what was given, with the model's keys where they can be recognised.

    Args:
        own: the model's keys.

    Raises:
        ConfigError: a path, a module or something else that is not a state dict; keys of which some
            have a prefix and others have not.
    """
    if isinstance(given, str | os.PathLike):
        how = _READERS.get(PurePath(given).suffix.lower(), "read it into {name: array} first")
        raise ConfigError(f"a path is not a state dict: {os.fspath(given)!r}", code="OOC-112",
                          fix=how)  # fmt: skip
    if callable(getattr(given, "state_dict", None)):
        raise ConfigError(
            f"{type(given).__name__} is not a state dict", code="OOC-112",
            fix="load_state_dict(other.state_dict())",
        )  # fmt: skip
    state = _unwrapped(given, own)
    strange = [key for key in state if not isinstance(key, str)]
    if strange:
        raise ConfigError(f"a key of a state dict is a name, not {strange[0]!r}", code="OOC-112")
    return _without_prefixes(state, own)


def _unwrapped(given: Any, own: Collection[str], depth: int = 0) -> Mapping[Any, Any]:
    """The innermost mapping that a known key leads to."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"a state dict is a mapping of names to arrays, not {type(given).__name__}",
            code="OOC-112", fix="load_state_dict({name: array, ...})",
        )  # fmt: skip
    if depth < _MOST_DEPTH and not any(key in given for key in own):
        known = [key for key in WRAPPERS if isinstance(given.get(key), Mapping)]
        if len(known) == 1:
            return _unwrapped(given[known[0]], own, depth + 1)
        inner = known or [key for key in given if isinstance(given[key], Mapping)]
        if inner:
            raise ConfigError(
                f"this mapping holds others: {_named(list(map(str, inner)))}", code="OOC-112",
                fix=f"load_state_dict(given[{inner[0]!r}]), with the one that is the model's",
            )  # fmt: skip
    return given


def _without_prefixes(state: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Without what wrappers put before all keys, or compiled parts into them."""
    found = dict(state)
    if AVERAGED not in own:
        found.pop(AVERAGED, None)
    while True:
        for prefix in PREFIXES:
            having = [key for key in found if key.startswith(prefix)]
            if not having or any(key.startswith(prefix) for key in own):
                continue
            if len(having) < len(found) and any(key[len(prefix) :] in own for key in having):
                raise ConfigError(
                    f"{len(having)} of {len(found)} keys begin with {prefix!r}, and the others do "
                    "not: these are several models, or parts of them", code="OOC-112",
                    where=f"such as {having[0]!r}",
                    fix="pass the keys of one model, without the prefix",
                )  # fmt: skip
            if len(having) == len(found):
                found = {key[len(prefix) :]: value for key, value in found.items()}
                break
        else:
            break
    if not any("_orig_mod." in key for key in own):  # parts that were compiled by themselves
        renamed = {key.replace("_orig_mod.", ""): value for key, value in found.items()}
        found = renamed if len(renamed) == len(found) else found
    return _as_a_part(found, own)


def _as_a_part(state: dict[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Without the name under which another module had the model ("model.", "net."), if every key
    has it and the rest are exactly the model's keys; else as it was."""
    wanted, found = _counted_apart(own), state
    while _counted_apart(found) != wanted:
        heads = {key.partition(".")[0] for key in found}
        if len(heads) != 1 or not all("." in key for key in found):
            return state
        (head,) = heads
        found = {key[len(head) + 1 :]: value for key, value in found.items()}
    return found


def _counted_apart(keys: Collection[str]) -> set[str]:
    """The keys without those of counts, which old files do not have."""
    return {key for key in keys if key.rpartition(".")[2] != COUNTS}


def check_keys(
    state: Mapping[str, Any], own: Collection[str], missing: list[str], unexpected: list[str],
    strict: bool,
) -> None:  # fmt: skip
    """Raises ConfigError: with `strict`, keys that differ; without, not a single one that fits."""
    fitting = len(own) - sum(key not in state for key in own)
    if (not strict and (fitting or not own)) or (strict and not missing and not unexpected):
        return
    what = "state_dict does not fit the model" if fitting else "no key of state_dict fits the model"
    raise ConfigError(
        what, code="OOC-112",
        numbers=f"missing {_named(missing)}; unexpected {_named(unexpected)}",
        fix="load_state_dict(..., strict=False) loads the "
        f"{fitting} of {len(own)} keys that match" if fitting
        else _of_a_part(state, own) or _renaming(missing or list(own), unexpected),
    )  # fmt: skip


def _of_a_part(state: Collection[str], own: Collection[str]) -> str:
    """What to do where one of the two is of a part of the other; "" where neither is."""
    heads = dict.fromkeys(key.partition(".")[0] + "." for key in state if "." in key)
    for head in heads:
        fitting = sum(key.startswith(head) and key.removeprefix(head) in own for key in state)
        if 2 * fitting > len(own):  # a few keys of a Sequential fit anything
            return (f"load_state_dict({{k.removeprefix({head!r}): v for k, v in state.items() "
                    f"if k.startswith({head!r})}})")  # fmt: skip
    for head in dict.fromkeys(key.partition(".")[0] for key in own if "." in key):
        part = {key.removeprefix(f"{head}.") for key in own if key.startswith(f"{head}.")}
        if head.isidentifier() and _counted_apart(part) == _counted_apart(state):
            return f"model.{head}.load_state_dict(state): these are the keys of that part"
    return ""


def _renaming(lost: list[str], unexpected: list[str]) -> str:
    near = did_you_mean(lost[0], unexpected) if lost and unexpected else ""
    return f"rename its keys; {near or 'they are of another network'}"


def as_values(state: Mapping[str, Any], own: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """An array for each of the model's keys that is given, of its shape and element type.

    Raises:
        ShapeError: of another shape, no real numbers, or numbers that its type cannot hold.
    """
    arrays = {key: _array(state[key], key) for key in own if key in state}
    for key, array in arrays.items():
        if array.shape == (1,) and own[key].shape == ():  # as very old files have them
            arrays[key] = array[0]
    other = [key for key, array in arrays.items() if array.shape != own[key].shape]
    if other:
        first = other[0]
        more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
        raise ShapeError(
            f"{first!r} has shape {arrays[first].shape}, the model wants {own[first].shape}{more}",
            fix="build the model with the same sizes, or leave such keys out and pass strict=False",
        )
    return {key: _cast(array, own[key].dtype, key) for key, array in arrays.items()}


def _array(value: Any, key: str) -> np.ndarray:
    """An array of what is given, a tensor of torch's too. Raises ShapeError: no real numbers."""
    if not isinstance(value, Tensor) and hasattr(value, "detach"):
        value = value.detach()
        value = value.cpu() if hasattr(value, "cpu") else value
        if "bfloat16" in str(getattr(value, "dtype", "")):  # which NumPy has not
            value = value.float()
    return as_numbers(value, repr(key))


def _cast(array: np.ndarray, dtype: str, key: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    same = np.array_equal(cast, array) if dtype == "int64" else (
        array.dtype.itemsize <= cast.dtype.itemsize or np.isfinite(cast).all()
        or not np.isfinite(array).all()
    )  # fmt: skip
    if not same:
        raise ShapeError(f"{key!r} has values that {dtype} cannot hold")
    return cast


def _named(keys: list[str]) -> str:
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return (", ".join(keys[:_MOST_NAMED]) or "nothing") + more
