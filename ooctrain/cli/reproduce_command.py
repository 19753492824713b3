"""`ooctrain reproduce EXPERIMENT`: a figure or table of the papers, computed here.

An experiment gives tables, a figure, numbers as JSON, and the section of docs/papers.md that says
where it agrees with the paper and where it differs. Nothing needs a GPU; simulated results are
marked as simulated. Read next: `experiments/reproducing.py` for what an experiment is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import click

from ooctrain.activity import doing
from ooctrain.cli.options import ALLOCATORS_TEXT, gathered, json_option
from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import OneOf, OutputFile
from ooctrain.experiments.paper_000.architectures import architectures
from ooctrain.experiments.paper_000.fragmentation import fragmentation
from ooctrain.experiments.paper_000.table1 import table1
from ooctrain.experiments.paper_001.hybrid import hybrid
from ooctrain.experiments.paper_002.offload_ratios import offload_ratios
from ooctrain.experiments.paper_003.sft_images import sft
from ooctrain.experiments.paper_004.distributed import distributed
from ooctrain.experiments.paper_004.hmms_speeds import hmms
from ooctrain.experiments.paper_004.split_accuracy import split_accuracy
from ooctrain.experiments.paper_004.split_hmms import split_hmms
from ooctrain.experiments.reproducing import Experiment, Wanted
from ooctrain.report.numbers_file import write_numbers
from ooctrain.step.option import option
from ooctrain.step.presets import cache_base
from ooctrain.units import parse_bytes

JSON_VERSION = 2
#: What agrees with the papers and what differs, a section for each experiment.
PAGE = "papers"

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "architectures": architectures,
        "distributed": distributed,
        "fragmentation": fragmentation,
        "hmms": hmms,
        "hybrid": hybrid,
        "offload-ratios": offload_ratios,
        "sft": sft,
        "split-accuracy": split_accuracy,
        "split-hmms": split_hmms,
        "table1": table1,
    }
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is computed of an experiment, as it was typed."""

    quick: bool = option(False, "Few cases: does it run, and about what comes out?")
    physical: str = option("16GiB", "Memory of the device.", shown=True)
    fresh: bool = option(False, "Compute everything again.")
    names: Sequence[str] = option((), ALLOCATORS_TEXT, flag="allocator")
    settings: Sequence[str] = option(
        (), "Of split-accuracy: epochs=350, seeds=5, data=cifar10:DIR.", flag="set"
    )
    figure_path: str | None = option(
        None, "Write the figure here; default: EXPERIMENT.svg.", flag="figure", kind=OutputFile(),
    )  # fmt: skip

    def wanted(self, experiment_name: str) -> Wanted:
        """The same as the experiment takes it. Raises ConfigError: no size of a memory."""
        # An allocator's own file decides what it gives, and no name is made of it.
        kept = not (self.fresh or self.quick or self.names)
        return Wanted(
            self.quick, parse_bytes(self.physical, what="memory"), tuple(self.names) or None,
            self.figure_path or f"{experiment_name}.svg", tuple(self.settings),
            cache_base() / "reproduce" if kept else None,
        )  # fmt: skip


def what_there_is() -> str:
    """The experiments with what each of them computes, a line each as click leaves it."""
    titles = [(name, (run.__doc__ or "").splitlines()[0]) for name, run in EXPERIMENTS.items()]
    return "\n".join(f"{name:14} {title}" for name, title in titles)


@click.command(epilog=f"\b\nEXPERIMENT is one of:\n\n\b\n{what_there_is()}")
@click.argument(
    "experiment_name", metavar="EXPERIMENT", type=OneOf("experiment", tuple(EXPERIMENTS))
)
@gathered("asked", Asked)
@json_option
def reproduce(experiment_name: str, asked: Asked, json_path: str | None) -> None:
    """Compute a figure or table of the papers."""
    console = make_console()
    wanted = asked.wanted(experiment_name)
    started = time.perf_counter()
    with doing(f"computing {experiment_name}"):
        found = EXPERIMENTS[experiment_name](wanted, console)
    seconds = time.perf_counter() - started
    if json_path:
        content = {
            "version": JSON_VERSION, "experiment": experiment_name, **found, "seconds": seconds,
            "error": None,
        }  # fmt: skip
        write_numbers(json_path, content)
    console.print(
        f"what agrees with the paper, what differs and why: `ooctrain docs {PAGE}`, section "
        f'"ooctrain reproduce {experiment_name}"',
        soft_wrap=True,
    )
    console.print(f"took {seconds:.0f} s")
