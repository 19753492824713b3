"""What each layer of the cage asks of the kernel, call by call, whatever this machine allows.

Attacks from outside (`test_grade_attacks.py`) try a few ways out, on kernels that have all layers.
Here the filter of system calls is run on every call that there is, by a machine for the kernel's
filter language, and the other layers run over a C library that only writes down what it is asked.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path

import pytest

from ooctrain.course.cage import landlock, namespaces, process_limits, system_calls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")

ALLOW, KILL, EPERM, ENOSYS = "allow", "kill", errno.EPERM, errno.ENOSYS
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
THREAD, OTHER_FLAGS = 0x10000, 0x11


def judged(program, arch, number, arguments=(0,) * 6):
    """What a classic BPF program answers for a call (linux/filter.h, linux/seccomp.h)."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments)
    place = word = 0
    while True:
        code, if_true, if_not, operand = program[place]
        place += 1
        if code == 0x20:
            assert operand % 4 == 0
            (word,) = struct.unpack_from("<I", data, operand)
        elif code == 0x06:
            kind, value = operand & 0xFFFF0000, operand & 0xFFFF
            names = {0x7FFF0000: ALLOW, 0x80000000: KILL}
            return value if kind == 0x00050000 else names[kind]
        else:
            holds = {0x15: word == operand, 0x35: word >= operand, 0x45: bool(word & operand)}
            place += if_true if holds[code] else if_not


@pytest.fixture
def installed(monkeypatch):
    """The program that is handed to the kernel of such a machine; None: none is."""

    def program(machine, answer=0):
        handed = []

        class Libc:
            def prctl(self, option, mode, whole, *rest):
                length, where = struct.unpack("H6xQ", bytes(whole._obj))
                assert (option, mode.value, [word.value for word in rest]) == (22, 2, [0, 0])
                handed.append(ctypes.string_at(where, 8 * length))
                return answer

        monkeypatch.setattr(ctypes, "CDLL", lambda name, **options: Libc())
        monkeypatch.setattr(platform, "machine", lambda: machine)
        assert system_calls.refuse_system_calls() == (bool(handed) and answer == 0)
        return list(struct.iter_unpack("HBBI", handed[0])) if handed else None

    return program


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_what_is_listed_and_nothing_else(machine, installed):
    column, arch = MACHINES[machine]
    program = installed(machine)
    listed = {numbers[column] for numbers in system_calls.REFUSED.values()} - {None}
    clone, clone3, prlimit = {"x86_64": (56, 435, 302), "aarch64": (220, 435, 261)}[machine]
    assert len(listed) > 50
    assert not listed & {clone, clone3, prlimit}
    for number in {*range(600)} - {clone, clone3, prlimit}:
        for arguments in ((0,) * 6, (2**64 - 1,) * 6):
            answer = judged(program, arch, number, arguments)
            assert answer == (EPERM if number in listed else ALLOW), number
    assert judged(program, arch, clone3) == ENOSYS
    for flags, answer in ((THREAD, ALLOW), (THREAD | OTHER_FLAGS, ALLOW), (OTHER_FLAGS, EPERM)):
        assert judged(program, arch, clone, (flags, 0, 0, 0, 0, 0)) == answer
    for limits, answer in ((0, ALLOW), (1, EPERM), (1 << 32, EPERM), (2**64 - 1, EPERM)):
        assert judged(program, arch, prlimit, (7, 7, limits, 7, 7, 7)) == answer
    for other in (arch ^ 1, 0x40000003):
        assert judged(program, other, 0) == KILL
    for number in (0x40000000, 0x40000001):  # the second table of x86_64
        answer = judged(program, arch, number)
        assert answer == (EPERM if machine == "x86_64" else ALLOW)


def test_the_filter_is_none_on_machines_whose_numbers_are_not_known(installed):
    assert installed("riscv64") is None
    assert installed("x86_64", answer=-1) is not None, "the kernel says no"


class Written:
    """A C library that writes down what it is asked; `answers` are its returns by name."""

    def __init__(self, **answers):
        self.calls, self.answers = [], answers

    def __getattr__(self, name):
        def call(*arguments):
            plain = tuple(getattr(word, "value", word) for word in arguments)
            self.calls.append((name, *plain))
            answer = self.answers.get(name, 0)
            return answer(*plain) if callable(answer) else answer

        return call


