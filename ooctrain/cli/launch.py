"""`--ranks 2`: the same command again, twice, under `mpiexec`.

MPI's launcher ends all ranks when one is killed, but then prints a banner of its own and returns
the signal's number as its status. Here that becomes one error of this library, and status 1; else
the command's exit status is passed on. Whatever asks this process to end asks the ranks, which stop
after the same step; this process waits for that. So the launcher is in a session of its own: a
Ctrl-C reaches it through here, once. Read next: `command_ranks.py`, which the ranks themselves go
through.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ooctrain.cli.training import STOPPING
from ooctrain.distributed.mpi import find_mpiexec
from ooctrain.errors import RanksDiffer

_RULE = re.compile(r"^=+$")
_SIGNAL = re.compile(r"EXIT STRING: (.*)$")
#: What commands of this library end in by themselves.
_OWN_STATUS = range(5)


def launch(ranks: int, words: Sequence[str]) -> int:
    """Runs a command of `ooctrain` on several ranks of this machine.

    Returns:
        Its exit status.

    Raises:
        RanksDiffer: a rank was killed.
        ConfigError: there is no launcher.
    """
    command = [find_mpiexec(), "-n", str(ranks), sys.executable, "-m", "ooctrain", *words]
    banner: list[str] = []
    with (
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        ) as running,
        _passed_on(running) as asked,
    ):  # fmt: skip
        assert running.stdout is not None, "it is a pipe"
        for line in _without_banner(running.stdout, banner):
            sys.stdout.write(line)
            sys.stdout.flush()
        status = running.wait()
    if status in _OWN_STATUS and not banner:
        return status
    if asked:
        raise KeyboardInterrupt(f"ended by {asked[-1]}")
    reason = next((m.group(1) for m in map(_SIGNAL.search, banner) if m), f"status {status}")
    raise RanksDiffer(
        "a rank has ended during the run, and the others were stopped", numbers=reason.strip(),
        fix="if memory ran out, a smaller --budget, --host-budget or --batch; --checkpoint-steps "
        "and --resume lose less",
    )  # fmt: skip


@contextmanager
def _passed_on(running: subprocess.Popen) -> Iterator[list[str]]:
    """What asks this process to end is passed on, and its name noted in the list. A closed terminal
    is passed on as SIGTERM, since the launcher would end itself; one that `nohup` ignores is not.
    """
    asked: list[str] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        asked.append(signal.Signals(number).name)
        running.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    before: dict[int, Any] = {}
    for number in STOPPING:
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _without_banner(lines: Iterable[str], banner: list[str]) -> Iterator[str]:
    """All lines but the launcher's own about processes that ended, which are put into `banner`."""
    inside = False
    for line in lines:
        inside = inside or bool(_RULE.match(line.strip()))
        if inside:
            banner.append(line)
        else:
            yield line
