"""A grade cannot be forged: whatever a submission does, it is stopped, or its data alone counts.

Each attack is a planner of a few lines. It says by an error what it has got hold of, so that a
stopped one is told by the error that stopped it.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import time
from pathlib import Path

import pytest

import ooctrain
from ooctrain.cli import main
from ooctrain.course.isolation import is_cage
from ooctrain.course.measures import measured
from ooctrain.course.rubric import RUBRIC, Measure
from ooctrain.course.submitted import introduced

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")

MEASURE = Measure("lenet", 8, "50%", "v100-pcie", False, "lru", 1.05, 1.5, 4)
PACKAGE = Path(ooctrain.__file__).parent
LIMIT_S = 3

#: Finds what it is asked and where it answers, and answers by itself: raw bytes, or data.
FORGER = """
import json, os, struct, sys, time

def the_question():
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, dict) and "id" in value and "ask" in value:
                return value
        frame = frame.f_back

def say_raw(text):
    for descriptor in range(3, 4096):
        try:
            os.write(descriptor, struct.pack(">I", len(text)) + text)
        except OSError:
            pass

def say(answer):
    say_raw(json.dumps({"id": the_question()["id"], "answer": answer}).encode())
"""


def planner_file(folder, body, head=""):
    """A planner whose `plan` has this body."""
    path = folder / "own.py"
    path.write_text(
        f'{head}\nclass Mine:\n    name = "mine"\n\n'
        f"    def plan(self, question):\n"
        f"{textwrap.indent(textwrap.dedent(body).strip(), ' ' * 8)}\n"
    )
    return f"{path}:Mine"


def why(folder, body, head=""):
    """Why there are no points."""
    found = measured(MEASURE, planner_file(folder, body, head), LIMIT_S)
    assert found.ratio is None, "it got points"
    assert "\n" not in found.why
    return found.why


NOT_GIVEN = "is not given to a submission"
REFUSED = r"PermissionError|Operation not permitted|BlockingIOError"
NOT_THERE = r"FileNotFoundError|PermissionError|ModuleNotFoundError|OSError|ImportError"
NO_END = r"did not end within"
#: {attack: (body of `plan`, head of the file, how the reason begins to tell of it)}
ATTACKS = {
    # The library's planners.
    "a planner of the library under another name": (
        "pass", "from ooctrain.sched.planners.lru import Lru as Mine_", NOT_GIVEN),
    "a planner of the library, asked by name": (
        "from ooctrain.sched.planners.registry import get_planner\n"
        "return get_planner('lru').plan(question)", "", NOT_GIVEN),
    "the planning helpers of the library": (
        "import ooctrain as oc\nreturn oc.plan(question.trace, 100)", "", NOT_GIVEN),
    "a planner's source, by its path": (
        f"import importlib.util\nspec = importlib.util.spec_from_file_location('x', "
        f"{str(PACKAGE / 'sched' / 'planners' / 'lru.py')!r})\n"
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n"
        "return module.Lru().plan(question)", "", NOT_THERE),
    "all of the library, by its path": (
        f"import sys\nsys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "for name in [n for n in sys.modules if n.startswith('ooctrain')]: del sys.modules[name]\n"
        "from ooctrain.sched.planners.lru import Lru\n"
        "return Lru().plan(question)", "", r"ImportError|ModuleNotFound"),
    "the library's files, found by a walk": (
        "import os\nfound = [os.path.join(f, n) for top in ('/tmp', '/usr', '/root', '/home', "
        f"'/work', {str(PACKAGE.parent)!r}) for f, _, names in os.walk(top) for n in names "
        "if n == 'belady.py']\nraise ValueError(f'found {len(found)}')", "", "found 0 "),
    "another Python with another path": (
        "import subprocess, sys\nraise ValueError(subprocess.run([sys.executable, '-c', "
        "'print(6 * 7)'], capture_output=True).stdout)", "", NOT_THERE),
    # Other processes.
    "kill the grader": ("import os\nos.kill(os.getppid(), 9)\nraise ValueError('killed')", "",
                        REFUSED),
    # Signal 0 reaches whom any other would, and does no harm where nothing stops it.
    "signal everybody": ("import os\nos.kill(-1, 0)\nraise ValueError('reached')", "", REFUSED),
    "kill the process group": (
        "import os\nos.killpg(0, 9)\nraise ValueError('killed')", "", REFUSED),
    "a fork": ("import os\nraise ValueError(f'forked {os.fork()}')", "", REFUSED),
    "a fork bomb": (
        "import os, time\nfor number in range(200):\n    if not os.fork(): time.sleep(60)\n"
        "raise ValueError('200 processes')", "", REFUSED),
    "the grader's memory": (
        "import os\nopen(f'/proc/{os.getppid()}/mem', 'r+b')\nraise ValueError('open')", "",
        NOT_THERE),
    "the grader's memory, by its system call": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "done = libc.syscall(311, os.getppid(), 0, 0, 0, 0, 0)\n"
        "raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))", "", REFUSED),
    "trace the grader": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.ptrace(16, os.getppid(), 0, 0) == -1, 'attached'\n"
        "raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))", "", REFUSED),
    "a socket": (
        "import socket\nsocket.create_connection(('127.0.0.1', 1))", "", REFUSED),
    "other limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "raise LookupError('lifted')", "", r"PermissionError|ValueError"),
    "namespaces of its own": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.unshare(0x10000000) == -1, 'made'\n"
        "raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))", "", REFUSED),
    # Files.
    "the library's files, overwritten": (
        "import ooctrain.sched.simulate as module\nopen(module.__file__, 'w').write('')", "",
        r"PermissionError|Read-only|OSError"),
    "a link to what it may not see": (
        "import os\nos.symlink('/etc/passwd', 'link')\nraise ValueError(open('link').read())", "",
        NOT_THERE),
    "a device": ("raise ValueError(open('/dev/mem', 'rb').read(1))", "", NOT_THERE),
    # Too much.
    "output without end": (
        "for _ in range(300): print('x' * 100000)\nraise LookupError('printed')", "",
        r"File too large"),
    "infinite silence": ("import time\ntime.sleep(1e6)", "", NO_END),
    "infinite work": ("while True: pass", "", NO_END),
    "a file without end": (
        "with open('file', 'wb') as file:\n    for _ in range(80): file.write(bytes(1 << 20))\n"
        "raise LookupError('written')", "", r"File too large|No space"),
    "memory without end": ("import mmap\nmmap.mmap(-1, 5 << 30)", "", r"Cannot allocate|Memory"),
    "threads without end": (
        "import threading, time\nfor _ in range(500):\n"
        "    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n"
        "raise LookupError('500 threads')", "", r"can't start new thread"),
    # The end.
    "exit well": ("import os\nos._exit(0)", "", "ended with status 0"),
    "exit well, properly": (
        "import atexit, sys\natexit.register(print, 'passed')\nsys.exit(0)", "",
        "ended with status 0"),
    "exit by a signal": (
        "import ctypes\nctypes.string_at(0)", "", r"ended with status 139"),
    # The pipe.
    "an answer without end": (
        "say_raw(b'x' * 10)\nraise ValueError('said')", FORGER, r"no JSON"),
    "an answer of four gigabytes": (
        "for d in range(3, 4096):\n    try: os.write(d, b'\\xff' * 4)\n    except OSError: pass\n"
        "time.sleep(1e6)", FORGER, "an answer of 4294967295 bytes"),
    "half an answer": (
        "for d in range(3, 4096):\n    try: os.write(d, b'\\0\\0\\0\\xff{')\n"
        "    except OSError: pass\ntime.sleep(1e6)", FORGER, NO_END),
    "a huge answer": (
        "say({'plan': {'notes': 'x' * (8 << 20)}})\ntime.sleep(1e6)", FORGER, "are allowed"),
    "a deep answer": (
        "say_raw(b'{\"a\":' * 100000 + b'1' + b'}' * 100000)\ntime.sleep(1e6)", FORGER,
        "no JSON"),
    "an answer that is not a number": (
        "say_raw(b'{\"answer\": NaN}')\ntime.sleep(1e6)", FORGER, "no JSON"),
    "an answer before the question": (
        "pass", FORGER + "\nsay_raw(b'{\"id\": \"0\", \"answer\": {\"name\": \"mine\"}}')\n",
        "not asked"),
    "two answers": (
        "say({'plan': None})\nsay({'plan': None})\nreturn None", FORGER,
        r"not a plan|not asked|refused"),
    "a question to the grader": (
        "say_raw(json.dumps({'id': the_question()['id'], 'call': 'exit', 'values': []}).encode())\n"
        "time.sleep(1e6)", FORGER, "a call where none is awaited"),
    # What it finds in its own process.
    "patches of all that gc finds": (
        "import gc, types\nfor thing in gc.get_objects():\n"
        "    if isinstance(thing, type) and thing.__module__.startswith('ooctrain'):\n"
        "        for name in ('send', 'receive', 'check', 'verify', 'runtest'):\n"
        "            if name in vars(thing): setattr(thing, name, lambda *a, **k: None)\n"
        "return None", "", r"."),
    "a trace of all that runs": (
        "import sys\nsys.settrace(lambda *a: sys._getframe(1).f_locals.clear())\n"
        "sys.setprofile(lambda *a: None)\nreturn None", "", r"."),
}  # fmt: skip
#: One of each kind in every run; each of them starts a process.
QUICK = (
    "a planner's source, by its path", "a fork", "another Python with another path",
    "kill the grader", "a socket", "a link to what it may not see", "memory without end",
    "exit well", "a huge answer", "two answers", "patches of all that gc finds",
)  # fmt: skip


@pytest.fixture(scope="module")
def caged(tmp_path_factory):
    """Skips where the system has no layer that hides files, or none that keeps from processes."""
    submission = planner_file(tmp_path_factory.mktemp("probe"), "pass")
    applied = introduced(submission, "planner", 60).isolation
    if not is_cage(applied):
        pytest.skip(f"this system isolates by {applied} only")


@pytest.mark.usefixtures("caged")
@pytest.mark.parametrize(
    "attack",
    [pytest.param(a, marks=[] if a in QUICK else [pytest.mark.slow]) for a in ATTACKS],
)
def test_an_attack_is_stopped_and_told(attack, tmp_path):
    body, head, told = ATTACKS[attack]
    found = why(tmp_path, body, head)
    assert re.search(told, found), found


# Whole grades

TOML = """
kind = "planner"
submission = "mine.py:Mine"
pass_points = 75
time_limit_s = 20

