"""A changed file takes the place of the loaded one, function by function.

Whoever has imported a function keeps it; only its code object is exchanged, in all copies of it
that live: methods, wrapped functions, closures. So nothing is imported again and no file is
written. The same way counts which blocks a test reaches: a file with a probe at the head of each
block is planted. What Numba has compiled is planted in the Python function, which takes the
compiled one's place first. For processes that a test starts the changed modules are left in a
folder, from which they import them (`children/sitecustomize.py`); the cage of `ooctrain grade`,
which ignores the environment, has them in its own copy of the library. Read next: `court.py`.
"""

from __future__ import annotations

import ast
import builtins
import gc
import marshal
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from mutants.children import sitecustomize as child
from mutants.operators import (
    BLOCKS,
    FUNCTIONS,
    ROOT,
    Mutant,
    block_name,
    block_of,
    changes_in,
    first_line,
    functions_in,
    is_compiled,
    parsed,
)

from ooctrain.course.isolation import GIVEN

PROBE = child.PROBE
#: How the program of a cage's first process ends (`ooctrain/course/interview.py`).
CAGE = "supervise import main; main()"
#: {(file, name, first line): functions that have this code}
Loaded = Mapping[tuple[str, str, int], Sequence[FunctionType]]
_LIBRARY = str(ROOT / "ooctrain")
#: Folders whose modules may hold a compiled function; a virtual environment lies beside them.
_OWN = (_LIBRARY, str(ROOT / "tests"))


def plant(mutant: Mutant, known: Loaded | None = None, for_children: Path | None = None) -> None:
    """Puts a mutant in the place of its function, in this process.

    Args:
        known, for_children: see `exchange`.
    """
    tree = parsed(mutant.file)
    change, site = next(
        found for number, found in enumerate(changes_in(tree)) if number == mutant.number
    )
    setattr(change.node, change.field, change.value)
    ast.fix_missing_locations(tree)
    if is_compiled(site.function):
        interpret()
    exchanged = exchange({mutant.file: tree}, known, for_children)
    replaced = [function for function in exchanged if function.__qualname__ == mutant.place]
    assert replaced, f"{mutant.file}:{mutant.line}: nobody has loaded {mutant.place}"
    if site.statement is site.function:
        for function in replaced:
            _give_defaults(function, site.function.args)


def plant_probes(
    files: list[str], known: Loaded | None = None, for_children: Path | None = None, *,
    compiled: bool = False,
) -> set[str]:  # fmt: skip
    """Makes every block of the files note that it runs.

    Args:
        known, for_children: see `exchange`.
        compiled: of functions, too, that Numba compiles; none of them may run compiled then.

    Returns:
        the set that the name of each block enters, now and later.
    """
    reached: set[str] = set()
    setattr(builtins, PROBE, reached.add)
    trees = {file: parsed(file) for file in files}
    for file, tree in trees.items():
        for place, function in functions_in(tree.body):
            if compiled or not is_compiled(function):
                _add_probes(function, file, place)
    exchange(trees, known, for_children)
    return reached


def _add_probes(function: FUNCTIONS, file: str, place: str) -> None:
    for node in list(ast.walk(function)):
        for field in BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list) and block and not isinstance(node, ast.ClassDef):
                name = block_name(file, place, block_of(function, block))
                block.insert(0, _probe(name, first_line(block)))


def _probe(name: str, line: int) -> ast.stmt:
    (probe,) = ast.parse(f"{PROBE}({name!r})").body
    return ast.increment_lineno(probe, line - 1)


