"""A limit of time counts a submission's own time: not the grader's, and not the machine's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ooctrain.course.interview import Interview, NoAnswer, stood_in_line_s
from ooctrain.course.remote import RemotePlanner, name_in_answer
from ooctrain.errors import Infeasible
from ooctrain.sched.planning.question import Question
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine
from ooctrain.testing.random_traces import FakeOp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the time is Linux's")
MACHINE = Machine("toy", 1, 1, link_bytes_per_us=10)
#: What a submission computes, in seconds of processor time, and what it may.
WORK_S, LIMIT_S = 0.3, 0.6
#: So many others want the same processor.
OTHERS = 6
OWN = os.getpid()


def small_step():
    builder = TraceBuilder()
    x = builder.variable("x", (8,), "uint8", "input")
    builder.call("f", FakeOp("f"), (x,), (builder.variable("y", (8,), "uint8"),), duration_ns=1000)
    return builder.build()


def planner_file(folder, body):
    path = folder / "own.py"
    path.write_text(
        "import time\nfrom ooctrain.errors import Infeasible\n\n\n"
        "class Mine:\n    name = 'mine'\n\n"
        "    def plan(self, question):\n"
        f"        {body}\n        raise Infeasible('no', minimum_bytes=1)\n"
    )
    return f"{path}:Mine"


def ask(planner):
    with pytest.raises(Infeasible):
        planner.plan(Question(small_step(), 100, MACHINE))


def test_what_the_grader_does_between_two_questions_is_not_counted(tmp_path):
    with Interview(planner_file(tmp_path, "pass"), "planner", 0.4) as interview:
        planner = RemotePlanner(interview)
        for _ in range(3):
            ask(planner)
            time.sleep(0.2)


WORKING = f"end = time.process_time() + {WORK_S}\n        while time.process_time() < end: pass"


@pytest.mark.slow
def test_time_in_which_others_have_the_processor_is_not_counted(tmp_path):
    only = sorted(os.sched_getaffinity(0))[:1]
    busy = f"import os\nos.sched_setaffinity(0, {only})\nwhile True: pass"
    with Interview(planner_file(tmp_path, WORKING), "planner", LIMIT_S) as interview:
        planner, before = RemotePlanner(interview), os.sched_getaffinity(0)
        os.sched_setaffinity(0, only)
        others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(OTHERS)]
        try:
            for task in os.listdir("/proc"):  # the submission's process, too
                if task.isdigit() and _descends(int(task), interview._process.pid):
                    os.sched_setaffinity(int(task), only)
            started = time.monotonic()
            ask(planner)
            assert time.monotonic() - started > LIMIT_S, "it was not held up at all"
        finally:
            os.sched_setaffinity(0, before)
            for other in others:
                other.kill()
                other.wait()


def _descends(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


@pytest.mark.parametrize(
    "deed", [pytest.param("while True: pass", marks=pytest.mark.slow), "time.sleep(99)"]
)
def test_its_own_time_is_counted_whether_it_computes_or_sleeps(deed, tmp_path):
    with Interview(planner_file(tmp_path, deed), "planner", 0.3) as interview:
        name_in_answer(interview)
        started = time.monotonic()
        with pytest.raises(NoAnswer, match=r"did not end within 0\.3 s"):
            RemotePlanner(interview).plan(Question(small_step(), 100, MACHINE))
        assert time.monotonic() - started < 20


@pytest.mark.skipif(
    not all(map(os.path.exists, ("/proc/self/schedstat", f"/proc/{OWN}/task/{OWN}/children"))),
    reason="the system does not say",
)
def test_time_in_line_is_that_which_the_system_counts_of_a_family():
    """The second number of a process, and of each that it has started."""
    program = "import subprocess, sys; subprocess.run(['sleep', '9']) or sys.exit()"
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        try:
            while len(family := members_of(parent.pid)) < 2:
                time.sleep(0.01)
            least = waited_ns(family)
            found = stood_in_line_s(parent.pid)
            assert least <= found * 1e9 + 1 <= waited_ns(family) + 2
        finally:
            for member in reversed(members_of(parent.pid)):
                os.kill(member, signal.SIGKILL)
    assert stood_in_line_s(None) == stood_in_line_s(parent.pid) == 0


def members_of(pid):
    """A process and its children."""
    own = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *map(int, own.read_text().split())]


def waited_ns(family):
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in family)
