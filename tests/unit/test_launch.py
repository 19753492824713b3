"""What becomes of a run on several ranks, with a launcher that is made up of a shell script."""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib.util import find_spec

import pytest

from ooctrain.cli.launch import launch
from ooctrain.cli.training import STOPPING
from ooctrain.errors import RanksDiffer

pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None or os.name != "posix", reason="a launcher needs mpi4py"
)
BANNER = """
echo "=================="
echo "=   BAD TERMINATION"
echo "=   EXIT CODE: 9"
echo "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9) "
"""


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Runs a script in place of the launcher, which lies beside the interpreter."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    def run(script, words=()):
        path = tmp_path / "mpiexec"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return launch(3, words)

    return run


def test_ranks_run_the_words_and_their_lines_are_passed_on(launched, capsys, tmp_path):
    assert launched('printf "%s\\n" "$*"; echo "= no rule ="; exit 2', ["train", "lenet"]) == 2
    words = f"-n 3 {tmp_path / 'python'} -m ooctrain train lenet"
    assert capsys.readouterr().out == f"{words}\n= no rule =\n"


@pytest.mark.parametrize("status", [0, 4])
def test_a_status_of_a_command_is_that_of_the_ranks(status, launched):
    assert launched(f"exit {status}") == status


@pytest.mark.parametrize(
    ("script", "numbers"),
    [(f"echo first\n{BANNER}exit 0", "Killed (signal 9)"), ("echo first; exit 5", "status 5"),
     ("echo first; echo ===; exit 137", "status 137")],
)  # fmt: skip
def test_a_rank_that_was_killed_is_an_error_without_the_launcher_s_words(
    script, numbers, launched, capsys
):
    with pytest.raises(RanksDiffer) as caught:
        launched(script)
    assert caught.value.numbers == numbers
    assert capsys.readouterr().out == "first\n"


@pytest.fixture
def by_others():
    """Handlers of somebody else, which nothing must reach while ranks run."""
    kept = {number: signal.signal(number, ignored) for number in STOPPING}
    yield
    heard = [signal.signal(number, handler) for number, handler in kept.items()]
    assert heard == [ignored] * len(kept), "they listen again afterwards"


def ignored(_number, _frame):
    raise AssertionError("it is not the launch that listens")


TRAPS = """
trap 'echo TERM; exit 9' TERM
trap 'echo INT; exit 9' INT
"""
LATER = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done\n"


@pytest.mark.parametrize(
    ("asked", "passed_on"), [("SIGTERM", "TERM"), ("SIGHUP", "TERM"), ("SIGINT", "INT")]
)
def test_who_ends_the_command_ends_the_ranks(asked, passed_on, launched, by_others, capsys):
    number = int(getattr(signal, asked))
    with pytest.raises(KeyboardInterrupt, match=asked):
        launched(f"{TRAPS}kill -{number} {os.getpid()}\n{LATER}")
    assert capsys.readouterr().out.split() == [passed_on]


@pytest.mark.parametrize("asked", STOPPING)
def test_who_ends_the_command_before_there_are_ranks_ends_them_too(asked, launched, by_others):
    """No moment is left in which ranks run and nothing tells them to stop."""

    def words():
        os.kill(os.getpid(), asked)
        yield "train"

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match=signal.Signals(asked).name):
        launched("exec sleep 20", words())
    assert time.monotonic() - started < 10


def test_a_closed_terminal_that_is_ignored_stays_ignored(launched):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert launched(f"kill -{int(signal.SIGHUP)} {os.getpid()}; sleep 0.1; exit 3") == 3
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
