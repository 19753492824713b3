"""Weights alone as a file: safetensors with PyTorch's names, which other tools read and write.

A state dict goes to a file that is whole or absent, and comes back as {name: array}. Files of other
tools may hold bfloat16 and float16; both become float32, which has all their values. A pickle is
never read, since loading one can run code. Read next: `checkpoint.py`, which saves a whole run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from ooctrain.errors import CheckpointError, ConfigError
from ooctrain.execution.checkpoint import place_of, put_in_place
from ooctrain.execution.checkpoint_file import STATE_KEY
from ooctrain.step.user_values import as_numbers

#: {a type in the file: NumPy's name of its bytes}
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "uint16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
#: How pickles and the archives that PyTorch puts them into begin.
_PICKLES = (b"\x80", b"PK\x03\x04")
_RECIPE = (
    "in torch: from safetensors.torch import save_file; "
    "save_file(torch.load({path!r}, weights_only=True), 'weights.safetensors')"
)


def save(state_dict: Mapping[str, Any], path: str | Path) -> None:
    """Writes weights to a file, as `safetensors.torch.load_file` reads them.

    Args:
        state_dict: {name: array or tensor}, such as `model.state_dict()`.
        path: ".safetensors" by custom. A file of that name is replaced when the new one is whole.

    Raises:
        CheckpointError: it cannot be written; what was there is as it was.
        ConfigError: no mapping of names to numbers.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(n, str) for n in state_dict):
        raise ConfigError(
            f"{type(state_dict).__name__} is no mapping of names to arrays", code="OOC-112",
            fix="oc.save(model.state_dict(), path)",
        )  # fmt: skip
    inner = [name for name, value in state_dict.items() if isinstance(value, Mapping)]
    if inner:
        raise ConfigError(
            f"{inner[0]!r} holds no numbers, but a mapping of its own", code="OOC-112",
            fix="oc.save(model.state_dict(), path); all that a run needs: trainer.save(path)",
        )  # fmt: skip
    arrays = {name: _stored(as_numbers(value, name)) for name, value in state_dict.items()}
    put_in_place(place_of(path), arrays, None, keep=1)


def load(path: str | Path) -> dict[str, np.ndarray]:
    """Reads weights from a file: {name: array}, for `model.load_state_dict`.

    Raises:
        CheckpointError: there is no such file (OOC-311), or it is no whole one (OOC-310); a run's
            checkpoint.
        ConfigError: a pickle.
    """
    place = place_of(path)
    try:
        content = place.read_bytes()
        if content.startswith(_PICKLES):
            raise ConfigError(
                f"{path} is a pickle, which may run any code when it is read", code="OOC-112",
                fix=_RECIPE.format(path=os.fspath(path)),
            )  # fmt: skip
        found = dict(deserialize(content))
        with safe_open(place, "np") as file:
            about = file.metadata() or {}
    except (FileNotFoundError, IsADirectoryError) as error:
        raise CheckpointError(
            f"there is no file {path}", code="OOC-311",
            fix=f"`ls {place if place.is_dir() else place.parent}` shows what is there",
        ) from error  # fmt: skip
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is no whole safetensors file: {error}", fix="get the file once more",
        ) from error  # fmt: skip
    if STATE_KEY in about:
        raise CheckpointError(
            f"{path} is the checkpoint of a run, not a file of weights", code="OOC-313",
            fix="trainer.resume(path), or `ooctrain train ... --resume`; oc.save writes weights",
        )  # fmt: skip
    return {name: _array(name, tensor) for name, tensor in found.items()}


def _stored(array: np.ndarray) -> np.ndarray:
    """An array of a type that files of ours have."""
    if array.dtype.kind == "f" and array.itemsize < 4:
        return array.astype(np.float32)
    known = ("float32", "float64", "int32", "int64", "uint8", "bool")
    return array if array.dtype.name in known else array.astype(np.int64)


def _array(name: str, tensor: Mapping[str, Any]) -> np.ndarray:
    """An array of its own memory. Raises ConfigError: a type that has no numbers here."""
    kind = tensor["dtype"]
    if kind not in _DTYPES:
        raise ConfigError(
            f"{name!r} has elements of type {kind}", code="OOC-112",
            fix=f"one of {', '.join(_DTYPES)}",
        )  # fmt: skip
    array = np.frombuffer(tensor["data"], _DTYPES[kind]).reshape(tensor["shape"])
    if kind == "BF16":  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if kind == "F16" else array.copy()
