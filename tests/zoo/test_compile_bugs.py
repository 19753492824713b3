"""Planted bugs of the list of kernels that a step names before it runs: its law kills each."""

from __future__ import annotations

import pytest
from unit import test_compile_apart as laws
from zoo.planting import plant_everywhere

from ooctrain.execution import compile_apart
from ooctrain.layers.kernels.cpu.runtime import reached

APART, REACHED = compile_apart, reached
#: {name: (a network that shows it, module, function, piece, wrong)}
BUGS = {
    "algorithms of a convolution are not looked up": (
        "resnet18", APART, "_functions", "conv2d.is_known(algorithm)", "not algorithm"),
    "each convolution by the forward algorithm": (
        "resnet18", APART, "_functions", "conv2d.function_of(algorithm, part)",
        'conv2d.function_of(algorithm, "forward")'),
    "no algorithms with arguments": (
        "lenet", REACHED, "kernels_of", "value, partial", "value, slice"),
    "the gradient is named by its own name alone": (
        "unet", APART, "_functions", 'part == "transposed"', 'part == "turned"'),
    "nothing of functions that functions call": (
        "lenet", REACHED, "kernels_of", "todo.extend(_named(value))", "pass"),
    "nothing of what modules have": (
        "lenet", REACHED, "_named", "isinstance(value, ModuleType)", "False"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found(name, monkeypatch):
    network, *bug = BUGS[name]
    plant_everywhere(monkeypatch, *bug)
    with pytest.raises((AssertionError, AttributeError)):
        laws.test_no_kernel_is_started_that_was_not_named(network)
