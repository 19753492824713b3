"""What every test stands on: one Hypothesis profile, seeds, skips with their reason, no user state.

Compiled kernels stay in the user's own cache between runs
(`layers/kernels/cpu/runtime/kernel_jit.py`), so that only the first run compiles; a saved
calibration of this machine is hidden, so that tests see the presets.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A test may stand on another room of tests: `from zoo import list_bugs`.
sys.path.append(str(Path(__file__).parent))

# Compilation on first use breaks any deadline; a CI run must not depend on luck.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")


#: Of the examples that a law asks for, `make test` draws one in so many, but never fewer than FEW.
QUICK_SHARE, FEW = 3, 8
#: Where Hypothesis keeps the settings of a test.
DRAWN_BY = "_hypothesis_internal_use_settings"

YOUNG_OBJECTS = 20_000
COMPILE = Path(__file__).parent / "support" / "compile_all.py"
COMPILED = pytest.StashKey[subprocess.Popen]()


def pytest_configure(config: pytest.Config) -> None:
    """Hides the calibration of this machine, in this process and in those that tests start.

    The garbage collector looks at YOUNG_OBJECTS new objects at a time. Of Python's 700 many live
    on, so that it looked at all objects every few seconds, for up to a second and a half.
    """
    os.environ["OOCTRAIN_CALIBRATION"] = os.devnull
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        config.stash[COMPILED] = subprocess.Popen([sys.executable, str(COMPILE)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Any) -> None:
    """Kernels are compiled while the workers collect; then tests begin, so that no two workers
    compile the same one."""
    node.config.stash[COMPILED].wait()


#: Contracts that look at the syntax of every source. One worker runs them all, and parses once.
READ_EVERY_SOURCE = ("fixes", "floor_plan", "names", "paths", "reading", "release", "sources")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadscope`, where those contracts are one scope, and parameters are none."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    together = {f"tests/contracts/test_{name}.py" for name in READ_EVERY_SOURCE}

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # The name of another test, as a parameter, is no scope.
            scope = super()._split_scope(nodeid.partition("[")[0])
            return "tests/contracts" if scope in together else scope

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is collected stays, so a worker's garbage collector never looks at it again."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run, and says why."""
    reasons = {"gpu": _no_gpu_reason(), "peers": _no_torch_reason()}
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):  # keywords hold folder names, too
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A quick law draws fewer examples, unless a planted bug calls it: it has to be found."""
    law = getattr(item, "obj", None)
    law = getattr(law, "__func__", law)
    asked = getattr(law, DRAWN_BY, None)
    if asked is None or item.config.option.markexpr != "not slow" or "zoo" in item.path.parts:
        return (yield)
    fewer = min(asked.max_examples, max(FEW, asked.max_examples // QUICK_SHARE))
    setattr(law, DRAWN_BY, settings(asked, max_examples=fewer))
    try:
        return (yield)
    finally:
        setattr(law, DRAWN_BY, asked)


@pytest.fixture
def default_signals() -> Iterator[None]:
    """A suite may run under `nohup` or behind `&`, and what it starts would ignore signals too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parent.parent


def _no_gpu_reason() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1) on this machine"
    status = driver.cuInit(0)
    return "" if status == 0 else f"cuInit failed with status {status}: no usable CUDA device"


def _no_torch_reason() -> str:
    return "" if importlib.util.find_spec("torch") else "torch is not installed"
