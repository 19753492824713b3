"""Where a model's true values are between steps.

A value (of a parameter, a buffer, an optimizer slot) is in one place at a time: in the open session
of a trainer, or else on the host. A tensor's `Storage` names its keeper, if it has one: the open
session of one trainer, which has fetched the value from its previous place. So `model.state_dict()`
reads the device while training goes on, an assignment is seen by the next step, trainers of one
model take turns, and a trainer that closes brings home only the values that no other has fetched
since. Only one session of a trainer is open at a time: the budget covers everything on the device.
One thread at a time works with a trainer (`Turns`), on a thread that an interrupt does not end
(`engine/finished.py`). Read next: `train.py`.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np

from ooctrain.devices.host_file import KeptFile
from ooctrain.engine.eager import Holder, Storage
from ooctrain.engine.finished import Finisher, acting_thread
from ooctrain.engine.tensor import Tensor
from ooctrain.errors import InUse, OoctrainError
from ooctrain.execution.prepared_step import PreparedStep
from ooctrain.execution.sessions import open_session
from ooctrain.execution.settings import Settings

if TYPE_CHECKING:
    from ooctrain.devices.interface import Device
    from ooctrain.execution.executor import Session


P = ParamSpec("P")
R = TypeVar("R")


ONE_THREAD = "one thread after the other, with a threading.Lock; or a model for each thread"
_LOOK_S = 0.001  # between two looks at whether what has the turn works or only looks
_HOLDER = "holder"
_ENDING = 0  # no thread has this identity


class Turns:
    """Turns at one trainer's device: a thread works, looks at one value, or ends everything.

    No thread waits for one that works, since trainers of one model that wait for each other's
    values would deadlock; it gets `InUse`. A thread that only looks is waited for, since that takes
    one copy. The garbage collector may end a trainer at any moment, even during a look by the same
    thread; then the next thread that leaves ends it. A turn is taken and recorded in one step, so
    that a thread that an interrupt has thrown out of its turn still has it, and takes it up again.

    Args:
        finisher: whose work is done first, where a second interrupt has left it.

    Attributes:
        process: the one that opened the session, of which a fork has neither memory nor threads;
            None: no session is open.
    """

    def __init__(self, finisher: Finisher) -> None:
        self.process: int | None = None
        self._finisher = finisher
        self._turn: dict[str, int] = {}  # {_HOLDER: thread that has the turn}
        self._worker: int | None = None
        self._ending: Callable[[], None] | None = None

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that opened the session."""
        return self.process not in (None, os.getpid())

    @contextmanager
    def take(self, *, working: bool) -> Iterator[None]:
        """The turn; a thread that works has it already.

        Args:
            working: for a step, an evaluation, closing: other threads are refused meanwhile. Else
                for reading or writing one value, and they wait.

        Raises:
            InUse: another thread works, or this is a fork.
        """
        if self.forked:
            raise InUse(
                "the values belong to a trainer of the parent process",
                code="OOC-163",
                numbers=f"opened in process {self.process}, this is {os.getpid()}",
                fix="close the trainer before the fork; or here: trainer.close(), and then "
                "load_state_dict or Trainer.resume",
            )
        self._finisher.wait()
        me = acting_thread()
        if self._worker == me:
            yield
            return
        try:
            self._enter(me)
            if working:
                self._worker = me
            yield
        finally:
            if self._worker == me:
                self._worker = None
            self._leave(me)

    def end(self, ending: Callable[[], None]) -> None:
        """Calls `ending` now, or when the thread that works or looks now is done."""
        self._ending = ending
        self._end()

    def _enter(self, me: int) -> None:
        while self._turn.setdefault(_HOLDER, me) != me:
            if self._worker is not None:
                raise InUse("another thread is at work with this trainer", fix=ONE_THREAD)
            time.sleep(_LOOK_S)

    def _leave(self, me: int) -> None:
        if self._turn.get(_HOLDER) == me:
            del self._turn[_HOLDER]
        if self._ending is not None:
            self._end()

    def _end(self) -> None:
        if self._turn.setdefault(_HOLDER, _ENDING) == _ENDING:
            try:
                ending, self._ending = self._ending, None
                if ending is not None:
                    ending()
            finally:
                self._turn.pop(_HOLDER, None)


