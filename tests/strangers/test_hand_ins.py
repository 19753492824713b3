"""What students hand in, and the line that each of them gets: a file that counts, or a reason.

Each row is a hand-in as learning platforms, macOS, Windows and Jupyter make them. Nothing is ever
written outside of the folder that is given for it, and everybody stands in the list.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
import tarfile
import zipfile
from pathlib import Path

import pytest
from unit.test_course_tools import tiny_assignment

from ooctrain.cli import main
from ooctrain.course.handed_in import handed_in, source_of_notebook
from ooctrain.course.rubric import read_rubric

GOOD = "class Lru:\n    name = 'good'\n"
OTHER = "import os\nprint(os.sep)\n"
JUNK = {"__MACOSX/._lru.py": b"\0\5\26\7", ".DS_Store": b"\0", "__pycache__/lru.cpython.pyc": b"x"}
CHECKPOINT = {".ipynb_checkpoints/lru-checkpoint.py": GOOD.encode() + b"# older\n"}


def zipped(files, **how):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, **how) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tarred(files, compress=lambda content: content, kind=tarfile.REGTYPE):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.type = len(content) if kind == tarfile.REGTYPE else 0, kind
            entry.linkname = "/etc/passwd"
            archive.addfile(entry, io.BytesIO(content))
    return compress(packed.getvalue())


def notebook(*cells, key="source", lines=False, **rest):
    made = []
    for cell in cells:
        kind, text = cell if isinstance(cell, tuple) else ("code", cell)
        text = text.splitlines(keepends=True) if lines else text
        made.append({"cell_type": kind, key: text, "metadata": {}, "outputs": []})
    book = {"cells": made, "nbformat": 4} if key == "source" else {"worksheets": [{"cells": made}]}
    return json.dumps({**book, **rest}).encode()


def flagged(packed, flag):
    """A zip whose first file has a flag."""
    content = bytearray(packed)
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + flags] |= flag
    return bytes(content)


def encrypted(files=None):
    """A zip whose first file is."""
    return flagged(zipped(files or {"lru.py": GOOD.encode()}), 1)


G, NOT = GOOD.encode(), OTHER.encode()
#: What takes long to make is made where it is laid down.
BOMB = {"lru.py": b"0" * (65 << 20)}
VENV = [
    *(f"venv/lib/python3.11/site-packages/numba/{number}.py" for number in range(5001)),
    "venv/Lib/site-packages/lru.py", "node_modules/a/lru.py",
]  # fmt: skip
#: {what is handed in: its files}; each is a right submission.
RIGHT = {
    "a file": {"ada.py": G},
    "an ending in capitals": {"ADA.PY": G},
    "a hidden ending": {"ada.py.txt": G},
    "a mark at the start": {"ada.py": b"\xef\xbb\xbf" + G},
    "two bytes a letter, as PowerShell writes": {"ada.py": GOOD.encode("utf-16")},
    "the same in a folder": {"ada/lru.py": b"\xfe\xff" + GOOD.encode("utf-16-be")},
    "a virtual environment, too": {
        "ada/work/mine.py": G, **{f"ada/work/{name}": NOT for name in VENV[-9:]}},
    "a zip with a virtual environment": {"ada.zip": lambda: zipped(
        {**dict.fromkeys(VENV, b"x = 1"), "work/mine.py": G})},
    "ends of lines of Windows": {"ada.py": G.replace(b"\n", b"\r\n")},
    "a name with a colon": {"ada.py:copy.py": G},
    "a name with blanks and umlauts": {"Ada Müller (2).py": G},
    "a folder": {"ada/lru.py": G},
    "a folder in a folder": {"ada/solution/final/lru.py": G},
    "a folder with other files": {"ada/lru.py": G, "ada/plot.py": NOT, "ada/data.csv": b"1"},
    "another name beside other files": {"ada/mine.py": G, "ada/plot.py": NOT},
    "a name in capitals in a folder": {"ada/LRU.PY": G},
    "what macOS and Jupyter add": {"ada/mine.py": G, **{f"ada/{n}": c for n, c in
                                   (JUNK | CHECKPOINT).items()}},
    "the same twice": {"ada/lru.py": G, "ada/copy/lru.py": G},
    "a zip": {"ada.zip": zipped({"lru.py": G})},
    "a zip in capitals": {"ADA.ZIP": zipped({"LRU.PY": G})},
    "a zip of a Mac": {"ada.zip": zipped({"ada/lru.py": G, **JUNK})},
    "a zip of Windows": {"ada.zip": zipped({"ada\\lru.py": G})},
    "a zip with a file that is locked": {"ada.zip": encrypted({"old/lru.py": NOT, "lru.py": G})},
    "a zip in a folder": {"ada_123_assignsubmission_file/lru.zip": zipped({"lru.py": G})},
    "a zip in a zip": {"ada.zip": zipped({"inner.zip": zipped({"lru.py": G})})},
    "a zip with all of the handout": {"ada.zip": zipped({"tiny/lru.py": G, "tiny/test_tiny.py": NOT,
                                      "tiny/adapters.py": NOT, "tiny/README.md": b"x"})},
    "a zip that was packed as tightly as can be": {"ada.zip": flagged(zipped({"lru.py": G}), 2)},
    "a zip with something huge that is not read": {"ada.zip": zipped({"lru.py": G,
                                                   "weights.bin": b"0" * (70 << 20)})},
    "a tar": {"ada.tar": tarred({"lru.py": G})},
    "a tar.gz": {"ada.tar.gz": tarred({"./ada/lru.py": G}, gzip.compress)},
    "a tgz": {"ada.TGZ": tarred({"lru.py": G}, gzip.compress)},
    "a tar.bz2": {"ada.tar.bz2": tarred({"lru.py": G}, bz2.compress)},
    "a tar.xz": {"ada.tar.xz": tarred({"lru.py": G}, lzma.compress)},
    "a file that is compressed alone": {"ada.py.gz": gzip.compress(G)},
    "a notebook": {"ada.ipynb": notebook(("markdown", "# my planner"), GOOD)},
    "a notebook with a mark": {"ada.ipynb": b"\xef\xbb\xbf" + notebook(GOOD)},
    "a notebook's lines": {"ada.ipynb": notebook(GOOD, lines=True)},
    "an old notebook": {"ada.ipynb": notebook(GOOD, key="input")},
    "a notebook in a zip": {"ada.zip": zipped({"work/lru.ipynb": notebook(GOOD)})},
    "a notebook with magics": {"ada.ipynb": notebook(
        "%matplotlib inline\n!pip install x\nimport nothing_like_it\nfiles = !ls\nlen?",
        "%%time\n" + GOOD, "%%bash\necho 'class Lru: pass'", "Lru().plan()")},
    "a notebook that writes the file": {"ada.ipynb": notebook("%%writefile lru.py\n" + GOOD)},
    "a notebook with several tries": {"ada.ipynb": notebook("class Lru:\n    name = x\n", GOOD)},
    "a notebook and its file": {"ada/lru.py": G, "ada/lru.ipynb": notebook("x = 1")},
    "a notebook beside a script": {"ada/plot.py": NOT, "ada/work.ipynb": notebook(GOOD)},
}  # fmt: skip
#: {what is handed in: (its files, a word of the reason)}.
WRONG = {
    "an empty folder": ({"ada/": None}, "there is no lru.py"),
    "a folder with junk": ({f"ada/{n}": c for n, c in JUNK.items()}, "there is no lru.py"),
    "two files": ({"ada/a.py": G, "ada/b.py": G + b"# b\n"}, "2 files"),
    "a text": ({"ada.pdf": b"%PDF"}, "not a Python file"),
    "nothing of a zip": ({"ada.zip": b"PK"}, "cannot be unpacked"),
    "an empty zip": ({"ada.zip": zipped({})}, "there is no lru.py"),
    "an encrypted zip": ({"ada.zip": encrypted()}, "encrypted"),
    "a zip that leads out": ({"ada.zip": zipped({"../../lru.py": G})}, "leads out"),
    "a zip from the root": ({"ada.zip": zipped({"/tmp/lru.py": G})}, "leads out"),
    "a zip from a drive": ({"ada.zip": zipped({"C:\\lru.py": G})}, "leads out"),
    "a tar that leads out": ({"ada.tar": tarred({"../lru.py": G})}, "leads out"),
    "a tar of links": ({"ada.tar": tarred({"lru.py": b""}, kind=tarfile.SYMTYPE)},
                       "there is no lru.py"),
    "a zip that fills a disk": ({"ada.zip": lambda: zipped(BOMB)}, "64 MiB"),
    "a zip whose files fill a memory together": (
        {"ada.zip": lambda: zipped(dict.fromkeys(["a.ipynb", "lru.py"], b"0" * (40 << 20)))},
        "not a notebook"),
    "a tar that fills a disk": ({"ada.tar.gz": lambda: tarred(BOMB, gzip.compress)}, "64 MiB"),
    "a gzip that fills a disk": ({"ada.py.gz": lambda: gzip.compress(BOMB["lru.py"])}, "64 MiB"),
    "a zip of zips of zips": ({"ada.zip": zipped({"a.zip": zipped({"b.zip": zipped({
        "c.zip": zipped({"lru.py": G})})})})}, "more than 3 others"),
    "a zip of very many files": (
        {"ada.zip": lambda: zipped({f"{n}.txt": b"" for n in range(5001)})}, "5000 files"),
    "a rar": ({"ada.rar": b"Rar!"}, "zip and tar"),
    "a rar in a folder": ({"ada/lru.rar": b"Rar!"}, "zip and tar"),
    "a cut tar.gz": ({"ada.tar.gz": tarred({"lru.py": G}, gzip.compress)[:40]},
                     "cannot be unpacked"),
    "a notebook of nothing": ({"ada.ipynb": b"{}"}, "not a notebook"),
    "a notebook that is no JSON": ({"ada.ipynb": b"PK"}, "not JSON"),
    "a notebook that is a list": ({"ada.ipynb": b"[1]"}, "not a notebook"),
    "a notebook of odd cells": ({"ada.ipynb": b'{"cells": [1, {"cell_type": "code"}, null]}'},
                                "no code cell defines Lru"),
    "a notebook that is deep": ({"ada.ipynb": b"[" * 100_000}, "not JSON"),
    "a notebook of a deep sum": (
        {"ada.ipynb": notebook("class Lru:\n    x = " + "-" * 200_000 + "1\n")}, ""),
    "a notebook of blanks": ({"ada.ipynb": notebook("class Lru(:\n" + " " * 300_000 + "%\n")},
                             "code cell 1"),
    "a file of empty lines and another": (
        {"ada/a.py": b"\n" * 300_000, "ada/b.py": b" " * 300_000}, "2 files"),
    "a notebook without the class": ({"ada.ipynb": notebook("x = 1")}, "no code cell defines Lru"),
    "a notebook with a slip": ({"ada.ipynb": notebook("x = 1", "class Lru:\n    def f(:\n")},
                               "code cell 2"),
}  # fmt: skip


@pytest.fixture
def place(tmp_path):
    """(rubric, folder of the class, folder for what is unpacked)."""
    (tmp_path / "class").mkdir()
    rubric = read_rubric(tiny_assignment(tmp_path / "tiny"))
    return rubric, tmp_path / "class", tmp_path / "unpacked"


def lay(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = content() if callable(content) else content
        path.mkdir() if content is None else path.write_bytes(content)


@pytest.mark.parametrize("what", RIGHT)
def test_a_right_submission_is_found(what, place):
    rubric, folder, unpacked = place
    lay(folder, RIGHT[what])
    (one,) = handed_in(folder, rubric, unpacked)
    assert one.why == ""
    assert one.student
    assert one.file.name.endswith(".py")
    assert str(one.file).count(".py") == 1
    names: dict = {}
    exec(one.file.read_text(encoding="utf-8-sig"), names)
    assert names["Lru"].name == "good"


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_one_has_a_line_with_a_reason(what, place, tmp_path):
    rubric, folder, unpacked = place
    files, reason = WRONG[what]
    lay(folder, files)
    before = {path for path in tmp_path.rglob("*") if unpacked not in path.parents}
    (one,) = handed_in(folder, rubric, unpacked)
    assert one.file is None
    assert one.student == "ada"
    assert reason in one.why
    assert "\n" not in one.why
    assert {path for path in tmp_path.rglob("*") if unpacked not in path.parents} == before


def test_everybody_has_a_line_whatever_the_names(place):
    rubric, folder, unpacked = place
    lay(folder, {"ada.py": G, "ada.zip": zipped({"lru.py": G}), "ada/lru.py": G, "Ada.PY": G,
                 "bob/": None, "._ada.py": b"\0", "__MACOSX/._x": b"", "Thumbs.db": b"",
                 os.fsdecode(b"b\xffd.py"): G, "cid.pdf": b"%PDF"})  # fmt: skip
    found = handed_in(folder, rubric, unpacked)
    students = [one.student for one in found]
    assert len(found) == 7
    assert len(set(students)) == 7
    assert all("".join(students).encode() for _ in found)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_or_a_link_does_not_hold_the_class_up(place, tmp_path):
    rubric, folder, unpacked = place
    os.mkfifo(folder / "ada.py")
    (folder / "bob").mkdir()
    os.mkfifo(folder / "bob" / "lru.py")
    (folder / "cid").symlink_to(tmp_path / "tiny")
    found = handed_in(folder, rubric, unpacked)
    assert [one.file for one in found] == [None] * 3
    assert all("link" in one.why for one in found)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_has_a_line(place):
    rubric, folder, unpacked = place
    lay(folder, {"ada.py": G, "bob/lru.py": G})
    (folder / "ada.py").chmod(0)
    (folder / "bob").chmod(0)
    found = handed_in(folder, rubric, unpacked)
    (folder / "bob").chmod(0o700)
    assert all("cannot be read" in one.why for one in found)


def test_an_unchanged_stub_beside_a_solution_does_not_count(place):
    rubric, folder, unpacked = place
    stub = (rubric.folder / "lru.py").read_bytes()
    lay(folder, {"ada/lru.py": stub.replace(b"\n", b"\r\n"), "ada/mine.py": G, "bob/lru.py": stub})
    ada, bob = handed_in(folder, rubric, unpacked)
    assert ada.file.name == "mine.py"
    assert bob.file.read_bytes() == stub


#: {what a notebook has: (cells, words that its source has, words that it has not)}
BOOKS = {
    "helpers": (["import math, os\nK = 3\ndef half(x):\n    return x / K\n",
                 "class Lru:\n    def f(self):\n        return half(math.pi)\n", "print(Lru())"],
                ["import math", "K = 3", "def half"], ["print"]),
    "a base": (["class Base:\n    pass", "class Lru(Base):\n    pass"], ["class Base"], []),
    "a method of later": (["class Lru:\n    pass", "def f(self):\n    pass", "Lru.f = f"],
                          ["Lru.f = f", "def f"], []),
    "the last try": (["class Lru:\n    a = 1", "class Lru:\n    b = 2"], ["b = 2"], ["a = 1"]),
    "the future": (["x = 1", "from __future__ import annotations\nclass Lru:\n    y = x"],
                   ["x = 1"], []),
    "a sum over lines": (["K = (7\n% 4)\nclass Lru:\n    k = K"], ["7 % 4"], []),
    "a text with magic": (["T = '''\n!x\n'''\nclass Lru:\n    t = T"], ["!x"], []),
    "a magic in a loop": (["for i in range(2):\n    !echo hi\nclass Lru:\n    pass"], [], ["echo"]),
    "another broken cell": (["def f(:", "class Lru:\n    pass"], [], ["def f"]),
    "a guarded import": (["try:\n    import fast as m\nexcept ImportError:\n    import slow as m\n",
                          "class Lru:\n    m = m"], ["import slow"], []),
    "a table that is filled": (["T = {}", "T['a'] = 1", "class Lru:\n    t = T"], ["T['a']"], []),
}  # fmt: skip


@pytest.mark.parametrize("what", BOOKS)
def test_a_notebook_gives_the_class_and_what_it_needs(what, place):
    rubric, folder, unpacked = place
    cells, there, absent = BOOKS[what]
    lay(folder, {"ada.ipynb": notebook(*cells)})
    (one,) = handed_in(folder, rubric, unpacked)
    source = one.file.read_text()
    compile(source, "lru.py", "exec")
    assert all(word in source for word in there)
    assert not any(word in source for word in absent)


#: Statements of a notebook: they make, change and read names, or only try something.
STATEMENTS = (
    "{a} = {n}", "{a} = {b} + {n}", "{a}, {b} = {n}, {b}", "T = [{n}]", "T.append({a})",
    "T[0] = {a}", "for i in range({n}):\n    T.append(i)", "T += [{a}]", "D = {{'k': {a}}}",
    "D['k'] = {n}", "D.update(k={b})", "if {a} > {n}:\n    {b} = {n}\nelse:\n    {a} = {n}",
    "import math as m", "def f():\n    return {a} + T[0]", "def g(x={a}):\n    return f() + x",
    "h = lambda: D['k'] + {b}", "class Other:\n    k = {a}", "Other.n = {n}", "del {a}",
    "class Other:\n    def k(self):\n        return f()", "@str\nclass Other:\n    pass",
    "try:\n    import nothing_like_it as q\nexcept ImportError:\n    q = {n}",
    "class Lru:\n    n = {n}\n    k = {a}\n\n    def m(self):\n        return f(), {b}",
    "class Lru(Other):\n    n = {n}\n    t = T", "class Lru(Lru):\n    j = {a}", "Lru.m = g",
    "class Lru:\n    j = D\n    z = q\n    k = h", "Lru.z = {a}", "Lru.z += {n}",
    "class Lru:\n    def m(self):\n        plan = [{a} for q in T]\n        return plan",
    "assert Lru.n < {n}, D", "Lru.m(1)", "print(Lru())", "1 / 0", "Lru().m()", "raise Wrong({a})",
    "f()", "T", "plan = wrong({a})", "plan.show()",
)  # fmt: skip


def shown_of(names):
    """What the class has and gives."""
    one = names["Lru"]()
    given = [tried(getattr(one, word, lambda: None)) for word in ("k", "m")]
    return [*(repr(getattr(one, word, None)) for word in "ntjz"), *given]


def tried(what):
    try:
        return repr(what() if callable(what) else what)
    except Exception as error:
        return type(error).__name__


#: Of these the first of the last group; what follows only looks, and may fail.
LOOKS = STATEMENTS.index("assert Lru.n < {n}, D")
LEFT_OUT = "assert", "print", "raise", "1 / 0", "wrong", "show"


@pytest.mark.parametrize("part", range(4))
def test_a_class_out_of_a_notebook_is_as_it_is_in_the_notebook(part):
    """Of cells that run from top to bottom; those that only look at something are left out."""
    found = 0
    for seed in range(part * 150, part * 150 + 150):
        rng, names = random.Random(seed), {"__name__": "book"}
        cells = ["A = B = 1", "T = []", "D = {}"]
        exec("\n".join(cells), names)
        for _ in range(16):
            number = rng.randrange(len(STATEMENTS))
            a, b = rng.choices("AB", k=2)
            cell = STATEMENTS[number].format(a=a, b=b, n=rng.randrange(1, 9))
            try:
                exec(compile(cell, "cell", "exec"), names)
            except Exception:
                if number < LOOKS:
                    continue
            cells.append(cell)
        if "Lru" in names:
            found += 1
            source = source_of_notebook(notebook(*cells), "Lru")
            alone: dict = {"__name__": "alone"}
            exec(compile(source, "lru.py", "exec"), alone)
            assert shown_of(alone) == shown_of(names), (cells, source)
            assert not [word for word in LEFT_OUT if word in source]
    assert found > 40


@pytest.mark.slow
def test_a_class_as_it_is_handed_in(place, tmp_path):
    rubric, folder, _ = place
    stub = (rubric.folder / "lru.py").read_bytes()
    lay(folder, {"ada.PY": stub, "bob.zip": zipped({"x/lru.py": stub, **JUNK}),
                 "cid.ipynb": notebook(stub.decode()), "dan.zip": b"PK", "eve/": None})  # fmt: skip
    assert main(["grade", str(rubric.folder), str(folder), "--out", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "grades.csv").open() as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["ada", "bob", "cid", "dan", "eve"]
    assert rows["ada"]["points"] == rows["bob"]["points"] == rows["cid"]["points"] != "0.0"
    assert all(rows[name]["note"] and rows[name]["points"] == "0.0" for name in ("dan", "eve"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mine.ipynb", "mine.zip", "MINE.PY", "mine.py"])
def test_one_hand_in_is_graded_as_it_is(name, place, tmp_path, capsys):
    rubric, folder, _ = place
    stub = (rubric.folder / "lru.py").read_bytes()
    content = {"ipynb": notebook(stub.decode()), "zip": zipped({"lru.py": stub})}
    path = Path(folder / name)
    path.write_bytes(content.get(name.rpartition(".")[2], stub))
    results = tmp_path / "results.json"
    assert main(["grade", str(rubric.folder), str(path)]) in (0, 4)
    assert "cannot be loaded" not in capsys.readouterr().out
    assert main(["grade", str(rubric.folder), str(folder), "--gradescope", str(results)]) in (0, 4)
    assert json.loads(results.read_text())["score"] > 0
