"""The mutants are those that they say they are, the court is fair, and the tests notice mutants.

`make mutants` tries 300 mutants; here is a small sample of them, which `make test-all` judges by
the tests nearest to each. Read next: `__main__.py`.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mutants import operators, planted, reach, report
from mutants.court import ENTRY, KILLED, NOT_HERE, SURVIVED, UNFINISHED, Court, Terms, Verdict
from mutants.forks import in_fork
from mutants.nearby import STAGES, judging_files, near_files
from mutants.operators import Mutant, changes_in, files, mutants_of, sample, texts
from mutants.reach import Judge, Reach
from support.quick import quick

from ooctrain.alloc import exact_packing, holes

ROOT = Path(__file__).resolve().parents[2]
FILE = "ooctrain/alloc/holes.py"

#: {a function's body: what may stand there instead}
ALL = {
    "return a < b": {"return None", "return a <= b"},
    "x = a + b * 2": {"x = a - b * 2", "x = a + b // 2", "x = a + b * 3", "x = a + b * 1"},
    "x = a and not b": {"x = a or not b"},
    "x = a if b else c": {"x = a if not b else c"},
    "x = [i for i in a if i]": {"x = [i for i in a if not i]"},
    "x = min(a, b)": {"x = max(a, b)"},
    "x = f(a, b)": {"x = f(b, a)"},
    "f(a, a)": {"pass"},
    "x += a": {"pass", "x -= a"},
    "a.b = c": {"pass"},
    "raise ValueError(f'{a + 1}')": {"pass"},
    "while not a: f()": {"while a:", "pass"},
    "for i in range(a): continue": {
        "for i in range(a + 1):", "for i in range(a - 1):", "pass",
    },
    "x = range(a, b)": {"x = range(a, b + 1)", "x = range(a, b - 1)"},
    "return True": {"return False"},
    "x = f'{a + 1}' + 'b'": set(),
}  # fmt: skip


@pytest.mark.parametrize("body", ALL)
def test_each_operator_makes_just_its_mistakes(body):
    tree = ast.parse(f"def f(a, b, c):\n    {body}\n")
    before = ast.dump(tree)
    made = [texts(change, site.statement)[1] for change, site in changes_in(tree)]
    assert sorted(made) == sorted(ALL[body])
    assert ast.dump(tree) == before  # looking changes nothing


def test_default_values_are_changed_and_annotations_and_fields_are_not():
    text = (
        "N = 1\n"
        "class A:\n"
        "    size: int = 2\n"
        "    def f(self, a: Literal[3], b: int = 4, *, c=False) -> 'x':\n"
        "        'a + b'\n"
        "        y: tuple[5] = ()\n"
    )
    found = [texts(*pair)[1] for pair in _with_statements(text)]
    assert found == [
        "def f(self, a: Literal[3], b: int=5, *, c=False) -> 'x':",
        "def f(self, a: Literal[3], b: int=3, *, c=False) -> 'x':",
        "def f(self, a: Literal[3], b: int=4, *, c=True) -> 'x':",
    ]


def _with_statements(text):
    return [(change, site.statement) for change, site in changes_in(ast.parse(text))]


def test_mutants_have_names_of_their_own_and_a_sample_is_the_same_each_time():
    mutants = mutants_of(FILE)
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    drawn = sample(mutants, 5, "1")
    assert drawn == sample(mutants[::-1], 5, "1")
    assert drawn != sample(mutants, 5, "2")
    # Without one of the others the same ones are drawn.
    assert drawn == sample([m for m in mutants if m != sample(mutants, 6, "1")[-1]], 5, "1")


def test_a_function_that_has_moved_to_another_file_has_the_mutants_it_had():
    moved = [replace(mutant, file="ooctrain/elsewhere.py") for mutant in mutants_of(FILE)]
    drawn = sample(mutants_of(FILE), 5, "1")
    assert [mutant.key for mutant in sample(moved, 5, "1")] == [mutant.key for mutant in drawn]


def test_a_mutant_takes_the_place_of_a_function_whoever_holds_it():
    """And the real file, planted again, takes the mutant's."""
    held = holes.Holes().add
    mutants = mutants_of(FILE, {"Holes.add"})
    (mutant,) = [m for m in mutants if m.before.startswith("insort(") and m.after == "pass"]
    try:
        planted.plant(mutant)
        held(0, 1)
        assert held.__self__.by_size == []
    finally:
        planted.exchange({FILE: operators.parsed(FILE)})
    held(1, 1)
    assert held.__self__.by_size == [(1, 1)]


