"""Streams that are closed, or that nothing reads any more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CLOSED = """
import os, sys
from ooctrain.cli.output_streams import STREAMS, give_up_output, open_closed_streams
if {closed}:
    assert sys.stdin is None and sys.stdout is None and sys.stderr is None
open_closed_streams()
print("printed")
print("said", file=sys.stderr)
assert sys.stdin.read() == ""
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
assert file > 2, "it would get what is printed"
found = [(getattr(sys, name).fileno(), getattr(sys, name).encoding) for name, _ in STREAMS]
os.write(file, repr(found).encode())
sys.stdout.flush()
"""


@pytest.mark.parametrize("closed", [True, False])
def test_streams_that_were_closed_lead_nowhere(closed, tmp_path):
    said = tmp_path / "said"
    words = [sys.executable, "-c", CLOSED.format(closed=closed), str(said)]

    def close():
        for number in range(3):
            os.close(number)

    done = subprocess.run(
        words, stdin=None if closed else subprocess.DEVNULL, check=False,
        stdout=None if closed else subprocess.PIPE, stderr=None if closed else subprocess.PIPE,
        preexec_fn=close if closed else None,
    )  # fmt: skip
    assert done.returncode == 0
    assert said.read_text() == repr([(number, "utf-8") for number in range(3)])
    if not closed:
        assert (done.stdout, done.stderr) == (b"printed\n", b"said\n")


GIVEN_UP = """
import sys
from ooctrain.cli.output_streams import give_up_output
sys.stdout.write("x" * 10)
give_up_output()
print("more")
"""


def test_output_without_a_reader_is_given_up_in_silence():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", GIVEN_UP],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_command_without_a_reader_has_failed_and_says_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "ooctrain", "explain"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
