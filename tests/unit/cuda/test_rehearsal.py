"""`make gpu` rehearsed: over the stub driver, by what Numba really compiles, with true values.

Each test is a run as a user makes it, in processes of its own. The law: what is wrong with the
compiled text of a kernel fails the check of that kernel, so that nothing stands in for the kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from doubles.stub_driver import environment, why_no_stub

from ooctrain.layers.kernels.cuda.runtime.shim import why_no_ptx

REASON = why_no_stub() or why_no_ptx()
pytestmark = [
    pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.slow,
]  # fmt: skip
ROOT = Path(__file__).parents[3]

#: One check in this process; `PLANT` changes the text of each kernel as it is kept.
ONE_CHECK = """
import json, sys
from pathlib import Path
from benchmarks.gpu import apart, kernels
from doubles.ptx_machine import Texts
keep, keep_for = Texts.keep, Texts.keep_for
Texts.keep = lambda self, text: keep(self, text.replace(*PLANT))
Texts.keep_for = lambda self, image, entry, text: keep_for(
    self, image, entry, text.replace(*PLANT)
)
op, (x,) = next(kernels.few())
only = [f"0. {op.name} {'x'.join(map(str, x.shape))}"]
Path(LOG).with_name("only").write_text(json.dumps(only), encoding="utf-8")
sys.exit(apart.main(["smoke", LOG, '{"rehearse": "values"}', "1e18"]))
"""


def rehearse(folder, *options, **variables):
    """A rehearsal's report."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", str(folder), *options]
    done = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )  # fmt: skip
    assert (folder / "rehearsal.json").is_file(), done.stderr[-2000:]
    return json.loads((folder / "rehearsal.json").read_text(encoding="utf-8"))


def counts(found):
    return Counter((check["part"], check["status"]) for check in found["checks"])


def test_values_are_right_and_no_kernel_of_the_cpu_device_is_compiled(tmp_path):
    cache = tmp_path / "cache"
    parts = "environment,smoke,link,memory"
    found = rehearse(
        tmp_path, "--rehearse", "--parts", parts, OOCTRAIN_CACHE=str(cache),
        LD_LIBRARY_PATH="",
    )  # fmt: skip
    assert not [check for check in found["checks"] if check["status"] == "failed"]
    assert {check["part"] for check in found["checks"] if check["status"] == "ok"} == set(
        parts.split(",")
    )
    assert {entry.name for entry in cache.iterdir()} <= {"stub", "cubins"}


def test_what_a_small_gpu_lacks_is_not_run_there(tmp_path):
    found = rehearse(tmp_path, "--rehearse", "--capability", "7.5", "--parts", "environment,smoke")
    not_run = [c["name"] for c in found["checks"] if c["status"] == "not run"]
    assert not_run == ["ladder: tf32"]
    assert not [check for check in found["checks"] if check["status"] == "failed"]
    assert found["checks"][0]["numbers"]["capability"] == "7.5"


def test_cubins_made_beforehand_are_launched_and_run(tmp_path):
    found = rehearse(
        tmp_path, "--rehearse", "--parts", "environment,smoke", OOCTRAIN_LAUNCHER="driver",
        OOCTRAIN_CUBINS=str(tmp_path / "cubins"),
    )  # fmt: skip
    again = rehearse(
        tmp_path, "--rehearse", "--parts", "environment,smoke", OOCTRAIN_LAUNCHER="driver",
        OOCTRAIN_CUBINS=str(tmp_path / "cubins"),
    )  # fmt: skip
    assert counts(found) == counts(again)
    assert {status for _, status in counts(found)} == {"ok"}


def test_where_nobody_runs_kernels_every_check_begins_and_none_ends_by_an_exception(tmp_path):
    parts = ("environment", "smoke", "link")
    found = rehearse(tmp_path, "--rehearse", "time", "--minutes", "9", "--parts", ",".join(parts))
    assert {check["part"] for check in found["checks"]} == set(parts)
    notes = [check["note"] for check in found["checks"] if check["status"] != "ok"]
    assert all("values are not judged" in note for note in notes), notes
    assert found["not_begun"] == []


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (("nothing", "else"), ""),
        (("setp.lt.f32", "setp.gt.f32"), "differs from its definition"),
        (("ld.global.f32", "ld.shared.f32"), "the interpreter: "),
    ],
    ids=["nothing", "the other comparison", "another memory"],
)  # fmt: skip
def test_a_kernel_whose_compiled_text_is_wrong_fails(tmp_path, plant, words):
    log = tmp_path / "log"
    code = f"PLANT, LOG = {plant!r}, {str(log)!r}\n{ONE_CHECK}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, text=True, capture_output=True,
        env=environment() | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    lines = list(map(json.loads, log.read_text(encoding="utf-8").splitlines()))
    (check,) = [line for line in lines if "status" in line] or [done.stderr]
    assert check["status"] == ("failed" if words else "ok")
    assert words in check["note"]
