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
from ooctrain.step.machine import specs_of
from ooctrain.step.op import Op, physical_shape

SCALARS = {"lr": 0.1, "step": 0, "seed": 0}


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What each child is given; they compile nothing, and end with the status of `ends`."""
    asked = SimpleNamespace(names=[], paths=[], ends=0, cores=1)

    @contextmanager
    def begin(command, **given):
        mine = []
        asked.names.append(mine)
        asked.paths.append((given["env"]["PYTHONPATH"], "-P" in command))
        ends = SimpleNamespace(write=lambda text: mine.append(text.strip()), flush=list, close=list)
        answers = SimpleNamespace(readline=lambda: "\n")
        yield SimpleNamespace(stdin=ends, stdout=answers, returncode=asked.ends)

    monkeypatch.setattr(apart.subprocess, "Popen", begin)
    monkeypatch.setattr(apart, "search_folder", lambda: tmp_path)
    monkeypatch.setattr(apart, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(apart, "usable_cores", lambda: asked.cores)
    return asked


def ops():
    return [call.op for call in step_trace("lenet", 2).calls]


def names(given):
    return {kernel.full_name for kernel in apart.kernels_for(given)}


def test_a_child_compiles_each_kernel_once(started):
    apart.compile_apart(ops())
    (first,) = started.names
    assert {*first} == names(ops())
    assert len(first) == len({*first})
    apart.compile_apart(ops(), searches=True)
    assert started.names[1:] == [[apart.SEARCH]]
    apart.compile_apart(ops(), searches=True)
    assert len(started.names) == 2


def test_as_many_children_as_cores_share_the_kernels(started):
    started.cores = 3
    apart.compile_ahead(ops())
    assert len(started.names) == 3
    shared = [name for child in started.names for name in child]
    assert len(shared) == len({*shared})
    assert {*shared} == names(ops())
    apart.compile_ahead(ops())
    assert len(started.names) == 3


def test_on_one_core_a_process_that_promises_nothing_compiles_for_itself(started):
    apart.compile_ahead(ops())
    assert not started.names


@pytest.mark.parametrize("model", ["lenet", "resnet18", "densenet121", "unet"])
def test_no_kernel_is_started_that_was_not_named(model):
    """The list is read off code; what it lacks, a step would compile one after the other. Each
    operation names its own: another one beside it that names the same would hide that."""
    trace = step_trace(model, 2)
    for call in trace.calls:
        ins, outs = (
            [np.zeros(physical_shape(v.shape), v.dtype) for v in specs_of(trace, ids)]
            for ids in (call.ins, call.outs)
        )
        recorder = Recorder()
        space = np.zeros(call.workspace_bytes, np.uint8)
        TABLES["cpu"].run(call.op, recorder, ins, outs, space, SCALARS)
        assert recorder.names <= names([call.op]), call.op


class Recorder:
    """A pool that runs nothing."""

    threads = 2

    def __init__(self):
        self.names = set()

    def run(self, kernel, *_):
        self.names.add(kernel.full_name)

    def every_time(self):
        """Nothing is repeated."""


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
from ooctrain.execution import compile_apart as apart
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import KeptCode

apart.compile_apart([])
KeptCode.save = None
for kernel in apart.kernels_for([]):
    kernel.load()
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
    assert names(on_rows) > names([])
    assert names(ops()) <= names([call.op for call in banded.calls])


def test_an_operation_of_ones_own_may_name_an_algorithm_of_its_own():
    class Mine(Op):
        algorithm = "mine"

        def cpu(self, pool, ins, outs, workspace, scalars):
            """Does nothing."""

    assert names([Mine()]) == names([])


@pytest.mark.parametrize(("planner", "searches"), [("auto", True), ("belady", False)])
def test_who_promises_memory_has_it_compiled_first(started, planner, searches):
    """The search, too, where the planner searches."""
    model = oc.nn.Sequential(oc.nn.Conv2d(1, 2, 3), oc.nn.Flatten(), oc.nn.Linear(72, 3))
    optimizer = oc.optim.SGD(model.parameters(), lr=0.1)
    trainer = oc.Trainer(model, optimizer=optimizer, memory="64GiB", planner=planner, threads=1)
    trainer.step(np.zeros((2, 1, 8, 8), np.float32), np.zeros(2, np.int64))
    asked = {name for child in started.names for name in child}
    assert len(asked) > 2
    assert (apart.SEARCH in asked) == searches
