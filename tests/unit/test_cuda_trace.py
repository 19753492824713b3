"""A step traced for a GPU: its algorithms, its workspaces, and that neither is taken for the
cpu's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import ooctrain as oc
from ooctrain.errors import ConfigError, PlanMismatch
from ooctrain.layers.kernels.cpu.table import CPU
from ooctrain.layers.kernels.cuda.table import CUDA
from ooctrain.rewrite import apply_rewrites
from ooctrain.step.op import Op, Spec

SHAPE = (8, 3, 32, 32)


def trace(**options):
    return oc.trace(oc.models.build("lenet"), SHAPE, threads=1, **options)


def algorithms(found):
    return {call.op.algorithm for call in found.calls if hasattr(call.op, "algorithm")}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "implicit_gemm"), ({"allow_tf32": True}, "tf32"),
        ({"conv_algorithm": "naive"}, "naive"),
        ({"conv_algorithm": "tiled", "allow_tf32": True}, "tiled"),
    ],
)  # fmt: skip
def test_convolutions_and_their_gradients_use_what_was_asked_for(options, expected):
    found = trace(device="cuda", **options)
    assert algorithms(found) == {expected}
    assert found.device == "cuda"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cpu", "allow_tf32": True}, "number format of GPUs"),
        ({"device": "cpu", "conv_algorithm": "tf32"}, "no convolution algorithm 'tf32'"),
        ({"device": "cuda", "conv_algorithm": "winograd4"}, "on device cuda"),
        ({"device": "gpu"}, "neither 'cpu' nor 'cuda'"),
    ],
)
def test_what_a_device_does_not_have_is_said(options, said):
    with pytest.raises(ConfigError, match=said):
        trace(**options)


def test_a_plan_for_one_device_is_none_for_the_other(tmp_path):
    cpu, gpu = trace(device="cpu", conv_algorithm="im2col"), trace(device="cuda")
    assert cpu.fingerprint != gpu.fingerprint
    plan = oc.plan(gpu, "50%", planner="window")
    assert plan.trace.device == "cuda"
    path = tmp_path / "plan.json"
    plan.save(str(path))
    assert oc.load_plan(str(path), gpu).schedule == plan.schedule
    with pytest.raises(PlanMismatch):
        oc.load_plan(str(path), cpu)


@pytest.mark.parametrize("rewrites", [("fuse", "share_storage"), ("tile:2x2",)])
def test_rewrites_keep_the_device_and_its_workspaces(rewrites):
    found = apply_rewrites(trace(device="cuda"), rewrites)
    assert found.device == "cuda"
    assert algorithms(found) == {"implicit_gemm"}
    for call in found.calls:
        ins, outs = (
            [Spec(found.variables[v].shape, found.variables[v].dtype) for v in side]
            for side in (call.ins, call.outs)
        )
        assert call.workspace_bytes == CUDA.workspace_bytes(call.op, ins, outs, 1), call.name


def test_workspaces_are_asked_of_the_device_that_runs():
    @dataclass(frozen=True, slots=True)
    class Two(Op):
        def workspace_bytes(self, ins, outs, threads):
            return 100 * threads

        def cuda_workspace_bytes(self, ins, outs):
            return 7 * ins[0].size

    assert CPU.workspace_bytes(Two(), [Spec((3,))], [], 2) == 200
    assert CUDA.workspace_bytes(Two(), [Spec((3,))], [], 2) == 21
