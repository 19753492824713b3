"""The options of all commands, each defined once, and the values they are gathered into.

The same option means the same in every command, so a command names a group of options, never a
single one. The groups are `Workload` (what is trained), `MemoryOptions` (in how much memory, and
how) and `Extent` (how far). Read next: `values.py` for the values that options take; `workload.py`,
which turns the words into objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal, TypeVar

import click

from ooctrain.cli.schedules import find_schedule
from ooctrain.cli.values import Named, OneOf, OutputFile, PositiveNumber, UserPath, WholeNumber
from ooctrain.errors import ConfigError
from ooctrain.optim.algorithms import find_optimizer
from ooctrain.sched.planning.effort import EVALUATIONS
from ooctrain.step.presets import DEVICES

Command = TypeVar("Command", bound=Callable[..., Any])
#: Seeds are written to checkpoints as numbers of 64 bits.
MAX_SEED = (1 << 63) - 1
ALLOCATORS_TEXT = "Allocators, comma-separated or repeated, such as va:chunk=1MiB."


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained: all that decides the trace of a step.

    Args:
        model: by name, or "file.py:function".
        data: by name, "cifar10:DIR" for example; None: none, or the command's usual one.
        batch: images in a step.
        image_size: height in pixels; None: the data's own, or what the network usually gets.
        optimizer: by name with parameters, or "file.py:Class".
        lr: learning rate; None: the optimizer's usual one.
        accumulate: micro-batches in a step.
        threads: threads of the cpu device; None: one for each core.
        conv_algorithm: "auto", or one by name.
        seed: seed of weights, data order, dropout.
        device: "cpu" or "cuda".
        allow_tf32: whether convolutions on a GPU may round their inputs to TF32.
        download: whether the data is fetched first.
        split: patches that the network trains in, "depth=0.5,grid=2x2"; "": none.
        crop, pad, flip: how images are cut and mirrored, as in `data.Augmentation`.
        classes: outputs of the network; None: those of the data, else the usual ones.
        stem: first layers of the network, "cifar" or "imagenet"; None: by the images' size.
    """

    model: str
    data: str | None
    batch: int
    image_size: int | None
    optimizer: str
    lr: float | None
    accumulate: int
    threads: int | None
    conv_algorithm: str
    seed: int
    device: str
    allow_tf32: bool
    split: str
    download: bool = False
    crop: int | None = None
    pad: int = 0
    flip: bool = False
    classes: int | None = None
    stem: Literal["cifar", "imagenet"] | None = None

    @property
    def title(self) -> str:
        """The network in words; one that is split is another one."""
        return f"{self.model} split ({self.split})" if self.split else self.model


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Memory, machine and planner; sizes as they were typed.

    Args:
        budget: device memory; None: all of it, or no limit.
        host_budget: host memory for inputs and copies; None: the machine's.
        planner, allocator: by name with parameters, or "file.py:Class".
        machine: a preset or a calibration file; None: the saved calibration.
        link_bandwidth: a second, in each direction; None: the machine's own.
        evaluations: evaluations of planners that search; None: the command's own number.
        time_limit: seconds after which a search is interrupted; None: it is not.
        rewrites: names of rewrites, after those that every step gets.
        spill: a folder; None: the host is memory.
        spill_rate: a second, in each direction; None: as fast as the disk.
        memory: memory of the whole process, in place of both budgets; None: these count.
    """

    budget: str | None
    host_budget: str | None
    planner: str
    allocator: str
    machine: str | None
    link_bandwidth: str | None
    evaluations: int | None
    time_limit: float | None
    rewrites: list[str]
    spill: str | None = None
    spill_rate: str | None = None
    memory: str | None = None


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a run goes, and where it leaves its checkpoints.

    Args:
        epochs: in all, those before a resume included.
        steps: at most, in all; None: as many as the epochs have.
        checkpoint_path: written after each epoch and at the end; None: nowhere.
        checkpoint_steps: also written each time this many steps are done; None: not.
        resume_path: gone on from; None: from the start.
        lr_schedule: a schedule of `schedules.py`, by name with parameters, or "file.py:function".
        weights_path: a file of weights that the run begins with; None: fresh ones.
        save_weights_path: where the weights are written at the end; None: nowhere.
    """

    epochs: int
    steps: int | None
    checkpoint_path: str | None
    checkpoint_steps: int | None
    resume_path: str | None
    lr_schedule: str
    weights_path: str | None = None
    save_weights_path: str | None = None


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How ranks that `mpiexec` has started share a run.

    Args:
        ranks: to start under mpiexec; None: those that were started, if any.
        bucket: how many bytes of gradients must be complete before they are sent, as typed.
        sync_batch_norm: batch norm by the statistics of the whole batch.
    """

    ranks: int | None
    bucket: str
    sync_batch_norm: bool


def list_option(*names: str, text: str, default: str = "") -> Callable[[Command], Command]:
    """An option of several values: separated by commas, or given several times.

    The command gets a list of words; an empty one where neither it nor a default is given.
    """

    def words(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[str]:
        given = values or ((default,) if default else ())
        found = split_names(",".join(given))
        if given and not found:
            name = param.opts[0]
            fix = f"{name} {default}" if default else f"leave {name} out"
            raise ConfigError(f"{name} names nothing", fix=fix)
        return found

    text = f"{text}  [default: {default}]" if default else text
    return click.option(*names, multiple=True, callback=words, help=text)


def split_names(text: str) -> list[str]:
    """Words separated by commas; "KEY=VALUE" behind a comma belongs to the word before."""
    found: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def file_option(*names: str, text: str) -> Callable[[Command], Command]:
    """An option that names a file to be written."""
    return click.option(*names, metavar="FILE", type=OutputFile(), help=text)


def seed_option(text: str) -> Callable[[Command], Command]:
    """--seed, and what it is of."""
    kind = WholeNumber(min=0, max=MAX_SEED)
    return click.option("--seed", type=kind, default=0, show_default=True, help=text)


POSITIVE = WholeNumber(min=1)


def evaluations_option(default: str) -> Callable[[Command], Command]:
    """--evaluations, and what holds without it."""
    return click.option(
        "--evaluations", type=POSITIVE,
        help=f"Effort of a searching planner, a few lists each; default: {default}.",
    )  # fmt: skip


time_limit_option = click.option(
    "--time-limit", type=PositiveNumber(10.0),
    help="Seconds after which a search is interrupted; the plan then depends on the machine.",
)  # fmt: skip
classes_option = click.option(
    "--classes", type=POSITIVE,
    help="Outputs of the network; default: the data's, else your function's own, or the usual.",
)  # fmt: skip
optimizer_option = click.option(
    "--optimizer", type=Named(find_optimizer), default="sgd", show_default=True,
    help='sgd, adam, adamw, rmsprop, with parameters ("rmsprop:alpha=0.9"), or file.py:Class.',
)  # fmt: skip
accumulate_option = click.option(
    "--accumulate", type=POSITIVE, default=1, show_default=True, help="Micro-batches in a step."
)
host_budget_option = click.option(
    "--host-budget", metavar="SIZE",
    help="Host memory for the inputs and what is swapped out; 0: for the inputs alone.",
)  # fmt: skip
link_bandwidth_option = click.option(
    "--link-bandwidth",
    metavar="SIZE",
    help='Bandwidth of the link, per second and direction: "2GB".',
)
spill_option = click.option(
    "--spill",
    metavar="FOLDER",
    type=UserPath(),
    help="What is swapped out lies on this folder's disk, not in RAM.",
)
rewrite_option = list_option(
    "--rewrite", "rewrites",
    text='Rewrites of the step, in order: "bands:16:features.0:features.16", or file.py:name.',
)  # fmt: skip
split_option = click.option(
    "--split", metavar="WORDS", default="",
    help='Split-CNN, another network: "depth=0.5,grid=2x2", with ",stochastic", or "fit=4GiB".',
)  # fmt: skip
MOST_THREADS = 1024
WORKLOAD_OPTIONS = (
    click.option(
        "--data",
        metavar="NAME",
        help="digits, cifar10:DIR, mnist:DIR, synthetic[-pixels|-images], or a folder of images.",
    ),
    click.option("--download", is_flag=True, help="Fetch the data first: --data cifar10."),
    click.option("--batch", type=POSITIVE, default=64, show_default=True, help="Images in a step."),
    click.option(
        "--image-size", type=POSITIVE, help="Height and width; default: the data's own, or 224."
    ),
    click.option(
        "--crop",
        type=POSITIVE,
        help="Train on random crops of this height and width, test on the centre.",
    ),
    click.option(
        "--pad", type=WholeNumber(min=0), default=0, help="Zeros on each side before --crop."
    ),
    click.option("--flip", is_flag=True, help="Mirror each training image with probability 1/2."),
    classes_option,
    click.option(
        "--stem",
        type=OneOf("stem", ("cifar", "imagenet")),
        help="First layers: cifar, for small images, or imagenet, torchvision's; default: by size.",
    ),
    optimizer_option,
    click.option(
        "--lr",
        type=PositiveNumber(0.05),
        help="Learning rate; default: 0.05, adam and adamw 0.001, rmsprop 0.01.",
    ),
    accumulate_option,
    click.option(
        "--threads",
        type=WholeNumber(1, MOST_THREADS),
        help="CPU threads (default: all cores, or the preset's when only planning).",
    ),
    click.option(
        "--conv-algorithm",
        default="auto",
        show_default=True,
        help="auto, direct, im2col, winograd2, winograd4; cuda: implicit_gemm, tf32, tiled, naive.",
    ),
    seed_option("Of weights, data order, dropout."),
    click.option("--device", type=OneOf("device", DEVICES), default="cpu", show_default=True),
    click.option(
        "--allow-tf32",
        is_flag=True,
        help="On a GPU: convolutions round their inputs to 10 bits of mantissa.",
    ),
    split_option,
)
MEMORY_OPTIONS = (
    click.option(
        "--budget",
        metavar="SIZE",
        help='Device memory: "512MiB", "8GB", or "25%" from least to most.',
    ),
    host_budget_option,
    click.option(
        "--planner",
        default="auto",
        show_default=True,
        help='Name, with parameters ("window:size=2"), or file.py:Class.',
    ),
    click.option(
        "--allocator",
        default="va",
        show_default=True,
        help="Name, with parameters, or file.py:Class.",
    ),
    click.option(
        "--machine",
        metavar="NAME",
        help="Preset or calibration file; default: `here`, the saved calibration.",
    ),
    link_bandwidth_option,
    evaluations_option(f"{EVALUATIONS}"),
    time_limit_option,
    rewrite_option,
    spill_option,
    click.option(
        "--spill-rate", metavar="SIZE", help='At most, per second and direction: "500MB".'
    ),
    click.option(
        "--memory", metavar="SIZE",
        help="Of the whole process, in place of both budgets; cpu device.",
    ),
)  # fmt: skip
EXTENT_OPTIONS = (
    click.option("--epochs", type=POSITIVE, default=1, show_default=True),
    click.option(
        "--lr-schedule", type=Named(find_schedule), default="cosine", show_default=True,
        help='constant, cosine, onecycle, or in epochs "step:epochs=30,gamma=0.1", '
        '"multistep:epochs=30+60", "linear:epochs=5", "exponential:gamma=0.9".',
    ),
    click.option("--steps", type=POSITIVE, help="Stop after this many steps in all."),
    file_option(
        "--checkpoint", "checkpoint_path",
        text="Save here after each epoch, on Ctrl-C and at the end.",
    ),
    click.option(
        "--checkpoint-steps", type=POSITIVE, help="Also save each time this many steps are done."
    ),
    click.option(
        "--resume", "resume_path", metavar="FILE", type=UserPath(),
        help="Continue from a checkpoint, and save to it again.",
    ),
    click.option(
        "--weights", "weights_path", metavar="FILE", type=UserPath(),
        help="Begin with these weights: safetensors with PyTorch's names.",
    ),
    file_option(
        "--save-weights", "save_weights_path", text="Write the weights here at the end, likewise.",
    ),
)  # fmt: skip
RANK_OPTIONS = (
    click.option(
        "--ranks", type=POSITIVE,
        help="Start this many processes; each trains on a part of every batch.",
    ),
    click.option(
        "--bucket", metavar="SIZE", default="1MiB", show_default=True,
        help="With several ranks: send gradients as soon as this many bytes are complete.",
    ),
    click.option(
        "--sync-batch-norm", is_flag=True,
        help="With several ranks: batch norm over the whole batch, not each rank's part.",
    ),
)  # fmt: skip
json_option = file_option("--json", "json_path", text="Write the numbers here.")
model_argument = click.argument("model", metavar="MODEL")
optional_model_argument = click.argument("model", metavar="MODEL", required=False)


torch_option = click.option(
    "--torch", "of_torch", metavar="FILE.py:FUNCTION",
    help="Instead of MODEL: a function that returns a PyTorch network.",
)  # fmt: skip
onnx_option = click.option(
    "--onnx", "of_onnx", metavar="FILE.onnx", type=UserPath(),
    help="Instead of MODEL: an ONNX file.",
)  # fmt: skip


def workload_options(command: Command) -> Command:
    """Adds MODEL, --torch, --onnx and the options of `Workload`, which the command gets as
    `workload`.
    """
    gather = gathered(command, "workload", Workload, WORKLOAD_OPTIONS)

    @wraps(command)
    def named(model: str | None, of_torch: str | None, of_onnx: str | None, **values: Any) -> Any:
        given = [name for name in (model, of_torch, of_onnx) if name is not None]
        if len(given) > 1:
            raise click.UsageError("give one of MODEL, --torch and --onnx: each is a network")
        if not given:
            context = click.get_current_context()
            (param,) = (p for p in context.command.params if p.name == "model")
            raise click.MissingParameter(ctx=context, param=param)
        return gather(model=onnx_name(str(of_onnx)) if of_onnx is not None else given[0], **values)

    return optional_model_argument(torch_option(onnx_option(named)))  # type: ignore[return-value]


def onnx_name(path: str) -> str:
    """A file as MODEL names it. Raises UsageError: by its name it is another kind of file."""
    if not path.lower().endswith(".onnx"):
        raise click.UsageError(f"--onnx {path}: an ONNX file is called something.onnx")
    return path


def memory_options(command: Command) -> Command:
    """Adds the options of `MemoryOptions`, which the command gets as `memory`."""
    return gathered(command, "memory", MemoryOptions, MEMORY_OPTIONS)


def extent_options(command: Command) -> Command:
    """Adds the options of `Extent`, which the command gets as `extent`."""
    return gathered(command, "extent", Extent, EXTENT_OPTIONS)


def rank_options(command: Command) -> Command:
    """Adds the options of `RankOptions`, which the command gets as `shared`."""
    return gathered(command, "shared", RankOptions, RANK_OPTIONS)


def gathered(command: Command, name: str, kind: type, options: tuple) -> Command:
    """Adds options, which the command gets as one value called `name`, a dataclass `kind`."""
    names = [field.name for field in fields(kind)]

    @wraps(command)
    def gather(**values: Any) -> Any:
        value = kind(**{key: values.pop(key) for key in names})
        return command(**{name: value}, **values)

    for option in reversed(options):
        gather = option(gather)
    return gather  # type: ignore[return-value]
