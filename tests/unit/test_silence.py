"""A command that takes long says what it is doing, on the error stream; nothing else changes."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ooctrain.activity import Activity, Listener, doing, listening
from ooctrain.cli.silence import said

SLOW = """
import sys
import time
from ooctrain.activity import doing
from ooctrain.cli.silence import never_silent
with never_silent():
    print("first", flush=True)
    with doing("compiling", of=4) as one_more:
        one_more()
        time.sleep(float(sys.argv[1]))
    print("second", flush=True)
"""


@pytest.mark.parametrize(("work", "words"), [
    ([], "working ... 7 s"),
    ([Activity("planning", began_s=90.0)], "planning ... 10 s"),
    ([Activity("a"), Activity("compiling", 5, 0, 98.0)], "compiling, 1 of 5 ... 2 s"),
    ([Activity("compiling", 5, 2, 90.0)], "compiling, 3 of 5 ... 10 s, about 15 s to go"),
    ([Activity("compiling", 5, 1, 90.0, 0.5)], "compiling, 2 of 5 ... 10 s, about 10 s to go"),
    ([Activity("compiling", 5, 5, 90.0)], "compiling, 5 of 5 ... 10 s"),
])  # fmt: skip
def test_what_is_said(work, words):
    assert said(work, 100.0, 7.0) == words


def test_a_listener_knows_what_is_under_way_and_what_has_ended():
    listener = Listener()
    with listening(listener):
        with doing("outer"), doing("inner", of=2) as one_more:
            one_more()
            assert [(w.what, w.done) for w in listener.under_way] == [("outer", 0), ("inner", 1)]
        with pytest.raises(KeyError), doing("fails"):
            raise KeyError
        assert listener.under_way == []
    with doing("unheard"):
        assert listener.under_way == []


def test_a_terminal_shows_a_line_that_goes_before_the_next_output():
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, "2.8"], stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert child.returncode == 0
    first, *lines, last = shown.decode().split("\r\x1b[2K")
    assert (first.strip(), last.strip()) == ("first", "second")
    assert lines[0].startswith("compiling, 2 of 4 ... ")


def test_a_pipe_gets_what_was_printed_and_nothing_else_so_soon():
    command = [sys.executable, "-c", SLOW, "0.8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("first\nsecond\n", "")


LESSON = '''"""A lesson."""
import sys
import time
import ooctrain.cli.silence as silence
silence.LOOK_S = silence.PIPE_S = 0.2
sys.path.insert(0, {folder!r})
from lesson import Lesson
from ooctrain.activity import doing
lesson = Lesson("a lesson")
with doing("compiling"):
    time.sleep(0.9)
print("done")
'''


def test_a_tutorial_in_a_pipe_says_once_in_a_while_what_takes_long(tmp_path):
    folder = Path(__file__).parents[2] / "tutorials"
    (tmp_path / "mine.py").write_text(LESSON.format(folder=str(folder)), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "mine.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said_lines = done.stderr.splitlines()
    assert 2 <= len(said_lines) <= 5, done.stderr  # of one speaker
    assert all(line.startswith("ooctrain: compiling ... ") for line in said_lines)
    assert done.stdout.splitlines()[-1] == "done"
