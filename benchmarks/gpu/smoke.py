"""A minute that tells whether it is worth going on: one kernel of each family, mapping, LeNet.

In: nothing. Out: a check for each. The one idea: what is broken for everything should be known
before the other minutes of a lent GPU are spent; and on a student's own GPU this is all that has to
be run. Read next: `kernels.py`, `networks.py`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import kernels, networks
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.workbench import Workbench
from ooctrain.devices.cuda import open as cuda_open

LENET = networks.Network("lenet", (16, 3, 32, 32))


def run(bench: Bench) -> None:
    """Mapping, kernels, LeNet."""
    bench.check("mapping", _map)
    with Workbench(kernels.FEW_BYTES, kernels.FEW_BYTES) as workbench:
        kernels.check_all(bench, workbench, kernels.few())
    network, found = networks.PLAIN if bench.small else LENET, dict[str, Any]()
    bench.check(f"{network.name} in-core", networks.in_core, network, found)
    for planner in ("window", "belady"):
        name = f"{network.name} by {planner}: bits as in-core"
        bench.check(name, networks.same_bits, network, planner, "va", found)


def _map() -> dict[str, Any]:
    gpu = cuda_open.look_at_gpu()
    assert not gpu.mapping_problem, gpu.mapping_problem
    return {"granularity_bytes": gpu.granularity_bytes}
