"""What a step reads of Python's objects that count no changes: their content, as plain data.

A step is traced once and run many times, so before each run a trainer asks whether anything has
changed that its trace has read. Modules count their changes (`Module.__setattr__`, `register_*`,
`train`, ...), and a value that lies in a `Storage` is fetched by each step anyway: for these one
number is compared. These sequences no counter sees, since nothing is called where it is written:

    model.slopes = [0.1];      step;  model.slopes[0] = 0.2;     step    lists, sets, arrays, ...
    loss reads config.alpha;   step;  config.alpha = 2;          step    objects, classes, globals
    loss reads weight;         step;  nonlocal weight; weight = 2; step  closures, partials
    a = weight.numpy();  a.flags.writeable = True;  step;  a[:] = 2;  step     views that NumPy gave

So of such values the content is described, arrays by a hash, and described again before each step.
It would cost as much as all that a model can reach, a data set included. Hence only that counts
which some function on the way reads: its bytecode has the name. What a module holds counts whole.
Source: ours. Read next: `module.py`, whose counter it is; `../execution/seen.py`, which compares.
"""

from __future__ import annotations

import contextvars
import dis
import hashlib
import os
import sys
import types
import weakref
from collections import UserList, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property, lru_cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ooctrain.engine.module import NOT_ATTRIBUTES, Module
from ooctrain.engine.tensor import Tensor

_VALUES = (type(None), bool, int, float, complex, str, bytes, np.generic)
#: Packages whose code is not looked into: what a step reads of them is known otherwise.
_LIBRARIES = sys.stdlib_module_names | {"ooctrain", "numpy", "numba", "llvmlite", "scipy", "torch"}
#: With these a function may read any attribute.
_BY_ANY_NAME = {"getattr", "vars", "attrgetter", "methodcaller", "__dict__", "__getattribute__"}
#: Methods that no forward pass calls of what is there already.
NOT_READ = {"__init__", "__new__", "__repr__", "__str__", "__del__", "__init_subclass__"}
_changes = itemgetter("_change_count")
#: Stands for the names of all attributes, where a function may read any; and for a tensor's value.
_WHOLE = ""
#: Structures that change only with what they hold.
_FIXED = (tuple, frozenset, types.MethodType)


#: What stands around a function of the user's own.
_WRAPPERS = (property, staticmethod, classmethod, cached_property, type(lru_cache(len)),
             np.vectorize)  # fmt: skip


# Descriptions


class Same:
    """An object that is compared by identity, as long as it is there: a number may be given to
    another one later. It is not kept alive, if it can be helped."""

    __slots__ = ("_find", "_number")

    def __init__(self, what: object):
        self._number = id(what)
        try:
            self._find: Callable[[], object] = weakref.ref(what)
        except TypeError:  # such as a dictionary
            self._find = partial(_itself, what)

    @property
    def what(self) -> Any:
        """The object; None where it is gone."""
        return self._find()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or self._number != other._number:
            return False
        what = self._find()
        return what is not None and what is other._find()

    def __hash__(self) -> int:
        return self._number


#: Where a value is: its owner, and under which name.
Place = tuple[Same, str]


def _itself(what: object) -> object:
    return what


def described(value: object) -> tuple[Hashable, ...]:
    """A description such that equal descriptions mean equal values.

    Numbers, text, arrays, lists, tuples, dictionaries, sets, dataclasses and namespaces are
    described by what they hold, all else by identity. A traced tensor that a module keeps has no
    value in another trace.
    """
    return flat(value, [])


