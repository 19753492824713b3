"""What the library computes, as hashes: equal hashes mean that two versions compute the same.

A change that only moves code changes no plan, no bit of an output, no loss and no instruction of a
kernel. So all of them are hashed before it and after it, into a JSON file {part: {key: SHA-256 or
number}}, and two such files are compared. Nothing depends on this machine: fixed seeds, two
threads, machine presets, and no clock. Planners get no time limit; `combined`, which `auto` asks
too, tries a small fixed number of choices. Read next: `../tests/properties/test_same_bits.py`.

    python -m benchmarks.same_as_before OUT.json [--parts traces,plans,ops,training,ptx] [--jobs 2]
    python -m benchmarks.same_as_before --compare A.json B.json
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import itertools
import json
import multiprocessing
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ooctrain as oc
from ooctrain.engine.eager import make_pool, run_cpu
from ooctrain.errors import ConfigError, Infeasible, OoctrainError
from ooctrain.execution.settings import DEFAULT_REWRITES
from ooctrain.models import MODELS, stem_for
from ooctrain.rewrite import apply_rewrites
from ooctrain.step.op import to_physical
from ooctrain.units import BYTES, Granule

Found = dict[str, str | int]

THREADS = 2
MACHINE = "v100-pcie"
#: {machine: budgets}; the second has a link for each direction, and copies that slow calls down.
BUDGETS = {MACHINE: ("10%", "25%", "50%", "90%", "100%"), "cpu-generic": ("25%",)}
GRANULES: Mapping[str, Granule] = {
    "bytes": BYTES, "64KiB": Granule(65536, ranges=True), "512B whole": Granule(512, ranges=False),
}  # fmt: skip
#: {network: batch, channels, height, width}; the slowest to plan come first.
NETWORKS = {
    "resnet50": (16, 3, 224, 224), "unet": (4, 3, 256, 256), "resnet18": (32, 3, 224, 224),
    "vgg19": (16, 3, 224, 224),
}  # fmt: skip
#: What a searching planner may try.
EVALUATIONS = 500
GRID = (2, 2)
TRACE_BATCH = 2
STEPS, BATCH, CLASSES = 10, 32, 10
CAPABILITY = (9, 0)
SHOWN = 20


# Traces: every network for both devices, before and after rewrites.


def traces(options: argparse.Namespace) -> Found:
    """Fingerprints of all networks that there are, and of the three that a step becomes."""
    found: Found = {}
    for name, recipe in MODELS.items():
        shape = (TRACE_BATCH, recipe.channels, recipe.height, recipe.width)
        for device in ("cpu", "cuda"):
            found |= _rewritten(f"{name}/{device}", _traced(name, shape, device=device))
    for name, shape in NETWORKS.items():
        found |= _rewritten(f"{name} adam/cpu", _traced(name, shape, optimizer="adam"))
    return found


def _traced(name: str, shape: tuple[int, ...], **how: str) -> oc.Trace:
    recipe = MODELS[name]
    oc.manual_seed(0)
    model = oc.models.build(name, recipe.classes, stem_for(*shape[2:]), shape[1])
    return oc.trace(model, shape, threads=THREADS, **how)


def _rewritten(key: str, trace: oc.Trace) -> Found:
    fused, ready = (apply_rewrites(trace, names) for names in (("fuse",), DEFAULT_REWRITES))
    found: Found = {
        f"{key}/traced": trace.fingerprint, f"{key}/fuse": fused.fingerprint,
        f"{key}/share_storage": ready.fingerprint,
    }  # fmt: skip
    try:
        found[f"{key}/tiled"] = oc.tile(ready, GRID).fingerprint
    except ConfigError as refused:
        found[f"{key}/tiled"] = _error(refused)
    return found


# Plans: networks x planners x budgets x granules.


def plans(options: argparse.Namespace) -> Found:
    """Hash of each list and of what its plan claims; the least bytes, where a planner refuses."""
    tasks = [(name, planner) for name in options.networks for planner in oc.planners()]
    found: Found = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(plans_of, *task): task for task in tasks}
        for number, done in enumerate(as_completed(waiting), 1):
            found |= done.result()
            _say(f"  {'/'.join(waiting[done])} ({number} of {len(tasks)})")
    return found


def plans_of(network: str, planner: str) -> Found:
    """What a process of its own does: one planner's plans of one network."""
    trace = _traced(network, NETWORKS[network])
    found: Found = {}
    for machine, budgets in BUDGETS.items():
        for budget, granule in itertools.product(budgets, GRANULES):
            key = f"{network}/{planner}/{machine}/{budget}/{granule}"
            cell = _cell(trace, budget, planner, machine, GRANULES[granule])
            found |= {f"{key}/{what}": value for what, value in cell.items()}
    return found


