"""Footprints of submitted bands: whatever a process answers, there is one, or a reason."""

from __future__ import annotations

import pytest
from support.handouts import ROWS_STUB

from ooctrain.course.footprints import chain_for, counted, par_footprint
from ooctrain.course.interview import Interview
from ooctrain.course.rubric import BandsPart
from ooctrain.course.submitted import introduced
from ooctrain.errors import ConfigError

PART = BandsPart("lenet", 32, 4, "peak", "frontiers", 1.05, 3.0, 4)
#: What a process may answer where rows are asked for.
NO_ROWS = [
    {}, 3, None, {"rows": None}, {"rows": 3}, {"rows": []}, {"rows": [[]]}, {"rows": [[1]] * 4},
    {"rows": [[[0, 8, 0]]] * 4}, {"rows": [[[0, 10**400, 0]] * 5] * 4},
    {"rows": [[[0, "\x1b[31m", 0]] * 5] * 4}, {"rows": [[[0, True, 0]] * 5] * 4},
    {"rows": [[[0, 1.0, 0]] * 5] * 4}, {"rows": [[[8, 0, 0]] * 5] * 4},
]  # fmt: skip


@pytest.mark.parametrize("answer", NO_ROWS)
def test_whatever_a_process_answers_of_rows_there_is_a_footprint(answer, monkeypatch, tmp_path):
    def ask(interview, question, called=None):
        return {"name": "strange"} if question["ask"] == "name" else answer

    monkeypatch.setattr(Interview, "ask", ask)
    (tmp_path / "own.py").write_text(ROWS_STUB)
    found = counted(PART, f"{tmp_path / 'own.py'}:Bands", 60)
    assert found.ratio is None
    assert 0 < len(found.why) < 120
    assert found.why.isprintable()


def test_par_of_bands_computes_each_row_once_and_holds_less_than_all():
    chain = chain_for(PART)
    assert par_footprint(PART).work == 1
    held = zip(chain.heights, chain.row_bytes, strict=True)
    assert par_footprint(PART).peak_bytes < sum(rows * size for rows, size in held) / 2


def test_bands_are_a_file_s():
    with pytest.raises(ConfigError, match="no bands are called 'frontiers'"):
        introduced("frontiers", "bands", 60)
