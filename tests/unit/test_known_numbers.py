"""Experiments, pictures, puzzles and commands show of toys what they showed when somebody looked.

    python tests/unit/test_known_numbers.py           # what is shown now becomes what is known
    python tests/unit/test_known_numbers.py puzzle    # of cases whose name contains this

Every number that a case returns, prints or draws is compared, and no word. A change of what is
shown is seen in the difference of `tests/data/known_numbers/`. Read next:
`../support/known_numbers.py`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from support import toy_experiments, toy_shown
from support.known_numbers import differences, without_words

KNOWN = Path(__file__).parents[1] / "data" / "known_numbers"
CASES = {**toy_experiments.CASES, **toy_shown.CASES}


def file_of(name: str) -> Path:
    """Where the numbers of a case are kept."""
    return KNOWN / f"{name.replace(' ', '-')}.json"


def numbers_of(name: str, folder: Path) -> object:
    """What a case shows, as it is read back from a file."""
    return without_words(json.loads(json.dumps(CASES[name](folder))))


@pytest.mark.parametrize("name", CASES)
def test_a_toy_shows_what_it_showed(name, tmp_path):
    known = json.loads(file_of(name).read_text(encoding="utf-8"))
    assert differences(numbers_of(name, tmp_path), known) == []


def test_each_case_is_known_and_no_other():
    assert set(KNOWN.iterdir()) == {file_of(name) for name in CASES}


@pytest.mark.parametrize(("found", "known", "same"), [
    (1.0, 1.0 + 1e-8, True), (1.0, 1.001, False), (1, 2, False), ([1], [1, 2], False),
    ({"a": 1}, {"b": 1}, False), ({"plan_s": 1}, {"plan_s": 2}, True), ("x", "y", False),
    ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, False), (None, 1.0, False),
])  # fmt: skip
def test_a_difference_is_found_wherever_it_stands(found, known, same):
    assert (differences(found, known) == []) == same


def main() -> None:
    """Writes what is known."""
    KNOWN.mkdir(exist_ok=True)
    for name in CASES:
        if not sys.argv[1:] or sys.argv[1] in name:
            with tempfile.TemporaryDirectory() as folder:
                text = json.dumps(numbers_of(name, Path(folder)), separators=(",", ":"))
            file_of(name).write_text(f"{text}\n", encoding="utf-8")
            print(name, len(text))


if __name__ == "__main__":
    main()
