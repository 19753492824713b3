"""Steps on ranks of this machine, over networks of imposed bandwidths, compared with the formula.

A rank that holds each message back until a network of some bandwidth would have delivered it
behaves as if it had that network. One step is measured without such a delay, forwards and
backwards; from it T = T_forward + max(T_backward, 2 (k - 1) / k G / B) predicts all others, which
are measured too. Source: paper 004, section 6.4, whose 2 G is the ring's 2 (k - 1) / k G for many
ranks k; all of the bandwidth is used here, so alpha is 1. Read next: `ranks_program.py`, which each
rank runs; `distributed.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ooctrain.distributed.mpi import find_mpiexec
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.experiments.paper_004.distributed import BYTES_PER_US_OF_A_GBIT, TIMES

PROGRAM = "ooctrain.experiments.paper_004.ranks_program"
RANKS = (1, 2, 4)
#: Parameters enough that they take long to send, few enough operations: 37 MB, 32 x 32 pixels.
MODEL = "vgg11"
#: Images of a rank.
BATCHES = (2, 2 * TIMES)
GBIT_S = (8.0, 2.0, 0.5)
ROUNDS = 5
LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step on some ranks.

    Args:
        ranks: how many.
        batch: images of each.
        gbit_s: bandwidth of the network; None: as fast as the machine itself.
        forward_us: measured over the fastest network.
        step_us: measured.
        predicted_us: by the formula; None for the one that it begins from.
    """

    ranks: int
    batch: int
    gbit_s: float | None
    forward_us: float
    step_us: float
    predicted_us: float | None


def why_not() -> str:
    """Why no ranks can be started here; "" where they can."""
    try:
        find_mpiexec()
    except ConfigError as error:
        return f"not run here: {error.fix}"
    return ""


def rank_steps(counts: Sequence[int] = RANKS) -> Iterator[RankStep]:
    """All batches and bandwidths, on each number of ranks.

    Raises:
        OoctrainError: the ranks ended with an error.
    """
    for count in counts:
        rows = _measured(count)
        free = {row["batch"]: row for row in rows if row["bytes_per_us"] is None}
        for row in rows:
            rate, start = row["bytes_per_us"], free[row["batch"]]
            yield RankStep(
                count, row["batch"], rate and rate / BYTES_PER_US_OF_A_GBIT, start["forward_us"],
                row["step_us"], rate and _predicted_us(start, count, rate),
            )  # fmt: skip


def _predicted_us(start: dict[str, Any], count: int, bytes_per_us: float) -> float:
    """T_forward + max(T_backward, 2 (k - 1) / k G / B)."""
    backward_us = start["step_us"] - start["forward_us"]
    network_us = 2 * (count - 1) / count * start["gradient_bytes"] / bytes_per_us
    return start["forward_us"] + max(backward_us, network_us)


def _measured(count: int) -> list[dict[str, Any]]:
    asked = {
        "model": MODEL, "batches": BATCHES, "rounds": ROUNDS,
        "bytes_per_us": [gbit_s * BYTES_PER_US_OF_A_GBIT for gbit_s in GBIT_S],
    }  # fmt: skip
    command = [find_mpiexec(), "-n", str(count), sys.executable, "-m", "mpi4py", "-m", PROGRAM]
    ended = subprocess.run(
        [*command, json.dumps(asked)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if ended.returncode:
        raise OoctrainError(
            "the ranks of the experiment ended with an error", where=" ".join(command),
            numbers=f"status {ended.returncode}; {ended.stderr.strip()[-200:]}",
            fix="the command by hand shows the whole error",
        )  # fmt: skip
    return json.loads(ended.stdout)