[laws]
points = 40
examples = 1

[tests]
file = "test_name.py"

[tests.points]
test_it_has_a_name = 10
test_it_plans = 50
"""
TEST_FILE = """
import ooctrain as oc
from ooctrain.sched.verify import verify
from ooctrain.testing.check_planner import random_case
from ooctrain.testing.planner_cases import question_of
import random

CASE = random_case(random.Random(3))


def test_it_has_a_name(planner):
    assert planner.name == "mine"


def test_it_plans(planner):
    try:
        planner.plan(question_of(CASE, 1 << 40))
    except Exception:
        return  # a careless test, which takes every error for a refusal
    raise AssertionError("no refusal")
"""
NOTHING = """
class Mine:
    name = "mine"

    def plan(self, question):
        DEED
        return None
"""


def graded(folder, head="", deed="pass"):
    """(status, numbers, row by name) of a grade that is asked for by a process of its own."""
    for name, text in {
        RUBRIC: TOML, "test_name.py": TEST_FILE, "mine.py": head + NOTHING.replace("DEED", deed),
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    numbers = folder / "grade.json"
    status = main(["grade", str(folder), "--json", str(numbers)])
    found = json.loads(numbers.read_text())
    return status, found, {row["name"]: row for row in found["rows"]}


#: All that earned 70 to 100 of 100 points when tests and submission shared a process.
FORGERIES = """
import atexit, gc, glob, os, sys
try:
    import _pytest.python
    _pytest.python.Function.runtest = lambda self: None
    import ooctrain.testing.check_planner as laws
    laws.check_planner = lambda *a, **k: 1
    import ooctrain.sched.verify, ooctrain.sched.simulate
    ooctrain.sched.verify.verify = lambda *a, **k: None
