"""Planted bugs of what users bring, and of what they see: image files, folders, paths, curves.

`BUGS` is {name: (the law that must break, a function that plants the bug)}; each passes where files
are what a tidy program writes. Read next: `test_stranger_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zoo.planting import plant, plant_everywhere

from ooctrain import plugins
from ooctrain.data import dataset, folder, picture
from ooctrain.engine import fingerprint, state_dicts, tensor
from ooctrain.execution import checkpoint
from ooctrain.nn import named_losses
from ooctrain.optim.schedules import one_cycle, plateau, scheduler
from ooctrain.report import charts, shapes
from ooctrain.step import arguments, user_values

Plant = Callable[[pytest.MonkeyPatch], None]
EXIF, SIDES, BEST, CURVES = "turned.jpg", "sides", "best", "curves"


def _in_picture(name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, picture, name, piece, wrong)


def _in_folder(name: str, piece: str, wrong: str) -> Plant:
    return lambda patch: plant_everywhere(patch, folder, name, piece, wrong)


BUGS: dict[str, tuple[str, Plant]] = {
    "sixteen bits are clipped": (
        "16 bit.png", _in_picture("pixels", "image.mode in DEEP_MODES", "False")),
    "white is black": ("16 bit white is 0.tif", _in_picture("_grey", "== WHITE_IS_ZERO", "== -1")),
    "12 bits are scaled as 16": ("12 bit.tif", _in_picture("_grey", "min(_bits(image), 16)", "16")),
    "the hidden colours of clear pixels": (
        "grey with alpha.png",
        _in_picture("_colour", "not image.has_transparency_data", "True")),
    "a clear shade is shown": (
        "16 bit with a clear value.png",
        _in_picture("_grey", "isinstance(clear, int)", "False")),
    "a camera lies on its side": (EXIF, _in_picture("pixels", "shown = _upright", "_upright")),
    "nothing tells NaN from grey": (
        "float NaN.tif", _in_picture("_grey", "not (low >= 0 and high <= most)",
                                     "low < 0 or high > most")),
    "hidden files are data": (
        "ape/._x.png", _in_folder("_visible", 'not n.startswith(".") and ', "")),
    "sides by the name alone": (
        SIDES, _in_folder("is_for_testing", "_plain(below)", '_plain(below.rpartition("/")[2])')),
    "sides by the place in the folder": (
        "moves nothing", _in_folder(
            "_split", "is_for_testing(path.relative_to(top).as_posix())",
            "(files.index((path, label)) % 5 == 0)")),
    "one mark for all curves": (
        CURVES, lambda patch: plant(patch, shapes, "mark", "kind % len(MARKS)", "0")),
    "one dash for all limits": (
        CURVES, lambda patch: plant(patch, charts, "_looks", "next(dashes)", "DASHES[0]")),
    "a link is replaced": (
        "links", lambda patch: plant(
            patch, checkpoint, "place_of", "if found.is_symlink()", "if False")),
    "rights of the umask": (
        "rights", lambda patch: plant(
            patch, checkpoint, "_before", "return target.stat()", "return None")),
    "bytes become floats": (
        "bytes", lambda patch: plant_everywhere(
            patch, dataset, "as_images", "values.dtype == np.uint8", "False")),
    "an infinite best is forgotten": (
        BEST, lambda patch: plant(
            patch, plateau.ReduceLROnPlateau, "load_state_dict", "best == self._worst()",
            "best in (math.inf, -math.inf)")),
    "a cycle that waits moves the momentum": (
        "waits", lambda patch: plant(
            patch, scheduler.LRScheduler, "load_state_dict", 'state_dict["last_epoch"] < 0',
            "False")),
    "a prefix is taken off whatever is left": (
        "prefix", lambda patch: plant(patch, state_dicts, "_as_a_part", "return state",
                                      "return found")),
    "a file that is not there is an unknown name": (
        "files", lambda patch: plant_everywhere(
            patch, plugins, "refuse_path", "not is_path(name)", "True")),
    "two targets are two rows": (
        "mixup", lambda patch: plant_everywhere(
            patch, user_values, "as_target", "_is_several(value, rows)", "False")),
    "what a data set of one's own asks for is never bytes": (
        "wrapped", lambda patch: plant_everywhere(
            patch, dataset, "wants_bytes", "_WANTS_BYTES.get()", "False")),
    "samples of a subclass are those of its base": (
        "subclass", lambda patch: plant(
            patch, dataset, "_takes", "any(other in vars(kind) for other in above)", "False")),
    "what becomes another value is read by what came before": (
        "in place", lambda patch: plant(
            patch, tensor.Tape, "_record", "t if _stays(t, eager) else t.as_it_is()", "t")),
    "only one name of a tensor has the result": (
        "in place", lambda patch: plant(
            patch, tensor.Tensor, "_become", "new.requires_grad, new.name, new.dtype\n",
            "new.requires_grad, new.name, new.dtype\n    return new\n")),
    "a parameter is another tensor after +=": (
        "first tutorial", lambda patch: plant(
            patch, tensor.Tensor, "_become", "self.requires_grad or self.kind in _KEPT", "False")),
    "an array without axes stays an array": (
        "numbers of NumPy", lambda patch: plant(
            patch, arguments, "_number", "isinstance(value, np.ndarray)", "False")),
    "True is a size": (
        "batch_size", lambda patch: plant(
            patch, arguments, "_number", "return ", "return int(value) if value is True else ")),
    "a class is taken for one of its objects": (
        "mistaken", lambda patch: plant_everywhere(
            patch, named_losses, "named_loss", "isinstance(loss, type(Module))", "False")),
    "what a cache stands before is not seen": (
        "cached", lambda patch: patch.setattr(fingerprint, "_WRAPPERS", (property,))),
    "a cycle is stepped once an epoch": (
        "fit", lambda patch: patch.setattr(one_cycle.OneCycleLR, "counts_steps", False)),
}  # fmt: skip
