"""The command `ooctrain`: one file for each subcommand, loaded when it is called.

Exit statuses: 0 done, 1 the run failed, 2 wrong usage, 3 does not fit, 4 a grade that does not
pass. `--help`, `doctor` and `plan` answer at once, because nothing that compiles kernels is
imported before a command needs it. An error of the library is printed as one block. Read next:
`options.py`, then `plan_command.py`.
"""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import MappingProxyType

import click

from ooctrain.cli.output_streams import give_up_output, open_closed_streams, say, show_traceback
from ooctrain.cli.silence import never_silent
from ooctrain.cli.usage import check_values_follow, usage_error
from ooctrain.errors import (
    ConfigError,
    DoesNotFit,
    Infeasible,
    OoctrainError,
    OutOfDeviceMemory,
    PartFailed,
    unknown_name,
)
from ooctrain.plugins import fault_of_own_code
from ooctrain.report.numbers_file import NumbersFile
from ooctrain.units import MIB, format_bytes

__all__ = ["COMMANDS", "exit_status", "main"]

DONE, FAILED, USAGE, DOES_NOT_FIT, BELOW = range(5)
#: Of a resource limit: whatever fails with less left has most likely failed for that.
STARVED_BYTES = 16 * MIB
#: {command: its line in `ooctrain --help`}; train is a function of cli/train_command.py, and so on.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "train": "Train a network within a memory budget.",
        "plan": "Say what a training step needs, and what fits.",
        "simulate": "Show the time line of a planned step.",
        "compare": "Compare planners, with a bound for each cell.",
        "report": "Draw a step that plan, simulate or train wrote with --json.",
        "diff": "Show the first instruction in which two lists differ.",
        "grade": "Grade a submission, or a class, for an assignment.",
        "course": "Make what a course hands out: wheels without solutions, autograders.",
        "tutorials": "List tutorials, puzzles and assignments, or copy them to work in.",
        "docs": "Show a page of the documentation, or copy all.",
        "replay": "Ask several allocators for what an allocation log holds.",
        "reproduce": "Compute a figure or table of the papers.",
        "calibrate": "Measure this machine and save the result.",
        "doctor": "Check this installation and say how to mend it.",
        "explain": "Explain an error code or a rule of the verifier.",
        "completion": "Print what a shell reads to complete commands and options.",
    }
)

#: Below `ooctrain --help`, as click leaves it.
BEGIN = """\b
Begin with:
  ooctrain docs start                            first runs, where to go on
  ooctrain train lenet --budget 50% --epochs 10  a minute: kernels compile
  ooctrain tutorials copy my_course              the course, to read and run"""


class _ReaderGone(Exception):
    """The reader of the output has left, as `| head -1` does."""


class _Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with _without_collections():
            command = getattr(import_module(f"ooctrain.cli.{cmd_name}_command"), cmd_name)
        if ctx.resilient_parsing:  # a shell only asks what can follow
            import_module("ooctrain.cli.offered").offer_names(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = ctx.resilient_parsing or not args or args[0] in COMMANDS  # a shell only asks
        if not known and not args[0].startswith("-"):
            raise unknown_name(
                "no command is called", args[0], COMMANDS, "`ooctrain --help` says what each does"
            )
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            check_values_follow(command, rest)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would end the process
            raise _ReaderGone from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own would import every command for its first line of help.
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@contextmanager
def _without_collections() -> Iterator[None]:
    """What an import makes stays: the collector would walk it again and again, and find nothing."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@click.group(cls=_Commands, epilog=BEGIN, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ooctrain", prog_name="ooctrain")
@click.option("--traceback", is_flag=True, help="Show where in the library an error was raised.")
def command_line(traceback: bool) -> None:
    """Out-of-core training: a training step in less memory than it needs, with the same bits."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. A command that fails leaves its reason in the file of --json too.

    Args:
        arguments: without the program's name; None: those of this process.

    Returns:
        The exit status.
    """
    open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        sys.excepthook = show_traceback
    numbers = NumbersFile(given)
    try:
        with never_silent() if arguments is None and "--step" not in given else nullcontext():
            status, message = _run(given), None
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status, message = USAGE, "no command was given"
    except click.UsageError as error:
        status, message = USAGE, str(usage_error(error, _called(given)))
        say(message)
    except (click.Abort, KeyboardInterrupt) as error:
        if arguments is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends the process
        status, message = FAILED, str(error.__cause__ or error) or "interrupted"
        say(message)
    except (_ReaderGone, BrokenPipeError):
        status, message = FAILED, "the reader of the output has left"
        give_up_output()
    except (OoctrainError, OSError, MemoryError) as error:
        if "--traceback" in given:
            if isinstance(error, PartFailed) and error.__cause__ is not None:
                raise error.__cause__ from None  # what the planner raised itself
            raise
        own = fault_of_own_code(error, given) if isinstance(error, PartFailed) else None
        status, message = exit_status(error), str(own or error) or _out_of_memory()
        say(message)
    except (Exception, SystemExit) as error:
        fault = fault_of_own_code(error, given) or _starved(error)
        if fault is None or "--traceback" in given:
            raise
        status, message = FAILED, str(fault)
        say(message)
    if message is not None:
        numbers.tell(message)
    return status


def _out_of_memory() -> str:
    """What is said of an error without words, which is one of memory, and what limits that."""
    # Late: a start that goes well does without.
    from ooctrain.step.allowance import memory_limits

    limit = next(iter(memory_limits()), None)
    if limit is None:
        return "out of memory"
    left, whole = format_bytes(limit.free_bytes), format_bytes(limit.limit_bytes)
    return f"out of memory: {left} are left of {whole} by {limit.source}"


def _starved(error: BaseException) -> OoctrainError | None:
    """The error where a resource limit is used up, whatever it made Python or a library raise."""
    # Late: a start that goes well does without.
    from ooctrain.step.allowance import memory_limits

    limited = [limit for limit in memory_limits() if limit.source.startswith("ulimit")]
    thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    if not thread and not any(limit.free_bytes < STARVED_BYTES for limit in limited):
        return None
    what = "the system starts no further thread: " if thread else ""
    return OoctrainError(
        f"{what}{_out_of_memory()}", code="OOC-108",
        fix="`ulimit -a` shows the limits: -u of threads, -v of their address space",
    )  # fmt: skip


def _called(given: Sequence[str]) -> str:
    """What was called: "ooctrain", and the command among the arguments, if there is one."""
    return " ".join(["ooctrain", *[word for word in given if word in COMMANDS][:1]])


def _run(given: Sequence[str]) -> int:
    # The place in the library where a warning arose is of no use to a user of the command.
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        status = command_line.main(
            list(given), prog_name="ooctrain", standalone_mode=False, obj=list(given)
        )
    sys.stdout.flush()
    return status if isinstance(status, int) else DONE


def exit_status(error: BaseException) -> int:
    """The exit status that stands for an error."""
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, Infeasible | DoesNotFit | OutOfDeviceMemory):
        return DOES_NOT_FIT
    return FAILED


def _show_warning(message: Warning | str, *_details: object, **_options: object) -> None:
    say(f"warning: {message}")
