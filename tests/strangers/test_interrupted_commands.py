"""A command that is interrupted says so in a line at most, whenever that is, and however often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Runs `ooctrain explain`; sends a Ctrl-C when a module is imported, a function called, or Python
#: ends.
INTERRUPTED = """
import atexit, os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
places = sys.argv[1].split(",")

def at(place):
    if place in places:
        places.remove(place)
        os.kill(os.getpid(), signal.SIGINT)

class AtImports:
    def find_spec(self, name, path=None, target=None):
        at(name)

sys.meta_path.insert(0, AtImports())
sys.setprofile(lambda frame, event, _: event == "call" and at(frame.f_code.co_qualname))
atexit.register(at, "the end")
sys.argv[1:] = ["explain"]
runpy.run_module("ooctrain", run_name="__main__", alter_sys=True)
"""
PLACES = [
    "ooctrain.cli", "NumbersFile.__init__", "explain", "the end", "click.core,say",
    "explain,say,the end",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_no_interrupt_shows_where_in_the_library_it_came(place):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, place], cwd=ROOT, check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (1, -signal.SIGINT)
    assert done.stderr.split() in ([], ["ooctrain:", "interrupted"])
    assert ("OOC-" in done.stdout) == (place == "the end")
