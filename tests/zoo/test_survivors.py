"""Each mistake that once survived is killed by a law, and so are its variants.

The laws are those of tests/properties, on the cases that are written down there and on a few that
Python's own random numbers draw: the same in every run, whatever else is loaded.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from properties import test_checkpoint_crashes as CRASHES
from properties import test_checkpoint_files as FILES
from properties import test_claims as CLAIMS
from properties import test_engine_laws as ENGINE
from properties import test_failed_streams as FAILED
from properties import test_graded_data as GRADED
from properties import test_last_blocks as BLOCKS
from properties import test_one_budget as BUDGET
from properties import test_rewrites_of_calls as CALLS
from properties import test_whole_batch as WHOLE
from support.quick import quick
from zoo import survivors as ZOO

from ooctrain import nn


def last_blocks(_):
    for size in (BLOCKS.SIZES[-3], BLOCKS.SIZES[-2]):
        BLOCKS.hold(BLOCKS.sums(size))
        BLOCKS.hold(itertools.islice(BLOCKS.elementwise(size), 8))
    for channels in BLOCKS.CHANNELS[:2]:
        BLOCKS.hold(itertools.islice(BLOCKS.over_rows(2 * BLOCKS.BLOCK_ROWS + 1, channels), 4))


def failed_streams(_):
    for chain in FAILED.CHAINS.values():
        FAILED.check_chain(chain, ValueError)
        FAILED.check_chain(chain, KeyboardInterrupt)
    for case in FAILED.GIVEN_UP:
        FAILED.check_given_up(*case)


def leaves(_):
    for parts in (1, 2):
        ENGINE.check_handed_over(ENGINE.SHARED, parts)
        ENGINE.check_traced(ENGINE.SHARED, parts)
        ENGINE.check_derivatives(ENGINE.SHARED, parts, 1)


def calls(_):
    for seed in range(120):
        trace = CALLS.random_calls(random.Random(seed), 6)
        CALLS.check_calls(trace, CALLS.initial(trace, seed))


def tiles(_):
    for chain, seed in CALLS.TILED:
        CALLS.check_tiles(chain, seed)


def altered_files(folder):
    for what in CRASHES.ALTERED:
        CRASHES.check_altered(folder / CRASHES.NAME, what)


def crashes(folder):
    CRASHES.check_crashes(folder, 3, keep=2)


def files(folder):
    for number, case in enumerate(FILES.SAVED):
        FILES.check_saved(folder / f"saved{number}" / FILES.NAME, *case)
    for number, case in enumerate(FILES.DAMAGED):
        (folder / str(number)).mkdir()
        FILES.check_newest(folder / str(number), *case)
    FILES.check_foreign_arrays(folder)


def evaluation(_):
    for loss, labels, cuts in (
        (nn.CrossEntropyLoss(), [-100, -100, 0, 1, 2, 0], {3, 5}),
        (nn.CrossEntropyLoss(), [-100, -100, 0, 1, 2, 0], {2}),
        (nn.MSELoss(), [0] * 6, {1, 3}),
    ):
        WHOLE.check_evaluation(loss, labels, False, cuts)


def one_budget(_):
    for case in BUDGET.USES:
        BUDGET.check_budgets(*case)


def addresses(_):
    for case in GRADED.BLOCKS:
        GRADED.check_addresses(*case)


def plans(_):
    for other in ({}, *GRADED.OTHERS.values()):
        GRADED.check_plan(*GRADED.answer("lru", **other))
    for granule in GRADED.GRANULES.values():
        GRADED.check_plan(*GRADED.answer("lru", granule))


def claims(_):
    for seed, change in CLAIMS.CLAIMED:
        CLAIMS.check_claims(seed, change)
    CLAIMS.check_tight_bounds(8)


LAWS: dict[str, Callable] = {
    law.__name__.replace("_", " "): law
    for law in (
        last_blocks, failed_streams, leaves, calls, tiles, altered_files, crashes, files,
        evaluation, one_budget, addresses, plans, claims,
    )
}  # fmt: skip
BUGS = ZOO.bugs()


@pytest.mark.slow  # the laws themselves run where they stand
@pytest.mark.parametrize("law", LAWS)
def test_without_a_bug_the_law_holds(law, tmp_path):
    assert LAWS[law](tmp_path) is None


@pytest.mark.parametrize("bug", quick([*BUGS], *range(0, len(BUGS), 4)))
def test_bug(bug, monkeypatch, tmp_path):
    law, planted = BUGS[bug]
    ZOO.plant(monkeypatch, planted)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        LAWS[law](tmp_path)
    assert not isinstance(caught.value, SyntaxError | NameError), "the bug itself is broken"
