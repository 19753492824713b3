"""docs/torch.md names all that `nn` and `functional` have, and all that is refused, with its
words."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooctrain import functional, nn
from ooctrain.engine.torch_names import INSTEAD

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")
DONE, MISSING = PAGE.split("## Refused by name")


@pytest.mark.parametrize("module", [functional, nn])
def test_all_there_is_stands_in_the_table(module):
    assert not [name for name in module.__all__ if f"`{name}`" not in DONE]


PLACES = {
    "tensor": "Tensors", "functional": "`ooctrain.functional`", "nn": "`ooctrain.nn`",
    "oc": "`ooctrain`", "module": "Modules", "init": "`ooctrain.nn.init`",
    "utils": "`ooctrain.utils`", "optim": "`ooctrain.optim`",
    "trainer": "The trainer", "lr_scheduler": "`ooctrain.optim.lr_scheduler`",
    "data": "`ooctrain.data`", "distributed": "`ooctrain.distributed`",
    "transforms": "`ooctrain.data.transforms`",
}  # fmt: skip


@pytest.mark.parametrize("place", INSTEAD)
def test_all_that_is_refused_stands_there_with_its_words(place):
    _, part = MISSING.split(f"### {PLACES[place]}: missing")
    lines = part.split("###")[0].splitlines()
    for name, words in INSTEAD[place].items():
        assert any(f"`{name}`" in line and f"| {words} |" in line for line in lines), name
