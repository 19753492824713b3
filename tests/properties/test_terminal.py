"""Nothing that somebody else has named or said reaches the terminal as a control character.

Names of files, variables, classes and calls, and messages of exceptions, go through every way out:
errors, warnings, tables, plain lines. Whatever text is planted in a file, a name or an exception,
what a command prints holds no control characters but newlines (and tabs).
"""

from __future__ import annotations

import io
import json
import re
import sys
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.live import Live
from rich.table import Table
from rich.text import Text
from zoo.planting import plant

from ooctrain import errors
from ooctrain.cli import _show_warning, main, terminal
from ooctrain.cli.output_streams import say, show_traceback
from ooctrain.cli.terminal import make_console
from ooctrain.errors import ConfigError, printable

#: C0 but newline and tab, delete, C1; and bytes of file names that are no UTF-8.
NUMBERS = (*range(32), *range(127, 160), *range(0xD800, 0xE000))
CONTROLS = {chr(number) for number in NUMBERS} - {"\n", "\t"}
SOME = sorted(CONTROLS)[:65]
EVIL = "a\x1b[2Jb\rc\x07d\x9be\udcfff"
foreign = st.text(st.sampled_from([*SOME, *"ab \n\t[]\\é"]), max_size=12)


def clean(text: str) -> bool:
    return CONTROLS.isdisjoint(text)


@given(foreign)
@example(EVIL)
@example("".join(sorted(CONTROLS)))
def test_what_is_printable_holds_no_control_and_all_else(text):
    shown = printable(text)
    assert clean(shown)
    assert printable(shown) == shown
    harmless = "".join(character for character in text if character not in CONTROLS)
    assert printable(harmless) == harmless


@given(foreign, foreign, foreign)
@example(EVIL, EVIL, EVIL)
def test_an_error_is_printable(what, where, numbers):
    error = ConfigError(what, where=where, numbers=numbers, fix=what)
    assert clean(str(error))
    assert error.what == what, "whoever looks for a file by its name needs it as it is"


def shown(print_it) -> str:
    """What a console on a terminal without colours prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        print_it(make_console())
        return sys.stdout.getvalue()


def table_of(text: str) -> Table:
    table = Table(text, title=text)
    table.add_row(text)
    table.add_row(Text(text, style="bold"))
    return table


@given(foreign)
@example(EVIL)
def test_a_table_and_a_line_are_printable(text):
    for what in (text, Text(text), table_of(text)):
        assert clean(shown(lambda console, what=what: console.print(what)))


def test_rich_still_draws_on_a_terminal(monkeypatch):
    """Its own control characters are let through: colours, and a picture that is redrawn."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    console = type(make_console())(file=sys.stdout, force_terminal=True, color_system="standard")
    with Live(Text("one", style="red"), console=console, auto_refresh=False) as live:
        live.update(Text(f"two{EVIL}"), refresh=True)
    out = sys.stdout.getvalue()
    assert "\x1b[31m" in out
    assert "\x1b[2K" in out
    assert "two" in out
    assert "\x1b[2J" not in out
    assert "\x9b" not in out


def test_messages_and_tracebacks_are_printable(capsys):
    say(EVIL)
    show_traceback(ValueError, ValueError(EVIL), None)
    err = capsys.readouterr().err
    assert "ValueError" in err
    assert clean(err)


PLANNER = """
class Mine:
    name = {name!r}
    def plan(self, question):
        raise {kind}({name!r})
"""


