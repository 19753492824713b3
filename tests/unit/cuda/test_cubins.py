"""The store of cubins: what it is keyed by, that another process finds it, and without Numba."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.stub_driver import Stub, why_no_stub

from benchmarks.gpu import cubins as command
from ooctrain.errors import ConfigError, DriverError
from ooctrain.layers.kernels.cuda.every_kernel import every_kernel
from ooctrain.layers.kernels.cuda.runtime import cubins, launcher, shim
from ooctrain.layers.kernels.cuda.runtime.cubins import CubinStore, fill, key_of
from ooctrain.layers.kernels.cuda.runtime.shim import kernel, why_no_ptx

ROOT = Path(__file__).parents[3]
HOPPER, TURING = (9, 0), (7, 5)
needs_ptx = pytest.mark.skipif(bool(why_no_ptx()), reason=why_no_ptx())
COUNT = launcher.count_up


def test_each_kernel_has_a_key_of_its_own_and_keeps_it_in_another_process():
    keys = [key_of(kernel, HOPPER, "a") for kernel in every_kernel()]
    assert all(keys)
    assert len(set(keys)) == len(keys) > 80
    code = (
        "from unit.cuda.test_cubins import *\n"
        "print(*[key_of(kernel, HOPPER, 'a') for kernel in every_kernel()])"
    )
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=False,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert done.stdout.split() == keys, done.stderr


def test_a_key_changes_with_all_that_the_code_depends_on(monkeypatch):
    keys = {
        key_of(COUNT, HOPPER, "a"), key_of(COUNT, TURING, "a"), key_of(COUNT, HOPPER, "b"),
        key_of(replace(COUNT, signature="void(i4[::1])"), HOPPER, "a"),
        key_of(replace(COUNT, max_registers=32), HOPPER, "a"),
        key_of(replace(COUNT, specific=True), HOPPER, "a"),
    }  # fmt: skip
    monkeypatch.setattr(cubins, "sources", lambda: "other sources")
    keys.add(key_of(COUNT, HOPPER, "a"))
    assert len(keys) == 7


@kernel("void(u4[::1])", threads=32)
def of_a_user(out):
    out[0] = 1


def test_a_kernel_of_the_users_own_is_not_kept_on_disk():
    assert key_of(of_a_user, HOPPER, "a") == ""


@needs_ptx
def test_a_store_that_was_filled_needs_no_compiler(tmp_path, monkeypatch):
    assert fill(tmp_path, [COUNT], [HOPPER, TURING]) == 2
    assert fill(tmp_path, [COUNT], [HOPPER, TURING]) == 0
    monkeypatch.setattr(shim, "compile_ptx", lambda *_: pytest.fail("it was compiled"))
    monkeypatch.setattr(cubins, "toolkit", lambda: "another machine's")
    store = CubinStore(tmp_path)
    found = store.get(COUNT, HOPPER)
    assert found.entry.startswith("_Z")
    assert found.entry.encode() in found.image
    assert store.made == 0
    assert store.get(COUNT, TURING).image != found.image


@needs_ptx
def test_a_folder_that_cannot_be_written_only_keeps_nothing(tmp_path):
    place = tmp_path / "file"
    place.touch()
    store = CubinStore(place)
    assert store.get(COUNT, HOPPER) is store.get(COUNT, HOPPER)
    assert store.made == 1


@needs_ptx
def test_most_registers_reach_the_linker(tmp_path):
    few = replace(COUNT, max_registers=24)
    made = cubins.make_cubin(few, HOPPER)
    assert made.image != cubins.make_cubin(COUNT, HOPPER).image


@needs_ptx
def test_code_for_one_capability_is_made_and_loaded_by_launches_of_our_own_only():
    if shim.cuda.implementation != "NVIDIA":
        pytest.skip("Numba's own target knows no sm_90a")
    hopper_only = replace(COUNT, specific=True)
    assert ".target sm_90a" in shim.compile_ptx(hopper_only, HOPPER)
    made = cubins.make_cubin(hopper_only, HOPPER)
    assert made.image.startswith(b"\x7fELF") or b".target sm_90a" in made.image
    with pytest.raises(ConfigError, match="OOCTRAIN_LAUNCHER=driver"):
        shim.compiled(hopper_only)
    if not why_no_stub():
        assert Stub(version=13050).open().function(made.image, made.entry)
        with pytest.raises(DriverError, match="NO_BINARY"):
            Stub(version=13050, capability=80).open().function(made.image, made.entry)


@needs_ptx
def test_the_command_fills_a_folder_once(tmp_path, capsys):
    arguments = [str(tmp_path), "--capabilities", "7.5,9.0"]
    assert command.main(arguments, [COUNT]) == 0
    assert command.main(arguments, [COUNT]) == 0
    assert capsys.readouterr().out.startswith("2 made, 2 in ")
    assert len(list(tmp_path.glob("*.cubin"))) == 2


@pytest.mark.slow
@needs_ptx
def test_the_command_fills_a_folder_with_every_kernel(tmp_path):
    assert command.main([str(tmp_path), "--capabilities", "9.0"]) == 0
    forms = sum(2 if kernel.changing else 1 for kernel in every_kernel())  # numbers in memory
    assert len(list(tmp_path.glob("*.cubin"))) == forms
