"""Planted bugs of graders, on either side of the pipe to the submission's process.

A patch makes a grader with one bug. The submission's process runs a copy of the library's files, so
a bug on that side is a line changed in the copy. Read next: `test_grade_bugs.py`, with the laws
that find them.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import pytest
from zoo.planting import plant

from ooctrain.course import handed_in, hunt, interview, isolation, remote
from ooctrain.course.cage import wire
from ooctrain.testing import allocator_laws


@dataclass(frozen=True)
class Here:
    """A bug of the process that asks.

    Args:
        owner, name: of the function.
        piece, wrong: of its text.
        law: that it breaks.
    """

    owner: Any
    name: str
    piece: str
    wrong: str
    law: str

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        right = getattr(self.owner, self.name)
        planted = plant(patch, self.owner, self.name, self.piece, self.wrong)
        for module in list(sys.modules.values()):  # whoever has it by its name
            if getattr(module, self.name, None) is right:
                patch.setattr(module, self.name, planted)


@dataclass(frozen=True)
class There:
    """A bug of the process that is asked.

    Args:
        file: in `ooctrain/course/cage`.
        piece, wrong: of its text.
        law: that it breaks.
    """

    file: str
    piece: str
    wrong: str
    law: str

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        right = isolation.copy_interfaces
        text = (isolation.PACKAGE / "course" / "cage" / self.file).read_text()
        assert text.count(self.piece) == 1, self.piece  # here: an error in a cage is its end

        def copied(folder):
            right(folder)
            path = folder / "ooctrain" / "course" / "cage" / self.file
            path.write_text(text.replace(self.piece, self.wrong))

        patch.setattr(isolation, "copy_interfaces", copied)


BUGS = {
    "any length of an answer is read": Here(
        wire.Line, "receive", "size > self._most_bytes", "size > 1 << 32", "a message"),
    "an answer may be NaN": Here(
        wire.Line, "receive", ", parse_constant=_refuse", "", "a message"),
    "a deep answer is an error of the grader": Here(
        wire.Line, "receive", "(ValueError, RecursionError)", "ValueError", "a deep answer"),
    "an answer may be a list": Here(
        wire.Line, "receive", "not isinstance(found, dict)", "not found and found != []",
        "a message"),
    "the other side is waited for": Here(
        wire, "_wait", "left_s * 1000", "left_s * 1000 + 5000", "a message in time"),
    "any answer is the answer": Here(
        interview.Interview, "_reply", "reply.get(\"id\") != name", "False", "an early answer"),
    "a call is an answer": Here(
        interview.Interview, "_reply", "called is None or", "False and", "a question back"),
    "who has ended is asked again": Here(
        interview.Interview, "ask", "if self.fault:", "if False:", "ended"),
    "what was wrong is never forgotten": Here(
        interview.Interview, "begin", 'self.fault = ""', "pass", "ended"),
    "a interview leaves its process": Here(
        interview.Interview, "close", "self._process.end()", "pass", "left"),
    "a process sees the grader's environment": Here(
        interview, "_environment", "return {", "return {**os.environ, ", "environment"),
    "any error may be named": Here(
        wire, "error_of", "if kind in _PYTHON_S:", "if hasattr(builtins, str(kind)):", "a word"),
    "a refusal need name no budget": Here(
        wire, "error_of", 'data.get(key) is None and word.get("needs") == "host"',
        "data.get(key) is None", "a refusal"),
    "what a refusal needs is forgotten": Here(
        wire, "error_of", '"host" if word.get("needs") == "host" else "device"', '"device"',
        "an error"),
    "words may move the cursor": Here(
        wire, "printable", "or c.isprintable()", "or True", "a word"),
    "a claim may be no number": Here(
        remote, "plan_in_answer", "if not fits or not math.isfinite(makespan or 0):",
        "if False:", "taken apart"),
    "a step is taken for the one before": Here(
        remote.RemotePlanner, "plan", "and self._sent[0] is trace", "or self._sent[1] > 0",
        "laws"),
    "harm to the input goes unseen": Here(
        remote.RemotePlanner, "plan", 'if reply.get("changed"):', "if False:", "pure"),
    "a planner is among what is given": Here(
        isolation, "copy_interfaces", "for name in GIVEN:",
        "for name in (*GIVEN, 'sched/planners/keep_all.py'):", "given"),
    "the right arena comes behind the broken one": Here(
        hunt, "hunt_with", "order.shuffle(asked)", "pass", "a blind law counts"),
    "a twin gets numbers of its own": Here(
        hunt, "hunt_with", 'f"{seed}/{pair}"', 'f"{seed}/{pair}/{side}"', "a pair"),
    "what macOS adds is a submission": Here(
        handed_in, "is_noise", "        hidden\n        or ", "        ", "a folder of a Mac"),
    "the first law that breaks ends the list": Here(
        allocator_laws, "hold", "if verdicts is None or law in verdicts.tried:", "if True:",
        "laws apart"),
    "a false alarm costs its own arena": Here(
        hunt, "_hunted", "if alarms:", "if not alarms:", "a false alarm"),
    "orphans go elsewhere": There(
        "supervise.py", "if process_limits.adopt_descendants():", "if False:", "a daemon"),
    "only the child is ended": There(
        "supervise.py", "for process in _children():", "for process in ():", "a daemon"),
    "processes may be started": There(
        "system_calls.py", "yield (_BITS, 1, 0, _CLONE_THREAD)", "yield (_BITS, 1, 1, 0)",
        "processes"),
    "times of a file may be changed": There(
        "system_calls.py", '"utimensat": (280, 88), ', "", "a folder (landlock)"),
    "what lets processes be started is a cage": Here(
        isolation, "is_cage", '"system-calls" in applied and ', "", "no cage"),
    "Landlock lets all be seen": There(
        "landlock.py", "_allow(libc, rules, home, every & ~1)",
        '_allow(libc, rules, "/", every & ~1)', "a folder (landlock)"),
    "the new root has the old folders": There(
        "namespaces.py", "for path in readable:\n        show(path)",
        f"for path in (*readable, {tempfile.gettempdir()!r}):\n        show(path)",
        "a folder (namespaces)"),
    "memory is not limited": There(
        "process_limits.py",
        "(resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_DATA, MEMORY_BYTES),", "",
        "memory"),
    "files are not limited": There(
        "process_limits.py", "(resource.RLIMIT_FSIZE, FILE_BYTES), ", "", "output"),
    "the library's planners are not named": There(
        "given.py", "sys.meta_path.append(NotGiven)", "pass", "delegation"),
}  # fmt: skip
