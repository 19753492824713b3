"""The `RowRule` of any operation, by its class or by its own statement of its windows.

Rules are data in tables, one table for each kind of operation; a user's own operation states its
windows and needs no table. Read next: `row_rules.py`, `norm_rules.py`, `loss_rules.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ooctrain.layers.class_loss import TotalLoss
from ooctrain.rewrite.tile import loss_rules, norm_rules, row_rules
from ooctrain.rewrite.tile.row_rules import RowRule
from ooctrain.step.op import Op, Spec


def row_rule_of(op: Op, ins: Sequence[Spec]) -> RowRule | None:
    """The row rule of an operation over inputs of these shapes; None where it has none, or where
    these are not (N, C, H, W), or (N, H, W) of losses.
    """
    if not ins or len(ins[0].shape) != (3 if isinstance(op, TotalLoss) else 4):
        return None
    for table in (row_rules.ROW_RULES, norm_rules.NORM_RULES, loss_rules.LOSS_RULES):
        if type(op) in table:
            return table[type(op)](op, ins)
    return row_rules.own_rule_of(op, ins)
