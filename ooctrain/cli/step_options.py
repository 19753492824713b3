"""What commands that trace, plan or train a step take, each group as one value.

The same option means the same in every command. The groups are `Workload` (what is trained),
`Extent` (how far), `RankOptions`, and the library's own `Options` (how: budgets, planner, device).
Read next: `options.py`, which makes options of fields; `workload.py`, which turns the words into
objects; `../execution/settings.py` for `Options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

import click

from ooctrain.cli.options import Command, Decorator, options_of
from ooctrain.cli.schedules import find_schedule
from ooctrain.cli.values import Named, OutputFile, UserPath
from ooctrain.devices.spill import Spill
from ooctrain.errors import ConfigError
from ooctrain.execution.settings import DEFAULT_REWRITES, Options
from ooctrain.optim.algorithms import find_optimizer
from ooctrain.step.option import option, typed_fields
from ooctrain.units import parse_bytes


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained: network, images and optimizer. The help of each option says what it is."""

    model: str
    data: str | None = option(
        None, "digits, cifar10:DIR, mnist:DIR, synthetic[-pixels|-images], or a folder of images.",
        metavar="NAME",
    )  # fmt: skip
    download: bool = option(False, "Fetch the data first: --data cifar10.")
    batch: int = option(64, "Images in a step.", least=1, shown=True)
    image_size: int | None = option(
        None, "Height and width; default: the data's own, or 224.", least=1
    )
    crop: int | None = option(
        None, "Train on random crops of this height and width, test on the centre.", least=1
    )
    pad: int = option(0, "Zeros on each side before --crop.", least=0)
    flip: bool = option(False, "Mirror each training image with probability 1/2.")
    classes: int | None = option(
        None,
        "Outputs of the network; default: the data's, else your function's own, or the usual.",
        least=1,
    )
    stem: Literal["cifar", "imagenet"] | None = option(
        None,
        "First layers: cifar, for small images, or imagenet, torchvision's; default: by size.",
        choices=("cifar", "imagenet"),
    )
    optimizer: str = option(
        "sgd",
        'sgd, adam, adamw, rmsprop, with parameters ("rmsprop:alpha=0.9"), or file.py:Class.',
        shown=True, kind=Named(find_optimizer),
    )  # fmt: skip
    lr: float | None = option(
        None, "Learning rate; default: 0.05, adam and adamw 0.001, rmsprop 0.01.", example=0.05
    )
    split: str = option(
        "",
        'Split-CNN, another network: "depth=0.5,grid=2x2", with ",stochastic", or "fit=4GiB".',
        metavar="WORDS",
    )

    @property
    def title(self) -> str:
        """The network in words; one that is split is another one."""
        return f"{self.model} split ({self.split})" if self.split else self.model


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a run goes, and where it leaves its checkpoints; what was done before a resume counts
    among epochs and steps.
    """

    epochs: int = option(1, None, least=1, shown=True)
    lr_schedule: str = option(
        "cosine",
        'constant, cosine, onecycle, or in epochs "step:epochs=30,gamma=0.1", '
        '"multistep:epochs=30+60", "linear:epochs=5", "exponential:gamma=0.9".',
        shown=True, kind=Named(find_schedule),
    )  # fmt: skip
    steps: int | None = option(None, "Stop after this many steps in all.", least=1)
    checkpoint_path: str | None = option(
        None, "Save here after each epoch, on Ctrl-C and at the end.",
        flag="checkpoint", kind=OutputFile(),
    )  # fmt: skip
    checkpoint_steps: int | None = option(
        None, "Also save each time this many steps are done.", least=1
    )
    resume_path: str | None = option(
        None, "Continue from a checkpoint, and save to it again.",
        flag="resume", metavar="FILE", kind=UserPath(),
    )  # fmt: skip
    weights_path: str | None = option(
        None, "Begin with these weights: safetensors with PyTorch's names.",
        flag="weights", metavar="FILE", kind=UserPath(),
    )  # fmt: skip
    save_weights_path: str | None = option(
        None, "Write the weights here at the end, likewise.",
        flag="save-weights", kind=OutputFile(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How ranks that `mpiexec` has started, or is to start, share a run."""

    ranks: int | None = option(
        None, "Start this many processes; each trains on a part of every batch.", least=1
    )
    bucket: str = option(
        "1MiB", "With several ranks: send gradients as soon as this many bytes are complete.",
        metavar="SIZE", shown=True,
    )  # fmt: skip
    sync_batch_norm: bool = option(
        False, "With several ranks: batch norm over the whole batch, not each rank's part."
    )


