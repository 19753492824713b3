"""Tutorials, puzzles and assignments come out of an installation, and no answer is lost by it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ooctrain as oc
from ooctrain.cli import main
from ooctrain.course.lessons import copy_lessons, lessons
from ooctrain.course.notebooks import FIRST_CELL, KERNEL, notebook_of, notebook_text
from ooctrain.course.pages import mended, page, pages, title_of, without_dead_links
from ooctrain.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "tutorials"


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


def test_every_tutorial_puzzle_and_assignment_is_listed_once(capsys):
    found = {kind: [x for x in lessons() if x.kind == kind] for kind in
             ("pocket", "tutorial", "puzzle", "assignment")}  # fmt: skip
    assert [x.path for x in found["pocket"]] == ["pocket"]
    assert [x.path for x in found["tutorial"]] == sorted(p.name for p in FOLDER.glob("[0-9]*.py"))
    assert [Path(x.path).name[:2] for x in found["puzzle"]] == list(oc.puzzles.PUZZLES)
    folders = {p.parent.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("grade.toml")}
    assert {x.path for x in found["assignment"]} == folders
    assert all(x.minutes for x in found["tutorial"])
    assert main(["tutorials", "list"]) == 0
    shown = capsys.readouterr().out
    for lesson in lessons():
        assert "%" not in lesson.title
        assert lesson.path in shown


def test_all_that_a_lesson_needs_is_copied_as_it_is(tmp_path):
    target = tmp_path / "deep" / "mine"
    names = copy_lessons(target)
    copied = files_of(target)
    assert set(names) == set(copied)
    assert "lesson.py" in copied
    changed = [name for name in copied if not name.startswith("docs/")]
    changed = [name for name in changed if copied[name] != (FOLDER / name).read_bytes()]
    for name in changed:  # links to the documentation alone: it lies inside a copy
        before = (FOLDER / name).read_text(encoding="utf-8").splitlines()
        after = copied[name].decode().splitlines()
        lines = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
        assert all("](" in a and "docs/" in a for a, _ in lines), name
    for kind in ("*.py", "*.toml", "*.md", "*.gz"):
        there = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob(kind)}
        assert there <= set(copied)


def test_notebooks_are_copied_beside_their_scripts_where_they_are_asked_for(tmp_path, capsys):
    assert main(["tutorials", "copy", str(tmp_path), "--notebooks"]) == 0
    assert "00_tour.ipynb" in capsys.readouterr().out
    for lesson in lessons():
        path = tmp_path / lesson.path
        if lesson.kind in ("tutorial", "puzzle"):
            book = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))
            assert book["nbformat"] == 4
            assert len(book["cells"]) > 2
    assert main(["tutorials", "copy", str(tmp_path), "--notebooks"]) == 2


def test_every_link_in_a_copy_leads_to_a_file_of_it(tmp_path):
    copy_lessons(tmp_path)
    links = 0
    for path in (*tmp_path.rglob("*.md"), *tmp_path.rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if path.suffix == ".md" or line.startswith("#"):
                for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", line):
                    assert (path.parent / target).exists(), f"{path}: {target}"
                    links += 1
    assert links > 200


def test_pages_are_listed_shown_and_copied(tmp_path, capsys):
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out
    docs = FOLDER.parent / "docs"
    for path in (*docs.glob("*.md"), *docs.glob("howto/*.md")):
        assert path.relative_to(docs).as_posix().removesuffix(".md") in listed
    for name in ("memory", "memory.md", "docs/memory.md"):
        assert main(["docs", name]) == 0
        assert capsys.readouterr().out == (docs / "memory.md").read_text(encoding="utf-8")
    assert main(["docs", "memry"]) == 2
    err = capsys.readouterr().err
    assert "OOC-108" in err
    assert "memory" in err
    for typed, meant in (("planer", "howto/planner"), ("installation", "start"),
                         ("howto", "howto/index"), ("weights", "howto/weights")):  # fmt: skip
        assert main(["docs", typed]) == 2
        assert meant in capsys.readouterr().err
    assert main(["docs", "nopage"]) == 2
    assert "`ooctrain docs`" in capsys.readouterr().err
    assert main(["docs", "--copy", str(tmp_path / "mine")]) == 0
    assert (tmp_path / "mine" / "docs" / "index.md").is_file()
    assert (tmp_path / "mine" / "docs" / "pictures" / "memory.svg").is_file()


def test_nothing_is_copied_over_a_file(tmp_path):
    (tmp_path / "puzzles").mkdir()
    (tmp_path / "puzzles" / "a2_swap_in_time.py").write_text("my work")
    with pytest.raises(ConfigError, match="OOC-117") as refused:
        copy_lessons(tmp_path)
    assert "puzzles/a2_swap_in_time.py" in str(refused.value)
    assert files_of(tmp_path) == {"puzzles/a2_swap_in_time.py": b"my work"}


def test_a_folder_with_other_files_is_fine(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    copy_lessons(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "00_tour.py").is_file()


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="OOC-117"):
            copy_lessons(target)


def test_the_command_copies_and_then_refuses(tmp_path, capsys):
    target = tmp_path / "mine"
    assert main(["tutorials", "copy", str(target)]) == 0
    assert "00_tour.py" in capsys.readouterr().out
    before = files_of(target)
    assert main(["tutorials", "copy", str(target)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 3
    assert "OOC-117" in err
    assert files_of(target) == before


# Pages and notebooks, on texts written here.

SCRIPT = """\
\"\"\"Not a cell.\"\"\"
# %% [markdown]
# # Head
#  two
# %% set up
import lesson