@dataclass(frozen=True, slots=True, eq=False)
class ResidentValue:
    """A holder: the place of one value in an open session, whose steps may change it."""

    keeper: OpenSession
    variable: int
    storage: Storage
    changing: bool

    @property
    def changes(self) -> int:
        """Steps that have changed the value here."""
        return self.keeper.session.steps if self.changing else 0

    def read(self) -> np.ndarray | None:
        """The true value, physical layout. Raises InUse: a step is under way, or this is a fork."""
        with self.keeper.turns.take(working=False):  # no other thread fetches the value meanwhile
            here = self.storage.holder is self
            return self.keeper.session.read_physical(self.variable) if here else None

    def write(self, array: np.ndarray) -> bool:
        """Replaces the true value; False in a forked process, where there is none."""
        if self.keeper.turns.forked:
            return False
        with self.keeper.turns.take(working=False):
            if self.storage.holder is not self:
                return False
            described = self.keeper.prepared.plan.trace.variables[self.variable]
            self.keeper.session.write(self.variable, np.asarray(array, described.dtype))
            return True

    def leave(self) -> None:
        """Closes the session; in a forked process there is none. Raises InUse."""
        if not self.keeper.turns.forked:
            with self.keeper.turns.take(working=True):
                self.keeper.close()


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """A holder: the value was on a device when a step failed."""

    name: str
    changes: ClassVar[int] = 0

    def read(self) -> NoReturn:
        """Raises OoctrainError."""
        raise OoctrainError(
            f"the value of {self.name!r} was lost when a step failed",
            code="OOC-160",
            fix="Trainer.resume from the last checkpoint, or load_state_dict",
        )

    def write(self, array: np.ndarray) -> bool:
        """False: a new value is kept on the host."""
        return False

    def leave(self) -> None:
        """Does nothing: there is no value."""


class OpenSession:
    """One open session with the values that live in it.

    Args:
        storages: {variable: storage of its value}; the values are still elsewhere (`take_over`).
    """

    def __init__(
        self,
        prepared: PreparedStep,
        wanted: tuple[int, ...],
        opened: tuple[Device, Session],
        storages: Mapping[int, Storage],
        turns: Turns,
    ):
        self.prepared, self.wanted, self.turns = prepared, wanted, turns
        self.device, self.session = opened
        changing = set(prepared.plan.trace.carries.values())
        self.places = [ResidentValue(self, v, s, v in changing) for v, s in storages.items()]
        self.closed = False

    def serves(self, prepared: PreparedStep, wanted: tuple[int, ...]) -> bool:
        """Whether it can run this step and hand these variables out."""
        if self.closed or self.session.settling.worn:
            return False
        return self.prepared is prepared and self.wanted == wanted

    def take_over(self) -> None:
        """Fetches what has been elsewhere since the last step: with another trainer, on the host.

        Raises:
            InUse: a step of this trainer, or of one that has a value, is under way.
        """
        self.session.expect_idle()
        missing = [place for place in self.places if place.storage.holder is not place]
        if missing:
            with held_still([place.storage for place in missing]) as holders:
                for place, before in zip(missing, holders, strict=True):
                    self.session.write(place.variable, place.storage.read())
                    self.keep(place, *before)

    def keep(self, place: ResidentValue, before: Holder | None, version: int) -> None:
        """From now on the value is here. Raises InUse: another thread's trainer has taken it."""
        if not place.storage.lend(place, before, version):
            raise InUse("another thread's trainer takes values of the same model", fix=ONE_THREAD)

    def close(self) -> None:
        """Brings the values that are still here to the host, and gives the device back.

        There is no memory for all of them twice, so they come one at a time, and those that wait in
        the slab come last, when the whole arena has made room for them.
        """
        if self.closed or self.turns.forked:
            return
        self.session.expect_idle()
        on_device = set(self.session.on_device())
        try:
            for place in [place for place in self._here() if place.variable in on_device]:
                place.storage.take_back(self.session.read_physical(place.variable), place)
                self.session.forget(place.variable)
            if waiting := self._here():
                self.session.forget_device()
            for place in waiting:
                place.storage.take_back(self.session.read_physical(place.variable), place)
        except Exception:  # the device has failed
            self.abandon()
            raise
        self._give_back()

    def abandon(self) -> None:
        """Gives the device back after a failed step, whose values are not whole any more."""
        variables = self.prepared.plan.trace.variables
        for place in self._here():
            name = variables[place.variable].name
            place.storage.lend(Lost(name), place, place.storage.version)
        self._give_back()

    def _here(self) -> list[ResidentValue]:
        return [place for place in self.places if place.storage.holder is place]

    def _give_back(self) -> None:
        self.closed = True
        self.session.close()
        self.device.close()


