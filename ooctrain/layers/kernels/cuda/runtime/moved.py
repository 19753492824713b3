"""Kernels whose changing numbers are in memory: the compiled PTX, with other loads.

A graph of launches keeps the arguments with which it was recorded, so a number that changes from
step to step must not be an argument. A kernel says which of its arguments may change (`changing`).
In its PTX each of these parameters becomes the address of a number, and each load of the parameter
a load from that address. Only the loads are changed, so the arithmetic, and with it every bit,
stays the same. Source: PTX ISA, "ld" and "cvta". Read next: `packing.py`,
`devices/cuda/step_numbers.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ooctrain.layers.kernels.cuda.runtime.packing import letters_by_argument
from ooctrain.layers.kernels.cuda.runtime.shim import Kernel

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