def commands(folder) -> dict[str, list[str]]:
    """{what is foreign: a command that says something about it}."""
    name = str(folder / "a\x1b[2Jb\rc\x9be")
    planner = folder / "mine.py"
    planner.write_text(PLANNER.format(name=EVIL, kind="ValueError"))
    bad = folder / "a\x1b[2Jb\rc.py"
    bad.write_text(f"raise RuntimeError({EVIL!r})")
    record = folder / "record.json"
    event = {"stream": EVIL, "name": EVIL, "start_us": 0, "end_us": 1, "index": 0}
    record.write_text(json.dumps({"model": EVIL, "timeline": {"events": [event]}}))
    drawn = folder / "drawn.json"
    sums = ("makespan_us", "peak_bytes", "host_peak_bytes", "bytes_out", "bytes_in", "compute_us",
            "recompute_us", "stall_us")  # fmt: skip
    timeline = dict.fromkeys(sums, 1) | {
        "events": [{**event, "stream": "compute"}], "ledger": [[0, 1], [1, 0]]
    }  # fmt: skip
    drawn.write_text(json.dumps({
        "model": EVIL, "machine": EVIL, "timeline": timeline, "phases": {EVIL: "forward"},
    }))  # fmt: skip
    failed = folder / "failed.json"
    failed.write_text(json.dumps({"timeline": None, "error": EVIL}))
    log = folder / "log.jsonl"
    log.write_text(json.dumps({"format": EVIL}) + "\n")
    (folder / f"{name}.safetensors").write_bytes(b"x")
    lenet = ["plan", "lenet", "--batch", "2"]
    return {
        "a model's name": ["plan", EVIL],
        "a data folder": ["train", "lenet", "--data", f"folder:{name}"],
        "a planner's exception": [*lenet, "--budget", "50%", "--planner", f"{planner}:Mine"],
        "a planner's file": [*lenet, "--planner", f"{bad}:Mine"],
        "a planner that is not there": [*lenet, "--planner", f"{name}.py:{EVIL}"],
        "an option": [*lenet, f"--{EVIL}", EVIL],
        "a size": [*lenet, "--budget", EVIL],
        "a machine": [*lenet, "--machine", f"{name}.json"],
        "a record's names": ["report", str(record)],
        "a drawn record's names": ["report", str(drawn)],
        "a record's error": ["report", str(failed)],
        "a record that is not there": ["report", name],
        "a log": ["replay", str(log)],
        "a log that is not there": ["replay", name],
        "a checkpoint": ["train", "lenet", "--resume", f"{name}.safetensors"],
        "an assignment": ["grade", name],
        "a code": ["explain", EVIL],
        "a command": [EVIL],
        "a file to be written": [*lenet, "--json", str(folder / EVIL / "x")],
    }


NAMES = [
    "a model's name", "a data folder", "a planner's exception", "a planner's file",
    "a planner that is not there", "an option", "a size", "a machine", "a record's names",
    "a drawn record's names", "a record's error", "a record that is not there", "a log",
    "a log that is not there", "a checkpoint", "an assignment", "a code", "a command",
    "a file to be written",
]  # fmt: skip


@pytest.mark.parametrize("what", NAMES)
def test_a_command_prints_no_control_character(what, tmp_path, capsys):
    try:
        main(commands(tmp_path)[what])
    finally:
        out, err = capsys.readouterr()
    assert out + err
    assert clean(out), ascii(out)
    assert clean(err), ascii(err)


def test_a_warning_is_printable(capsys):
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.warn(EVIL, stacklevel=1)
    err = capsys.readouterr().err
    assert "warning" in err
    assert clean(err)


@pytest.mark.parametrize(("piece", "fewer"), [("\x0b-\x1f", "\x0b-\x1a"), ("\x7f-\x9f", "\x7f")])
def test_the_law_bites_on_characters(piece, fewer, monkeypatch):
    pattern = errors._UNPRINTABLE.pattern
    assert piece in pattern
    monkeypatch.setattr(errors, "_UNPRINTABLE", re.compile(pattern.replace(piece, fewer)))
    with pytest.raises(AssertionError):
        test_what_is_printable_holds_no_control_and_all_else()


def test_the_law_bites_on_errors(monkeypatch):
    plant(monkeypatch, errors.OoctrainError, "__str__", "printable(", "str(")
    with pytest.raises(AssertionError):
        test_an_error_is_printable()


def test_the_law_bites_on_tables(monkeypatch):
    monkeypatch.setattr(terminal, "printable", str)
    with pytest.raises(AssertionError):
        test_a_table_and_a_line_are_printable()
