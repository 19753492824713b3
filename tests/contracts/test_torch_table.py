"""docs/torch.md names all that `nn` and `functional` have, and all that is refused, with its
words."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooctrain import functional, nn
from ooctrain.engine.algebra import REFUSED
from ooctrain.functional.refused import FUNCTIONS, MODULES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")
DONE, MISSING = PAGE.split("## Refused by name")


@pytest.mark.parametrize("module", [functional, nn])
def test_all_there_is_stands_in_the_table(module):
    assert not [name for name in module.__all__ if f"`{name}`" not in DONE]


@pytest.mark.parametrize("table", [REFUSED, FUNCTIONS, MODULES])
def test_all_that_is_refused_stands_there_with_its_words(table):
    lines = MISSING.splitlines()
    for name, words in table.items():
        assert any(f"`{name}`" in line and f"| {words} |" in line for line in lines), name
        assert f"`{name}` (" not in DONE
