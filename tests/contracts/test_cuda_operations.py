"""Every operation of the library has a row in the table of each device, and every row a function.

The kernels of each are tested in `tests/unit/test_kernels_*.py` and `tests/unit/cuda/`; here is the
list, made by walking the modules.
"""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import ooctrain.layers
from ooctrain.layers.kernels.device_tables import TABLES
from ooctrain.step.op import Op

#: What an operation of the library leaves to the tables.
OF_DEVICES = ("cpu", "cuda", "workspace_bytes", "cuda_workspace_bytes")


def operations():
    """All operations that the library defines; those without a definition are bases of others."""
    found = pkgutil.iter_modules(ooctrain.layers.__path__, "ooctrain.layers.")
    modules = [importlib.import_module(module.name) for module in found if not module.ispkg]
    classes = {
        value for module in modules for value in vars(module).values() if is_operation(value)
    }
    return {op for op in classes if op.reference is not Op.reference}


def is_operation(value):
    return isinstance(value, type) and issubclass(value, Op)


@pytest.mark.parametrize("device", TABLES)
def test_each_operation_has_a_row_and_each_row_a_function(device):
    rows, known = TABLES[device].rows, operations()
    assert len(known) > 60
    assert set(rows) == known
    for driver in rows.values():
        module, _, name = driver.function.rpartition(".")
        found = importlib.import_module(f"ooctrain.layers.kernels.{device}.{module}")
        takes = list(inspect.signature(getattr(found, name)).parameters)
        assert takes[0] == {"cpu": "pool", "cuda": "launcher"}[device], driver
        assert (takes[-1] == "workspace") == (driver.scratch is not None), driver


def test_operations_know_no_device():
    assert not [op for op in operations() if any(hasattr(op, name) for name in OF_DEVICES)]


def test_scratch_is_asked_for_without_numba():
    # A step is traced, with its workspaces, where no GPU and no compiler is.
    check = "import ooctrain.layers.kernels.device_tables, sys\nassert 'numba' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