def test_compiled_functions_become_plain_ones_beside_a_virtual_environment():
    """pytest's own modules, which may lie in this folder too, are not asked for anything."""

    def interpreted() -> bool:
        planted.interpret()
        return not hasattr(exact_packing.search, "py_func")

    assert hasattr(exact_packing.search, "py_func")
    assert in_fork(interpreted)


def test_probes_tell_which_blocks_run():
    text = (ROOT / FILE).read_text(encoding="utf-8").splitlines()
    (line,) = [n for n, this in enumerate(text) if this.strip() == "hi += self.drop(hi)"]
    (begin,) = [n for n, this in enumerate(text) if this.strip().startswith("def joined(")]
    known, piece = holes.Holes(), f"{FILE}:Holes.joined+{line - begin}"
    known.add(4, 4)
    try:
        reached = planted.plant_probes([FILE])
        assert known.joined(10, 12) == (10, 12)
        assert reached
        assert piece not in reached
        assert known.joined(0, 4) == (0, 8)
        assert piece in reached
    finally:
        planted.exchange({FILE: operators.parsed(FILE)})


#: Prints what is free after the first free block: nothing, if `Holes.add` lacks a statement.
ADDS = """
from ooctrain.alloc.holes import Holes
known = Holes()
known.add(0, 1)
print(known.by_size)
"""


@pytest.mark.parametrize("paths", quick([None, ROOT], 0))
def test_a_mutant_is_planted_in_the_processes_that_a_test_starts(tmp_path, paths):
    (mutant,) = [
        m for m in mutants_of(FILE, {"Holes.add"})
        if m.before.startswith("insort(") and m.after == "pass"
    ]  # fmt: skip

    def printed() -> str:
        environment = {**os.environ, **({"PYTHONPATH": str(paths)} if paths else {})}
        command = [sys.executable, "-c", ADDS]
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout

    def noticed() -> bool:
        planted.plant(mutant, for_children=tmp_path)
        planted.reach_children(tmp_path)
        return printed() == "[]\n"

    assert in_fork(noticed)
    assert printed() == "[(1, 0)]\n"


@pytest.mark.slow
def test_what_other_processes_reach_is_written_down(tmp_path):
    """Those that a test starts, and forks of the test itself."""
    block, notes = f"{FILE}:Holes.add+", tmp_path / "notes"

    def reached(work) -> bool:
        notes.write_text("", encoding="utf-8")
        own = planted.plant_probes([FILE], for_children=tmp_path / "probed")
        planted.reach_children(tmp_path / "probed", notes)
        work()
        assert not own
        return any(line.startswith(block) for line in notes.read_text().splitlines())

    def starts() -> None:
        subprocess.run([sys.executable, "-c", ADDS], cwd=ROOT, check=True)

    def is_a_plugin() -> None:
        """Whose assertions pytest rewrites."""
        test = tmp_path / "test_it.py"
        lines = "".join(f"    {line}\n" for line in ADDS.split("\n"))
        test.write_text(f"def test_it():\n{lines}", encoding="utf-8")
        words = ["-m", "pytest", "-q", "-p", FILE.removesuffix(".py").replace("/", "."), str(test)]
        subprocess.run([sys.executable, *words], cwd=tmp_path, check=True)

    def forks() -> None:
        if not os.fork():
            holes.Holes().add(0, 1)
            os._exit(0)
        os.wait()

    assert in_fork(lambda: reached(starts))
    assert in_fork(lambda: reached(is_a_plugin))
    assert in_fork(lambda: reached(forks))


@pytest.mark.slow  # it reads all tests
def test_the_nearest_tests_import_the_file_then_tables_its_room_all_others_and_the_late():
    near, tables, room, others, late = near_files("ooctrain/alloc/best_fit_caching.py")
    assert "tests/unit/test_caching_allocators.py" in near
    assert "tests/unit/test_known_places.py" in tables
    assert "tests/properties/test_allocators.py" in [*near, *room]
    assert "tests/unit/test_nn.py" in others
    assert "tests/unit/cuda/test_launches.py" in late
    every = [*near, *tables, *room, *others, *late]
    assert sorted(set(every)) == sorted(every) == list(judging_files())
    # Those that import the file come first, even of a file that is late otherwise.
    assert "tests/unit/test_cage_layers.py" in near_files("ooctrain/course/cage/namespaces.py")[0]


def test_who_reaches_a_block_judges_first_and_then_whoever_follows():
    """The quickest first; what runs before anybody reaches the block cannot notice anything."""
    times = {"before": (1, 0b0), "slow": (3, 0b1), "quick": (2, 0b11), "after": (1, 0b10)}
    judges = [Judge(test, *values) for test, values in times.items()]
    found = Reach({"block": 0, "other": 1}, judges).reaching("block")
    assert [(later, end, judge.test) for later, end, judge in found] == [
        (False, 2, "quick"), (False, 5, "slow"), (True, 6, "after"),
    ]  # fmt: skip
    assert Reach({}, judges).reaching("block") == []


