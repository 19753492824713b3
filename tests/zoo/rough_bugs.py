"""Planted bugs of what can go wrong on a real machine: spoilt files, signals, invalid numbers.

`BUGS` is {name: (law, owner, function, piece as it is, piece with the bug)}. With each of them
everything works as long as files are whole and no process is killed. More are with their laws:
`tests/properties/test_foreign_arrays.py`, `tests/properties/test_terminal.py`,
`tests/properties/test_memory_outside.py`. Read next: `test_rough_bugs.py`.
"""

from __future__ import annotations

from typing import Any

from ooctrain.cli import training
from ooctrain.data import picture
from ooctrain.execution import checkpoint
from ooctrain.layers.kernels.cpu.runtime.kernel_jit import KeptCode
from ooctrain.layers.update import ClipFactor
from ooctrain.step import schema

BUGS: dict[str, tuple[str, Any, str, str, str]] = {
    "code is run as long as it can be unpickled": (
        "code", KeptCode, "_all", "digest != self._digest(body)", "not body",
    ),
    "the checksum covers the first part of the code": (
        "code", KeptCode, "_digest", "self._sources + body", "self._sources + body[:99]",
    ),
    "code of other sources is taken": (
        "sources", KeptCode, "_digest", "self._sources + body", "body",
    ),
    "what cannot be read cannot be replaced": (
        "code", KeptCode, "save", "if self._path.is_dir():", "if False:",
    ),
    "depth is not looked at": ("depth", schema, "_depth", "1 if", "0 if"),
    "brackets in words count": ("words", schema, "_depth", '_STRING.sub("", text)', "text"),
    "the state of a run is taken as it stands": (
        "updates", checkpoint, "_parse_state", "fitted(RunState, state)", "RunState(**state)",
    ),
    "a field of another type is left as it stands": (
        "fields", checkpoint, "_parse_state", "fitted(RunState, state)", "RunState(**state)",
    ),
    "only the newest file's place is looked at": (
        "in the way", checkpoint, "_make_place", ", *previous_files(target)", ",",
    ),
    "only scaled images are too large": (
        "images", picture, "_scaled_size", "max(size[0] * size[1], width * height)",
        "width * height",
    ),
    "only images that are large are too large": (
        "images", picture, "_scaled_size", "max(size[0] * size[1], width * height)",
        "size[0] * size[1]",
    ),
    "a norm that is not a number clips nothing": (
        "norm", ClipFactor, "reference", "np.minimum(1.0, ", "min(1.0, ",
    ),
    "nohup is not obeyed": (
        "signals", training, "stop_on_signal", "is not signal.SIG_IGN", "is not None",
    ),
    "only Ctrl-C is heard": (
        "signals", training, "stop_on_signal", "in STOPPING:", "in STOPPING[:1]:",
    ),
    "a second Ctrl-C only asks": (
        "signals", training, "stop_on_signal", "before[signal.SIGINT]", "ask",
    ),
    "handlers stay": (
        "signals", training, "stop_on_signal", "signal.signal(number, handler)", "pass",
    ),
}  # fmt: skip