# %%
lesson.predict("é", 1)
# %%
x = 1
# %%
lesson.reveal("é", x)

# %%

# %%
y = "é"; lesson.exercise("é", y)  # yours
"""


def test_a_script_becomes_cells_in_order(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(SCRIPT, encoding="utf-8")
    book = json.loads(notebook_text(path))
    cells = [
        (c["cell_type"], c["source"], c["metadata"].get("tags")) for c in book.pop("cells")[1:]
    ]
    assert cells == [
        ("markdown", "# Head\n two", None), ("code", "import lesson", None),
        ("code", 'lesson.predict("é", 1)', ["prediction"]), ("code", "x = 1", ["answer"]),
        ("code", 'lesson.reveal("é", x)', ["answer"]),
        ("code", 'y = "é"; lesson.exercise("é", y);  # yours', None),
    ]  # fmt: skip
    assert book == {"metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}
    first, head, code = notebook_of(path)["cells"][:3]
    assert first == {"id": "cell-0", "cell_type": "code", "metadata": {"tags": ["first"]},
                     "source": FIRST_CELL, "execution_count": None, "outputs": []}  # fmt: skip
    assert head == {"id": "cell-1", "cell_type": "markdown", "metadata": {},
                    "source": "# Head\n two"}  # fmt: skip
    assert (code["id"], code["execution_count"], code["outputs"]) == ("cell-2", None, [])


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("docs/a.md", "[x](b.md#p) [y](http://z) [z](#q)", "[x](b.md#p) [y](http://z) [z](#q)"),
        ("docs/howto/a.md", "[x](../b.md)[t](../../tutorials/1.py)", "[x](../b.md)[t](../../1.py)"),
        ("docs/b.md", "[x](../tutorials) [y](../ooctrain/api.py)", "[x](..) y"),
        ("tutorials/1.py", "# [x](../docs/b.md)", "# [x](docs/b.md)"),
        ("tutorials/1.py", "a = '[x](../docs/c.md)'", "a = '[x](../docs/c.md)'"),
        ("tutorials/p/2.py", "# [x](../1.py), [y](../../docs/c.md)", "# [x](../1.py), y"),
    ],
)  # fmt: skip
def test_links_of_a_copy_lead_to_what_is_copied(name, text, wanted):
    copied = ("docs/a.md", "docs/b.md", "docs/howto/a.md", "tutorials/1.py", "tutorials/p/2.py")
    assert mended(text, name, copied) == wanted


def test_a_text_alone_keeps_links_to_what_lies_beside_it(tmp_path):
    (tmp_path / "b.md").write_text("")
    text = "[a](b.md#p) [c](d.md) [e](//f) [g](#h)"
    assert without_dead_links(text, tmp_path) == "[a](b.md#p) c [e](//f) [g](#h)"


def test_pages_stand_in_the_order_of_the_first_ones_contents():
    listed, folder = list(pages()), FOLDER.parent / "docs"
    assert sorted(f"{name}.md" for name in listed) == sorted(
        path.relative_to(folder).as_posix() for kind in ("*.md", "howto/*.md")
        for path in folder.glob(kind)
    )  # fmt: skip
    index = page("index")
    wanted = [line for tree in index.split("```{toctree}\n")[1:]
              for line in tree.split("```")[0].split() if line[0] != ":"]  # fmt: skip
    assert [name for name in listed if name in wanted] == [
        name for name in wanted if name in listed
    ]
    howto = [number for number, name in enumerate(listed) if name.startswith("howto/")]
    assert listed[0] == "index"
    assert howto == list(range(howto[0], howto[-1] + 1))
    assert listed[howto[0]] == "howto/index"
    for name, title in pages().items():
        assert f"# {title}" in page(name).splitlines()
    assert title_of("x\n## b\n# a\n# c") == "a"
    assert title_of("none") == ""
    for given, near in (
        ("memry", "did you mean memory? `ooctrain docs` lists them all"),
        ("qqqq", "`ooctrain docs` lists them all"),
    ):
        with pytest.raises(ConfigError, match="OOC-108") as refused:
            page(given)
        assert refused.value.fix == near
