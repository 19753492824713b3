"""Outputs of a model that are several tensors: tuples, lists, dictionaries, also within each other.

A structure comes apart into its tensors, each with a name that says where it was, and a form, the
same structure with a `Leaf` in each tensor's place. Arrays in place of the leaves make it again. So
a trace hands out plain variables, and `Trainer.predict` returns what the model does. Read next:
`../tracing.py`; `../execution/evaluation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

from ooctrain.engine.tensor import Tensor
from ooctrain.errors import ConfigError

#: What may stand beside tensors, and is handed out as it is.
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


@dataclass(frozen=True, slots=True)
class Leaf:
    """The place of a tensor in a form.

    Args:
        name: name of the output, such as "output.aux.1".
    """

    name: str


class TargetGiven(NamedTuple):
    """The target of a batch as a user has it.

    Args:
        shape: shape of the whole batch's target.
        dtype: "float32" or "int64"; None: float32 if it has the shape of an output.
    """

    shape: tuple[int, ...]
    dtype: str | None = None


def taken_apart(value: Any, name: str) -> tuple[dict[str, Tensor], Any]:
    """The tensors of a structure by name, and its form.

    Args:
        name: name of the whole, with which all names begin; that of a tensor alone.

    Raises:
        ConfigError: something in it is neither a structure nor a tensor nor a plain value.
    """
    found: dict[str, Tensor] = {}

    def leaf(tensor: Any, path: str) -> Any:
        if isinstance(tensor, _PLAIN):
            return tensor
        if not isinstance(tensor, Tensor):
            raise ConfigError(
                f"{type(tensor).__name__} is no output of a model", code="OOC-106", where=path,
                fix="tensors, in tuples, lists, dictionaries or dataclasses",
            )  # fmt: skip
        while path in found:  # keys 1 and "1"
            path += "'"
        found[path] = tensor
        return Leaf(path)

    form = _changed(value, leaf, name)
    return found, form


def put_in_place(form: Any, values: Mapping[str, Any]) -> Any:
    """The structure of a form with these values at its leaves."""
    return _changed(form, lambda leaf, _: values[leaf.name] if isinstance(leaf, Leaf) else leaf, "")


def _changed(value: Any, change: Callable[[Any, str], Any], path: str) -> Any:
    """The same structure with another value in each place."""

    def inner(part: Any, key: object) -> Any:
        return _changed(part, change, f"{path}.{key}")

    if isinstance(value, Mapping):
        items = {key: inner(part, key) for key, part in value.items()}
        return items if type(value) is dict else _of_kind(type(value), items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(inner, value, value._fields))
    if isinstance(value, list | tuple):
        return type(value)(map(inner, value, range(len(value))))
    if is_dataclass(value) and not isinstance(value, type | Leaf):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: inner(getattr(value, name), name) for name in names})
    return change(value, path)


def _of_kind(kind: type, items: dict[Any, Any]) -> Any:
    """A dictionary of a class; a plain one where that wants other arguments."""
    try:
        return kind(items)
    except TypeError:
        return items
