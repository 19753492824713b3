"""Compilation in a process of its own, for one that has promised how much it will hold.

A compiler holds some hundred MiB that it never gives back. A process under `--memory` counts what
it holds before it plans; what is compiled afterwards would come on top. So a child compiles first,
and the process reads machine code from the disk. What has been compiled so is written down next to
that code, in a folder that is named by its sources: the child is started once for each module.
Numba keeps code by the path of its source and by Python's version, too, so each installation has
a list of its own. Read next: `promise.py`, `../layers/kernels/cpu/runtime/kernel_jit.py`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ooctrain.activity import doing
from ooctrain.engine.finished import interrupts_wait
from ooctrain.layers.kernels.cpu.conv.conv2d import modules_of_algorithms
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import cache_folder, require_compiler
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.sched.search.jit import search_folder
from ooctrain.step.op import Op

#: The functions of the planners' search, as one name among those of modules.
SEARCH = "ooctrain.sched.search.search"
#: What starts threads, and what pools over windows with gaps; both are imported late.
THREADS = "ooctrain.layers.kernels.cpu.runtime.call"
GAPS = "ooctrain.layers.kernels.cpu.dilated_pool"
PACKAGE = Path(__file__).parents[1]


def compile_apart(ops: Iterable[Op], *, searches: bool = False) -> None:
    """Sees that the cpu's kernels of operations are on the disk. A child that fails is not an
    error: then the process compiles for itself.

    Args:
        searches: whether a planner may search.

    Cost: the time of a start, and of compiling, for what no child has compiled yet.
    """
    require_compiler()
    lists = dict.fromkeys(modules_of(list(ops)), cache_folder() / list_name(PACKAGE))
    if searches:
        lists[SEARCH] = search_folder() / list_name(PACKAGE)
    new = [name for name, written in lists.items() if name not in _names(written)]
    if new and _compiled(new):
        for name in new:
            write_down([name], lists[name])


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


def modules_of(ops: Sequence[Op]) -> list[str]:
    """The modules of operations' kernels, and those that these import when they first run."""
    # A band brings no kernel of its own: it runs that of what it computes.
    ops = [*ops, *(op.computes for op in ops)]
    algorithms = {str(getattr(op, "algorithm", "")) for op in ops}
    late = [THREADS, *sorted(modules_of_algorithms(algorithms))]
    if any(getattr(op, "dilation", 1) not in (1, (1, 1)) for op in ops):
        late.append(GAPS)
    return [*TABLES["cpu"].modules(ops), *late]


def _names(written: Path) -> set[str]:
    return set(written.read_text(encoding="utf-8").split()) if written.exists() else set()


def _compiled(names: Sequence[str]) -> bool:
    """Whether a child has imported the modules, and made a search if they include it.

    It imports from where this process does, never (`-P`) from the folder in which it happens to be.
    """
    lines = [f"import {name}; print(flush=True)" for name in names]
    lines += [f"{SEARCH}.compile_search()"] if SEARCH in names else []
    command = [sys.executable, "-P", "-c", "\n".join(lines)]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = None
    with doing("compiling kernels, once", of=len(names)) as one_more, ExitStack() as ending:
        try:
            with interrupts_wait():
                child = ending.enter_context(
                    subprocess.Popen(command, env=here, stdout=subprocess.PIPE, text=True)
                )
            for _ in child.stdout or ():
                one_more()
        except BaseException:  # an interrupt, which the child has not got
            if child is not None:
                child.kill()
            raise
    return child.returncode == 0