def flat(value: object, owners: list[object]) -> tuple[Hashable, ...]:
    """A value as a flat list: a structure, then what it holds.

    Args:
        owners: gets the objects in it that have attributes, which are compared by identity.
    """
    if isinstance(value, _VALUES):
        return (repr(value),)
    description: list[Hashable] = []
    waiting = [value]
    begun: dict[int, int] = {}  # a list may hold itself
    while waiting:
        one = waiting.pop()
        if isinstance(one, _VALUES):
            description.append(repr(one))  # distinguishes 0.0 from -0.0, and 1 from True
            continue
        if isinstance(one, Tensor):
            description.append(Same(one) if one.storage is not None else Tensor)
            continue
        if (parts := _parts(one)) is None:
            description.append(_alone(one, owners))
        elif id(one) in begun and not isinstance(one, tuple):
            description.append(("again", begun[id(one)]))
        else:
            begun[id(one)] = len(begun)
            description.append((type(one), len(parts)))
            waiting.extend(reversed(parts))
            if is_own(type(one)):
                owners.append(one)  # a class of one's own may have attributes besides
    return tuple(description)


def _alone(one: object, owners: list[object]) -> Hashable:
    """A value without structure."""
    if isinstance(one, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(one).tobytes()).digest()
        return np.ndarray, str(one.dtype), one.shape, digest
    if isinstance(one, set | frozenset):
        return type(one), frozenset(flat(part, owners) for part in one)
    owners.append(one)
    try:  # numbers that other processes see, such as `ctypes.c_float`
        return memoryview, bytes(memoryview(one))  # type: ignore[arg-type]
    except TypeError:
        return Same(one)


def _parts(one: object) -> list[object] | None:
    """What a structure holds, in order; None of what is not a structure."""
    if isinstance(one, list | tuple | deque):
        return list(one)
    if isinstance(one, Mapping):
        return [*one.keys(), *one.values()]
    if isinstance(one, np.ndarray):
        return one.ravel().tolist() if one.dtype.hasobject else None
    if isinstance(one, bytearray):
        return [bytes(one)]
    if is_dataclass(one) and not isinstance(one, type):
        return [getattr(one, field.name, None) for field in fields(one)]
    if isinstance(one, partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, types.MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, weakref.ref):
        return [one()]
    if isinstance(one, contextvars.ContextVar):
        return [one.get(None)]
    if isinstance(one, UserList):
        return [one.data]
    return [vars(one)] if _is_namespace(one) else None


def _is_namespace(value: object) -> bool:
    # Planning does not load argparse; where it is not loaded there is none of its namespaces.
    loaded = sys.modules.get("argparse")
    return isinstance(value, types.SimpleNamespace) or (
        loaded is not None and isinstance(value, loaded.Namespace)
    )


def _is_loose(description: tuple[Hashable, ...]) -> bool:
    """Whether a value so described may change while it stays the same object."""
    fixed = str | Same | type
    return any(not isinstance(one, fixed) and one[0] not in _FIXED for one in description)  # type: ignore[index]


# Whose code is looked into, and what it reads


def in_library(room: str) -> bool:
    """Whether a room of this name is Python's, this library's, or of what this one stands on."""
    return room.partition(".")[0] in _LIBRARIES


def _package_of(kind: Any) -> str:
    """The package that a class, function or module is from; "" where that is unknown."""
    room = kind.__name__ if isinstance(kind, types.ModuleType) else kind.__module__
    return room if isinstance(room, str) else ""


