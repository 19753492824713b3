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
    banner: list[str] = []
    with _listening() as asked:
        command = [find_mpiexec(), "-n", str(ranks), sys.executable, "-m", "ooctrain", *words]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        ) as running:  # fmt: skip
            asked.pass_on_to(running)
            assert running.stdout is not None, "it is a pipe"
            for line in _without_banner(running.stdout, banner):
                sys.stdout.write(line)
                sys.stdout.flush()
            status = running.wait()
    if status in _OWN_STATUS and not banner:
        return status
    if asked.names:
        raise KeyboardInterrupt(f"ended by {asked.names[-1]}")
    reason = next((m.group(1) for m in map(_SIGNAL.search, banner) if m), f"status {status}")
    raise RanksDiffer(
        "a rank has ended during the run, and the others were stopped", numbers=reason.strip(),
        fix="if memory ran out, a smaller --budget, --host-budget or --batch; --checkpoint-steps "
        "and --resume lose less",
    )  # fmt: skip


class _Asked:
    """What asks this process to end, passed on to the launcher: at once, or once there is one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._early: list[int] = []
        self._running: subprocess.Popen | None = None

    def pass_on_to(self, running: subprocess.Popen) -> None:
        """From here on; what has come before it was started, now."""
        self._running = running
        while self._early:
            running.send_signal(self._early.pop(0))

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """A signal; a closed terminal is passed on as SIGTERM: the launcher would end itself."""
        self.names.append(signal.Signals(number).name)
        passed_on = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        if self._running is None:
            self._early.append(passed_on)
        else:
            self._running.send_signal(passed_on)


@contextmanager
def _listening() -> Iterator[_Asked]:
    """Signals that end a process are heard from here on, before there are any ranks that would be
    left alone; a closed terminal that `nohup` ignores is ignored.
    """
    asked = _Asked()
    before: dict[int, Any] = {}
    try:
        for number in STOPPING:
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, asked.hear)
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