def _cell(trace: oc.Trace, budget: str, planner: str, machine: str, granule: Granule) -> Found:
    try:
        plan = oc.plan(
            trace, budget, planner=planner, machine=machine, granule=granule, time_limit_s=None,
            evaluations=EVALUATIONS,
        )  # fmt: skip
    except Infeasible as refusal:
        return {"least bytes": refusal.minimum_bytes}
    except Exception as error:
        return {"error": _error(error)}
    claims = plan.to_json()
    return {"list": _hash_json(claims.pop("schedule")), "claims": _hash_json(claims)}


# Operations: the bits that the cpu device's kernels write.


def ops(options: argparse.Namespace) -> Found:
    """Hash of the outputs of every operation on the inputs that the tests try it on."""
    from support.op_samples import SAMPLES

    from ooctrain.testing.check_op import SCALARS, as_input, spec_of

    found: Found = {}
    for threads in (1, 2):
        pool = make_pool(threads)
        try:
            for number, (op, arrays) in enumerate(SAMPLES):
                inputs = [as_input(array) for array in arrays]
                outs = op.infer(*map(spec_of, inputs))
                results = run_cpu(op, pool, [to_physical(a) for a in inputs], outs, SCALARS)
                found[f"{number:03d} {op!r}/{threads} threads"] = _hash_arrays(results)
        finally:
            pool.close()
    return found


# Training: ten steps of a network, in-core and out of core.


def training(options: argparse.Namespace) -> Found:
    """Losses of ten steps of ResNet-18 to the last bit, and a hash of all that persists."""
    ways = {"in-core": {}} | {
        f"25% {allocator}": {"budget": "25%", "planner": "window", "allocator": allocator}
        for allocator in ("va", "best-fit")
    }
    found: Found = {}
    for name, how in ways.items():
        oc.manual_seed(0)
        model = oc.models.build("resnet18", CLASSES, "cifar")
        rng = np.random.default_rng(0)
        with oc.Trainer(model, threads=THREADS, machine=MACHINE, time_limit_s=None, **how) as t:
            for step in range(STEPS):
                x = rng.standard_normal((BATCH, 3, 32, 32), np.float32)
                found[f"{name}/loss {step}"] = t.step(x, rng.integers(0, CLASSES, BATCH)).hex()
            state = t.state_arrays()
            found[f"{name}/state"] = _hash_arrays(state[key] for key in sorted(state))
            found[f"{name}/list"] = _hash_json(t.plan.schedule.to_json())
            found[f"{name}/reserved bytes"] = t.prepared.reserved_bytes
    return found


# PTX: the compiled form of every CUDA kernel, which needs no GPU.


def ptx(options: argparse.Namespace) -> Found:
    """Hash of the PTX of every kernel, names of modules left out."""
    from ooctrain.layers.kernels.cuda.runtime.shim import compile_ptx, why_no_ptx

    if why_no_ptx():
        raise SystemExit(why_no_ptx())
    hashes: dict[str, list[str]] = {}
    for kernel in set(_kernels()):
        text = without_names(compile_ptx(kernel, CAPABILITY))
        hashes.setdefault(_kernel_key(kernel), []).append(_hash(text))
    # Kernels that nothing but their module tells apart are numbered by their hashes.
    return {
        f"{key} #{number}" if number else key: value
        for key, values in sorted(hashes.items())
        for number, value in enumerate(sorted(values))
    }


def _kernels() -> Iterator[Any]:
    """Those of all modules, and those that a module makes when a shape first asks for them."""
    import ooctrain.layers.kernels.cuda as package
    from ooctrain.layers.kernels.cuda.conv.conv_gemm import NARROW, WIDE, _correlation_kernel
    from ooctrain.layers.kernels.cuda.conv.conv_weights import _weight_kernel
    from ooctrain.layers.kernels.cuda.runtime.shim import Kernel

    for columns in (WIDE, NARROW):
        yield _correlation_kernel(True, columns)
        yield _correlation_kernel(False, columns)
        yield _weight_kernel(True, columns)
    yield _weight_kernel(False, NARROW)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(found.name)).values():
            values = value.values() if isinstance(value, Mapping) else (value,)
            yield from (v for v in values if isinstance(v, Kernel))