def is_own(kind: Any) -> bool:
    """Whether a class, function or room is the user's own, and no installed library's."""
    room = _package_of(kind)
    if room == "__main__":
        return True
    if in_library(room):
        return False
    file = getattr(sys.modules.get(room), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


@lru_cache(maxsize=1024)  # code never changes; a network has a few dozen functions
def read_by(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Global names and attributes that a function reads, and rooms that it imports; the functions
    inside it included."""
    names, attributes, rooms = set[str](), set[str](), set[str]()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            attributes.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            rooms.add(step.argval)
    found = names, attributes, rooms
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for mine, more in zip(found, read_by(inner), strict=True):
                mine |= more
    return frozenset(names), frozenset(attributes), frozenset(rooms)


def slots_of(kind: type) -> tuple[str, ...]:
    """Names of the attributes that objects of a class have outside any dictionary; of a private one
    as Python writes it, with the class's name."""
    own = vars(kind)
    if "__slots__" not in own:
        return ()
    return tuple(name for name, it in own.items() if isinstance(it, types.MemberDescriptorType))


def variables_of(function: types.FunctionType) -> dict[str, Callable[[], object]]:
    """The variables of outer functions that a function reads, and how each is read."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return {name: partial(_content, cell) for name, cell in zip(names, cells, strict=True)}


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _attribute(owner: object, name: str) -> object:
    """An attribute that is in no dictionary: a slot, a setting of a function, a property."""
    try:
        return getattr(owner, name, None)
    except Exception as error:  # of whatever kind: it has no value that could be read
        return type(error)


#: A value that may be read: its owner, its name there, and how it is read.
Readable = tuple[Any, str, Callable[[], object]]


def _entries(owner: object, held: Mapping[str, Any], names: Iterable[str]) -> Iterator[Readable]:
    return ((owner, name, partial(held.get, name)) for name in names)


def _by_name(owner: object, names: Iterable[str]) -> Iterator[Readable]:
    return ((owner, name, partial(_attribute, owner, name)) for name in names)


class ReadValue(NamedTuple):
    """One value that a trace may read, as it was found.

    Args:
        owner, name, read: see `Readable`.
        description: as by `described`.
        loose: whether it may change and stay the same object.
    """

    owner: Any
    name: str
    read: Callable[[], object]
    value: object
    description: tuple[Hashable, ...]
    loose: bool

    def unchanged(self) -> bool:
        """Whether it is as it was."""
        now = self.read()
        return (now is self.value and not self.loose) or described(now) == self.description


class Content:
    """What is reached from some objects, as far as a function on the way may read it.

    Args:
        roots: a model, a loss, modules that are called besides; tensors whose value is read.
        apart: places that do not count.

    Attributes:
        modules: all that were met, with all their parts, each once.
        owners: all objects that were met.
        attributes: names that functions on the way read.
    """

    def __init__(self, roots: Iterable[object], apart: Iterable[Place] = ()):
        self._roots = tuple(roots)
        self._apart = {(id(owner.what), name) for owner, name in apart}
        #: Installed packages that have made parts of the model are looked into as well.
        self._packages = set[str]()
        self.attributes = {"forward", "loss"}  # with which a trace begins
        self._any = False
        before = None
        while (found := (len(self.attributes), len(self._packages), self._any)) != before:
            # What was found may be read under names that were found later.
            before = found
            self._walk()
        #: What modules do not count.
        self._compared = [c for c in self._cells if c.loose or not isinstance(c.owner, Module)]

    def unchanged(self) -> bool:
        """Whether all is as it was: the counters of modules, and what they do not count."""
        return sum(map(_changes, self._counted)) == self._changes and all(
            cell.unchanged() for cell in self._compared
        )

    def places(self) -> dict[Place, Hashable]:
        """All descriptions, by place."""
        owners = {id(cell.owner): Same(cell.owner) for cell in self._cells}
        return {(owners[id(cell.owner)], cell.name): cell.description for cell in self._cells}

    def _walk(self) -> None:
        self._cells: list[ReadValue] = []
        self.owners: list[object] = []
        self.modules: list[Module] = []
        self._counted: list[dict[str, Any]] = []
        self._changes = 0
        met, taken = set[int](), set(self._apart)
        waiting = deque(map(_root, self._roots))
        while waiting:
            owner, name, read = waiting.popleft()
            if (id(owner), name) in taken:
                continue
            taken.add((id(owner), name))
            value, found = read(), list[Any]()
            description = flat(value, found)
            loose = _is_loose(description)
            self._cells.append(ReadValue(owner, name, read, value, description, loose))
            for one in found:
                for part in one.modules() if isinstance(one, Module) else (one,):
                    if id(part) not in met:
                        met.add(id(part))
                        self.owners.append(part)
                        waiting.extend(self._inside(part))

    def _is_own(self, kind: Any) -> bool:
        return is_own(kind) or _package_of(kind).partition(".")[0] in self._packages

    def _inside(self, one: Any) -> Iterator[Readable]:
        """What an object holds that a function may read."""
        if isinstance(one, Module):
            yield from self._of_module(one)
        elif isinstance(one, types.FunctionType):
            if self._is_own(one):
                yield from self._of_function(one)
        elif isinstance(one, type):
            lines = *one.__mro__, *type.mro(type(one))  # it has what its own class has, too
            kinds = [kind for kind in lines if self._is_own(kind)]
            names = {name for kind in kinds for name in self._of_class(kind)}
            for kind in kinds:
                yield from _entries(kind, vars(kind), sorted(names))
        elif isinstance(one, types.ModuleType):
            if self._is_own(one):
                yield from _entries(one, vars(one), self._read_of(vars(one)))
        elif isinstance(one, _WRAPPERS):
            names = {"fget", "__func__", "func", "__wrapped__", "pyfunc"}
            yield from _by_name(one, [name for name in sorted(names) if hasattr(one, name)])
        else:
            yield from self._of_object(one)

    def _of_module(self, part: Module) -> Iterator[Readable]:
        """Its class, and all that it holds besides what is registered."""
        self.modules.append(part)
        self._counted.append(vars(part))
        self._changes += _changes(vars(part))  # first: what changes meanwhile is found changed
        self._packages |= {_package_of(type(part)).partition(".")[0]} - _LIBRARIES
        yield from _by_name(part, ("__class__",))
        held = vars(part)
        yield from _entries(part, held, [name for name in held if name not in NOT_ATTRIBUTES])

    def _of_function(self, one: types.FunctionType) -> Iterator[Readable]:
        names, attributes, rooms = read_by(one.__code__)
        self.attributes |= attributes
        self._any = self._any or not _BY_ANY_NAME.isdisjoint(names | attributes)
        yield from ((one, name, read) for name, read in variables_of(one).items())
        yield from _by_name(one, ("__defaults__", "__kwdefaults__"))
        yield from _entries(one, vars(one), self._read_of(vars(one)))
        yield from _entries(one, sys.modules, sorted(rooms))
        if not {"environ", "getenv"}.isdisjoint(names | attributes):
            yield from _entries(os, vars(os), ("environ",))
        there = one.__globals__
        yield from _entries(there, there, sorted(name for name in names if name in there))

    def _of_class(self, kind: type) -> list[str]:
        """Names of a class that a function may read, its operators and calls included."""
        methods = [
            name for name, value in vars(kind).items()
            if isinstance(value, types.FunctionType) and name[:2] == name[-2:] == "__"
        ]  # fmt: skip
        return [*self._read_of(vars(kind)), *(name for name in methods if name not in NOT_READ)]

    def _of_object(self, one: object) -> Iterator[Readable]:
        kinds = type(one).__mro__
        own = any(map(self._is_own, kinds))
        if own:
            yield from _by_name(one, ("__class__",))
        held = getattr(one, "__dict__", None)
        if isinstance(held, dict):
            # What the class has, too: an object may get one of its own.
            names = {*held, *(name for kind in kinds if self._is_own(kind) for name in vars(kind))}
            yield from _entries(one, held, sorted(self._read_of(names, own)))
            if self._any and own:
                yield one, _WHOLE, partial(tuple, held)
        names = {name for kind in kinds for name in slots_of(kind)}
        # Properties of libraries compute from what they hold; an optimizer's steps are one.
        names |= {
            name for kind in kinds if not self._is_own(kind)
            for name, value in vars(kind).items()
            if isinstance(value, property) and name in self.attributes
        }  # fmt: skip
        yield from _by_name(one, sorted(self._read_of(names, own)))

    def _read_of(self, names: Iterable[str], own: bool = True) -> list[str]:
        """Of some names those that a function may read."""
        if self._any and own:
            return [name for name in names if name[:2] != "__"]
        return [name for name in names if name in self.attributes]


def _root(one: object) -> Readable:
    if isinstance(one, Tensor):
        return one, _WHOLE, one.numpy
    return one, _WHOLE if isinstance(one, Module) else "loss", partial(_itself, one)