except ImportError:
    pass
for thing in gc.get_objects():
    if type(thing).__name__ in ("_Outcomes", "Interview", "Function"):
        try:
            type(thing)._send = lambda *a, **k: None
            thing.fault = ""
        except Exception:
            pass
PASSED = ''.join('{"ends": "%s", "passed": true, "why": ""}\\n' % name for name in (
    "test_it_has_a_name", "test_it_plans", "test_planner[plans_are_legal]"))
for place in [a for a in sys.argv if os.path.isdir(os.path.dirname(a))] + glob.glob(
        "/tmp/ooctrain-*/*") + ["outcomes.jsonl", "grade.json"]:
    try:
        with open(place, "a") as file: file.write(PASSED)
    except OSError:
        pass
for descriptor in range(3, 4096):
    try: os.write(descriptor, PASSED.encode())
    except OSError: pass
"""


@pytest.mark.slow
def test_who_writes_into_all_that_is_open_cannot_even_be_loaded(tmp_path):
    status, found, _ = graded(tmp_path, FORGERIES)
    assert status == 4
    assert found["points"] == 0


@pytest.mark.slow
def test_what_earned_all_points_earns_none(tmp_path):
    status, found, rows = graded(tmp_path, FORGERIES.partition("for descriptor")[0])
    assert status == 4
    assert found["isolation"]
    assert rows["test_it_has_a_name"]["points"] == 10
    assert not any(row["points"] for row in rows.values() if row["kind"] == "law")


@pytest.mark.slow
def test_an_end_is_no_refusal_whatever_a_test_makes_of_it(tmp_path):
    status, _, rows = graded(tmp_path, deed="__import__('os')._exit(0)")
    assert status == 4
    assert rows["test_it_plans"]["points"] == 0
    assert "not tried" in rows["test_it_plans"]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["__import__('os').kill(__import__('os').getppid(), 9)",
                                  "__import__('os').killpg(0, 9)"])  # fmt: skip
def test_there_is_a_grade_whomever_it_kills(deed, tmp_path):
    status, _, rows = graded(tmp_path, deed=deed)
    assert status == 4
    assert len(rows) == 10
    assert not any(row["points"] for row in rows.values() if row["kind"] == "law")


@pytest.mark.slow
def test_nobody_rewrites_a_grade_that_is_written(tmp_path):
    daemon = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        while True:\n"
        f"            open({str(tmp_path / 'grade.json')!r}, 'w').write('100')\n"
        "            time.sleep(0.01)\n    os._exit(0)\n"
    )
    _, found, _ = graded(tmp_path, f"try:\n{textwrap.indent(daemon, '    ')}except OSError: pass\n")
    time.sleep(1)
    assert json.loads((tmp_path / "grade.json").read_text()) == found


@pytest.mark.slow
def test_a_submission_is_never_loaded_by_the_process_that_tests_it(tmp_path):
    seen = tmp_path / "seen"
    head = (
        f"try:\n    open({str(seen)!r}, 'a').write('here')\nexcept OSError:\n    pass\n"
        "import sys\nassert 'pytest' not in sys.modules\n"
    )
    _, _, rows = graded(tmp_path, head)
    assert rows["test_it_has_a_name"]["points"] == 10
    assert not seen.exists()
