"""Each planted bug of the papers' planners and tables is killed by the test named with it."""

from __future__ import annotations

import inspect

import pytest
from zoo.paper_bugs import BUGS, changed_tables

from ooctrain.errors import Infeasible


@pytest.mark.parametrize("bug", BUGS)
def test_bug(bug):
    plant, test = BUGS[bug]

    def run(patch):
        test(**({"monkeypatch": patch} if inspect.signature(test).parameters else {}))

    with pytest.MonkeyPatch.context() as patch:
        run(patch)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, Infeasible)):
            run(patch)


def test_no_figure_of_a_table_can_be_changed():
    changes = list(changed_tables())
    assert len(changes) == 24 + 4 * 2 * (8 + 9) + 8
    survived = []
    for what, plant, test in changes:
        with pytest.MonkeyPatch.context() as patch:
            test()
            plant(patch)
            try:
                test()
            except AssertionError:
                continue
            survived.append(what)
    assert not survived
