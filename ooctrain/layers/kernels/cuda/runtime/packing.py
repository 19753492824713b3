"""Arguments of a kernel as bytes, which the driver copies to it at launch.

Arrays are any objects with `words`, the numbers that a kernel gets for an array. Numba passes an
array as seven numbers, a tuple as its members, and all of them are laid out as in a struct of C. So
the signature alone determines the layout, and it is computed once. Source: Numba's calling
convention of CUDA kernels, as its PTX shows it. Read next: `launcher.py`;
`devices/cuda/launches.py`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from numba.core import types

from ooctrain.errors import ConfigError
from ooctrain.layers.kernels.cuda.runtime import shim
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel

#: How Numba passes a one-dimensional array: two pointers of its own, number and size of elements,
#: the address, extent, stride; and a number, by its type.
_ARRAY = "QQqqQqq"
#: Bytes of an array's parameters before its address.
ADDRESS_AT = 4 * 8
_NUMBERS = {
    types.boolean: "B", types.uint8: "B", types.int32: "i", types.uint32: "I", types.int64: "q",
    types.uint64: "Q", types.float32: "f", types.float64: "d",
}  # fmt: skip


def pack_arguments(kernel: Kernel, args: Sequence[Any]) -> bytes:
    """Arguments as the kernel reads them. Raises ConfigError: not so many as the signature has."""
    kinds, layout = shim.argument_types(kernel.signature), layout_of(kernel)
    if len(kinds) != len(args):
        raise ConfigError(f"{kernel.name} takes {len(kinds)} arguments, got {len(args)}")
    words: list[Any] = []
    for kind, value in zip(kinds, args, strict=True):
        if isinstance(kind, types.Array):
            words += value.words
        elif isinstance(kind, types.BaseTuple):
            words += (_number(k, v) for k, v in zip(kind, value, strict=True))  # type: ignore[call-overload]
        else:
            words.append(_number(kind, value))
    return layout.pack(*words)


@cache
def layout_of(kernel: Kernel) -> struct.Struct:
    """How a kernel's arguments lie: one after the other, each aligned to its size, as the members
    of a struct in C."""
    return struct.Struct(f"@{''.join(letters_by_argument(kernel))}")


@cache
def places_of(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """For each argument where it lies in the packed ones, as (first byte, behind the last)."""
    places, before = [], "@"
    for letters in letters_by_argument(kernel):
        start = struct.calcsize(f"{before}0{letters[:1]}")
        before += letters
        places.append((start, struct.calcsize(before)))
    return tuple(places)


def letters_by_argument(kernel: Kernel) -> list[str]:
    """What `struct` calls the parameters that each argument becomes; addresses, of moved ones."""
    letters = [_letters(kind) for kind in shim.argument_types(kernel.signature)]
    for moved in kernel.changing if kernel.moved else ():
        letters[moved] = "Q" * len(letters[moved])
    return letters


def _letters(kind: Any) -> str:
    if isinstance(kind, types.Array):
        return _ARRAY
    if isinstance(kind, types.BaseTuple):
        return "".join(_NUMBERS[k] for k in kind)  # type: ignore[attr-defined]
    return _NUMBERS[kind]


def _number(kind: Any, value: Any) -> Any:
    """A value that `struct` takes for a type; whole numbers wrap around, as a cast does."""
    if kind is types.boolean:
        return bool(value)
    if kind in types.real_domain:
        return float(value)
    bits = int(value) & ((1 << kind.bitwidth) - 1)
    return bits - (1 << kind.bitwidth) if kind.signed and bits >> kind.bitwidth - 1 else bits


# Kernels whose changing numbers are in memory. A graph of launches keeps the arguments with which
# it was recorded, so a number that changes from step to step must not be an argument. A kernel says
# which of its arguments may change (`changing`). In its PTX each of these parameters becomes the
# address of a number, and each load of the parameter a load from that address. Only the loads are
# changed, so the arithmetic, and with it every bit, stays the same. Source: PTX ISA, "ld", "cvta".

_ADDRESS = "%address_of_number"


def moved(kernel: Kernel) -> Kernel:
    """The kernel that takes its changing arguments by their addresses."""
    return replace(kernel, moved=True)


def with_numbers_in_memory(ptx: str, kernel: Kernel) -> str:
    """The text of a kernel's PTX for its moved form."""
    entry = ptx.index(".entry")
    head, body = ptx.index("(", entry), ptx.index("{", entry)
    names = re.findall(r"([\w$]+)(?=\s*(?:,|$))", ptx[head + 1 : ptx.rindex(")", head, body)])
    begin, text = ptx[:body], ptx[body + 1 :]
    for name in _moved_names(kernel, names):
        begin = re.sub(rf"\.param \.\w+ {re.escape(name)}\b", f".param .u64 {name}", begin)
        text = _load_from_memory(text, name)
    return f"{begin}{{\n\t.reg .b64 {_ADDRESS};{text}"


def _moved_names(kernel: Kernel, names: list[str]) -> list[str]:
    """Of all parameters those that are moved."""
    found, first = [], 0
    for place, letters in enumerate(letters_by_argument(kernel)):
        if place in kernel.changing:
            found += names[first : first + len(letters)]
        first += len(letters)
    assert first == len(names), f"{kernel.name}: {len(names)} parameters"
    return found


def _load_from_memory(text: str, name: str) -> str:
    """A load of a parameter as three instructions, under the same predicate."""

    def three(found: re.Match[str]) -> str:
        when, kind, target = found.group(1) or "", found.group(2), found.group(3)
        return (
            f"{when}ld.param.u64 {_ADDRESS}, [{name}];\n"
            f"\t{when}cvta.to.global.u64 {_ADDRESS}, {_ADDRESS};\n"
            f"\t{when}ld.global.{kind} {target}, [{_ADDRESS}];"
        )

    pattern = rf"(@!?%p\d+\s+)?ld\.param\.(\w+)\s+(%\w+), \[{re.escape(name)}\];"
    made, count = re.subn(pattern, three, text)
    assert name not in re.sub(rf"ld\.param\.u64 {_ADDRESS}, \[{re.escape(name)}\];", "", made), name
    assert count or name not in text
    return made