#: Of `Options`, in the order of the help: those on which a trace depends, and the others.
OF_TRACE = ("accumulate", "threads", "conv_algorithm", "seed", "device", "allow_tf32")
OF_MEMORY = ("budget", "host_budget", "planner", "allocator", "machine", "link_bandwidth",
             "evaluations", "time_limit_s", "rewrites", "spill")  # fmt: skip
model_argument = click.argument("model", metavar="MODEL", required=False)
torch_option = click.option(
    "--torch", "of_torch", metavar="FILE.py:FUNCTION",
    help="Instead of MODEL: a function that returns a PyTorch network.",
)  # fmt: skip
onnx_option = click.option(
    "--onnx", "of_onnx", metavar="FILE.onnx", type=UserPath(),
    help="Instead of MODEL: an ONNX file.",
)  # fmt: skip


WORKLOAD_OPTIONS = (
    model_argument, torch_option, onnx_option,
    options_of(Workload, *(name for name in typed_fields(Workload) if name != "split")),
    options_of(Options, *OF_TRACE), options_of(Workload, "split"),
)  # fmt: skip
MEMORY_OPTIONS = (
    options_of(Options, *OF_MEMORY),
    click.option(
        "--spill-rate", metavar="SIZE", help='At most, per second and direction: "500MB".'
    ),
    options_of(Options, "memory"),
)  # fmt: skip


def workload_options(command: Command) -> Command:
    """Adds MODEL, --torch, --onnx and the options on which the trace of a step depends. The command
    gets them as `workload`, and as `how` those that are the library's own `Options`.
    """
    return _with(WORKLOAD_OPTIONS, command)


def step_options(command: Command) -> Command:
    """Adds what `workload_options` adds, and the other `Options`: budgets, planner, machine."""
    return _with((*WORKLOAD_OPTIONS, *MEMORY_OPTIONS), command)


def _with(options: tuple[Decorator, ...], command: Command) -> Command:
    @wraps(command)
    def gather(model: str | None, of_torch: str | None, of_onnx: str | None, **values: Any) -> Any:
        network = _network(model, of_torch, of_onnx)
        typed = {name: values.pop(name) for name in typed_fields(Workload)}
        rate, own = values.pop("spill_rate", None), typed_fields(Options).keys() & values.keys()
        how = options_from({name: values.pop(name) for name in own}, rate)
        return command(workload=Workload(network, **typed), how=how, **values)

    for add in reversed(options):
        gather = add(gather)
    return gather  # type: ignore[return-value]


def _network(model: str | None, of_torch: str | None, of_onnx: str | None) -> str:
    """A network as MODEL names it. Raises UsageError: none, several, or not an ONNX file."""
    given = [name for name in (model, of_torch, of_onnx) if name is not None]
    if len(given) > 1:
        raise click.UsageError("give one of MODEL, --torch and --onnx: each is a network")
    if not given:
        context = click.get_current_context()
        (param,) = (p for p in context.command.params if p.name == "model")
        raise click.MissingParameter(ctx=context, param=param)
    if of_onnx is not None and not of_onnx.lower().endswith(".onnx"):
        raise click.UsageError(f"--onnx {of_onnx}: an ONNX file is called something.onnx")
    return given[0]


def options_from(words: Mapping[str, Any], spill_rate: str | None = None) -> Options:
    """The options that were typed: bandwidths are sizes a second there, and rewrites come after
    those that every step gets.

    Raises:
        ConfigError: a word that is not such a value, or two that contradict each other.
    """
    folder, link = words.get("spill"), words.get("link_bandwidth")
    if folder is None and spill_rate is not None:
        raise ConfigError(
            "--spill-rate limits a disk, but no --spill FOLDER is given", code="OOC-106",
            fix="--spill FOLDER; --link-bandwidth is the rate of copies in memory",
        )  # fmt: skip
    rate = None if spill_rate is None else parse_rate(spill_rate, "spill rate")
    return Options(**{
        **words,
        "rewrites": (*DEFAULT_REWRITES, *words.get("rewrites", ())),
        "link_bandwidth": None if link is None else parse_rate(link),
        "spill": None if folder is None else Spill(folder, rate),
    })  # fmt: skip


def parse_rate(text: str, what: str = "link bandwidth") -> float:
    """Bytes per microsecond of "2GB" or "2GB/s". Raises ConfigError: no size."""
    return parse_bytes(text.removesuffix("/s"), what=what) / 1e6
