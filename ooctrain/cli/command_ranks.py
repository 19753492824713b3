"""A command that `mpiexec` has started several times: which rank prints, and how all of them end.

Ranks wait for each other, so one that fails must not simply leave. If all fail for the same reason,
such as a wrong option, the first one prints it and all end as usual; otherwise the rank that failed
prints the reason and ends all. `Ranks` is read from what the launcher says; without a launcher it
is None. Read next: `train_command.py`; `../distributed/ranks.py`.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import numpy as np

from ooctrain.cli import exit_status
from ooctrain.cli.output_streams import say
from ooctrain.cli.run.run_files import config_of
from ooctrain.cli.run.run_record import RunOptions
from ooctrain.cli.step_options import RankOptions
from ooctrain.cli.training import tilings_of
from ooctrain.cli.workload import Task
from ooctrain.data.dataset import Dataset, take
from ooctrain.distributed.mpi import launched_ranks, launcher_of_ranks, world
from ooctrain.distributed.ranks import Ranks
from ooctrain.errors import ConfigError, OoctrainError
from ooctrain.execution.settings import Options
from ooctrain.step.presets import usable_cores
from ooctrain.train import Trainer
from ooctrain.units import format_bytes

#: What is clearer to a user as a message than with the place where it arose.
_PLAIN = (OoctrainError, OSError, MemoryError, KeyboardInterrupt)


@contextmanager
def ranks_of_run(shared: RankOptions) -> Iterator[Ranks | None]:
    """The ranks of this run; None where it is alone. Whatever ends one of them ends all.

    Raises:
        SystemExit: on all but the first, where all fail alike.
    """
    if launched_ranks() == 1:
        yield None
        return
    ranks = world(bucket=shared.bucket, sync_batch_norm=shared.sync_batch_norm)
    if not ranks.is_first:
        warnings.simplefilter("ignore")  # the first one says the same
    try:
        yield ranks
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        if ranks.ends_alike(text):
            if ranks.is_first:
                raise
            raise SystemExit(exit_status(error)) from error
        if not isinstance(error, _PLAIN):
            traceback.print_exc()
        say(f"rank {ranks.rank} of {ranks.count} ends all: {text}")
        sys.stderr.flush()
        ranks.abort()


def with_cores(how: Options, ranks: Ranks | None) -> Options:
    """The options with an equal part of this machine's cores, unless threads were requested."""
    if ranks is None or how.threads is not None:
        return how
    return replace(how, threads=max(1, usable_cores() // launcher_of_ranks()))


def agree_on_run(ranks: Ranks, options: RunOptions, task: Task, *, verify: bool) -> None:
    """Makes sure that all ranks were given the same, and that they can share it.

    Raises:
        RanksDiffer: on all ranks.
        ConfigError: a batch that cannot be cut; or bits to compare that are not those of one rank.
    """
    facts = config_of(options) | asdict(options.extent) | asdict(options.how)
    del facts["threads"]  # those of a rank's own machine
    facts |= {"verify": verify, "images": _seen_of(task.train)}
    ranks.agree(facts)
    ranks.part_of(options.workload.batch)
    if verify and ranks.sync_batch_norm:
        raise ConfigError(
            "--verify compares bits with one rank; --sync-batch-norm adds in another order",
            fix="one of the two",
        )


def is_compared_on_all(ranks: Ranks | None, trainer: Trainer) -> bool:
    """Whether --verify has all ranks run again in-core: one rank cannot be tiled as several are.
    The ranks ask together.
    """
    return ranks is not None and ranks.any(bool(tilings_of(trainer)))


def rank_rows(ranks: Ranks | None, batch: int) -> list[tuple[str, str]]:
    """For the table of what is about to run."""
    if ranks is None:
        return []
    each = f"each with {batch // ranks.count} of {batch} images"
    return [("ranks", f"{ranks.count}, {each}; buckets of {format_bytes(ranks.bucket_bytes)}")]


def _seen_of(dataset: Dataset | None) -> str:
    """How many samples, and a hash of three of them."""
    if dataset is None:
        return "none"
    last = len(dataset) - 1
    images, labels = take(dataset, np.array([0, last // 2, last]))
    digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    return f"{len(dataset)}, {digest[:16]}"
