"""The laws of `narrow` bite: each planted bug is a plausible mistake, and a law kills it.

The laws are in tests/properties/test_narrow.py, on cases that are the same in every run.
"""

from __future__ import annotations

from importlib import import_module

import pytest
from properties import test_narrow as LAWS
from zoo.planting import plant

narrow = import_module("ooctrain.rewrite.narrow")

#: {name: (owner, function, the piece as it is, the piece with the bug)}
BUGS = {
    "overwritten although somebody reads it later": (
        narrow, "_can_be_overwritten", "all(reader < readers[0].id for reader in others)", "True",
    ),
    "overwritten although it is handed out": (
        narrow, "_can_be_overwritten", "dy not in trace.outputs.values()", "True",
    ),
    "overwritten although it is there before the step": (
        narrow, "_can_be_overwritten", "trace.producer[dy] is not None", "True",
    ),
    "overwritten although one call reads it twice": (
        narrow, "_can_be_overwritten", "all(call.ins.count(dy) == 1 for call in readers)", "True",
    ),
    "masked before the last of those that read it": (
        narrow._Edit, "split_mask", "[readers[0].id].insert", "[readers[-1].id].insert",
    ),
    "one of those that share a mask keeps it": (
        narrow._Edit, "split_mask", "for call in readers:", "for call in readers[:1]:",
    ),
    "all calls must be wide, not one": (
        narrow, "narrow", "any(map(edit.too_wide, readers))", "all(map(edit.too_wide, readers))",
    ),
    "a call that just fits is too wide": (
        narrow._Edit, "too_wide", "> times *", ">= times *",
    ),
    "a place of its own": (
        narrow._Edit, "_call", "MappingProxyType({out: ins[0]})", "MappingProxyType({})",
    ),
    "over the other input": (narrow._Edit, "_call", "{out: ins[0]}", "{out: ins[1]}"),
    "the output is masked by the gradient": (
        narrow._Edit, "split_mask", '"mask", (dy, y), dz', '"mask", (y, dy), dz',
    ),
    "the other term of a sum is masked": (
        narrow, "_without_mask", "ins=(call.ins[0], dz)", "ins=(dz, call.ins[1])",
    ),
    "sums keep their masks": (narrow, "_masking", "case AddMasked()", "case AddMasked() if False"),
    "by gradient alone, whatever masks it": (
        narrow, "_masking", "(call.ins[1], call.ins[2])", "(call.ins[1], call.ins[1])",
    ),
    "the ReLU comes before the sum": (
        narrow._Edit, "split_sum", "relu=False, residual=False", "residual=False",
    ),
    "the sum forgets the ReLU": (narrow._Edit, "split_sum", "Add(relu=call.op.relu)", "Add()"),
    "the residual is overwritten": (
        narrow._Edit, "split_sum", "(norm, residual), y", "(residual, norm), y",
    ),
    "sums in place are split too": (narrow, "_adds", "not call.reuse", "True"),
    "no sum is split": (narrow, "_adds", "not call.reuse", "False"),
}  # fmt: skip


def the_laws() -> None:
    for seed in LAWS.SEEDS:
        LAWS.check_narrow_calls(seed)
    LAWS.test_it_takes_masks_out_where_calls_are_wide_and_nowhere_else()
    LAWS.test_the_widest_of_those_that_share_a_mask_decides()


def test_the_laws_hold_without_bugs():
    assert the_laws() is None


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug, monkeypatch):
    plant(monkeypatch, *BUGS[bug])
    monkeypatch.setattr(LAWS, "narrowed", narrow.narrow)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        the_laws()
    assert not isinstance(caught.value, SyntaxError | NameError), "the bug itself is broken"
