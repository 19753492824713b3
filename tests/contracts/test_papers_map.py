"""docs/papers.md and docs/errata.md name only what exists, and leave nothing out.

A map is worth something only while it is true, so
each function is imported, each test is looked up, each command's name and options are those of the
command line, each numbered item of a paper has a row, and each erratum has a test that runs what is
printed.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ooctrain.alloc.registry import choose_allocator
from ooctrain.cli import COMMANDS
from ooctrain.cli.reproduce_command import EXPERIMENTS
from ooctrain.execution.planners import as_planner

ROOT = Path(__file__).resolve().parent.parent.parent
PAPERS, ERRATA = ROOT / "docs/papers.md", ROOT / "docs/errata.md"
STATUSES = ("executed", "simulated", "differs because", "not yet", "text", "As Eq.")
NOTHING = "—"
EVIDENCE = ("proved", "executed on cpu", "executed on GPU", "simulated", NOTHING)
#: how many of each numbered item a paper has
NUMBERED = {
    "000": {"Eq.": 2, "Fig.": 5, "Table": 1},
    "001": {"Fig.": 6, "Table": 2},
    "002": {
        "Eq.": 10,
        "Alg.": 1,
        "Fig.": 18,
        "Theorem": 3,
        "Lemma": 3,
        "Proposition": 3,
        "Problem": 2,
    },
    "003": {"Eq.": 1, "Listing": 4, "Table": 4, "Fig.": 8},
    "004": {"Eq.": 7, "Alg.": 1, "Table": 1, "Fig.": 11},
}


@dataclass(frozen=True)
class Row:
    paper: str
    cells: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.paper} {self.cells[0]}"


#: An item of docs/papers.md: what the paper says, how far it has come, what shows it.
ITEM = re.compile(
    r"- \*\*(?P<item>.+?)\*\*: (?P<says>.+?)\.? \*(?P<status>[A-Z][^*]*\*.*?)\.?"
    r"(?: Evidence: (?P<evidence>[^.]+)\.)?"
    + "".join(
        rf"(?: {kind}s?: (?P<{kind}>(?:`[^`]+`(?:, )?)+)\.)?"
        for kind in ("Function", "Test", "Command")
    )
)


#: An item of docs/errata.md: what is printed where, why it is wrong, what is right, what shows it.
ERRATUM = re.compile(
    r"- \*\*(?P<id>`[^`]+`)\*\*, (?P<place>.+?), prints: (?P<printed>.+?) \*Wrong\*: (?P<why>.+?)"
    r" \*Corrected\*: (?P<right>.+?) Test: (?P<test>`[^`]+`)\."
)


def blocks_of(page: Path, form: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """All items of a page in its form, with the paper of the heading that they stand under."""
    text = page.read_text(encoding="utf-8")
    for paper, below in re.findall(r"^## (00\d).*?\n(.*?)(?=^##|\Z)", text, re.M | re.S):
        for block in re.split(r"^(?=- \*\*)|\n\n", below, flags=re.M):
            if block.startswith("- **"):
                found = form.fullmatch(" ".join(block.split()))
                assert found, block
                yield paper, found


def items_of(page: Path) -> Iterator[Row]:
    """Of all papers: item, what it says, function, test, command, status, evidence."""
    for paper, found in blocks_of(page, ITEM):
        status = found["status"].replace("*", "", 1)
        status = status if status.startswith("As Eq.") else status.lower()[:1] + status[1:]
        shown = [found[kind] or NOTHING for kind in ("Function", "Test", "Command")]
        evidence = found["evidence"] or NOTHING
        yield Row(paper, (found["item"], found["says"], *shown, status, evidence))


PAPER_ROWS = list(items_of(PAPERS))
ERRATA_ROWS = [Row(paper, found.groups()) for paper, found in blocks_of(ERRATA, ERRATUM)]
column = pytest.mark.parametrize


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@column("row", PAPER_ROWS, ids=str)
def test_an_item_has_a_status_and_evidence(row: Row) -> None:
    _, _, function, test, command, status, evidence = row.cells
    assert evidence in EVIDENCE
    assert (evidence == NOTHING) == status.startswith(("text", "not yet")), status
    assert evidence == "simulated" or not status.startswith("simulated"), status
    assert status.startswith(STATUSES), status
    assert "not yet" not in status or re.search(r"not yet: \S", status), "say what is missing"
    if status.startswith(("executed", "simulated")):
        assert quoted(function) or quoted(test) or quoted(command), "nothing that shows it"


def test_the_page_counts_its_evidence() -> None:
    rows, found = len(PAPER_ROWS), Counter(row.cells[6] for row in PAPER_ROWS)
    counts = ", ".join(f"{'none' if kind == NOTHING else kind} {found[kind]}" for kind in EVIDENCE)
    gpu = f"GPU: {found['executed on GPU']} of {rows}."
    text = PAPERS.read_text(encoding="utf-8")
    assert f"\nEvidence of {rows} items: {counts}. {gpu}\n" in text


def module_of(check: str) -> str:
    """Where the strategy of a check of `benchmarks/gpu/networks.py` is: "planner belady"."""
    kind, name = check.split()
    if kind == "planner":
        return type(as_planner(name)).__module__
    make: Any = choose_allocator(name, 1 << 24, binding=False).make
    return str(getattr(make, "func", make).__module__)


def test_what_ran_on_a_gpu_is_in_a_report_of_one() -> None:
    ran = {
        module_of(check["name"])
        for report in sorted((ROOT / "benchmarks" / "results").glob("gpu-*.json"))
        for check in json.loads(report.read_text(encoding="utf-8"))["checks"]
        if check["part"] == "networks" and check["status"] == "ok"
        and check["name"].startswith(("planner ", "allocator "))
    }  # fmt: skip
    said = [row for row in PAPER_ROWS if row.cells[6] == "executed on GPU"]
    assert said
    for row in said:
        (name, *_) = quoted(row.cells[2])
        assert any(name.startswith(f"{module}.") for module in ran), row


@column("name", sorted({n for row in PAPER_ROWS for n in quoted(row.cells[2])}))
def test_every_function_exists(name: str) -> None:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:count]))
            break
        except ModuleNotFoundError:
            continue
    for attribute in parts[count:]:
        found = getattr(found, attribute)
    assert found is not None


def named_tests() -> list[str]:
    pages = {n for row in PAPER_ROWS for n in quoted(row.cells[3])}
    return sorted(pages | {n for row in ERRATA_ROWS for n in quoted(row.cells[-1])})


@column("name", named_tests())
def test_every_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    assert not function or re.search(rf"^def {function}\(", source, re.MULTILINE), name


@column("command", sorted({c for row in PAPER_ROWS for c in quoted(row.cells[4])}))
def test_every_command_exists(command: str) -> None:
    program, name, *rest = shlex.split(command)
    if program == "make":
        assert re.search(
            rf"^{name}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        return
    assert program == "ooctrain"
    assert name in COMMANDS
    known = {
        option
        for parameter in getattr(import_module(f"ooctrain.cli.{name}_command"), name).params
        for option in parameter.opts
    }
    assert {word for word in rest if word.startswith("--")} <= known


@column("paper", NUMBERED)
def test_no_numbered_item_is_missing(paper: str) -> None:
    present: set[str] = set()
    for row in PAPER_ROWS:
        found = re.match(r"([A-Z][a-z]+\.?) (\d+)(?:-(\d+))?", row.cells[0])
        if row.paper == paper and found:
            kind, first, last = found[1], int(found[2]), int(found[3] or found[2])
            present |= {f"{kind} {number}" for number in range(first, last + 1)}
    wanted = {f"{k} {n}" for k, most in NUMBERED[paper].items() for n in range(1, most + 1)}
    assert wanted <= present, sorted(wanted - present)


def sections() -> dict[str, str]:
    """{experiment: what the page says agrees and differs}."""
    text = PAPERS.read_text(encoding="utf-8")
    found = re.findall(r"^### `ooctrain reproduce (\S+)`\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    return dict(found)


def test_every_experiment_has_a_section_of_what_agrees_and_what_differs() -> None:
    assert set(sections()) == set(EXPERIMENTS)
    for text in sections().values():
        assert re.search(r"^Agrees with ", text, re.M)
        assert re.search(r"^Differs, and why:", text, re.M)


def test_every_direction_that_a_test_computes_is_on_the_page() -> None:
    source = (ROOT / "tests/unit/test_directions.py").read_text(encoding="utf-8")
    tests = set(re.findall(r"^def (test_\w+)\(", source, re.M))
    named = set(
        re.findall(r"`tests/unit/test_directions\.py::(\w+)`", " ".join(sections().values()))
    )
    assert tests == named
    for name, text in sections().items():
        assert "test_directions.py" in text, name


def erratum_ids() -> list[str]:
    return [quoted(row.cells[0])[0] for row in ERRATA_ROWS]


@column("row", ERRATA_ROWS, ids=str)
def test_an_erratum_says_what_where_why_and_what_is_right(row: Row) -> None:
    assert quoted(row.cells[0])[0].startswith(row.paper)


def test_errata_have_ids_of_their_own() -> None:
    assert len(set(erratum_ids())) == len(erratum_ids()) > 40


def errata_tests() -> dict[str, str]:
    """{name of a test or of a case of one: the paper it is about}."""
    names: dict[str, str] = {}
    for path in sorted((ROOT / "tests/errata").glob("test_errata_*.py")):
        source = path.read_text(encoding="utf-8")
        for name in re.findall(r"def test_(00\d\w+)\(|id=\"(00\d\w+)\"", source):
            names["".join(name)] = path.stem[-3:]
    return names


@column("erratum", erratum_ids())
def test_each_erratum_has_a_test_that_is_named_after_it(erratum: str) -> None:
    words = erratum.replace("-", "_")
    assert [name for name in errata_tests() if name.startswith(words)], f"no test for {erratum}"


def test_each_test_of_an_erratum_is_on_the_page() -> None:
    known = tuple(erratum.replace("-", "_") for erratum in erratum_ids())
    collectors = {"002_printed_formula", "003_listing_4_line", "003_listing_4_all_lines_corrected"}
    assert not [
        name
        for name in errata_tests()
        if not name.startswith(known) and name not in collectors and "random" not in name
    ]


#: Errata about the paper's own proofs and definitions, of which the library has nothing.
OF_THE_PAPER_ALONE = {
    "002_no_wait", "002_eq_9_bound_direction", "002_delta_b_definition", "002_delta_f_negative",
    "002_k_range", "002_three_partition_start", "002_three_partition_off_by_one",
    "002_three_partition_off_by_one_corrected_reduction",
    # of three printed lines, which are in no function of ours; the corrected listing is
    "003_listing_4_line", "003_listing_4_scale_index",
    "004_separate_splits_are_not_joined", "004_shared_error_storage",
}  # fmt: skip


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def without_the_library(source: str) -> set[str]:
    """The tests of a module that reach nothing that is imported from ooctrain."""
    tree = ast.parse(source)
    ours = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ooctrain")
        for alias in node.names
    }
    reads = {
        node.name: names_in(node)
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
            reads |= dict.fromkeys(targets, names_in(node.value))

    def reached(name: str, seen: set[str]) -> bool:
        seen.add(name)
        new = reads.get(name, set()) - seen
        return name in ours or any(reached(other, seen) for other in sorted(new))

    tests = {name for name in reads if name.startswith("test_00")}
    return {name.removeprefix("test_") for name in tests if not reached(name, set())}


def test_errata_tests_run_the_code_that_they_speak_of() -> None:
    pages = sorted((ROOT / "tests/errata").glob("test_errata_*.py"))
    found = [without_the_library(page.read_text(encoding="utf-8")) for page in pages]
    assert set().union(*found) == OF_THE_PAPER_ALONE


def test_a_test_of_its_own_code_alone_is_found_out() -> None:
    source = (
        "from ooctrain.units import GIB\nfrom math import pi\n"
        "BOTH = GIB + pi\ndef helper(): return BOTH\n"
        "def test_000_a(): assert helper()\ndef test_000_b(): assert pi\n"
    )
    assert without_the_library(source) == {"000_b"}
