"""A submission's process: what it may see and do, layer by layer, and that it leaves nobody."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.handouts import FIT_STUB, FITTING, LRU_STUB, SOLUTION

from ooctrain.alloc.base import Wrapper
from ooctrain.alloc.dry_run import DryMemory
from ooctrain.alloc.registry import choose_allocator
from ooctrain.course.cage.step_data import machine_data, machine_of, trace_data, trace_of
from ooctrain.course.cage.wire import BadMessage, Line, OutOfTime, error_data, error_of
from ooctrain.course.interview import Interview, NoAnswer
from ooctrain.course.isolation import GIVEN, LAYERS, PACKAGE, copy_interfaces, in_words, is_cage
from ooctrain.course.remote import AllocatorsOf, RemotePlanner
from ooctrain.errors import ConfigError, Infeasible, OutOfDeviceMemory
from ooctrain.sched.planning.question import Question
from ooctrain.step.builder import TraceBuilder
from ooctrain.step.machine import Machine, call_durations_ns
from ooctrain.testing.check_allocator import find_failure
from ooctrain.testing.check_planner import PlannerFailure, check_planner
from ooctrain.testing.random_traces import FakeOp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")
MACHINE = Machine("toy", 1, 1, link_bytes_per_us=10)
QUICK_LAWS = ("plans are legal", "infeasible is honest", "planning is pure")
SECRET = "what only the teacher knows"


def small_step():
    builder = TraceBuilder()
    x = builder.variable("x", (8,), "uint8", "input")
    y = builder.variable("y", (8,), "uint8")
    builder.call("f", FakeOp("f"), (x,), (y,), duration_ns=1000)
    builder.call("g", FakeOp("g"), (y,), (builder.variable("z", (4,), "uint8"),))
    return builder.build()


def submitted(folder, body, name="own.py"):
    """A planner that does something before it refuses."""
    path = folder / name
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    path.write_text(
        "import os, sys, time\nfrom ooctrain.errors import Infeasible\n\n\nclass Mine:\n"
        "    name = 'mine'\n\n    def plan(self, question):\n"
        f"{lines}\n        raise Infeasible('no', minimum_bytes=1)\n"
    )
    return f"{path}:Mine"


def asked(submission, limit_s=20.0, allowed=LAYERS):
    """(the error that a planner raises, the layers that were in force)."""
    with Interview(submission, "planner", limit_s, allowed) as interview:
        try:
            RemotePlanner(interview).plan(Question(small_step(), 100, MACHINE))
        except Exception as error:
            return error, interview.applied
    raise AssertionError("it has a plan")


def is_running(process):
    try:
        os.kill(process, 0)
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


def read_when_there(path):
    for _ in range(1200):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} was never written")


# What is sent and seen


def test_a_step_is_the_same_on_the_other_side():
    trace = small_step()
    again = trace_of(json.loads(json.dumps(trace_data(trace))))
    assert again.fingerprint == trace.fingerprint
    machine = machine_of(json.loads(json.dumps(machine_data(MACHINE))))
    assert machine == MACHINE
    assert call_durations_ns(again, machine) == call_durations_ns(trace, MACHINE)


def test_what_is_given_holds_no_planner_and_no_allocator(tmp_path):
    copy_interfaces(tmp_path)
    copy = tmp_path / "ooctrain"
    assert all((copy / name).is_file() for name in GIVEN)
    names = [path.relative_to(copy) for path in copy.rglob("*.py")]
    text = "\n".join((tmp_path / "ooctrain" / name).read_text() for name in names)
    for planner in (PACKAGE / "sched" / "planners").glob("*.py"):
        assert f"planners/{planner.name}" not in {str(name) for name in names}
    assert "    def plan(self, question: Question)" in text, "the protocol is there"
    assert text.count("    def plan(") == 1, "and nothing that keeps it"
    asking = (tmp_path / "ooctrain" / "course" / "cage" / "serve_law.py").read_text()
    assert asking.count("    def allocate(") == 1, "which asks the arena in the other process"
    left = text.replace(asking, "").replace(inspect.getsource(Wrapper), "")  # which passes on
    assert left.count("    def allocate(") == 1, "the protocol"


def test_a_planner_of_the_old_interface_is_told_the_new_one(tmp_path):
    """It was a TypeError of seven missing arguments."""
    path = tmp_path / "old.py"
    path.write_text(
        "class Mine:\n    name = 'mine'\n\n"
        "    def plan(self, trace, budget_bytes, machine, seed=0):\n        return None\n"
    )
    error, _ = asked(f"{path}:Mine")
    assert isinstance(error, ConfigError)
    assert error.code == "OOC-108"
    assert "one question" in str(error)


def test_errors_cross_over_as_what_they_are():
    error, _ = error_of(error_data(Infeasible("no", minimum_bytes=7, witness_call="f"), ""))
    assert isinstance(error, Infeasible)
    assert (error.minimum_bytes, error.needs, error.what) == (7, "device", "no")
    assert error.witness_call == "f"
    of_host = Infeasible("no", minimum_bytes=None, needs="host")
    assert vars(error_of(error_data(of_host, ""))[0]) == vars(of_host)
    full = OutOfDeviceMemory("full", granted_bytes=3, largest_bytes=2, arena="|##|", where="x")
    error, _ = error_of(error_data(full, ""))
    assert isinstance(error, OutOfDeviceMemory)
    assert str(error) == str(full)
    assert isinstance(error_of(error_data(ConfigError("x", code="OOC-102"), ""))[0], ConfigError)
    assert repr(error_of(error_data(ZeroDivisionError("x"), ""))[0]) == "ZeroDivisionError('x')"


@pytest.mark.parametrize("needs", ["device", "process", "", None])
def test_only_too_small_a_host_excuses_a_refusal_that_names_no_budget(needs):
    told = {"kind": "Infeasible", "what": "no", "minimum_bytes": None, "needs": needs}
    assert type(error_of(told)[0]) is TypeError
    assert error_of({**told, "needs": "host"})[0].minimum_bytes is None


@pytest.mark.parametrize("kind", ["Exit", "Skipped", "SystemExit", "StopIteration", "eval", "", 3])
def test_no_word_of_a_submission_ends_or_skips_a_test(kind):
    error, _ = error_of({"kind": kind, "what": "all passed", "line": "all passed"})
    assert type(error).__name__ == "OwnError"


def test_no_word_of_a_submission_moves_the_cursor():
    error, line = error_of({"kind": "ValueError", "what": "x\x1b[2J\x07y", "line": "a\r\nb\x9b"})
    assert (str(error), line) == ("x?[2J??y".replace("??", "?"), "a? b?")


def test_a_message_keeps_to_its_limits():
    (read, write), (_, unused) = os.pipe(), os.pipe()
    line = Line(read, unused, 100)
    for text, refused in (
        (b"\0\0\1\0", BadMessage), (b"\0\0\0\2[]", BadMessage),
        (b'\0\0\0\x09{"a":NaN}', BadMessage), (b"\0\0\0\2\xff\xff", BadMessage),
        (b"\0\0\0\4{}", OutOfTime),
    ):  # fmt: skip
        os.write(write, text)
        patience_s = 0.2 if refused is OutOfTime else 2  # the machine may be busy
        with pytest.raises(refused):
            line.receive(time.monotonic() + patience_s)
    os.close(write)
    with pytest.raises(EOFError):
        line.receive(time.monotonic() + 1)


def test_an_honest_planner_keeps_the_laws_from_afar(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(LRU_STUB + SOLUTION)
    with Interview(f"{path}:Solved", "planner", 60) as interview:
        planner = RemotePlanner(interview)
        assert check_planner(planner, examples=2, laws=QUICK_LAWS, time_limit_s=60) == 2
        assert interview.processes == 1


def test_harm_to_its_input_is_told_by_its_law(tmp_path):
    path = tmp_path / "own.py"
    harm = (
        "    def plan(self, question):\n"
        "        object.__setattr__(question.trace.variables[0], 'name', 'mine')\n"
        "        return super().plan(question)\n"
    )
    path.write_text(f"{LRU_STUB}{SOLUTION}\n\nclass Mine(Solved):\n{harm}")
    with Interview(f"{path}:Mine", "planner", 60) as interview:
        planner = RemotePlanner(interview)
        assert check_planner(planner, examples=1, laws=("plans are legal",)) == 1
        with pytest.raises(PlannerFailure, match="changes the trace or the machine"):
            check_planner(planner, examples=1, laws=("planning is pure",))


# Layers


#: As in a container, whose system allows no namespaces.
IN_CONTAINER = LAYERS - {"namespaces"}
CAGES = [LAYERS, IN_CONTAINER]


@pytest.mark.parametrize(
    ("allowed", "caged"),
    [(LAYERS, True), pytest.param(IN_CONTAINER, True, marks=pytest.mark.slow),
     ({"namespaces", "landlock"}, False),
     pytest.param({"system-calls"}, False, marks=pytest.mark.slow),
     pytest.param((), False, marks=pytest.mark.slow)],
)  # fmt: skip
def test_an_honest_planner_works_in_a_cage_and_without_and_is_said_to_be_trusted(
    allowed, caged, tmp_path
):
    path = tmp_path / "own.py"
    path.write_text(LRU_STUB + SOLUTION)
    with Interview(f"{path}:Solved", "planner", 60, frozenset(allowed)) as interview:
        plan = RemotePlanner(interview).plan(Question(small_step(), 100, MACHINE))
        applied = set(interview.applied)
    assert plan.makespan_us > 0
    assert {"limits", "subreaper"} <= applied
    assert is_cage(applied) or not caged
    assert applied <= {"limits", "subreaper", *(allowed if caged else ())}
    assert ("TRUSTED" in in_words(sorted(applied))) != is_cage(applied)


#: What is done to a file of the teacher's, by its path.
DEEDS = (
    "open(there).read()", "open(there, 'a')", "os.listdir(os.path.dirname(there))",
    "os.chmod(there, 0)", "os.truncate(there, 0)", "os.utime(there, (1, 1))",
    "os.setxattr(there, 'user.x', b'1')", "os.chown(there, os.getuid(), os.getgid())",
    "os.chmod(there, 0, follow_symlinks=False)", "os.rename(there, there + '2')",
    "import numpy; f = os.open(numpy.__file__, 0); os.fchmod(f, os.fstat(f).st_mode & 0o777)",
    "os.link(there, 'mine')", "os.mkdir(there + '3')", "os.remove(there)",
)  # fmt: skip


@pytest.mark.parametrize("allowed", CAGES, ids=["all", "in a container"])
def test_the_teachers_folder_is_neither_read_nor_changed(allowed, tmp_path):
    there = tmp_path / "solution.txt"
    there.write_text(SECRET)
    before = there.stat()
    body = (
        f"there, done = {str(there)!r}, []\nfor deed in {DEEDS!r}:\n    try: exec(deed)\n"
        "    except (OSError, NotImplementedError): continue\n    done.append(deed)\n"
        "raise ValueError(done)"
    )
    error, applied = asked(submitted(tmp_path, body), allowed=allowed)
    if not is_cage(applied):
        pytest.skip("this system has no cage")
    assert str(error) == "[]"
    assert there.stat() == before


def test_the_teachers_environment_is_not_to_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHERS_TOKEN", SECRET)
    body = (
        "found = repr(dict(os.environ))\nfor place in ('/proc/%d/environ' % os.getppid(), "
        "'/proc/1/environ', '/proc/self/environ'):\n    try:\n"
        "        found += open(place).read()\n    except OSError: pass\nraise ValueError(found)"
    )
    error, _ = asked(submitted(tmp_path, body))
    assert "OPENBLAS_NUM_THREADS" in str(error)
    assert SECRET not in str(error)
    assert "TEACHERS_TOKEN" not in str(error)


@pytest.mark.parametrize(
    "allowed", [LAYERS, pytest.param(IN_CONTAINER, marks=pytest.mark.slow)],
    ids=["all", "in a container"],
)  # fmt: skip
def test_no_process_is_started_or_signalled(allowed, tmp_path):
    for deed in ("os.fork()", "os.kill(os.getppid(), 0)", "os.execv('/bin/true', ['true'])"):
        error, applied = asked(submitted(tmp_path, deed), allowed=allowed)
        assert "system-calls" in applied
        assert isinstance(error, OSError), (deed, error)


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open({path!r}, 'w').write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists({path!r}): time.sleep(0.01)
"""


