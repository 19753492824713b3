"""A filter of system calls: the kernel refuses those that a planner never needs.

Starting a process, signalling another one, reading its memory, changing a file's owner, mode or
times, opening a socket and asking for other rights each take a system call. With the filter in
force these calls fail with EPERM (starting a thread is still allowed), and the filter cannot be
removed. It needs no privilege. Sources: seccomp(2), linux/seccomp.h, linux/filter.h;
arch/x86/entry/syscalls and asm-generic/unistd.h for the numbers. Read next: `landlock.py`,
`namespaces.py`.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence

#: {call: (number on x86_64, number on aarch64)}; None: the machine has no such call.
REFUSED: Mapping[str, tuple[int | None, int | None]] = {
    # other processes
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "kcmp": (312, 272), "setsid": (112, 157), "setpgid": (109, 154), "setpriority": (141, 140),
    # what is known of a file: Landlock leaves it to its owner, who is the grading user
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "truncate": (76, 45), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    # the network and other ways out
    "socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    # other rights, other roots, the kernel itself
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "setuid": (105, 146),
    "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147),
    "setresgid": (119, 149), "setgroups": (116, 159), "setrlimit": (160, 164), "capset": (126, 91),
    "personality": (135, 92), "reboot": (169, 142), "swapon": (167, 224), "acct": (163, 89),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "syslog": (103, 116),
    "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE_THREAD = 0x10000
_X32 = 0x40000000
# Opcodes: load a word; jump if equal, if at least, if a bit is set; return.
_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_SET_SECCOMP, _MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]  # opcode, jump if true, jump if not, operand


def refuse_system_calls() -> bool:
    """Puts the filter in force; whether that worked. New privileges must be refused before."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES:
        return False
    program = list(_program(*_MACHINES[machine]))
    return _install(program)


def _program(column: int, arch: int) -> Iterator[Instruction]:
    yield (_LOAD, 0, 0, _ARCH)
    yield (_EQUAL, 1, 0, arch)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER)
    if column == 0:  # x86_64 has a second table of calls behind this number
        yield (_AT_LEAST, 0, 1, _X32)
        yield (_RETURN, 0, 0, _FAIL | errno.EPERM)
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            yield (_EQUAL, 0, 1, number)
            yield (_RETURN, 0, 0, _FAIL | errno.EPERM)
    # Its flags lie behind a pointer; where it is missing, the C library takes clone.
    yield (_EQUAL, 0, 1, _CLONE3[column])
    yield (_RETURN, 0, 0, _FAIL | errno.ENOSYS)
    yield (_EQUAL, 0, 4, _CLONE[column])
    yield (_LOAD, 0, 0, _ARGUMENTS)
    yield (_BITS, 1, 0, _CLONE_THREAD)
    yield (_RETURN, 0, 0, _FAIL | errno.EPERM)
    yield (_RETURN, 0, 0, _ALLOW)
    # prlimit may ask what the limits are; its third argument, the new ones, is not null.
    yield (_EQUAL, 0, 5, _PRLIMIT[column])
    yield (_LOAD, 0, 0, _ARGUMENTS + 16)
    yield (_EQUAL, 0, 2, 0)
    yield (_LOAD, 0, 0, _ARGUMENTS + 20)
    yield (_EQUAL, 1, 0, 0)
    yield (_RETURN, 0, 0, _FAIL | errno.EPERM)
    yield (_RETURN, 0, 0, _ALLOW)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _install(program: Sequence[Instruction]) -> bool:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    whole = _Program(len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    mode, none = ctypes.c_ulong(_MODE_FILTER), ctypes.c_ulong(0)
    return libc.prctl(_SET_SECCOMP, mode, ctypes.byref(whole), none, none) == 0
