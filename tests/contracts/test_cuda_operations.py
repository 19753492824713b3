"""Every operation that runs on the cpu device runs on a GPU, or says that it does not.

The kernels of each are tested in `tests/unit/cuda/`; here is the list, made by walking the
subclasses.
"""

import importlib
import pkgutil
import subprocess
import sys

import ooctrain.layers
from ooctrain.engine.own_op import Op as UserOp
from ooctrain.engine.own_op import UserGrad
from ooctrain.step.op import Op

#: defined in NumPy by their users; `devices.cuda_open.require_kernels` says so before a step
WITHOUT_KERNELS = {UserOp, UserGrad}


def operations():
    """All operations that the library defines."""
    for module in pkgutil.iter_modules(ooctrain.layers.__path__, "ooctrain.layers."):
        importlib.import_module(module.name)
    found, waiting = set(), [Op]
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        waiting += subclasses
        found |= {op for op in subclasses if op.__module__.startswith("ooctrain.layers.")}
    return found


def test_every_operation_of_the_cpu_device_has_gpu_kernels():
    on_cpu = {op for op in operations() if op.cpu is not Op.cpu}
    on_gpu = {op for op in operations() if op.cuda is not Op.cuda}
    assert len(on_cpu) > 60
    assert {op.__name__ for op in on_cpu - on_gpu} == {op.__name__ for op in WITHOUT_KERNELS}


def test_scratch_is_asked_for_without_numba():
    # A step is traced, with its workspaces, where no GPU and no compiler is.
    names = "chunks", "workspace", "loss_space", "matmul_plan", "conv_plan"
    code = "".join(f"import ooctrain.layers.kernels.cuda.{name}\n" for name in names)
    check = f"{code}import sys\nassert 'numba' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
