"""What is read for contracts is forgotten after them. Read next: `../support/each_file.py`."""

from __future__ import annotations

import pytest
from support.each_file import forget


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        forget()
