"""Modules that only some users need, from the extra `data`.

Pillow reads image folders, tifffile TIFF images, pooch fetches data sets. None of them is a
dependency, so each is imported when it is first needed, and an error says what to install where it
is missing. Read next: `folder.py`, `row_image.py`, `download.py`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ooctrain.errors import ConfigError


def extra(name: str, package: str, users: str, otherwise: str = "") -> ModuleType:
    """A module of the extra `data`.

    Args:
        name: name of the module, such as "PIL.Image".
        package: that brings it, such as "Pillow".
        users: what needs it, in the plural.
        otherwise: what one can do without it.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{users} need {package}, which is not installed",
            code="OOC-108",
            fix='pip install "ooctrain[data]"' + (f", or {otherwise}" if otherwise else ""),
        ) from error