@pytest.fixture
def library(monkeypatch):
    def put(**answers):
        written = Written(**answers)
        monkeypatch.setattr(ctypes, "CDLL", lambda name, **options: written)
        return written

    before = os.getcwd()
    yield put
    os.chdir(before)


def test_a_root_of_its_own_shows_what_is_listed_read_only(tmp_path, library, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "statvfs", lambda path: type("S", (), {"f_flag": 2 | 1024})())
    shown, root = tmp_path / "shown", tmp_path / "root"
    for folder in (shown / "seen", shown / "secret" / "given", root):
        folder.mkdir(parents=True)
    (shown / "secret" / "answers.txt").write_text("no")
    (shown / "one.txt").write_text("a file")
    (tmp_path / "link").symlink_to(shown)
    readable = [str(shown), str(shown / "secret" / "given"), str(tmp_path / "link")]
    for path in readable[:2]:
        os.makedirs(f"{root}{path}", exist_ok=True)
    (root / str(shown)[1:] / "secret").mkdir(exist_ok=True)
    written, home = library(), str(tmp_path / "home")
    os.mkdir(home)
    namespaces.see_only([*readable, "/dev/null"], [str(shown / "secret")], str(root), home)
    inside = [f"{root}{path}".encode() for path in (*readable, "/dev/null")]
    bind, again = 4096 | 16384, 32 | 4096 | 1 | 2 | 2 | 1024
    secret = f"{root}{shown}/secret".encode()
    assert written.calls == [
        ("unshare", 0x20000),
        ("mount", b"none", b"/", None, 16384 | 1 << 18, None),
        (
            "mount",
            b"tmpfs",
            str(root).encode(),
            b"tmpfs",
            2 | 4,
            b"size=64m,nr_inodes=4096,mode=755",
        ),
        ("mount", readable[0].encode(), inside[0], None, bind, None),
        ("mount", None, inside[0], None, again | 4, None),
        ("mount", readable[1].encode(), inside[1], None, bind, None),
        ("mount", None, inside[1], None, again | 4, None),
        ("mount", b"/dev/null", inside[3], None, bind, None),
        ("mount", None, inside[3], None, again, None),
        ("mount", b"tmpfs", secret, b"tmpfs", 2 | 4, b"size=64k"),
        ("mount", readable[1].encode(), inside[1], None, bind, None),
        ("mount", None, inside[1], None, again | 4, None),
        ("mount", None, secret, None, 32 | 1 | 2 | 4, None),
        ("syscall", 155, b".", b"."),
        ("umount2", b".", 2),
    ]
    assert os.path.islink(f"{root}{tmp_path}/link"), "a link is shown as a link"
    assert os.getcwd() == home
    assert os.path.isdir(f"{root}{home}")


@pytest.mark.parametrize("fails", ["unshare", "mount", "syscall", "umount2"])
def test_a_root_that_cannot_be_made_is_an_error(fails, tmp_path, library, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    library(**{fails: 1})
    with pytest.raises(OSError):
        namespaces.see_only([], [], str(tmp_path), "/home-of-it")


@pytest.mark.parametrize("version", [-1, 1, 2, 3, 4, 5, 6, 9])
def test_landlock_is_asked_for_all_that_a_version_knows(version, tmp_path, library):
    place = os.open(tmp_path, os.O_RDONLY)
    rights, opened = [], []

    def syscall(number, *arguments):
        if number == 444:
            if arguments[0] is None:
                assert arguments == (None, 0, 1)
                return version
            opened.append(struct.unpack(f"{arguments[1] // 8}Q", arguments[0]))
            assert arguments[2] == 0
            assert len(arguments[0]) == arguments[1]
            return place
        if number == 445:
            allowed, descriptor = struct.unpack("=Qi", arguments[2])
            assert arguments[:2] == (place, 1)
            assert arguments[3] == 0
            rights.append((os.readlink(f"/proc/self/fd/{descriptor}"), allowed))
            return 0
        assert (number, *arguments) == (446, place, 0)
        return 0

    for name in ("seen", "secret", "secret/deep", "home"):
        (tmp_path / name).mkdir(exist_ok=True)
    for name in ("secret/open.txt", "secret/deep/no.txt"):
        (tmp_path / name).write_text("x")
    library(syscall=syscall)
    here = str(tmp_path)
    readable = [f"{here}/seen", f"{here}/secret", f"{here}/gone", f"{here}/secret/open.txt"]
    worked = landlock.see_only(readable, [f"{here}/secret/deep"], f"{here}/home")
    if version < 1:
        assert not worked
        assert not opened
        os.close(place)
        return
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    words = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2}.get(version, 3)
    assert worked
    assert opened == [((1 << bits) - 1, 3, 3)[:words]]
    read_file, read = 1 << 2, 1 << 2 | 1 << 3
    assert rights == [
        (f"{here}/seen", read), (f"{here}/secret/open.txt", read_file),
        (f"{here}/secret/open.txt", read_file), (f"{here}/home", (1 << bits) - 2),
    ]  # fmt: skip
    with pytest.raises(OSError):
        os.close(place)  # it has been closed