@pytest.mark.slow
def test_who_reads_signatures_judges_the_defaults_of_functions_that_it_does_not_call(tmp_path):
    """Of other mutants it hears nothing."""
    test = "tests/unit/test_known_defaults.py"
    default, other = (
        next(
            m for m in mutants_of("ooctrain/models/resnet.py", {"resnet101"}) if m.is_default is of
        )
        for of in (True, False)
    )
    judge = Judge(f"{test}::reads", 1.0, 0)
    tests = reach.Tests(tmp_path, tmp_path, items={test: []})
    tests._known[test, False] = Reach({}, [judge])
    court = Court([default, other], tests, Terms(STAGES, 12, 0.0), print)
    assert [court._judges(mutant, 1) for mutant in (default, other)] == [[judge], []]


def judged_by(court, mutant):
    return [[judge.test for judge in court._chosen(mutant, stage)[0]] for stage in range(STAGES)]


def a_court(tmp_path, reaches, mutants=(), until=0.0):
    """A court that knows what the tests of files reach: {(file, interpreted): (blocks, judges)}."""
    tests = reach.Tests(tmp_path, tmp_path, items={file: [] for file, _ in reaches})
    for key, (blocks, judges) in reaches.items():
        bits = {block: bit for bit, block in enumerate(blocks)}
        tests._known[key] = Reach(bits, judges)
    return Court(mutants, tests, Terms(STAGES, 12, until), lambda verdict: None)


def test_who_calls_what_is_compiled_judges_it_and_so_does_who_imports_its_file(tmp_path):
    """Others would run once more for nothing."""
    mutant = next(m for m in mutants_of("ooctrain/alloc/exact_packing.py") if m.compiled)
    near, calls, other = (
        f"tests/unit/test_{name}.py" for name in ("exact_places", "api", "nn")
    )  # fmt: skip
    judge = {file: [Judge(f"{file}::one", 1.0, 1)] for file in (near, calls, other)}
    reaches = {(file, True): ([mutant.reached], judge[file]) for file in judge}
    reaches |= {(file, False): ([], judge[file]) for file in (near, other)}
    reaches[calls, False] = [f"{ENTRY}+3"], judge[calls]
    (first, tables, room, others, late) = judged_by(a_court(tmp_path, reaches), mutant)
    assert first == [f"{near}::one"]
    assert [*tables, *room, *others, *late] == [f"{calls}::one"]


