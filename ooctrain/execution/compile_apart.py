"""Compilation by other processes, as many as there are cores: what a step needs, before it runs.

A step names the kernels that it will run (`kernels_for`). Those that the disk does not hold are
compiled by children of this process, and read from there. LLVM compiles one function at a time in
a process, so a cold start is shorter by the number of cores. A process that has promised how much
it will hold (`--memory`) compiles nothing itself: a compiler holds some hundred MiB that it never
gives back. What has been compiled so is written down next to that code, in a folder that is named
by its sources, so children are started once. Numba keeps code by the path of its source and by
Python's version, too; each installation has a list of its own. Read next: `promise.py`,
`../layers/kernels/cpu/runtime/kernel_jit.py`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path

from ooctrain.activity import doing
from ooctrain.engine.finished import interrupts_wait
from ooctrain.layers.kernels.cpu.conv import conv2d
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import (
    Lazy,
    cache_folder,
    is_off,
    require_compiler,
)
from ooctrain.layers.kernels.cpu.runtime.reached import kernels_of, kernels_of_module, size_of
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.layers.pooling import PoolGeometry
from ooctrain.sched.search.jit import search_folder
from ooctrain.step.allowance import memory_limits, usable_cores
from ooctrain.step.op import Op
from ooctrain.units import MIB

#: The functions of the planners' search, as one name among those of kernels.
SEARCH = "ooctrain.sched.search.search:"
#: Its size beside those of `size_of`, by the time that it takes.
SEARCH_SIZE = 60_000
#: What starts threads, what copies, and what pools over windows with gaps; all are imported late.
ALWAYS = ("runtime.call", "runtime.fork_join", "runtime.copy")
GAPS = "dilated_pool"
ROOM = "ooctrain.layers.kernels.cpu"
PACKAGE = Path(__file__).parents[1]
#: A child takes this much memory, and the time of some kernels to start.
CHILD_BYTES, WORTH = 400 * MIB, 4
MOST_CHILDREN = 16
_CHILD = "from ooctrain.execution.compile_apart import serve; serve()"


def compile_apart(ops: Iterable[Op], *, searches: bool = False) -> None:
    """Sees that the cpu's kernels of operations are on the disk. A child that fails is not an
    error: then the process compiles for itself.

    Args:
        searches: whether a planner may search.

    Cost: the time of a start, and of compiling, for what no child has compiled yet.
    """
    compile_kernels(kernels_for(ops), searches=searches)


def compile_kernels(kernels: Sequence[Lazy], *, searches: bool = False) -> None:
    """The same for kernels, the first one first."""
    require_compiler()
    lists = {kernel.full_name: cache_folder() / list_name(PACKAGE) for kernel in kernels}
    sizes = {kernel.full_name: size_of(kernel) for kernel in kernels}
    if searches:
        lists = {SEARCH: search_folder() / list_name(PACKAGE), **lists}
        sizes[SEARCH] = SEARCH_SIZE
    known = {written: _names(written) for written in dict.fromkeys(lists.values())}
    new = [name for name, written in lists.items() if name not in known[written]]
    if new and _compiled(new, sizes):
        for written in known:
            write_down([name for name in new if lists[name] == written], written)


def compile_ahead(ops: Iterable[Op]) -> None:
    """The same, where that is quicker than to compile each kernel when its turn comes."""
    if is_off() or usable_cores() == 1:
        return
    known = _names(cache_folder() / list_name(PACKAGE))
    ops = list(ops)
    if sum(kernel.full_name not in known for kernel in kernels_for(ops)) >= WORTH:
        compile_apart(ops)


def kernels_for(ops: Iterable[Op]) -> list[Lazy]:
    """What the cpu needs to run operations, less what those need that bring their own kernels; the
    longest to compile first."""
    # A band brings no kernel of its own: it runs that of what it computes.
    each = dict.fromkeys(one for op in ops for one in (op, op.computes))
    found = [function for op in each for function in _functions(op)]
    always = [kernels_of_module(importlib.import_module(f"{ROOM}.{name}")) for name in ALWAYS]
    kernels = dict.fromkeys(kernel for group in (kernels_of(found), *always) for kernel in group)
    return sorted(kernels, key=size_of, reverse=True)


def _functions(op: Op) -> list[Callable]:
    """The functions that start an operation's kernels."""
    function = TABLES["cpu"].function_of(op)
    if function is None:
        return []
    found: list[Callable] = [function]
    part, algorithm = function.__name__, str(getattr(op, "algorithm", ""))
    if function.__module__ == conv2d.__name__ and conv2d.is_known(algorithm):
        part = "grad_input" if part == "transposed" else part
        found.append(conv2d.function_of(algorithm, part))
    geometry = getattr(op, "geometry", None)
    if isinstance(geometry, PoolGeometry) and geometry.dilation != (1, 1):
        found.append(getattr(importlib.import_module(f"{ROOM}.{GAPS}"), part))
    return found


def write_down(names: Iterable[str], written: Path) -> None:
    """Adds the names that are missing in a list."""
    known = _names(written)
    # Where nothing can be written, no code was kept, and Numba has warned of it.
    with suppress(OSError), written.open("a", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in names if name not in known)


def list_name(package: Path) -> str:
    """The file that names what has been compiled from this copy of the package by this Python."""
    installation = f"{package} {sys.implementation.cache_tag} {sys.abiflags}"
    digest = hashlib.sha1(installation.encode(), usedforsecurity=False)
    return f"compiled-apart-{digest.hexdigest()[:16]}.txt"


def _names(written: Path) -> set[str]:
    return set(written.read_text(encoding="utf-8").split()) if written.exists() else set()


def _compiled(names: Sequence[str], sizes: Mapping[str, int]) -> bool:
    """Whether children have compiled all; each gets the next one when it is done.

    They import from where this process does, never (`-P`) from the folder in which it happens to
    be.
    """
    left, count = deque(names), _children(len(names))
    whole = sum(sizes[name] for name in names)
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", _CHILD]
    children: list[subprocess.Popen[str]] = []

    def feed(child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(OSError):  # it has ended
            while left:
                name = left.popleft()
                child.stdin.write(f"{name}\n")
                child.stdin.flush()
                if not child.stdout.readline():
                    break
                one_more(sizes[name] / whole)
            child.stdin.close()

    with doing("compiling kernels, once", of=len(names)) as one_more, ExitStack() as closing:
        try:
            with interrupts_wait():
                for _ in range(count):
                    child = subprocess.Popen(
                        command, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                    )
                    children.append(closing.enter_context(child))
            pool = closing.enter_context(ThreadPoolExecutor(count))
            wait([pool.submit(feed, child) for child in children], return_when=FIRST_EXCEPTION)
        except BaseException:  # an interrupt, which children do not get
            for child in children:
                child.kill()
            raise
    return not any(child.returncode for child in children)


def _children(wanted: int) -> int:
    """How many may run at a time."""
    free = min((room.free_bytes for room in memory_limits()), default=MOST_CHILDREN * CHILD_BYTES)
    return max(1, min(usable_cores(), wanted, MOST_CHILDREN, free // CHILD_BYTES))


def serve() -> None:
    """What a child does: compiles what it reads the name of, and says when it is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent gets it, too, and ends it
    for line in sys.stdin:
        module, _, name = line.strip().partition(":")
        found = importlib.import_module(module)
        if name:
            getattr(found, name).load()
        else:
            found.compile_search()
        print(flush=True)
