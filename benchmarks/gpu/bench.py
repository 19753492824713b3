"""One part at work, in a process of its own: its checks, each guarded and logged at once.

On a GPU a stray access does not only fail but destroys the process's context, and a wrong barrier
hangs for ever. So a part runs in its own process and logs a line of JSON when a check begins and
one when it has ended. The process ends itself after such a failure, and `apart.py`, which reads the
log, starts it again behind that check. A fault that breaks a whole part is reported three times and
no more. Read next: `apart.py`; `kernels.py` for a part.
"""

from __future__ import annotations

import faulthandler
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from support.same_bits import OtherBits

from benchmarks.gpu.records import Check
from ooctrain.devices.cuda import driver_abi as abi
from ooctrain.devices.cuda import open as cuda_open
from ooctrain.devices.probe import probe
from ooctrain.errors import OoctrainError

Numbers = Mapping[str, Any]
CHECK_LIMIT_S, REHEARSED_LIMIT_S = 60.0, 600.0
#: So many failures with the same words end a part.
EQUAL_FAILURES = 3
#: Of those words so many count; the rest may be addresses.
_WORDS_COMPARED = 80
#: Names of the errors that a GPU does not survive, as Numba's and CUDA's exceptions say them.
_LOST_NAMES = tuple(abi.ERRORS[status][0] for status in sorted(abi.LOST))
#: How a process ends that has lost its GPU and wants to be started again.
LOST = 3
#: Parts whose values come from kernels: nobody judges them where nobody runs these.
KERNEL_PARTS = ("smoke", "kernels", "networks", "steps", "mapping")
WRONG_VALUES = (AssertionError, OtherBits)
NOT_JUDGED = "nobody runs the kernels here, so that its values are not judged"


class NotRunError(Exception):
    """Something that a check needs is not here; its words say what."""


class LostError(Exception):
    """The GPU answers no more in this process."""


class PartEndedError(Exception):
    """So many checks of a part have failed alike that the rest would, too; its words are theirs."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a whole run was asked for.

    Args:
        rehearse: "": on a GPU; "values": tiny sizes over the stub driver, the kernels run by the
            PTX interpreter; "time": all sizes over the stub driver, the kernels run by nobody.
        capability: of the rehearsal's GPU; 90 is 9.0.
        host_bytes: host memory for what is swapped out; 0: a share of what is free.
        plans: folder of plans made beforehand; "": none.
        folder: where the results go.
    """

    rehearse: Literal["", "values", "time"] = ""
    capability: int = 90
    host_bytes: int = 0
    plans: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a part gets.

    Args:
        part: its name.
        log: the file of its checks.
        until: when it has to be done, by `time.time`.
        asked: of the whole run.
        few: only some small cases, for a memory checker that is slow.
        only: names of the checks that are wanted; empty: all.
        done: names of checks that an earlier process of this part has made.
        failed: how often a check of this part has failed with the same words.
        faults: what the PTX interpreter has refused; it tells more than the driver's numbers.
    """

    part: str
    log: Path
    until: float
    asked: Asked = field(default_factory=Asked)
    few: bool = False
    only: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()
    failed: Counter[str] = field(default_factory=Counter)
    faults: Sequence[Exception] = ()

    @property
    def small(self) -> bool:
        """Whether sizes are tiny."""
        return self.asked.rehearse == "values" or self.few

    def check(
        self, name: str, function: Callable[..., Numbers | None], *arguments: Any,
        limit_s: float = CHECK_LIMIT_S,
    ) -> Check | None:  # fmt: skip
        """Tries one thing and notes what came of it; None if it was noted before.

        Args:
            name: unlike all others of this part.
            function: returns its numbers, if it has any; an exception is a failure.
            limit_s: after which the process is ended.

        Raises:
            LostError: the check has cost this process its GPU.
            PartEndedError: it is the third to fail alike.
        """
        if name in self.done or (self.only and name not in self.only):
            return None
        if time.time() > self.until:
            return self._note(Check(self.part, name, "not run", note="no time left"))
        self._write({"began": name})
        began = time.time()
        limit_s = REHEARSED_LIMIT_S if self.asked.rehearse else limit_s  # machines may be busy
        faulthandler.dump_traceback_later(limit_s, exit=True)
        lost = False
        try:
            found = Check(self.part, name, "ok", function(*arguments) or {})
        except NotRunError as reason:
            found = Check(self.part, name, "not run", note=str(reason))
        except Exception as error:  # whatever it raised is what the check has found
            found = self._wrong(name, error)
            lost = _can_lose(error)
        finally:
            faulthandler.cancel_dump_traceback_later()
        seconds = round(time.time() - began, 3)
        self._note(Check(found.part, name, found.status, found.numbers, found.note, seconds))
        if lost and not _gpu_answers():
            raise LostError(name)
        if found.status == "failed":
            self._count_failure(found.note)
        return found

    def _wrong(self, name: str, error: Exception) -> Check:
        """The check that ended so."""
        unjudged = self.asked.rehearse == "time" and self.part in KERNEL_PARTS
        if unjudged and isinstance(error, WRONG_VALUES):
            return Check(self.part, name, "not run", note=f"{NOT_JUDGED}: {_words(error)}")
        fault = f"; the interpreter: {self.faults[-1]}" if self.faults else ""
        return Check(self.part, name, "failed", note=_words(error) + fault)

    def _count_failure(self, note: str) -> None:
        self.failed[words_of(note)] += 1
        if self.failed[words_of(note)] >= EQUAL_FAILURES:
            raise PartEndedError(words_of(note))

    def _note(self, check: Check) -> Check:
        self._write(asdict(check))
        return check

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, OoctrainError) else f"{type(error).__name__}: {error}"


def words_of(note: str) -> str:
    """What failures are compared by."""
    return " ".join(note.split())[:_WORDS_COMPARED]


def _can_lose(error: BaseException | None) -> bool:
    """Whether an error, or one behind it, is of those that a context does not survive."""
    if error is None:
        return False
    status = getattr(error, "status", getattr(error, "code", None))
    named = any(name in str(error) for name in _LOST_NAMES)
    own = status in abi.LOST or named
    return own or _can_lose(error.__cause__ or error.__context__)


def _gpu_answers() -> bool:
    """Whether memory can still be mapped, written and read in this process."""
    try:
        driver = cuda_open.open_cuda_driver()
        try:
            if driver.maps:
                probe(driver)
            driver.memory_info()
        finally:
            driver.close()
    except Exception:
        return False
    return True
