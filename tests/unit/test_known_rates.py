"""Learning rates epoch by epoch, of every schedule, beside those that torch has.

`../peers/test_torch_schedules.py` compares them with torch where it is installed; the table holds
them where it is not.
"""

from __future__ import annotations

import numpy as np
import pytest
from support import known
from support.rate_schedules import LOSSES, MAKERS

from ooctrain import nn, optim
from ooctrain.optim import lr_scheduler as schedules


@pytest.mark.parametrize("name", MAKERS)
def test_rates_are_those_that_torch_has(name):
    groups = [{"params": [nn.Parameter(np.ones(2))], "lr": lr} for lr in (0.1, 0.02)]
    rows = []
    optimizers = [optim.SGD(groups, momentum=0.875)]
    if "Cycle" in name:
        optimizers.append(optim.Adam(groups))
    for optimizer in optimizers:
        schedule, found = MAKERS[name](schedules, optimizer), []
        for epoch, loss in enumerate(LOSSES):
            settings = [
                float(value) for group in optimizer.param_groups
                for value in (group["lr"], group.get("momentum", 0.0), *group.get("betas", ()))
            ]  # fmt: skip
            found.append((epoch, *settings, *map(float, schedule.get_last_lr())))
            if epoch + 1 == len(LOSSES):
                break
            plateau = isinstance(schedule, schedules.ReduceLROnPlateau)
            schedule.step(loss) if plateau else schedule.step()
        rows += found[1::9]
        rows.append(
            ("all", known.digest(found), "state", known.digest(sorted(schedule.state_dict())))
        )
    known.check_rows("rates", name, rows)


def test_every_row_is_of_a_schedule():
    assert known.whose("rates") == set(MAKERS)