def loaded() -> Loaded:
    """All functions of the library that live: everybody's methods, copies and closures."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # what is frozen is not among the objects
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename.startswith(_LIBRARY):
            found.setdefault(_name_of(function.__code__), []).append(function)
    if frozen:
        gc.freeze()
    return found


def exchange(
    trees: dict[str, ast.Module], known: Loaded | None = None, for_children: Path | None = None
) -> list[FunctionType]:
    """Gives the loaded functions of files the code that other trees of them have.

    Args:
        known: what was `loaded` before this process was forked.
        for_children: folder in which these modules, and no others, are left for processes that
            this one starts.
    """
    known = loaded() if known is None else known
    modules = {file: compile(tree, str(ROOT / file), "exec") for file, tree in trees.items()}
    if for_children:
        _leave(modules, for_children)
    new: dict[tuple[str, str, int], list[CodeType]] = {}
    for module in modules.values():
        for code in _codes_in(module):
            new.setdefault(_name_of(code), []).append(code)
    replaced = []
    for name, codes in new.items():
        for function in known.get(name, ()):
            # Two lambdas in a line are not told apart, and left as they are.
            if len(codes) == 1 and len(codes[0].co_freevars) == len(function.__code__.co_freevars):
                function.__code__ = codes[0]
                replaced.append(function)
    return replaced


def _leave(modules: Mapping[str, CodeType], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for former in folder.iterdir():
        former.unlink()
    for file, module in modules.items():
        name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        place = folder / f"{name}.{sys.implementation.cache_tag}"
        place.write_bytes(marshal.dumps(module))


def reach_children(folder: Path, notes: Path | None = None) -> None:
    """From now on the processes that this one starts import what is left in a folder.

    Args:
        notes: file in which they, and forks of this process, write the blocks that they reach.
    """
    os.environ[child.PLANTED] = str(folder)
    _find_child_first(os.environ)
    sys.addaudithook(_in_an_environment_of_its_own)
    if notes is not None:
        os.environ[child.REACHED] = str(notes)
        in_a_fork = child.ReachedApart(str(notes))
        os.register_at_fork(after_in_child=lambda: setattr(builtins, PROBE, in_a_fork))


def _in_an_environment_of_its_own(event: str, given: tuple[Any, ...]) -> None:
    """A test may give the process that it starts another PYTHONPATH, or have it ignore that."""
    if event != "subprocess.Popen":
        return
    if given[3] is not None and child.PLANTED in given[3]:
        _find_child_first(given[3])
    words = [word for word in given[1] if isinstance(word, str)]
    if "-I" in words and any(word.endswith(CAGE) for word in words):
        library = words[next(n for n, word in enumerate(words) if word.endswith(CAGE)) + 1]
        _plant_in_the_cage(Path(library) / "ooctrain")


def _plant_in_the_cage(copy: Path) -> None:
    """Exchanges the modules in a copy of the library that a process gets as its only one."""
    notes = os.environ.get(child.REACHED, os.devnull)
    for name in GIVEN:
        module = "ooctrain." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        compiled = child.compiled_module(module)
        if name.endswith(".py") and compiled.exists():
            stub = f"import marshal\nexec(marshal.loads({compiled.read_bytes()!r}), globals())\n"
            (copy / name).write_text(stub, encoding="utf-8")
    whole = copy / "__init__.py"  # a copy of what is `course/cage/given.py` elsewhere
    given = (copy / "course" / "cage" / "given.py").read_text(encoding="utf-8")
    probe = Path(child.__file__).read_text(encoding="utf-8").partition("class PlantedLoader")[0]
    probe = probe.replace("from __future__ import annotations\n", "")
    noting = f"{probe}\nbuiltins.{PROBE} = ReachedApart({notes!r})\n"
    text = given if given.startswith("import marshal") else whole.read_text(encoding="utf-8")
    before, future, after = text.partition("from __future__ import annotations\n")
    whole.write_text(before + future + noting + after if future else noting + text, "utf-8")


def _find_child_first(environment: MutableMapping[str, str]) -> None:
    paths = [str(Path(child.__file__).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def _name_of(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def _give_defaults(function: FunctionType, arguments: ast.arguments) -> None:
    """New default values, where they are constants."""
    if function.__defaults__:
        function.__defaults__ = tuple(
            node.value if isinstance(node, ast.Constant) else value
            for node, value in zip(arguments.defaults, function.__defaults__, strict=True)
        )
    for argument, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if isinstance(node, ast.Constant) and function.__kwdefaults__:
            function.__kwdefaults__[argument.arg] = node.value


def interpret() -> None:
    """Puts Python functions in the place of those that Numba would compile."""
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "").startswith(_OWN):
            for own, value in list(vars(module).items()):
                python = getattr(value, "py_func", None)
                if python is not None and getattr(python, "__module__", "").startswith(
                    ("ooctrain.sched.", "ooctrain.alloc.")
                ):
                    setattr(module, own, python)
