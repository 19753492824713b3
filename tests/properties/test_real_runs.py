"""Every planner trains ResNet-18 and a U-Net for real, except where the table says that it cannot.

The U-Net at a quarter of the budget in `make test`, both at all budgets with the slow ones.
Whatever is planned, two steps leave the loss, the parameters, the momenta and the running
statistics of two in-core steps, to the last bit, and hold what the plan says.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.quick import all_but
from support.real_runs import (
    WORKLOADS,
    RealRun,
    Refusal,
    prepare_run,
    read_table,
    runs,
    write_table,
)
from support.same_bits import check_same_bits, in_core, out_of_core

import ooctrain as oc
from ooctrain.devices.interface import FRESH_POISON, Debug
from ooctrain.engine.incore import initial_values
from ooctrain.testing.byte_list import LawBroken

QUICK = ("unet", "25%")
#: They ask other planners, and search.
LONG = ("auto", "combined", "tflms-hybrid", "checkmate", "lms-grid", "window-cyclic")
SCALARS = {"lr": 0.01, "seed": 7}
DEBUG = Debug(poison=FRESH_POISON, check_ledger=True)
STEPS = 2


@cache
def workload(name):
    """(trace, start values, batches, what in-core steps leave behind)."""
    about = WORKLOADS[name]
    model = about.model()
    trace, batches = about.trace(model), about.batches(STEPS)
    start = initial_values(trace, model)
    return trace, start, batches, in_core(trace, start, batches, SCALARS)


@pytest.fixture(scope="module")
def table(repository):
    with (repository / "docs/infeasible.csv").open(encoding="utf-8") as file:
        return read_table(file)


def infeasible(table):
    return {RealRun(row.workload, row.planner, row.budget) for row in table}


def case(cell):
    quick = (cell.workload, cell.budget) == QUICK and cell.planner not in LONG
    marks = () if quick else pytest.mark.slow
    return pytest.param(cell, marks=marks, id=f"{cell.workload}-{cell.planner}-{cell.budget}")


@pytest.mark.parametrize("cell", [case(cell) for cell in runs()])
def test_a_planner_trains_to_the_bit_unless_the_table_says_that_it_cannot(cell, table):
    trace, start, batches, expected = workload(cell.workload)
    found = prepare_run(cell, trace)
    if isinstance(found, Refusal):
        assert found in table
        return
    assert cell not in infeasible(table)
    how = cell.settings(DEBUG)
    check_same_bits(out_of_core(found, how, start, batches, SCALARS), expected)


def test_every_refusal_of_the_table_is_of_a_cell_and_stands_once(table):
    assert infeasible(table) <= set(runs())
    assert len(infeasible(table)) == len(table)
    assert {row.planner for row in table} < set(oc.planners())


def test_the_table_is_read_as_it_was_written(table, tmp_path):
    path = tmp_path / "table.csv"
    with path.open("w", encoding="utf-8") as file:
        write_table(table, file)
    with path.open(encoding="utf-8") as file:
        assert read_table(file) == table


@pytest.mark.parametrize("name", all_but(WORKLOADS, "resnet18"))
def test_both_networks_learn_something_and_one_wrong_bit_is_seen(name):
    _, start, _, expected = workload(name)
    assert all(np.isfinite(value).all() for value in expected[-1].values())
    moved = [key for key in start if (start[key] != expected[-1][key]).any()]
    assert len(moved) == len(start)
    key = moved[0]
    wrong = expected[-1][key].copy()
    wrong.reshape(-1).view(np.uint8)[-1] ^= 1
    with pytest.raises(LawBroken, match=key):
        check_same_bits([*expected[:-1], {**expected[-1], key: wrong}], expected)
