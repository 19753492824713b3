"""Planted bugs of ranks, each a change of a line or two.

With most of the `BUGS` a network trains, converges and looks right; only bits, or a run on another
number of ranks, show them. Read next: `test_rank_bugs.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from zoo.planting import plant, plant_everywhere

from ooctrain.distributed import calls, exchange, ranks, recording
from ooctrain.engine import parts
from ooctrain.execution import guard
from ooctrain.train import Trainer


class RankBug(NamedTuple):
    """A piece of a function, and what stands in its place."""

    owner: object
    function: str
    piece: str
    wrong: str


BUGS = {
    "sums begin with the own part, as it is there first": RankBug(
        exchange.Exchange, "_sum", "total = parts[0]",
        "parts[:] = np.roll(parts, -self._rank, axis=0)\n    total = parts[0]",
    ),
    "a bucket leaves before its last gradient": RankBug(
        calls.SendMessage, "cpu", "self.exchange.start(self.message, ins)",
        "self.exchange.start(self.message, ins[:-1] or ins)",
    ),
    "everybody's statistics, one's own first": RankBug(
        recording.Sharing, "_update_statistics", "for row in rows:",
        "mine = self._ranks.rank\n    for row in rows[mine:] + rows[:mine]:",
    ),
    "momentum is not exchanged on resume": RankBug(
        Trainer, "resume", "read() if self.ranks is None else self.ranks.from_first(read)",
        "read()",
    ),
    "masks by the number of the sample in the part": RankBug(
        parts.Parts, "place_of", "(first * each, 0, 0, 0)", "(0, 0, 0, 0)",
    ),
    "masks of all ranks are those of the first": RankBug(
        recording.Sharing, "__init__", "self._loss: _Sent | None = None",
        "self._loss = None\n    self.part.number = 0",
    ),
    "the last short bucket is lost": RankBug(
        recording.Sharing, "end", "if self._open:", "if len(self._open) > 9:",
    ),
    "a mean over labels is over the own ones": RankBug(
        recording.Sharing, "whole_target", 'if target.dtype != "int64":', "if target.dtype:",
    ),
    "statistics are moved although the loss is not a number": RankBug(
        guard.Guard, "changed_by", "if first[v] in lasting", "if v in lasting",
    ),
    "sums are of the parts as they lay before": RankBug(
        exchange.Exchange, "_sum", "np.add(total, part, out=total)",
        "np.add(part, part, out=total)",
    ),
    "ranks of another version train along": RankBug(
        ranks.Ranks, "agree", '"version": ooctrain.__version__', "",
    ),
    "no rank compares what it was given": RankBug(
        ranks.Ranks, "agree", "if self.count == 1:", "if self.count >= 1:",
    ),
}  # fmt: skip


def plant_bug(patch: pytest.MonkeyPatch, name: str) -> None:
    """Puts a bug into the library."""
    bug = BUGS[name]
    put = plant if isinstance(bug.owner, type) else plant_everywhere
    put(patch, bug.owner, bug.function, bug.piece, bug.wrong)
