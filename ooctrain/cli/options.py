"""What commands take: a dataclass for each group of options, and how click learns of them.

An option is a field of a dataclass, with its type, its default and its help beside each other; the
same option means the same in every command. The groups are `Workload` (what is trained),
`Extent` (how far), `RankOptions`, and the library's own `Options` (how: budgets, planner, device).
A command gets each group as one value. Read next: `values.py` for the values that options take;
`workload.py`, which turns the words into objects; `../execution/settings.py` for `Options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Literal, TypeVar

import click

from ooctrain.cli.schedules import find_schedule
from ooctrain.cli.values import Named, OneOf, OutputFile, PositiveNumber, UserPath, WholeNumber
from ooctrain.devices.spill import Spill
from ooctrain.errors import ConfigError
from ooctrain.execution.settings import DEFAULT_REWRITES, Options, Typed, option, typed_fields
from ooctrain.optim.algorithms import find_optimizer
from ooctrain.units import parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]
ALLOCATORS_TEXT = "Allocators, comma-separated or repeated, such as va:chunk=1MiB."


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


def options_of(kind: type, *names: str, **changed: Any) -> Decorator:
    """Adds options to a command: the fields of a dataclass that are called so; without names all.

    Args:
        changed: fields of `Typed` that are otherwise for this command; `default`, too.
    """
    known = typed_fields(kind)

    def add(command: Command) -> Command:
        for name in reversed(names or tuple(known)):
            typed, default = known[name]
            for_this = {field: value for field, value in changed.items() if field != "default"}
            add_one = _option(name, replace(typed, **for_this), changed.get("default", default))
            command = add_one(command)
        return command

    return add


def _option(name: str, typed: Typed, default: Any) -> Decorator:
    flag = f"--{typed.flag or name.replace('_', '-')}"
    if isinstance(default, tuple):
        return list_option(flag, name, text=typed.text or "")
    kind = typed.kind
    if typed.folder:
        kind = UserPath()
    elif typed.choices:
        kind = OneOf(name, typed.choices)
    elif typed.least is not None:
        kind = WholeNumber(typed.least, typed.most)
    elif typed.example is not None:
        kind = PositiveNumber(typed.example)
    given = {"is_flag": True} if default is False else {"default": default}
    return click.option(
        flag, name, type=kind, metavar=typed.metavar, show_default=typed.shown or None,
        help=typed.text, **given,
    )  # fmt: skip


def gathered(name: str, kind: type) -> Decorator:
    """Adds the options of a dataclass, which the command gets as one value called `name`."""

    def add(command: Command) -> Command:
        @wraps(command)
        def gather(**values: Any) -> Any:
            value = kind(**{key: values.pop(key) for key in typed_fields(kind)})
            return command(**{name: value}, **values)

        return options_of(kind)(gather)

    return add


def list_option(*names: str, text: str, default: str = "") -> Decorator:
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


def file_option(*names: str, text: str) -> Decorator:
    """An option that names a file to be written."""
    return click.option(*names, metavar="FILE", type=OutputFile(), help=text)


POSITIVE = WholeNumber(min=1)
json_option = file_option("--json", "json_path", text="Write the numbers here.")
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
