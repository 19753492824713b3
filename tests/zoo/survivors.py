"""Mistakes that once survived every test near them, each with three similar ones.

Of 49 mistakes that a stranger planted, these `SURVIVORS`, {name: `Survivor`}, lived, because the
tests near them were single cases. Each now has a law. A law says more than the case that it was
found by, so it must kill three variants that were unknown when it was written. Read next:
`planting.py`, `test_survivors.py`, which names the laws.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import pytest
from zoo import list_bugs, planting

from ooctrain.course import measures, replays
from ooctrain.devices.thread_streams import Streams
from ooctrain.engine.backward import _Pass
from ooctrain.execution import checkpoint, checkpoint_file
from ooctrain.execution.evaluation import Averages
from ooctrain.execution.step_cache import StepCache
from ooctrain.layers.kernels.cpu import elementwise, losses, update
from ooctrain.layers.kernels.cpu.runtime import kernel_jit
from ooctrain.rewrite.tile import writer
from ooctrain.rewrite.tile.writer import TraceWriter
from ooctrain.sched import rules
from ooctrain.sched.bounds import lp_bound

# The package's attributes of these names are the functions.
fuse = import_module("ooctrain.rewrite.fuse")
share = import_module("ooctrain.rewrite.share_storage")

#: (owner, function, the piece as it is, the piece with the bug)
Bug = tuple[Any, str, str, str]


class Survivor(NamedTuple):
    """A mistake that lived.

    Args:
        law: that kills it now.
        bug: as it was planted.
        variants: for which the law was not written.
    """

    law: str
    bug: Bug
    variants: Mapping[str, Bug]


_LAST_BLOCK = ("range(lo, hi, BLOCK_ELEMENTS)",
               "range(lo, max(lo + 1, hi - BLOCK_ELEMENTS + 1), BLOCK_ELEMENTS)")  # fmt: skip
_ALL_READS = "last_read = {v: call.id for call in builder.calls for v in call.ins}"
_LEGAL = "if last_read[source] == i"
_PREVIOUS = 'target.with_name(f"{target.name}.1")'
_LINKED = f"os.link(target, {_PREVIOUS})"

SURVIVORS: dict[str, Survivor] = {
    "the squares of a last partial block, beyond the first, are left out": Survivor(
        "last blocks", (update, "_squares", *_LAST_BLOCK),
        {
            "the sum of the last chunk's squares is not added": (
                update, "chunk_count", "-(-items // chunk)", "max(1, items // chunk)",
            ),
            "the errors of the last chunk are not added": (
                losses, "chunk_count", "-(-items // chunk)", "max(1, items // chunk)",
            ),
            "the last partial vector is not scaled": (
                elementwise, "_scale", "range(lo, hi, VL)",
                "range(lo, max(lo + VL, hi - VL + 1), VL)",
            ),
            "a bias has no gradient from the last partial block of rows": (
                elementwise, "_channel_sums", "range(min(end, behind) - 1,",
                "range(max(min(end, behind) - 2, 0),",
            ),
        },
    ),
    "a failed stream does the work that waited for the failure": Survivor(
        "failed streams", (Streams, "_perform", "if self.failure is None:", "if True:"),
        {
            "abandoned streams finish their queues": (
                Streams, "abandon", "self.failure = self.failure or reason", "pass",
            ),
            "closed streams finish their queues": (
                Streams, "close",
                "self.failure = self.failure or closed", "pass",
            ),
            "an interrupt is not a failure": (
                Streams, "_work", "except BaseException as error:", "except Exception as error:",
            ),
            "a restart forgives": (
                Streams, "restart", "self.era += 1", "self.era += 1; self.failure = None",
            ),
        },
    ),
    "a leaf's gradient is taken before its last use": Survivor(
        "leaves", (_Pass, "walk", "if not pending[leaf] and leaf in self._grads:",
                   "if leaf in self._grads:"),
        {
            "it is taken one use too early": (
                _Pass, "walk", "if not pending[leaf] and", "if pending[leaf] <= 1 and",
            ),
            "its uses are counted once for each parameter": (
                _Pass, "walk", "Counter(leaf for entry in entries for leaf in _leaves(entry))",
                "dict.fromkeys((leaf for entry in entries for leaf in _leaves(entry)), 1)",
            ),
            "what another use adds takes its place": (
                _Pass, "_differentiate",
                "grad if before is None else self._sum(before, grad, tensor)", "grad",
            ),
            "a second part of a batch takes the place of the first": (
                _Pass, "_finish", "grad if leaf.grad is None else self._sum(leaf.grad, grad, leaf)",
                "grad",
            ),
        },
    ),
    "a storage is taken over although its value is read at another input too": Survivor(
        "calls", (share, "_reuse", "and call.ins.count(source) == 1", ""),
        {
            "what is handed out is overwritten": (
                share, "_reuse", "and source not in lasting", "and source not in trace.initial",
            ),
            "what is there before the step is overwritten": (
                share, "_reuse", "and source not in lasting",
                "and source not in trace.outputs.values()",
            ),
            "the first reader takes the storage": (
                share, "_reuse", "trace.readers[source][-1] == call.id",
                "trace.readers[source][0] == call.id",
            ),
        },
    ),
    "a gradient is fused away although some reader cannot mask it": Survivor(
        "calls", (fuse, "_fuse_backward", "len(joined) < len(readers) or ", ""),
        {
            "although it is handed out": (
                fuse, "_fuse_backward", " or dz in edit.handed_out", "",
            ),
            "although a norm reads it at another place": (
                fuse, "_masked", "if dz in reader.ins[1:] and not isinstance(reader.op, Add):",
                "if False:",
            ),
            "and the mask falls on the other term": (
                fuse, "_masked", "ins=(other, dy, y)", "ins=(dy, other, y)",
            ),
        },
    ),
    "a sum that reads a gradient twice masks it once": Survivor(
        "calls", (fuse, "_masked", "if reader.ins.count(dz) == 1:\n            (other,) = "
                  "(v for v in reader.ins if v != dz)",
                  ":\n            other = ([v for v in reader.ins if v != dz] or [dy])[0]"),
        {
            "a sum of a value with itself has a residual": (
                fuse, "_norm_before", " or add.ins.count(term) > 1", "",
            ),
            "what others read too is fused away": (
                fuse._Edit, "only_reader", "len(self.trace.readers[variable]) == 1 and ", "",
            ),
            "what is handed out is fused away": (
                fuse._Edit, "only_reader", " and variable not in self.handed_out", "",
            ),
        },
    ),
    "a tile takes over a storage that is read later": Survivor(
        "tiles", (TraceWriter, "finish", f" {_LEGAL}", ""),
        {
            "what backward reads does not count": (
                TraceWriter, "finish", _LEGAL,
                "if last_read[source] == i or builder.calls[last_read[source]].phase != 'forward'",
            ),
            "the first reader takes it": (
                TraceWriter, "finish", _ALL_READS,
                _ALL_READS.replace("builder.calls for", "reversed(builder.calls) for"),
            ),
            "the sum over tiles begins anew with each": (
                writer, "add_up", "totals[gradient] = steps[-1].outs[0]", "totals[gradient] = part",
            ),
        },
    ),
    "a checksum knows no shapes": Survivor(
        "altered files", (checkpoint_file.Checksum, "begin", "|{array.shape}|", "|"),
        {
            "nor types": (
                checkpoint_file.Checksum, "begin", "|{array.dtype.name}|", "|",
            ),
            "nor names": (checkpoint_file.Checksum, "begin", "{name}|", "|"),
            "nor the state": (checkpoint_file.Checksum, "__init__", "state.encode()", 'b""'),
        },
    ),
    "the folder is not flushed": Survivor(
        "crashes", (checkpoint, "put_in_place", "_sync_folder(target.parent)", "pass"),
        {
            "the file is not flushed": (
                checkpoint_file, "write", "os.fsync(file.fileno())", "pass",
            ),
            "it is flushed before it is written": (
                checkpoint_file, "write", "file.flush()", "pass",
            ),
            "the folder is flushed before the file has its name": (
                checkpoint, "put_in_place",
                "os.replace(temporary, target)\n        _sync_folder(target.parent)",
                "_sync_folder(target.parent); os.replace(temporary, target)",
            ),
        },
    ),
    "for a moment there is no file": Survivor(
        "crashes", (checkpoint, "_keep_previous", _LINKED, _LINKED.replace("link", "replace")),
        {
            "the old file goes first": (
                checkpoint, "put_in_place", "_keep_previous(target, keep)",
                "_keep_previous(target, keep); target.unlink(missing_ok=True)",
            ),
            "the new one is its own previous one": (
                checkpoint, "put_in_place",
                "_keep_previous(target, keep)\n        os.replace(temporary, target)",
                "os.replace(temporary, target); _keep_previous(target, keep)",
            ),
            "the previous one is not there before the new one": (
                checkpoint, "_keep_previous", "if keep > 1 and target.exists():",
                "target.unlink(missing_ok=True)\n    if False:",
            ),
        },
    ),
    "another file of a like name is taken for a previous one": Survivor(
        "files", (checkpoint, "previous_files", " and other.stem == path.name", ""),
        {
            "previous files are in the order of their names": (
                checkpoint, "previous_files", "sorted(found)", "sorted(found, key=str)",
            ),
            "the last error is told, not the first": (
                checkpoint, "load", "first_error or error", "error",
            ),
            "an element type is no matter": (
                checkpoint, "check_arrays", " or have.dtype != want.dtype", "",
            ),
            "whatever looks abandoned is removed": (
                checkpoint, "_remove_abandoned",
                "if writer.isdecimal() and _has_ended(int(writer)):", "if writer:",
            ),
        },
    ),
    "an evaluation counts all batches alike": Survivor(
        "evaluation", (Averages, "add", "weights if terms else (float(len(target)),)", "(1.0,)"),
        {
            "all count as the first": (
                Averages, "_loss", "b.loss * b.weights[0]", "b.loss * first.weights[0]",
            ),
            "one without any label spoils the mean": (
                Averages, "_loss", " if b.weights[0]]", "]",
            ),
            "ignored labels are misses": (
                Averages, "add", "self._judged += int(counts.sum())", "self._judged += counts.size",
            ),
        },
    ),
    "a percentage is another budget for each shape": Survivor(
        "one budget", (StepCache, "_in_bytes", "replace(settings, budget=known)", "settings"),
        {
            "for each evaluation": (
                StepCache, "_in_bytes", "elif known is None:", "else:",
            ),
            "for whoever evaluates first": (
                StepCache, "_in_bytes", "trace if training is None else training()", "trace",
            ),
            "what was planned before is kept": (
                StepCache, "_add", "self._forget(key[0])", "pass",
            ),
            "a larger step has that of the first": (
                StepCache, "_in_bytes", "max(known, share_bytes(trace, settings))", "known",
            ),
            "twice that of the step": (
                StepCache, "_add", "= found.budget_bytes", "= 2 * found.budget_bytes",
            ),
        },
    ),
    "a block that reaches into another from below does not overlap": Survivor(
        "addresses", (replays, "extent_bytes", "if lo < stop and start < hi:",
                      "if start <= lo < stop:"),
        {
            "nor one that reaches out above": (
                replays, "extent_bytes", "if lo < stop and start < hi:", "if start < hi <= stop:",
            ),
            "blocks that touch overlap": (
                replays, "extent_bytes", "if lo < stop and start < hi:",
                "if lo <= stop and start <= hi:",
            ),
            "what is freed stays": (replays, "extent_bytes", "del live[request.key]", "pass"),
            "the arena begins at 0": (
                replays, "extent_bytes", " - min(addresses, default=0)", "",
            ),
        },
    ),
    "a plan of another granule counts": Survivor(
        "plans", (measures, "_judged_us", "if plan.schedule.granule != granule_of(measure):",
                  "if False:"),
        {
            "of another size of it": (
                measures, "_judged_us", "if plan.schedule.granule != granule_of(measure):",
                "if plan.schedule.granule.ranges != measure.ranges:",
            ),
            "of any budget": (measures, "_judged_us", "budget_bytes_of(measure), ", "None, "),
            "nothing is proved": (
                measures, "_judged_us",
                "verify(plan, step, budget_bytes_of(measure), where)", "pass",
            ),
        },
    ),
    "a bound may be 1 % above what the plan takes": Survivor(
        "claims", (rules, "bound_claim", "(1 + 1e-9) + 0.001", "1.01"),
        {
            "a makespan may be 1 % off": (
                rules, "makespan_claim", "< 0.0005", "<= 0.01 * claimed",
            ),
            "a peak may be claimed to be larger": (
                rules, "peak_claim", "again.plan.peak_bytes, again.peak_bytes",
                "again.plan.peak_bytes, max(again.plan.peak_bytes, again.peak_bytes)",
            ),
            "a host peak is not looked at": (
                rules, "host_peak_claim", "again.plan.host_peak_bytes, again.host_peak_bytes",
                "again.host_peak_bytes, again.host_peak_bytes",
            ),
            "the LP proves 1 % more than it does": (
                lp_bound, "fluid_bound", "min(primal, dual) * (1 - TOLERANCE)",
                "min(primal, dual) * 1.01",
            ),
        },
    ),
}  # fmt: skip


def bugs() -> dict[str, tuple[str, Bug]]:
    """{name: (law, bug)}: the survivors and their variants."""
    found = {}
    for name, survivor in SURVIVORS.items():
        assert len(survivor.variants) >= 3, name
        found[name] = survivor.law, survivor.bug
        for variant, bug in survivor.variants.items():
            found[f"{name} / {variant}"] = survivor.law, bug
    return found


def plant(patch: pytest.MonkeyPatch, bug: Bug) -> None:
    """Puts the piece with the bug in place, wherever the function is known by its name."""
    owner, name, *_ = bug
    patch.setitem(
        kernel_jit._OUTER, "cache", False
    )  # there is no file of which Numba could keep it
    right = getattr(owner, name)
    list_bugs.plant_rule(patch, right, planting.plant_everywhere(patch, *bug))