def test_a_daemon_ends_with_the_question_where_no_layer_forbids_it(tmp_path):
    path = tmp_path / "daemon"
    with Interview(
        submitted(tmp_path, DAEMON.format(path=str(path)).strip()), "planner", 20, frozenset()
    ) as interview:
        with pytest.raises(Infeasible):
            RemotePlanner(interview).plan(Question(small_step(), 100, MACHINE))
        daemon = int(read_when_there(path))
        assert is_running(daemon)
    assert not is_running(daemon)


@pytest.mark.parametrize("allowed", [LAYERS, frozenset()], ids=["all", "none"])
def test_a_process_ends_when_its_grader_is_killed(allowed, tmp_path):
    submission = submitted(tmp_path, "time.sleep(600)")
    grader = (
        "from pathlib import Path\nfrom ooctrain.course.remote import RemotePlanner\n"
        "from ooctrain.course.interview import Interview\n"
        f"interview = Interview({submission!r}, 'planner', 600, frozenset({sorted(allowed)}))\n"
        "planner = RemotePlanner(interview)\n"
        f"Path({str(tmp_path / 'cage')!r}).write_text("
        "f'{interview._process._process.pid} {interview._process._folder.name}')\n"
        "import random\nfrom ooctrain.testing.check_planner import random_case\n"
        "from ooctrain.sched.planning.question import Question\n"
        "case = random_case(random.Random(3))\n"
        "planner.plan(Question(case.trace, 100, case.machine))"
    )
    process = subprocess.Popen([sys.executable, "-c", grader])
    cage, folder = read_when_there(tmp_path / "cage").split()
    cage = int(cage)
    inside = [int(name) for name in Path(f"/proc/{cage}/task/{cage}/children").read_text().split()]
    assert inside
    process.kill()
    process.wait()
    for _ in range(200):
        if not any(map(is_running, [cage, *inside])):
            assert not os.path.exists(folder)
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


