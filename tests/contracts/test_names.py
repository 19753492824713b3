"""A public class has a name of its own in the whole package, so that a reader who meets it knows
which one is meant.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from support.each_file import parse

PACKAGE = Path(__file__).resolve().parents[2] / "ooctrain"
#: PyTorch's names, which a module of `nn/` shares with the operation of `layers/` that it calls.
PYTORCH = {
    "AdaptiveAvgPool2d", "AvgPool2d", "Conv2d", "ConvTranspose2d", "Dropout", "LeakyReLU", "Linear",
    "MaxPool2d", "ReLU", "ReflectionPad2d", "Sigmoid", "Tanh", "Upsample",
}  # fmt: skip
#: Public under `oc.`: what a user derives from is an operation as the library's own are.
PUBLIC = {"Op"}


@cache
def homes_by_name() -> dict[str, list[str]]:
    """{public class: the files that define it}."""
    homes = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(PACKAGE).as_posix())
    return homes


def test_a_public_class_has_its_name_for_itself():
    shared = {name: homes for name, homes in homes_by_name().items() if len(homes) > 1}
    assert {n: h for n, h in shared.items() if n not in PYTORCH | PUBLIC} == {}


def test_only_modules_and_their_operations_share_pytorchs_names():
    homes = homes_by_name()
    for name in PYTORCH:
        assert sorted(home.split("/")[0] for home in homes[name]) == ["layers", "nn"], name
    assert sorted(homes["Op"]) == ["engine/own_op.py", "step/op.py"]
