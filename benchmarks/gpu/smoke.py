"""A minute that tells whether to go on: mapping, one kernel of each family, LeNet.

A fault that breaks everything should be known before the other minutes of a lent GPU are spent; on
a student's own GPU this is all that has to be run. Each gets a check, and each rung of the ladder,
a convolution from one thread a result to tensor cores, its microseconds. Read next: `kernels.py`,
`networks.py`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import kernels, networks
from benchmarks.gpu.bench import Bench, NotRunError
from benchmarks.gpu.workbench import Workbench
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.cuda.open import TF32_CAPABILITY
from ooctrain.layers.conv2d import CUDA_ALGORITHMS, Conv2d, Geometry
from ooctrain.step.op import Spec

ARENA_BYTES = 32 << 20
#: Images and filters.
LADDER, TINY = ((16, 64, 28, 28), (64, 64, 3, 3)), ((2, 8, 6, 6), (8, 8, 3, 3))
LENET = networks.Network("lenet", (16, 3, 32, 32))


def run(bench: Bench) -> None:
    """Mapping, kernels, LeNet."""
    bench.check("mapping", _map)
    size_bytes = kernels.FEW_BYTES if bench.small else ARENA_BYTES
    with Workbench(size_bytes, size_bytes) as workbench:
        kernels.check_all(bench, workbench, kernels.few())
        specs = [Spec(shape) for shape in (TINY if bench.small else LADDER)]
        for algorithm in CUDA_ALGORITHMS:
            bench.check(f"ladder: {algorithm}", _rung, workbench, algorithm, specs)
    network, found = networks.PLAIN if bench.small else LENET, dict[str, Any]()
    bench.check(f"{network.name} in-core", networks.in_core, network, found)
    for planner in ("window", "belady"):
        name = f"{network.name} by {planner}: bits as in-core"
        bench.check(name, networks.same_bits, network, planner, "va", found)


def _map() -> dict[str, Any]:
    gpu = cuda_open.look_at_gpu()
    assert not gpu.mapping_problem, gpu.mapping_problem
    return {"granularity_bytes": gpu.granularity_bytes}


def _rung(workbench: Workbench, algorithm: str, specs: list[Spec]) -> dict[str, float]:
    if algorithm == "tf32" and workbench.driver.capability() < TF32_CAPABILITY:
        raise NotRunError("this GPU has no tensor cores for TF32")
    op = Conv2d(Geometry((1, 1), (1,) * 4), (3, 3), algorithm)
    us = workbench.time_op(op, specs)
    return {"us": us, "tflops": op.flops(specs, op.infer(*specs)) / us / 1e6}