@pytest.mark.parametrize("answers", [{446: 1}, {444: -1}])
def test_landlock_that_does_not_come_into_force_is_said(answers, tmp_path, library):
    place = os.open(tmp_path, os.O_RDONLY)

    def syscall(number, *arguments):
        if number == 444 and arguments[0] is None:
            return 3
        return answers.get(number, place if number == 444 else 0)

    library(syscall=syscall)
    assert not landlock.see_only([], [], str(tmp_path))


def test_all_capabilities_are_given_up(library):
    seen = []

    def capset(header, data):
        seen.append((list(header), list(data)))
        return 0

    library(capset=capset)
    namespaces.give_up_capabilities()
    assert seen == [([0x20080522, 0], [0] * 6)]


@pytest.mark.parametrize("refused", [False, True])
def test_namespaces_are_those_of_users_processes_network_and_memory(refused, library, monkeypatch):
    files = {}
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "write_text", lambda path, text: files.update({str(path): text}))
    written = library(unshare=int(refused))
    assert namespaces.leave_the_others() is not refused
    users, processes, network, memory, names = 1 << 28, 1 << 29, 1 << 30, 1 << 27, 1 << 26
    assert written.calls == [("unshare", users | processes | network | memory | names)]
    user, group = os.geteuid(), os.getegid()
    assert files == ({} if refused else {
        "/proc/self/setgroups": "deny", "/proc/self/uid_map": f"{user} {user} 1",
        "/proc/self/gid_map": f"{group} {group} 1",
    })  # fmt: skip


@pytest.mark.parametrize("own", [resource.RLIM_INFINITY, 5])
def test_limits_are_hard_and_no_higher_than_those_that_there_are(own, monkeypatch):
    found, handlers = {}, {}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (own, own))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: found.update({kind: pair}))
    monkeypatch.setattr(signal, "signal", lambda number, what: handlers.update({number: what}))
    process_limits.limit(77)
    wanted = {
        resource.RLIMIT_AS: 4 << 30, resource.RLIMIT_DATA: 4 << 30, resource.RLIMIT_CPU: 77,
        resource.RLIMIT_FSIZE: 16 << 20, resource.RLIMIT_NOFILE: 64, resource.RLIMIT_NPROC: 16,
        resource.RLIMIT_CORE: 0, resource.RLIMIT_MEMLOCK: 0,
    }  # fmt: skip
    most = {kind: size if own == resource.RLIM_INFINITY else min(size, own)
            for kind, size in wanted.items()}  # fmt: skip
    assert found == {kind: (size, size) for kind, size in most.items()}
    assert handlers == {signal.SIGXFSZ: signal.SIG_IGN}


@pytest.mark.parametrize("answer", [0, -1])
def test_what_is_asked_of_the_process_itself(answer, library):
    written = library(prctl=answer)
    assert process_limits.adopt_descendants() == (answer == 0)
    process_limits.end_with_parent()
    assert process_limits.refuse_privileges() == (answer == 0)
    asked = [(36, 1), (1, signal.SIGKILL), (4, 0), (38, 1)]
    assert written.calls == [("prctl", *pair, 0, 0, 0) for pair in asked]
