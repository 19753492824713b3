"""What a process under a memory budget needs compiled is compiled by another one.

Read next: `ooctrain/execution/compile_apart.py`, `../properties/test_memory_promise.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ooctrain as oc
from ooctrain.api import step_trace
from ooctrain.execution import compile_apart as apart
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.rewrite.tile import tile
from ooctrain.rewrite.tile.on_rows import OnRows


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What children import; they compile nothing, and end with the status of `ends`."""
    asked = SimpleNamespace(names=[], paths=[], ends=0)

    @contextmanager
    def begin(command, **given):
        lines = [line.split() for line in command[-1].splitlines()]
        asked.names.append([words[1].strip(";") for words in lines if words[0] == "import"])
        asked.paths.append((given["env"]["PYTHONPATH"], "-P" in command))
        yield SimpleNamespace(stdout=[], returncode=asked.ends)

    monkeypatch.setattr(apart.subprocess, "Popen", begin)
    monkeypatch.setattr(apart, "search_folder", lambda: tmp_path)
    monkeypatch.setattr(apart, "cache_folder", lambda: tmp_path)
    return asked


def ops():
    return [call.op for call in step_trace("lenet", 2).calls]


def test_a_child_compiles_each_module_once(started):
    apart.compile_apart(ops())
    (first,) = started.names
    assert {*TABLES["cpu"].modules(ops()), apart.THREADS} < set(first)
    assert any("kernels.cpu.conv.conv_" in name for name in first)
    apart.compile_apart(ops(), searches=True)
    assert started.names[1:] == [[apart.SEARCH]]
    apart.compile_apart(ops(), searches=True)
    assert len(started.names) == 2


def test_a_child_that_fails_is_started_again(started):
    started.ends = 1
    apart.compile_apart(ops())
    apart.compile_apart(ops())
    assert len(started.names) == 2


def test_a_folder_that_cannot_be_written_is_no_error(started, monkeypatch, tmp_path):
    """Nothing is kept there, so another step asks again."""
    monkeypatch.setattr(apart, "cache_folder", lambda: tmp_path / "absent")
    apart.compile_apart(ops())
    apart.compile_apart(ops())
    assert len(started.names) == 2


#: Imports what starts threads after a child has; it may keep no code then, that is: compile none.
AFTER_A_CHILD = """
import importlib
from ooctrain.execution import compile_apart as apart
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import KeptCode

apart.compile_apart([])
KeptCode.save = None
importlib.import_module(apart.THREADS)
print(apart.__file__)
"""


def test_a_child_imports_from_where_its_parent_does(started):
    """A folder that happens to be the present one may hold another copy."""
    apart.compile_apart(ops())
    assert started.paths == [(os.pathsep.join(sys.path), True)]


def test_a_copy_of_the_package_asks_for_itself(started, monkeypatch, tmp_path):
    apart.compile_apart(ops())
    monkeypatch.setattr(apart, "PACKAGE", tmp_path / "another")
    apart.compile_apart(ops())
    assert len(started.names) == 2
    assert started.names[0] == started.names[1]


@pytest.mark.slow  # it compiles what starts threads, twice
def test_each_copy_of_the_package_is_compiled_for_itself(tmp_path):
    """Numba keeps code by the path of its source. A copy that found its modules in the list of
    another one compiled in the process, which then held more than it had promised; so it did where
    the child imported another copy, that of the folder in which it happened to be.
    """
    copy = tmp_path / "copy"
    shutil.copytree(apart.PACKAGE, copy / "ooctrain", ignore=shutil.ignore_patterns("__pycache__"))
    cache = {"OOCTRAIN_CACHE": str(tmp_path / "cache")}
    for source in (apart.PACKAGE.parent, copy):
        done = subprocess.run(
            [sys.executable, "-P", "-c", AFTER_A_CHILD], text=True, capture_output=True,
            env={**os.environ, **cache, "PYTHONPATH": str(source)}, check=False,
            cwd=apart.PACKAGE.parent,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert Path(done.stdout.strip()).is_relative_to(source)


def test_bands_are_compiled_as_what_they_compute():
    """A band says "" where it is of no convolution, and nothing is named so."""
    step = step_trace("lenet", 2)
    banded = tile(step, (2, 1), "conv1.fwd", "max_pool2d.fwd", halo="keep")
    on_rows = [call.op for call in banded.calls if isinstance(call.op, OnRows)]
    assert {op.algorithm for op in on_rows} == {"", "direct"}
    assert apart.modules_of(on_rows)
    assert {*apart.modules_of(ops())} <= {*apart.modules_of([call.op for call in banded.calls])}


def test_an_operation_of_ones_own_may_name_an_algorithm_of_its_own():
    mine = SimpleNamespace(algorithm="mine")
    mine.computes = mine
    assert apart.modules_of([mine]) == [apart.THREADS]


@pytest.mark.parametrize(("planner", "searches"), [("auto", True), ("belady", False)])
def test_who_promises_memory_has_it_compiled_first(started, planner, searches):
    """The search, too, where the planner searches."""
    model = oc.nn.Sequential(oc.nn.Conv2d(1, 2, 3), oc.nn.Flatten(), oc.nn.Linear(72, 3))
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1)
    trainer = oc.Trainer(model, optimizer=optimizer, memory="64GiB", planner=planner, threads=1)
    trainer.step(np.zeros((2, 1, 8, 8), np.float32), np.zeros(2, np.int64))
    names = {name for names in started.names for name in names}
    assert len(names) > 2
    assert (apart.SEARCH in names) == searches
