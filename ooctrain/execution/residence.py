"""Where the true values of parameters, buffers and optimizer slots are between steps.

In: tensors by name. Out: one open session at a time, in which they live, and host values otherwise.
The one idea: a parameter's `storage` asks here, so `model.state_dict()` reads the device while
training goes on, an assignment is seen by the next step, and nobody has to know. Only one plan is
open at a time: the budget covers everything on the device. Read next: `train.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ooctrain.engine.eager import HostStorage, Storage
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import OoctrainError
from ooctrain.execution.prepare import PreparedStep, Settings
from ooctrain.execution.sessions import open_session

if TYPE_CHECKING:
    from ooctrain.devices.base import Device
    from ooctrain.execution.executor import Session


class ResidentStorage:
    """A value that is on the device while a session is open, and in `host` otherwise."""

    __slots__ = ("_writes", "host", "lost", "name", "residence", "written_at")

    def __init__(self, residence: Residence, name: str, host: Storage):
        self.residence, self.name, self.host = residence, name, host
        self._writes, self.written_at, self.lost = 0, "", False

    @property
    def version(self) -> int:
        """Grows with every write, and with every step."""
        return self._writes + self.residence.steps

    def read(self) -> np.ndarray:
        """The true value, logical layout; not to be written to."""
        found = self.residence.find(self.name)
        if found is not None:
            session, variable = found
            return session.read(variable)
        if self.lost:
            raise OoctrainError(
                f"the value of {self.name!r} was lost when a step failed", code="OOC-160",
                fix="Trainer.resume from the last checkpoint, or load_state_dict",
            )  # fmt: skip
        return self.host.read()

    def write(self, array: np.ndarray) -> None:
        """Replaces the true value."""
        found = self.residence.find(self.name)
        if found is not None:
            session, variable = found
            described = session.program.trace.variables[variable]
            session.write(variable, np.asarray(array, described.dtype))
        else:
            self.host.write(array)
        self._writes, self.lost = self._writes + 1, False


class Residence:
    """Opens and closes sessions, and carries values from one to the next.

    Attributes:
        steps: run in all sessions so far.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._stored: dict[str, ResidentStorage] = {}
        self._tensors: dict[str, Tensor] = {}
        self._open: tuple[PreparedStep, tuple[int, ...], Device, Session] | None = None
        self._variables: Mapping[str, int] = {}

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """From now on these tensors' values are found here."""
        for name, tensor in tensors.items():
            storage = tensor.storage
            if not (isinstance(storage, ResidentStorage) and storage.residence is self):
                assert storage is not None, "parameters and slots have values"
                # The value of another trainer's tensor is read through that trainer.
                tensor.storage = self._stored[name] = ResidentStorage(self, name, storage)
                self._tensors[name] = tensor

    def find(self, name: str) -> tuple[Session, int] | None:
        """The open session that holds a value, and its variable there; None: it is on the host."""
        if self._open is None or name not in self._variables:
            return None
        return self._open[3], self._variables[name]

    def session(
        self, prepared: PreparedStep, settings: Settings, wanted: tuple[int, ...]
    ) -> Session:
        """The open session of a prepared step; another one that is open is closed first."""
        self._take_back()
        if self._open is None or self._open[0] is not prepared or self._open[1] != wanted:
            self.close()
            trace = prepared.plan.trace
            names = {
                trace.variables[v].name: v for v in trace.initial if trace.variables[v].persistent
            }
            values = {v: self._stored[name].read() for name, v in names.items()}
            device, session = open_session(prepared, settings, values, wanted)
            self._open, self._variables = (prepared, wanted, device, session), names
            for name in names:
                host = self._stored[name].host
                if isinstance(host, HostStorage):
                    host.release()  # one copy of what persists is enough
        return self._open[3]

    def _take_back(self) -> None:
        """Fetches the values that another trainer of the same model has adopted since."""
        for name, stored in self._stored.items():
            tensor = self._tensors[name]
            if tensor.storage is not stored:
                assert tensor.storage is not None, "parameters and slots have values"
                stored.write(tensor.storage.read())
                tensor.storage = stored

    def close(self) -> None:
        """Brings all values to the host and gives the device back."""
        if self._open is None:
            return
        _, _, device, session = self._open
        values = {name: session.read(variable) for name, variable in self._variables.items()}
        self._open = None
        for name, value in values.items():
            self._stored[name].host.write(value)
        session.close()
        device.close()

    def abandon(self) -> None:
        """Gives the device back after a failed step, whose values are not whole any more."""
        if self._open is None:
            return
        _, _, device, session = self._open
        self._open = None
        for name in self._variables:
            self._stored[name].lost = True
        session.close()
        device.close()

    def release(self) -> None:
        """Brings all values to the host and lets all tensors go."""
        self.close()
        for name, stored in self._stored.items():
            stored.residence = Residence()  # who still reads through it finds the host's value
            if self._tensors[name].storage is stored and not stored.lost:
                self._tensors[name].storage = stored.host
        self._stored, self._tensors = {}, {}