def test_what_one_stage_leaves_of_its_time_the_next_may_take(tmp_path):
    (mutant,) = sample(mutants_of(FILE), 1, "1")
    near, other = "tests/unit/test_stitched_and_planned.py", "tests/unit/test_nn.py"
    first, second = (
        next(n for n, stage in enumerate(near_files(FILE)) if file in stage)
        for file in (near, other)
    )
    assert first < second
    few, many = ([Judge(f"t{n}", 4.0, 1) for n in range(count)] for count in (2, 40))
    reaches = {(near, False): ([mutant.reached], few), (other, False): ([mutant.reached], many)}
    found = judged_by(a_court(tmp_path, reaches), mutant)
    assert [len(found[n]) for n in (first, second)] == [2, (12 * (second + 1) - 8) // 4]


def test_who_has_not_been_judged_by_all_when_time_is_up_is_not_finished(tmp_path):
    """And counts as not killed; those that nobody had begun are not counted at all."""
    drawn = sample(mutants_of(FILE), 3, "1")
    court = a_court(tmp_path, {}, drawn)
    known = {
        (drawn[0], 0): Verdict(drawn[0], KILLED, "t", 1, 0.0),
        (drawn[1], 0): Verdict(drawn[1], SURVIVED, "", 1, 0.0),
        (drawn[1], 1): Verdict(drawn[1], SURVIVED, "", 4, 0.0),
        (drawn[1], 4): Verdict(drawn[1], KILLED, "t", 4, 0.0),  # of an earlier run
        (drawn[2], 1): Verdict(drawn[2], SURVIVED, "", 1, 0.0),
    }
    court._known = lambda mutant, stage: known.get((mutant, stage))
    court.judge()
    found = list(court.verdicts.values())
    assert [(v.mutant, v.outcome, v.tests) for v in found] == [
        (drawn[0], KILLED, 1), (drawn[1], UNFINISHED, 5),
    ]  # fmt: skip
    assert report.tried_of(found, 3).startswith("1 of 3 mutants tried, 1 begun")
    assert report.rate_of(found, {}) == 0.5


def test_what_a_test_reaches_is_kept_until_one_of_its_functions_changes(tmp_path, monkeypatch):
    kept, notes, test = tmp_path / "kept.json", tmp_path / "notes", "tests/unit/test_alloc.py"
    blocks = [[f"{FILE}:Holes.add+1", f"{FILE}:Holes.drop+1"], [f"{FILE}:Holes.drop+1"]]
    rows = [("a", 0.5, blocks[0]), ("b", 0.25, blocks[1])]
    notes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    reach.write(kept, test, notes)
    found = reach.read(kept, test)
    for judge, (name, seconds, reached) in zip(found.judges, rows, strict=True):
        assert (judge.test, judge.seconds) == (name, seconds)
        assert [block for block in found.bits if judge.reached >> found.bits[block] & 1] == reached
    others = {**operators.sources(FILE), "Holes.joined": "another"}
    monkeypatch.setattr(reach, "sources", lambda file: others)
    assert reach.read(kept, test) == found  # no test of this file reaches it
    others["Holes.add"] = "another"
    assert reach.read(kept, test) is None
    assert reach.read(kept, "tests/unit/test_nn.py") is None


@pytest.mark.slow
def test_every_entry_of_the_table_of_equivalents_applies():
    assert report.outdated(report.equivalents()) == []


def a_verdict(outcome: str, **changed: str) -> Verdict:
    of = {"file": FILE, "place": "f", "before": "a", "after": "b", **changed}
    mutant = Mutant(
        line=1, operator="", which=0, number=0, block=1, source="", compiled=False, **of
    )
    return Verdict(mutant, outcome, "a test" if outcome == KILLED else "", 1, 0.0)


def test_the_rate_is_that_of_mutants_that_are_not_equivalent():
    verdicts = [a_verdict(KILLED), a_verdict(SURVIVED, after="c"), a_verdict(SURVIVED, after="d")]
    assert report.rate_of(verdicts, {}) == pytest.approx(1 / 3)
    reasons = {verdicts[1].mutant.key: "as fast"}
    assert report.rate_of(verdicts, reasons) == pytest.approx(1 / 2)
    assert "| alloc | 3 | 0 | 1 | 1 | 1 | 50.0 % |" in report.table_of(verdicts, reasons)
    assert "equivalent: as fast" in report.survivors_of(verdicts, reasons)


def test_who_lacks_the_software_of_its_tests_is_said_and_not_counted(tmp_path):
    """Unless another test notices it; where the software is, nothing is skipped."""
    foreign = sample(mutants_of("ooctrain/interop/onnx_ops.py"), 2, "1")
    drawn = [*foreign, *sample(mutants_of(FILE), 1, "1")]
    court = a_court(tmp_path, {}, drawn)
    outcomes = dict(zip(drawn, (SURVIVED, KILLED, SURVIVED), strict=True))
    court._known = lambda mutant, stage: Verdict(mutant, outcomes[mutant], "", 1, 0.0)
    court.judge()
    assert [v.outcome for v in court.verdicts.values()] == [SURVIVED, KILLED, SURVIVED]
    court.tests.skipped["tests/peers/test_onnx.py"] = "onnx is missing"
    court.judge()
    found = list(court.verdicts.values())
    assert [v.outcome for v in found] == [NOT_HERE, KILLED, SURVIVED]
    assert "1 not judged here (onnx is missing)" in report.tried_of(found, 3)
    assert "| interop | 2 | 1 | 0 | 1 | 0 | 100.0 % |" in report.table_of(found, {})
    assert report.rate_of(found, {}) == 0.5


def test_an_entry_that_does_not_apply_or_that_a_test_refutes_is_an_error():
    killed = a_verdict(KILLED)
    reasons = {killed.mutant.key: "nobody looks"}
    assert report.wrongly_equivalent([killed], reasons) == [killed]
    assert report.outdated(reasons) == [killed.mutant.key]


def test_a_table_without_a_reason_is_an_error(tmp_path):
    table = tmp_path / "equivalent.csv"
    table.write_text(f"{','.join(report.COLUMNS)}\nf,a,b,0, \n", encoding="utf-8")
    with pytest.raises(AssertionError, match="without a reason"):
        report.equivalents(table)


@pytest.mark.slow
def test_the_tests_notice_a_small_sample(tmp_path):
    """One that `make mutants` also draws; it fails below the rate, or if an entry is wrong."""
    command = [sys.executable, "-m", "mutants", "--sample", "16", "--nearest", "--least", "0.7"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [*command, "--minutes", "30", "--kept", str(tmp_path)], cwd=ROOT, check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 of 16 mutants tried by the nearest tests alone" in done.stdout
    assert len(files()) > 100
