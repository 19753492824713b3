"""A command that is interrupted says so in a line at most, whenever that is, and however often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import every

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


@pytest.mark.parametrize("place", every(PLACES, 2))
def test_no_interrupt_shows_where_in_the_library_it_came(place):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, place], cwd=ROOT, check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (1, -signal.SIGINT)
    assert done.stderr.split() in ([], ["ooctrain:", "interrupted"])
    assert ("OOC-" in done.stdout) == (place == "the end")


#: A Ctrl-C comes to a worker, too, here before it knows what it is for.
WORKERS = """
import os, signal
if __name__ == "__mp_main__":
    os.kill(os.getpid(), signal.SIGINT)
from ooctrain.experiments.spread import finished

def double(number):
    return 2 * number

if __name__ == "__main__":
    print(sorted(finished(double, [1, 2, 3], 2)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no masks of signals")
def test_a_worker_that_is_being_started_hears_no_interrupt(tmp_path):
    """It printed where it was, and took the others with it."""
    program = tmp_path / "program.py"
    program.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[(0, 2), (1, 4), (2, 6)]\n", "")