@contextmanager
def held_still(storages: Sequence[Storage]) -> Iterator[list[tuple[Holder | None, int]]]:
    """Holders and versions of values, whose trainers do nothing meanwhile.

    Raises:
        InUse: one of them is at work.
    """
    holders = [(storage.holder, storage.version) for storage in storages]
    with ExitStack() as turns:
        for current in dict.fromkeys(h.keeper for h, _ in holders if isinstance(h, ResidentValue)):
            turns.enter_context(current.turns.take(working=True))
        yield holders


class Residence:
    """Opens and closes a trainer's sessions, and carries values from one to the next.

    Attributes:
        open: the open session with its values; None: all values are elsewhere.
        finisher: does what must not be interrupted.
    """

    def __init__(self) -> None:
        self.open: OpenSession | None = None
        self.finisher = Finisher()
        self._turns, self._kept = Turns(self.finisher), KeptFile()
        self._tensors: dict[str, Tensor] = {}
        self._dropped: weakref.finalize | None = None

    def work(self) -> AbstractContextManager[None]:
        """No other thread works with the trainer meanwhile.

        Raises:
            InUse: another thread does, or this is a fork of the process that opened the session.
        """
        return self._turns.take(working=True)

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """From now on steps find their values in these tensors, by name, and in no others."""
        self._close_session()
        self._tensors = dict(tensors)

    def session(
        self, prepared: PreparedStep, settings: Settings, wanted: tuple[int, ...]
    ) -> Session:
        """The open session of a prepared step, with all its values; another one is closed first."""
        current = self.open
        if current is not None and current.serves(prepared, wanted):
            current.take_over()
        else:
            self._close_session()
            current = self._open(prepared, settings, wanted)
        return current.session

    def leave(self) -> None:
        """Brings all values to the host and gives the device's memory back, until the next step; a
        disk's space stays taken."""
        self._close_session()

    def _open(
        self, prepared: PreparedStep, settings: Settings, wanted: tuple[int, ...]
    ) -> OpenSession:
        variables = prepared.plan.trace.variables
        persistent = [v for v in prepared.plan.trace.initial if variables[v].persistent]
        storages = {v: self._tensors[variables[v].name].storage for v in persistent}
        leaving_bytes = sum(storage.leaving_bytes for storage in storages.values())
        opened = open_session(prepared, settings, None, wanted, self._kept, leaving_bytes)
        self._turns.process = os.getpid()
        self.open = current = OpenSession(prepared, wanted, opened, storages, self._turns)
        # A trainer that is never closed loses no value and leaves no threads and memory behind.
        self._dropped = weakref.finalize(self, self._turns.end, current.close)
        self._dropped.atexit = False  # threads may be at work, and the system takes all back
        current.take_over()
        try:
            # Not before: with all of it, the values on their way would be there twice.
            current.device.allocate()
        except OoctrainError:
            self.close()
            raise
        return current

    def close(self) -> None:
        """Brings all values to the host and gives the device back, and a disk's space."""
        self._close_session()
        self._kept.close()
        self.finisher.close()

    def _close_session(self) -> None:
        if self._turns.forked:  # it is the other process's, whose threads may have had the turn
            self._turns = Turns(self.finisher)
            self._forget()
        elif self.open is not None:
            with self.work():
                self.finisher.do(self._close_open)

    def _close_open(self) -> None:
        if self.open is not None:
            self.open.close()
            self._forget()

    def abandon(self) -> None:
        """Gives the device back after a failed step, whose values are not whole any more."""
        if self.open is not None:
            self.open.abandon()
        self._kept.close()
        self._forget()

    def _forget(self) -> None:
        self.open = self._turns.process = None
        if self._dropped is not None:
            self._dropped.detach()


def one_at_a_time(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A trainer's method that only one thread at a time may be in."""

    @wraps(method)
    def alone(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._residence.work():
            return method(self, *args, **kwargs)

    return alone
