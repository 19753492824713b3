"""The laws of ONNX files bite: each planted bug breaks its law, which holds without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from zoo.planting import plant, plant_everywhere, with_bug

from ooctrain.engine import trace_runner
from ooctrain.interop import onnx_export, onnx_file, onnx_graph, onnx_numbers, onnx_ops, onnx_resize

pytest.importorskip("onnx", reason="onnx is not installed")
from peers import test_onnx as LAWS
from peers import test_onnx_bad_files as BAD

READER, FILE, WRITER = onnx_graph.GraphReader, onnx_file.FileReader, onnx_export.GraphWriter
KILLED = (Exception, pytest.fail.Exception)  # also what a runtime of others raises


def _refused(what: str) -> Callable[[Any], None]:
    return lambda folder: BAD.test_a_graph_that_is_wrong_or_not_taken_is_refused(what, folder)


def _elsewhere(place: str) -> Callable[[Any], None]:
    return lambda folder: BAD.test_weights_that_are_elsewhere_are_refused(place, folder)


def _written(name: str) -> Callable[[Any], None]:
    return lambda folder: LAWS.test_a_function_is_written_with_its_value(name, folder)


def _alone(law: Callable[[], None]) -> Callable[[Any], None]:
    return lambda _folder: law()


def _value(*nodes: str) -> Callable[[Any], None]:
    return lambda _folder: [LAWS.test_a_node_has_its_value(name) for name in nodes]


#: {bug: (owner, function, line as it is, line with the bug, law)}
BUGS: dict[str, tuple[Any, str, str, str, Callable[[Any], Any]]] = {
    "SAME_LOWER as SAME_UPPER": (
        onnx_ops, "_pads", 'if auto_pad == "SAME_UPPER" else (more, less)', "",
        _value("same lower", "pool, same lower"),
    ),
    "sides of Pad in the order of PyTorch": (
        onnx_ops, "pad", "(numbers[i], numbers[len(over) + i])",
        "(numbers[2 * i], numbers[2 * i + 1])", _value("pad"),
    ),
    "pads of windows in the order of PyTorch": (
        onnx_ops, "_pads", "(given[i], given[axes + i])", "(given[2 * i], given[2 * i + 1])",
        _value("pads"),
    ),
    "padding counts": (
        onnx_ops, "average_pool", "bool(count_include_pad)", "True", _value("mean, same lower"),
    ),
    "momentum of the other kind": (
        onnx_ops, "batch_normalization", "round(1.0 - momentum, 6)", "momentum",
        _alone(LAWS.test_both_modes_of_a_batch_norm_and_of_dropout),
    ),
    "statistics swapped": (
        onnx_ops, "batch_normalization", "F.batch_norm(x, mean, var,", "F.batch_norm(x, var, mean,",
        _alone(LAWS.test_both_modes_of_a_batch_norm_and_of_dropout),
    ),
    "a batch norm that does not train": (
        onnx_ops, "batch_normalization", "bias, training,", "bias, False,",
        _alone(LAWS.test_both_modes_of_a_batch_norm_and_of_dropout),
    ),
    "a matrix that is not turned": (
        onnx_ops, "gemm", "if transB:", "if not transB:", _value("gemm"),
    ),
    "0 of Reshape is 0": (
        onnx_ops, "reshape", "n or x.shape[place]", "n or 1", _value("reshape"),
    ),
    "nearest pixels rounded down": (
        onnx_resize, "_rounded", "math.ceil(v - 0.5)", "math.floor(v)", _value("nearest"),
    ),
    "sizes rounded down": (
        onnx_numbers, "divide", "np.trunc(quotient)", "np.floor(quotient)",
        _alone(LAWS.test_sizes_are_divided_towards_0),
    ),
    "statistics that are weights": (
        READER, "_register", "if name in states:", "if False:",
        _alone(LAWS.test_weights_have_their_names_and_statistics_are_buffers),
    ),
    "constants that are trained": (
        READER, "_register", "not array.ndim or name", "name",
        _alone(LAWS.test_constants_are_not_trained),
    ),
    "equal values stay one": (
        onnx_graph, "_apart", "len(uses[name]) > 1", "False",
        _alone(LAWS.test_values_that_were_equal_are_apart),
    ),
    "a buffer that gives way to a result of its name": (
        trace_runner.TraceRunner, "run", "if tensor.name in self.taken", "if False",
        _alone(LAWS.test_a_weight_may_be_called_as_the_result_of_a_call),
    ),
    "a one that is always the batch": (
        onnx_graph, "from_onnx", "opened if _batches_stay_apart(opened) else model", "opened",
        _alone(LAWS.test_a_one_that_would_mix_the_images_of_a_batch_is_not_opened),
    ),
    "images of a batch mixed": (
        onnx_graph, "_batches_stay_apart", "two[name] in (shape, (2 * shape[0], *shape[1:]))",
        "True", _alone(LAWS.test_a_one_that_would_mix_the_images_of_a_batch_is_not_opened),
    ),
    "a declared shape passed over": (
        onnx_graph, "_check", "or any(isinstance(w, int) and w != n for n, w in pairs)", "",
        _refused("another shape than declared"),
    ),
    "a weight of no bytes": (
        FILE, "_as_many", "found != wanted", "found > wanted", _refused("a weight of 0 bytes"),
    ),
    "weights behind a link": (
        FILE, "_beside", "or not path.resolve().is_relative_to(self._folder.resolve())", "",
        _elsewhere("link.bin"),
    ),
    "a cycle": (
        FILE, "_in_order", "name and name not in there:", "name and name not in there | later:",
        _refused("a cycle"),
    ),
    "any opset": (
        FILE, "_opset", "versions[0] > NEWEST_OPSET or", "", _refused("opset too new"),
    ),
    "a batch in the file": (
        WRITER, "_open", "n if n == m else None", "n",
        lambda folder: LAWS.test_a_model_is_written_and_gives_what_it_predicts("lenet", folder),
    ),
    "a shape for the batch of the example": (
        onnx_export, "_reshape", "-1 if n is None else n for n in call.out",
        "n for n in call.op.shape", _written("shapes"),
    ),
    "sides in this library's order": (
        onnx_export, "_four", "[top, left, bottom, right]", "[top, bottom, left, right]",
        _written("convolved"),
    ),
    "an inverse without its eps": (
        onnx_export, "_batch_norm", "epsilon=eps", "epsilon=0.0", _written("batch norm"),
    ),
    "a slice backwards that ends at the first": (
        onnx_export, "_slice", "end if end >= 0 else -op.full[axis] - 1", "end",
        _written("flipped and repeated"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_killed(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    owner, function, piece, wrong, law = BUGS[name]
    (tmp_path / "right").mkdir()
    law(tmp_path / "right")
    (tmp_path / "wrong").mkdir()
    right = getattr(owner, function) if owner in (onnx_ops, onnx_export, onnx_numbers) else None
    if isinstance(owner, type):
        plant(monkeypatch, owner, function, piece, wrong)
    elif not _in_a_table(monkeypatch, right, piece, wrong):
        plant_everywhere(monkeypatch, owner, function, piece, wrong)
    with pytest.raises(KILLED):
        law(tmp_path / "wrong")


def _in_a_table(monkeypatch: pytest.MonkeyPatch, right: Any, piece: str, wrong: str) -> bool:
    """Plants a bug in a function that is known by a table alone."""
    for owner, name, table in (
        (onnx_graph, "OPERATORS", onnx_ops.OPERATORS),
        (onnx_graph, "NUMBERS", onnx_numbers.NUMBERS),
        (onnx_export, "WRITERS", onnx_export.WRITERS),
    ):  # fmt: skip
        found = {k for k, f in table.items() if getattr(f, "function", f) is right}
        if found:
            bad = with_bug(right, piece, wrong)
            changed = {
                k: (replace(table[k], function=bad) if name == "OPERATORS" else bad) for k in found
            }
            monkeypatch.setattr(owner, name, {**table, **changed})
            return True
    return False
