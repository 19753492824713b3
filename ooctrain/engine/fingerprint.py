"""Fingerprints: what a trace reads of modules and other Python state, as plain data, and whether it
has changed since.

A trace is made once and run many times, so everything that it read must be known by value: equal
fingerprints mean that a new trace would be the same. What a module holds is looked at whole. Of
other objects that are reached from it or from the loss (closures, partials, objects of one's own,
classes, global names of the user's functions) only what some function on the way reads: their
bytecode names it, so a logger or a data set that a model keeps costs nothing.

To list all attributes of a network before each step would take milliseconds. So each module counts
its own changes (`Module.__setattr__`): counts only grow, and one sum over all modules shows whether
any has changed (ResNet-50: 4 us for 151 modules, 5 us for which of 161 parameters are trained,
15 us for all that a trainer compares). A counter shared by a tree would have to be handed on
whenever modules are joined or shared. What counts nothing is compared object by object.
Read next: `module.py`, `draws.py`, then `../execution/seen.py`.
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
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property, lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from ooctrain.engine.module import Module
from ooctrain.engine.parameter import Parameter
from ooctrain.engine.tensor import Tensor

_VALUES = (type(None), bool, int, float, complex, str, bytes, np.generic)
_changes, _trained = itemgetter("_change_count"), attrgetter("requires_grad")
#: Packages whose code is not looked into: what a step reads of them is known otherwise.
_LIBRARIES = sys.stdlib_module_names | {"ooctrain", "numpy", "numba", "llvmlite", "scipy", "torch"}
#: With these a function may read any attribute.
_BY_ANY_NAME = {"getattr", "vars", "attrgetter", "methodcaller", "__dict__", "__getattribute__"}
#: Methods that no forward pass calls of what is there already.
_NOT_READ = {"__init__", "__new__", "__repr__", "__str__", "__del__", "__init_subclass__"}
#: Stands for the names of all attributes, where a function may read any.
_KEYS = ""


class Same:
    """An object that is compared by identity."""

    __slots__ = ("what",)

    def __init__(self, what: object):
        self.what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.what is other.what

    def __hash__(self) -> int:
        return id(self.what)


class _Reference:
    """A tensor by identity, as long as it is there: references of `weakref` compare its numbers."""

    __slots__ = ("_number", "_what")

    def __init__(self, what: Tensor):
        self._number, self._what = id(what), weakref.ref(what)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Reference):
            return False
        what = self._what()
        return what is not None and what is other._what()

    def __hash__(self) -> int:
        return self._number


#: Where a value is: its owner, and under which name.
Place = tuple[Same, str]
#: Structures that change only with what they hold.
_FIXED = (tuple, frozenset, types.MethodType)


def described(value: object) -> Hashable:
    """A description such that equal descriptions mean equal values.

    Numbers, text, arrays, lists, tuples, dictionaries, sets, dataclasses and namespaces are
    described by what they hold, all else by identity. A traced tensor that a module keeps has no
    value in another trace.
    """
    return _flat(value, [])


def may_be_equal(one: object, other: object) -> bool:
    """Whether two values have one description, or differ at most in what cannot be compared.

    Objects that are compared by identity, such as an operation of a user's own that is made in each
    forward pass, are compared by class and attributes, functions by their code.
    """
    waiting, met = [(one, other)], set[tuple[int, int]]()
    while waiting:
        pair = waiting.pop()
        descriptions = [_flat(value, []) for value in pair]
        if len(descriptions[0]) != len(descriptions[1]):
            return False
        for a, b in zip(*descriptions, strict=True):
            if a == b:
                continue
            if not isinstance(a, Same) or not isinstance(b, Same):
                return False
            if type(a.what) is not type(b.what):
                return False
            if isinstance(a.what, types.FunctionType) and isinstance(b.what, types.FunctionType):
                if a.what.__code__ != b.what.__code__:
                    return False
                waiting.append((_variables(a.what), _variables(b.what)))
            elif (id(a.what), id(b.what)) not in met:
                met.add((id(a.what), id(b.what)))
                waiting.append((_held(a.what), _held(b.what)))
    return True


def _variables(function: types.FunctionType) -> list[object]:
    """What a function has from outside."""
    closure = _Closure(function)
    return [function.__defaults__, function.__kwdefaults__, *map(closure.get, closure)]


def _held(one: object) -> dict[str, object]:
    """The attributes of an object."""
    names = [name for kind in type(one).__mro__ for name in _slots_of(kind)]
    return {**{name: getattr(one, name, None) for name in names}, **getattr(one, "__dict__", {})}


def _flat(value: object, owners: list[object]) -> tuple[Hashable, ...]:
    """A value as a flat list: a structure, then what it holds.

    Args:
        owners: gets the objects in it that have attributes, which are compared by identity.
    """
    description: list[Hashable] = []
    waiting = [value]
    begun: dict[int, int] = {}  # a list may hold itself
    while waiting:
        one = waiting.pop()
        if isinstance(one, _VALUES):
            description.append(repr(one))  # distinguishes 0.0 from -0.0, and 1 from True
            continue
        if isinstance(one, Tensor):
            description.append(_Reference(one) if one.storage is not None else Tensor)
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
        return type(one), frozenset(_flat(part, owners) for part in one)
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
        return one.reshape(-1).tolist() if one.dtype.hasobject else None
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
    fixed = str | _Reference | Same | type
    return any(not isinstance(one, fixed) and one[0] not in _FIXED for one in description)  # type: ignore[index]


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


def _may_hold(one: object) -> bool:
    """Whether an object may have attributes, or variables of its own, that change."""
    kinds = types.FunctionType | types.BuiltinFunctionType | type | types.ModuleType
    return not isinstance(one, Module) and (not isinstance(one, kinds) or is_own(one))


# What functions read


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


class _Some:
    """Some names of a dictionary."""

    def __init__(self, held: Mapping[str, Any], names: Iterable[str]):
        self._held, self._names = held, tuple(names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def get(self, name: str) -> object:
        return tuple(self._held) if name == _KEYS else self._held.get(name)


class _ByName:
    """Attributes that are in no dictionary: slots, settings of a function, properties."""

    def __init__(self, owner: object, names: Iterable[str]):
        self._owner, self._names = owner, tuple(names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def get(self, name: str) -> object:
        try:
            return getattr(self._owner, name, None)
        except Exception as error:  # of whatever kind: it has no value that could be read
            return type(error)


class _Closure:
    """The variables of outer functions that a function reads."""

    def __init__(self, function: types.FunctionType):
        names, cells = function.__code__.co_freevars, function.__closure__ or ()
        self._cells = dict(zip(names, cells, strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def get(self, name: str) -> object:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # it has no value yet
            return None


class ReadValue(NamedTuple):
    """One value that a trace may read.

    Args:
        source, name: it is `source.get(name)`.
        owner: what it belongs to.
        description: its description, as by `described`.
        loose: whether it may change and stay the same object.
    """

    source: Any
    name: str
    owner: object
    value: object
    description: tuple[Hashable, ...]
    loose: bool

    @property
    def place(self) -> Place:
        """By which it is known again."""
        return Same(self.owner), self.name

    def unchanged(self) -> bool:
        """Whether it is as it was."""
        now = self.source.get(self.name)
        return (now is self.value and not self.loose) or _flat(now, []) == self.description


class ReachedState:
    """What is reached from some values, as far as a function on the way may read it.

    Args:
        starts: (owner, dictionary, name) of each.
        known: modules that are looked at otherwise.
        apart: places that are left out.

    Attributes:
        cells: each value once.
        owners: the objects that were met.
        attributes: that functions on the way read.
    """

    def __init__(
        self, starts: Iterable[tuple[object, Any, str]], known: Iterable[Module],
        apart: Iterable[Place] = (),
    ):  # fmt: skip
        known = list(known)
        self._starts, self._known, self._apart = tuple(starts), set(map(id, known)), set(apart)
        # Also of an installed package, if it has made parts of the model.
        self._packages = {_package_of(type(part)).partition(".")[0] for part in known} - _LIBRARIES
        self.attributes = {"forward", "loss"}  # with which a trace begins
        self._any = False
        self._walk()
        before = 0, False
        while (len(self.attributes), self._any) != before:
            # What was found may be read under names that were found later.
            before = len(self.attributes), self._any
            self._walk()

    def _is_own(self, kind: Any) -> bool:
        return is_own(kind) or _package_of(kind).partition(".")[0] in self._packages

    def _walk(self) -> None:
        self.cells: list[ReadValue] = []
        self.owners: list[object] = []
        waiting, met, taken = deque(self._starts), set(self._known), set(self._apart)
        while waiting:
            owner, source, name = waiting.popleft()
            if (place := (Same(owner), name)) in taken:
                continue
            taken.add(place)
            value, found = source.get(name), list[object]()
            description = _flat(value, found)
            self.cells.append(
                ReadValue(source, name, owner, value, description, _is_loose(description))
            )
            for one in found:
                if id(one) not in met:
                    met.add(id(one))
                    self.owners.append(one)
                    waiting.extend(
                        (of, held, key) for of, held in self._inside(one) for key in held
                    )

    def _inside(self, one: Any) -> Iterator[tuple[object, Any]]:
        """What an object holds that a function may read: dictionaries, with their owners."""
        if isinstance(one, types.FunctionType):
            if self._is_own(one):
                yield from self._of_function(one)
        elif isinstance(one, type):
            kinds = [kind for kind in one.__mro__ if self._is_own(kind)]
            names = {name for kind in kinds for name in self._of_class(kind)}
            yield from ((kind, _Some(vars(kind), sorted(names))) for kind in kinds)
        elif isinstance(one, types.ModuleType):
            if self._is_own(one):
                yield one, _Some(vars(one), self._read_of(vars(one)))
        elif isinstance(one, property | staticmethod | classmethod | cached_property):
            names = {"fget", "__func__", "func"}
            yield one, _ByName(one, [name for name in sorted(names) if hasattr(one, name)])
        else:
            yield from self._of_object(one)

    def _of_function(self, one: types.FunctionType) -> Iterator[tuple[object, Any]]:
        names, attributes, rooms = read_by(one.__code__)
        self.attributes |= attributes
        self._any = self._any or not _BY_ANY_NAME.isdisjoint(names | attributes)
        yield one, _Closure(one)
        yield one, _ByName(one, ("__defaults__", "__kwdefaults__"))
        yield one, _Some(vars(one), self._read_of(vars(one)))
        yield one, _Some(sys.modules, sorted(rooms))
        if not {"environ", "getenv"}.isdisjoint(names | attributes):
            yield os, _Some(vars(os), ("environ",))
        there = one.__globals__
        yield there, _Some(there, sorted(name for name in names if name in there))

    def _of_class(self, kind: type) -> list[str]:
        """Names of a class that a function may read, its operators and calls included."""
        methods = [
            name for name, value in vars(kind).items()
            if isinstance(value, types.FunctionType) and name[:2] == name[-2:] == "__"
        ]  # fmt: skip
        return [*self._read_of(vars(kind)), *(name for name in methods if name not in _NOT_READ)]

    def _of_object(self, one: object) -> Iterator[tuple[object, Any]]:
        kinds = type(one).__mro__
        own = any(map(self._is_own, kinds))
        if own:
            yield one, _ByName(one, ("__class__",))
        held = getattr(one, "__dict__", None)
        if isinstance(held, dict):
            # What the class has, too: an object may get one of its own.
            names = {*held, *(name for kind in kinds if self._is_own(kind) for name in vars(kind))}
            by_any = self._any and own
            yield one, _Some(held, [*sorted(self._read_of(names, own)), *[_KEYS][:by_any]])
        names = {name for kind in kinds for name in _slots_of(kind)}
        # Properties of libraries compute from what they hold; an optimizer's steps are one.
        names |= {
            name for kind in kinds if not self._is_own(kind)
            for name, value in vars(kind).items()
            if isinstance(value, property) and name in self.attributes
        }  # fmt: skip
        yield one, _ByName(one, sorted(self._read_of(names, own)))

    def _read_of(self, names: Iterable[str], own: bool = True) -> list[str]:
        """Of some names those that a function may read."""
        if self._any and own:
            return [name for name in names if name[:2] != "__"]
        return [name for name in names if name in self.attributes]

    def unchanged(self) -> bool:
        """Whether every value is as it was."""
        return all(cell.unchanged() for cell in self.cells)

    def descriptions(self) -> dict[Place, Hashable]:
        """All values, by place."""
        return {cell.place: cell.description for cell in self.cells}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def line_of(name: str, owner: object) -> str:
    """Where a function of the owner sets an attribute, or reads it; "" if nowhere."""
    functions = [
        value for kind in type(owner).__mro__ for value in vars(kind).values()
        if isinstance(value, types.FunctionType)
    ]  # fmt: skip
    if isinstance(owner, dict):  # of global names
        functions = [value for value in owner.values() if isinstance(value, types.FunctionType)]
        kinds = [value for value in owner.values() if isinstance(value, type)]
        functions += [value for kind in kinds for value in vars(kind).values()
                      if isinstance(value, types.FunctionType)]  # fmt: skip
    if isinstance(owner, types.FunctionType):
        functions = [owner]
    found = [
        (not step.opname.startswith("STORE"), function.__code__.co_filename, line)
        for function in functions
        if function.__name__ not in _NOT_READ
        for step, line in _with_lines(function.__code__)
        if step.argval == name
    ]
    return "{1}:{2}".format(*min(found)) if found else ""


def _with_lines(code: types.CodeType) -> Iterator[tuple[dis.Instruction, int]]:
    """The instructions of a function, each with its line."""
    starts = dict(dis.findlinestarts(code))
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = starts.get(step.offset) or line
        yield step, line


class Watch:
    """Modules as they are now, and what is reached from them and from the loss.

    Args:
        roots: they and all their parts are watched.
        read: {tensor whose value a trace has read: that value}.
        loss: loss of the step, if any.
        apart: places that the traces change themselves, without another trace coming of it.

    Attributes:
        modules, parameters: of all of them, each once.
    """

    def __init__(
        self, roots: Iterable[Module], read: Mapping[Tensor, np.ndarray], loss: object = None,
        apart: Iterable[Place] = (),
    ):  # fmt: skip
        self._roots, self._read, self._apart = tuple(roots), dict(read), frozenset(apart)
        self.modules = list(dict.fromkeys(part for root in self._roots for part in root.modules()))
        held = (p for part in self.modules for p in part._parameters.values() if p is not None)
        self.parameters: list[Parameter] = list(dict.fromkeys(held))
        self._counted = [vars(part) for part in self.modules]
        self._count = sum(map(_changes, self._counted))
        self._trained = list(map(_trained, self.parameters))
        self.reached = reached(self.modules, loss, self._apart)

    def unchanged(self) -> bool:
        """Whether all of `fingerprint` is as it was. Cost: see the head of the module."""
        return (
            sum(map(_changes, self._counted)) == self._count
            and list(map(_trained, self.parameters)) == self._trained
            and self.reached.unchanged()
            and not any(_bits(tensor) != _bits(before) for tensor, before in self._read.items())
        )

    def places(self) -> dict[Place, Hashable]:
        """All that a trace may read and change besides parameters and buffers, by place."""
        return {
            **{(Same(part), name): described(value)
               for part in self.modules for name, value in _attributes(part)},
            **self.reached.descriptions(),
        }  # fmt: skip

    def fingerprint(self, *, training: bool) -> Hashable:
        """All that a trace of the modules depends on.

        Args:
            training: whether modes and frozen parameters matter, which in evaluation do not.
        """
        # What is shared has the same number.
        numbers: dict[object, int] = {part: place for place, part in enumerate(self.modules)}
        return (
            tuple(self._of_module(part, numbers, training) for part in self.modules),
            tuple(_bits(tensor) for tensor in self._read),
            tuple(self.reached.descriptions().items()),
        )

    def _of_module(self, part: Module, numbers: dict[object, int], training: bool) -> Hashable:
        registered = (*part._parameters.items(), *part._buffers.items())
        return (
            type(part),
            part.training and training,
            tuple(
                (name, described(value))
                for name, value in _attributes(part)
                if (Same(part), name) not in self._apart
            ),
            tuple(
                (name, tensor is not None and self._seen(tensor, numbers, training))
                for name, tensor in registered
            ),
            tuple(
                (name, numbers.setdefault(child, len(numbers)))
                for name, child in part._modules.items()
            ),
        )

    def _seen(self, tensor: Tensor, numbers: dict[object, int], training: bool) -> Hashable:
        """A parameter or buffer as a trace sees it."""
        number = numbers.setdefault(tensor, len(numbers))
        value = _bits(tensor) if tensor in self._read else b""
        return number, tensor.shape, tensor.dtype, tensor.requires_grad and training, value


def reached(modules: Iterable[Module], loss: object, apart: Iterable[Place] = ()) -> ReachedState:
    """What is reached from modules and the loss, besides what modules count themselves."""
    modules = list(modules)
    kinds = dict.fromkeys(type(p) for p in modules if not in_library(_package_of(type(p))))
    starts: list[tuple[object, Any, str]] = [(kind, {_KEYS: kind}, _KEYS) for kind in kinds]
    for part in modules:
        for name, value in _attributes(part):
            found = list[object]()
            if _is_loose(_flat(value, found)) or any(map(_may_hold, found)):
                starts.append((part, _Some(vars(part), (name,)), name))
    if callable(loss) and not isinstance(loss, Module):
        starts.append((loss, {"loss": loss}, "loss"))
    return ReachedState(starts, modules, apart)


def _attributes(part: Module) -> list[tuple[str, object]]:
    """What a module holds besides what is registered."""
    own = ("training", "_parameters", "_buffers", "_modules", "_change_count", "_not_saved")
    return [(name, value) for name, value in vars(part).items() if name not in own]


def _bits(value: Any) -> bytes:
    return (value.numpy() if isinstance(value, Tensor) else value).tobytes()
