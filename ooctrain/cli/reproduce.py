"""`ooctrain reproduce EXPERIMENT`: a figure or table of the papers, computed here.

In: the name of an experiment. Out: its tables, a figure, numbers as JSON, and where docs/papers.md
says what of it agrees with the paper and what differs. Nothing needs a GPU; what is simulated is
called so. Read next: `experiments/reproducing.py` for what an experiment is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

import click

from ooctrain.cli import DONE
from ooctrain.cli.options import ALLOCATORS_TEXT, file_option, json_option, list_option
from ooctrain.cli.terminal import make_console
from ooctrain.cli.values import OneOf
from ooctrain.experiments.paper_000.architectures_shown import architectures
from ooctrain.experiments.paper_000.fragmentation_shown import fragmentation
from ooctrain.experiments.paper_000.table1_shown import table1
from ooctrain.experiments.paper_001.hybrid_shown import hybrid
from ooctrain.experiments.paper_002.offload_ratios_shown import offload_ratios
from ooctrain.experiments.paper_003.sft_shown import sft
from ooctrain.experiments.paper_004.distributed_shown import distributed
from ooctrain.experiments.paper_004.hmms_shown import hmms
from ooctrain.experiments.reproducing import Experiment, Wanted
from ooctrain.report.numbers_file import write_numbers
from ooctrain.step.presets import cache_base
from ooctrain.units import parse_bytes

JSON_VERSION = 2
#: What agrees with the papers and what differs, a section for each experiment.
PAGE = "docs/papers.md"

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        "architectures": architectures,
        "distributed": distributed,
        "fragmentation": fragmentation,
        "hmms": hmms,
        "hybrid": hybrid,
        "offload-ratios": offload_ratios,
        "sft": sft,
        "table1": table1,
    }
)


@click.command()
@click.argument(
    "experiment_name", metavar="EXPERIMENT", type=OneOf("experiment", tuple(EXPERIMENTS))
)
@click.option("--quick", is_flag=True, help="Few cases: does it run, and about what comes out?")
@click.option("--physical", default="16GiB", show_default=True, help="Memory of the device.")
@click.option("--fresh", is_flag=True, help="Compute everything again.")
@list_option("--allocator", "names", text=ALLOCATORS_TEXT)
@file_option("--figure", "figure_path", text="Write the figure here; default: EXPERIMENT.svg.")
@json_option
def reproduce(
    experiment_name: str, quick: bool, physical: str, fresh: bool, names: list[str],
    figure_path: str | None, json_path: str | None,
) -> int:  # fmt: skip
    """Compute a figure or table of the papers."""
    console = make_console()
    wanted = Wanted(
        quick, parse_bytes(physical, what="memory"), tuple(names) or None,
        figure_path or f"{experiment_name}.svg",
        # An allocator's own file decides what it gives, and no name is made of it.
        None if fresh or quick or names else cache_base() / "reproduce",
    )  # fmt: skip
    started = time.perf_counter()
    found = EXPERIMENTS[experiment_name](wanted, console)
    seconds = time.perf_counter() - started
    if json_path:
        content = {
            "version": JSON_VERSION, "experiment": experiment_name, **found, "seconds": seconds,
            "error": None,
        }  # fmt: skip
        write_numbers(json_path, content)
    console.print(
        f'what agrees with the paper, what differs and why: {PAGE}, section "ooctrain reproduce '
        f'{experiment_name}"'
    )
    console.print(f"took {seconds:.0f} s")
    return DONE