def test_nothing_is_left_of_a_session(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for body in ("pass", "os._exit(3)"):
        folder = None
        with Interview(submitted(tmp_path, body), "planner", 20) as interview:
            planner = RemotePlanner(interview)
            folder = interview._process._folder.name
            with pytest.raises((Infeasible, NoAnswer)):
                planner.plan(Question(small_step(), 100, MACHINE))
        assert not os.path.exists(folder)
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_that_ran_out_of_memory_is_asked_no_more_until_the_time_begins_again(tmp_path):
    with Interview(submitted(tmp_path, "raise MemoryError"), "planner", 20) as interview:
        planner = RemotePlanner(interview)
        for _ in range(2):
            interview.begin()
            with pytest.raises(MemoryError):
                planner.plan(Question(small_step(), 100, MACHINE))
            with pytest.raises(NoAnswer, match="out of memory before: 4 GiB"):
                planner.plan(Question(small_step(), 100, MACHINE))


def test_a_process_that_ended_is_asked_no_more_until_the_time_begins_again(tmp_path):
    with Interview(submitted(tmp_path, "os._exit(3)"), "planner", 20) as interview:
        planner = RemotePlanner(interview)
        for _ in range(3):
            with pytest.raises(NoAnswer, match="status 3"):
                planner.plan(Question(small_step(), 100, MACHINE))
        assert interview.processes == 1
        interview.begin()
        with pytest.raises(NoAnswer, match="status 3"):
            planner.plan(Question(small_step(), 100, MACHINE))
        assert interview.processes == 2


# Allocators


def fit_file(folder, body="", name="own.py"):
    path = folder / name
    path.write_text(f"{FIT_STUB}{FITTING}\n\nclass Mine(Solved):\n    name = 'mine'\n{body}\n")
    return f"{path}:Mine"


def test_an_allocator_there_is_one_here(tmp_path):
    with Interview(fit_file(tmp_path), "allocator", 60) as interview:
        make = AllocatorsOf(interview)
        choice = choose_allocator(make, 1 << 16, binding=False)
        assert (choice.granule.size_bytes, choice.budget_bytes) == (512, 1 << 16)
        arena = choice.make(DryMemory(1 << 16))
        first, second = arena.allocate(1000, "a"), arena.allocate(2000, "b")
        assert second.address == first.address + 1024
        with pytest.raises(OutOfDeviceMemory) as refused:
            arena.allocate(1 << 16, "c")
        assert refused.value.largest_bytes == arena.stats().largest_bytes
        arena.free(first)
        assert arena.allocate(512).address == first.address
        assert [block.tag for block in arena.close()] == ["b", ""]
        assert find_failure(make, 1, 0, ("strict",)) is None


@pytest.mark.slow
def test_an_allocator_there_keeps_the_laws_on_every_back_end(tmp_path):
    with Interview(fit_file(tmp_path), "allocator", 60) as interview:
        assert find_failure(AllocatorsOf(interview), 1, 0, ("strict", "memfd", "plain")) is None


LATER = """
    def free(self, block, after=()):
        super().free(block)
        self.last_uses = [*getattr(self, "last_uses", ()), *after]

    def allocate(self, nbytes, tag=""):
        for event in reversed(getattr(self, "last_uses", ())):
            event.wait()
        return super().allocate(nbytes, tag)
"""


def test_an_allocator_may_wait_for_a_last_use_when_it_is_asked_for_something_else(tmp_path):
    waited = []

    class Use:
        def __init__(self, name):
            self.name = name

        def wait(self):
            waited.append(self.name)

    with Interview(fit_file(tmp_path, LATER), "allocator", 20) as interview:
        arena = AllocatorsOf(interview)(DryMemory(1 << 16))
        blocks = [arena.allocate(512) for _ in range(3)]
        for block, names in zip(blocks, (["a", "b"], [], ["c"]), strict=True):
            arena.free(block, [Use(name) for name in names])
        arena.allocate(512)
    assert waited == ["c", "b", "a"]


#: Where an allocator that sets out to harm says that its blocks lie, or how large they are.
HARM = {
    "nowhere else": "pass",
    "at nothing": "block.address = 64",
    "in the midst of Python": "block.address = id(None)",
    "beyond all memory": "block.address = 1 << 80",
    "at no number": "block.address = float('nan')",
    "behind its arena": "block.address += 1 << 20",
    "before its arena": "block.address -= 1 << 12",
    "with less than nothing": "block.granted_bytes = -512",
    "no block": "block = 3",
}


@pytest.mark.parametrize(
    "harm",
    [pytest.param(h, marks=[] if h in ("nowhere else", "in the midst of Python") else
                  [pytest.mark.slow]) for h in HARM],
)  # fmt: skip
def test_where_a_block_lies_is_looked_at_before_anybody_writes_there(harm, tmp_path):
    body = (
        "    def allocate(self, nbytes, tag=''):\n"
        f"        block = super().allocate(nbytes, tag)\n        {HARM[harm]}\n"
        "        return block\n"
    )
    with Interview(fit_file(tmp_path, body), "allocator", 60) as interview:
        make = AllocatorsOf(interview)
        failure = find_failure(make, 2, 0, ("memfd", "plain"), shortest=False)
        assert (failure is None) == (harm == "nowhere else")
        assert interview.fault == ""


RANGED = """
from ooctrain.alloc.base import Books, describe
from ooctrain.units import Granule


class Pages:
    name = "pages"
    granule = Granule(4096)

    def __init__(self, memory):
        self.memory, self.budget_bytes = memory, memory.size_bytes
        self.books, self.free_pages = Books("pages", self.budget_bytes), []
        self.free_pages = list(range(memory.size_bytes // 4096))[::-1]
        self.held = {}

    def reserve(self, nbytes, tag=""):
        size = self.books.checked_size(nbytes)
        whole = -(-size // self.memory.granularity_bytes) * self.memory.granularity_bytes
        return self.books.open(self.memory.reserve(whole), nbytes, 0, tag)
"""


def test_a_memory_there_is_the_memory_here(tmp_path):
    path = tmp_path / "own.py"
    rest = "".join(
        f"\n    def {name}(self, *values):\n        return {value}\n"
        for name, value in {
            "allocate": None,
            "free": None,
            "check": None,
            "stats": "self.books.stats()",
            "snapshot": "{}",
            "close": "self.books.close()",
        }.items()
    )
    path.write_text(RANGED + rest)
    seen = []

    class Memory(DryMemory):
        def reserve(self, size_bytes):
            seen.append(size_bytes)
            return super().reserve(size_bytes)

    with Interview(f"{path}:Pages", "allocator", 20) as interview:
        arena = AllocatorsOf(interview)(Memory(1 << 16))
        assert arena.granule.ranges
        block = arena.reserve(5000, "x")
        assert (block.granted_bytes, block.tag, seen) == (0, "x", [8192])
        assert block.address >= 1 << 20
