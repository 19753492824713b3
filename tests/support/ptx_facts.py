"""The compiled form of a CUDA kernel, read where there is no GPU.

For a `Kernel` and a compute capability, `PtxFacts` counts its PTX instructions and, where the
assembler `ptxas` is on the path, `Resources` gives registers and spilled bytes. The causes of a
slow kernel are visible in its text: arithmetic in double precision, an array that did not fit into
registers, loads of 4 bytes instead of 16. Read next: `layers/kernels/cuda/runtime/shim.py`;
`doubles/ptx_machine.py`, which runs the text; `tests/unit/cuda/test_ptx.py`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property

from ooctrain.errors import OoctrainError
from ooctrain.layers.kernels.cuda.runtime.shim import Capability, Kernel, compile_ptx

_INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)\s[^;]*;", re.MULTILINE)
_BODY = re.compile(r"^\{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s")
#: what touches more than one word of shared memory at once
_WIDE = re.compile(r"(?:ld|st)\.shared\.v(\d)\.[a-z](\d+)$")
_QUADS = ("ldmatrix", "cp.async.cg.shared", "cp.async.ca.shared")


@dataclass(frozen=True)
class PtxFacts:
    """The PTX of one kernel.

    Args:
        name: of the kernel.
        capability: that it was compiled for.
        text: the PTX.
        max_registers: that the assembler may give a thread; None: as many as it likes.
    """

    name: str
    capability: Capability
    text: str
    max_registers: int | None = None

    @cached_property
    def opcodes(self) -> Counter[str]:
        """How often each instruction stands in the text, by its full name: "ld.global.v4.f32"."""
        bodies = _BODY.findall(self.text)
        return Counter(name for body in bodies for name in _INSTRUCTION.findall(body))

    def count(self, start: str) -> int:
        """Instructions whose name begins with `start`: "ld.global.v4", "mma.sync"."""
        return sum(times for name, times in self.opcodes.items() if name.startswith(start))

    @property
    def double_precision(self) -> list[str]:
        """Instructions on float64."""
        return sorted(name for name in self.opcodes if ".f64" in name)

    @property
    def uses_local_memory(self) -> bool:
        """Whether an array of a thread lies in memory instead of registers."""
        return ".local" in self.text

    @property
    def wrongly_aligned(self) -> str:
        """Which access to shared memory is wider than what its arrays are aligned to; else empty.

        Not one array is left out: an access does not say which it touches.
        """
        aligned = min(map(int, _SHARED.findall(self.text)), default=0)
        for name in self.opcodes:
            wide = _WIDE.match(name)
            size = int(wide.group(1)) * int(wide.group(2)) // 8 if wide else 0
            if max(size, 16 if name.startswith(_QUADS) else 0) > aligned:
                return f"{name} of arrays that begin at multiples of {aligned}"
        return ""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler gave a kernel: registers and stack of a thread, shared memory, spills."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    spill_bytes: int


@cache
def read_ptx(kernel: Kernel, capability: Capability) -> PtxFacts:
    """Compiles a kernel and reads its PTX. Needs NVVM (`shim.why_no_ptx`), no GPU."""
    text = compile_ptx(kernel, capability)
    return PtxFacts(kernel.name, capability, text, kernel.max_registers)


def check_ptx(kernel: Kernel, capability: Capability) -> PtxFacts:
    """`read_ptx`, and an AssertionError unless there is neither float64 nor local memory."""
    facts = read_ptx(kernel, capability)
    assert not facts.double_precision, f"{facts.name}: {facts.double_precision}"
    assert not facts.uses_local_memory, f"{facts.name} uses local memory"
    return facts


def why_no_assembler() -> str:
    """Why registers cannot be counted here; empty where they can."""
    return "" if shutil.which("ptxas") else "ptxas is not on the path"


@cache
def assemble(facts: PtxFacts) -> Resources:
    """Runs ptxas on the PTX and reads what it says.

    Raises:
        OoctrainError: ptxas refuses the text.
    """
    major, minor = facts.capability
    text = re.sub(
        r"^\.version .*$", f".version {_newest_version()}", facts.text, flags=re.MULTILINE
    )
    command = ["ptxas", "-v", f"-arch=sm_{major}{minor}", "-o", "/dev/null", "-"]
    if facts.max_registers is not None:
        command.insert(1, f"-maxrregcount={facts.max_registers}")
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OoctrainError(f"ptxas refuses {facts.name}", numbers=done.stderr[:2000])
    spills = re.findall(r"(\d+) bytes spill", done.stderr)
    return Resources(
        registers=_number(r"Used (\d+) registers", done.stderr),
        stack_bytes=_number(r"(\d+) bytes stack frame", done.stderr),
        shared_bytes=_number(r"(\d+) bytes smem", done.stderr),
        spill_bytes=sum(map(int, spills)),
    )


@cache
def _newest_version() -> str:
    """The PTX version that this ptxas reads: NVVM may be newer, and kernels use nothing newer."""
    said = subprocess.run(["ptxas", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", said)
    assert release is not None, said
    major = int(release.group(1))
    return f"{major - 4}.{release.group(2)}" if major >= 13 else "8.0"


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0