def _kernel_key(kernel: Any) -> str:
    """Function, signature, block, and the constants and functions that it was made with."""
    made_with = {
        name: value if isinstance(value, int) else getattr(value, "__name__", type(value).__name__)
        for name, value in sorted(inspect.getclosurevars(kernel.function).nonlocals.items())
    }
    return (
        f"{kernel.function.__name__} {kernel.signature} threads={kernel.threads} "
        f"capability={kernel.capability} max_registers={kernel.max_registers} {made_with}"
    )


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
#: Numba's empty environment of each function: nobody reads it, and its place depends on the name.
_ENVIRONMENT = re.compile(r"^\.common \.global .* _ZN08NumbaEnv\w+;$", re.MULTILINE)
#: Mangled names say the module; Numba numbers shared memory over all kernels of a process.
_MANGLED = re.compile(r"\b_(?:Z|cudapy_)[\w$]+")


def without_names(text: str) -> str:
    """PTX without comments; each name that the compiler made becomes a number, by appearance."""
    for what in (_COMMENT, _ENVIRONMENT):
        text = what.sub("", text)
    numbers: dict[str, str] = {}
    text = _MANGLED.sub(lambda m: numbers.setdefault(m[0], f"name{len(numbers)}"), text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


# Hashes.


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_json(data: Any) -> str:
    return _hash(json.dumps(data, sort_keys=True))


def _hash_arrays(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _error(error: Exception) -> str:
    """Class and code; of what the library does not raise on purpose, what it says."""
    said = error.code if isinstance(error, OoctrainError) else str(error)
    return f"{type(error).__name__} {said}"


# Two files.


@dataclass(frozen=True, slots=True)
class Comparison:
    """A part in two files: numbers of keys, and the keys that differ with both values."""

    keys: int
    differences: tuple[tuple[str, Any, Any], ...]


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Every key of either; one that is missing has None."""
    keys = sorted({*before, *after})
    pairs = [(key, before.get(key), after.get(key)) for key in keys]
    return Comparison(len(keys), tuple(pair for pair in pairs if pair[1] != pair[2]))


def compare(files: Sequence[Path], options: argparse.Namespace) -> int:
    """Prints what differs; 1 if anything does, or if there is nothing to compare."""
    before, after = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    total = differing = 0
    for part in options.parts:
        ours, theirs = (_asked(part, data.get(part, {}), options) for data in (before, after))
        found = compared(ours, theirs)
        total, differing = total + found.keys, differing + len(found.differences)
        print(f"{part}: {found.keys} keys, {len(found.differences)} differ")
        for key, a, b in found.differences[:SHOWN]:
            print(f"  {key}\n    {a}\n    {b}")
        if len(found.differences) > SHOWN:
            print(f"  ... and {len(found.differences) - SHOWN} more")
    print(f"{total} keys, {differing} differ")
    return int(differing > 0 or not total)


def _asked(part: str, data: Mapping[str, Any], options: argparse.Namespace) -> Mapping[str, Any]:
    """What of a part was asked for."""
    if part != "plans":
        return data
    return {k: v for k, v in data.items() if k.partition("/")[0] in options.networks}


PARTS: Mapping[str, Callable[[argparse.Namespace], Found]] = {
    "traces": traces, "plans": plans, "ops": ops, "training": training, "ptx": ptx,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.same_as_before", description=__doc__.splitlines()[0]
    )
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.json")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A.json", "B.json"))
    parser.add_argument("--parts", type=_some_of(PARTS), default=list(PARTS))
    parser.add_argument("--networks", type=_some_of(NETWORKS), default=list(NETWORKS),
                        help="of the plans")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes that plan")
    options = parser.parse_args(arguments)
    if options.compare:
        return compare(options.compare, options)
    if options.out is None:
        parser.error("OUT.json or --compare A.json B.json")
    _say(f"the code in {Path(oc.__file__).parent}")
    found: dict[str, Found] = {}
    for part in options.parts:
        started_s = time.monotonic()
        found[part] = dict(sorted(PARTS[part](options).items()))
        _say(f"{part}: {len(found[part])} keys, {time.monotonic() - started_s:.0f} s")
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Reads "a,b" as words out of those that are known."""

    def words(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [word for word in chosen if word not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return chosen

    return words


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
