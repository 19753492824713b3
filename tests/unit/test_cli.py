"""The command line: right numbers, one clear block for every wrong input, exit statuses 0 to 3."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter

import click
import pytest
from support.quick import quick

from ooctrain import cli
from ooctrain.cli import COMMANDS, command_line, exit_status, main
from ooctrain.cli.reproduce_command import EXPERIMENTS
from ooctrain.cli.values import PositiveNumber, WholeNumber
from ooctrain.errors import ConfigError, DoesNotFit, Infeasible, OutOfDeviceMemory, TransferError
from ooctrain.execution import compose
from ooctrain.sched.planners.keep_all import KeepAll
from ooctrain.step import presets as machines
from ooctrain.step.allowance import memory_limits
from ooctrain.units import format_bytes

SMALL = ["lenet", "--batch", "8", "--threads", "1"]


@pytest.fixture
def run(capsys):
    """Runs the command; gives (status, stdout, stderr)."""

    def call(*arguments: str):
        status = main(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_help_lists_every_command_and_each_has_help(run):
    status, out, _ = run("--help")
    assert status == 0
    assert all(name in out for name in COMMANDS)
    for name in COMMANDS:
        status, out, _ = run(name, "--help")
        assert status == 0
        assert "Usage: ooctrain " + name in out


def test_the_version_is_the_package_s(run):
    from importlib.metadata import PackageNotFoundError, version

    try:
        expected = version("ooctrain")
    except PackageNotFoundError:
        pytest.skip("the package runs from its folder, without being installed")
    assert run("--version") == (0, f"ooctrain, version {expected}\n", "")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 2),
        (Infeasible("x", minimum_bytes=1), 3),
        (DoesNotFit("x", reserved_bytes=2, budget_bytes=1), 3),
        (OutOfDeviceMemory("x"), 3),
        (TransferError("x"), 1),
        (OSError("x"), 1),
    ],
)
def test_exit_statuses(error, status):
    assert exit_status(error) == status


WRONG = {
    "no such command": (["trian"], "did you mean 'train'"),
    "no such command of a group": (["tutorials", "lst"], "did you mean 'list'"),
    "nothing like it in a group": (["course", "nonsense"], "known: list, copy, strip"),
    "no such option": (["plan", "lenet", "--bugdet", "1MiB"], "--budget"),
    "the option of another tool": (["train", *SMALL, "--save", "x"], "mean '--checkpoint'?"),
    "the other tool's option": (["train", *SMALL, "--ram", "1GiB"], "mean '--memory'?"),
    "no such model": (["plan", "lenett"], "did you mean 'lenet'"),
    "no such planner": (["plan", *SMALL, "--planner", "windwo"], "did you mean 'window'"),
    "no such parameter": (["plan", *SMALL, "--planner", "window:sice=2"], "did you mean 'size'"),
    "no such machine": (["plan", *SMALL, "--machine", "v100"], "known:"),
    "no such allocator": (["plan", *SMALL, "--allocator", "vaa"], "did you mean 'va'"),
    "no such data": (["plan", *SMALL, "--data", "digit"], "did you mean 'digits'"),
    "no such file of a model": (["plan", "none.py:make"], "there is no Python file"),
    "no such file of a planner": (["plan", *SMALL, "--planner", "none.py:Mine"], "no Python file"),
    "budget of nothing": (["plan", *SMALL, "--budget", "0"], "must be positive"),
    "budget below nothing": (["plan", *SMALL, "--budget", "-1MiB"], "is not a size"),
    "budget without a unit": (["plan", *SMALL, "--budget", "8G"], "is not a size"),
    "budget of more than everything": (["plan", *SMALL, "--budget", "101%"], "0% to 100%"),
    "huge budget": (["plan", *SMALL, "--budget", "9999999999GiB"], "below 2**62"),
    "batch of nothing": (["plan", "lenet", "--batch", "0"], "--batch '0' is not a whole number"),
    "batch of words": (["plan", "lenet", "--batch", "many"], "such as --batch 64"),
    "batch of underscores": (["plan", "lenet", "--batch", "1_0"], "--batch '1_0'"),
    "batch of no words": (["plan", "lenet", "--batch"], "'--batch' requires an argument"),
    "option in place of a value": (
        ["train", *SMALL, "--resume", "--steps", "4"],
        "'--resume' requires an argument",
    ),
    "steps of infinity": (["train", *SMALL, "--steps", "1e400"], "--steps '1e400'"),
    "limit of no number": (["plan", *SMALL, "--time-limit", "nan"], "not a finite number above 0"),
    "limit without an end": (["compare", "lenet", "--time-limit", "inf"], "--time-limit 'inf'"),
    "no such device": (["plan", *SMALL, "--device", "gpu"], "known: cpu, cuda"),
    "no such experiment": (["reproduce", "hnms"], "did you mean 'hmms'"),
    "no such model of several": (["compare", "lenet", "lenett"], "did you mean 'lenet'"),
    "no such machine of several": (["compare", "lenet", "--machine", "here,v10"], "known:"),
    "no such budget of several": (["compare", "lenet", "--budget", "5%,200%"], "0% to 100%"),
    "a model's file alone": (["plan", "./net.py"], "./net.py:function"),
    "no such bound": (["compare", "lenet", "--bound", "lpp"], "did you mean 'lp'"),
    "no model": (["plan"], "MODEL is missing"),
    "two models": (["plan", "lenet", "vgg11"], "(vgg11)"),
    "a value for a flag": (["train", *SMALL, "--verify=3"], "does not take a value"),
    "no words for a plan": (["simulate", *SMALL, "--plan", ""], "not a plan file"),
    "image too small": (["plan", "resnet18", "--image-size", "0"], "--image-size"),
    "link of nothing": (["plan", *SMALL, "--link-bandwidth", "0"], "link bandwidth"),
    "images without an end": (["train", "lenet", "--image-size", "99999999"], "--image-size"),
    "images too small for the network": (["plan", "unet", "--image-size", "7"], "--image-size"),
    "more than the data has": (["train", "lenet", "--batch", "2000"], "1437 images"),
    "missing data": (["train", *SMALL, "--data", "cifar10:none"], "cannot be read"),
    "no checkpoint": (["train", *SMALL, "--resume", "none.safetensors"], "no checkpoint"),
    "no plan file": (
        ["simulate", *SMALL, "--plan", "none.json"],
        "not a plan file: No such file or directory\n",
    ),
    "no record": (["report", "none.json"], "not a record: No such file or directory\n"),
    "no log": (["replay", "none.jsonl"], "cannot be read: No such file or directory\n"),
    "no assignment": (["grade", "none"], "no assignment is called 'none'\n"),
    "no calibration": (
        ["plan", *SMALL, "--machine", "none.json"],
        "this library: No such file or directory\n",
    ),
    "no such code": (["explain", "OOC-999"], "there is no code"),
    "numbers into no folder": (["train", *SMALL, "--json", "none/x.json"], "no folder 'none'"),
    "numbers into a folder": (["plan", *SMALL, "--json", "."], "is a folder"),
    "plan into no folder": (["plan", *SMALL, "--save", "none/x.json"], "no folder"),
    "checkpoint into no folder": (["train", *SMALL, "--checkpoint", "none/x"], "no folder"),
    "more threads than sense": (["plan", "lenet", "--threads", "99999"], "--threads"),
    "negative seed": (["plan", *SMALL, "--seed", "-1"], "--seed"),
    "unknown algorithm": (["plan", *SMALL, "--conv-algorithm", "fft"], "fft"),
    "rate that is not a number": (["train", *SMALL, "--lr", "nan"], "not a finite number above 0"),
    "rate without an end": (["train", *SMALL, "--lr", "inf"], "not a finite number above 0"),
    "rate of nothing": (["train", *SMALL, "--lr", "0"], "not a finite number above 0"),
    "rate of words": (["train", *SMALL, "--lr", "fast"], "such as --lr 0.05"),
    "budget of no words": (["plan", *SMALL, "--budget", ""], "budget '' is not a size"),
    "budget in powers of ten": (["plan", *SMALL, "--budget", "1e9"], "is not a size"),
    "budget that is not a number": (["plan", *SMALL, "--budget", "nanGB"], "is not a size"),
    "budget of underscores": (["plan", *SMALL, "--budget", "1_000"], "is not a size"),
    "host budget below nothing": (["plan", *SMALL, "--host-budget", "-1"], "host budget '-1'"),
    "no words for data": (["train", *SMALL, "--data", ""], "no data set is called ''"),
    "link that is not a number": (["plan", *SMALL, "--link-bandwidth", "nan"], "link bandwidth"),
    "window of nothing": (["plan", *SMALL, "--planner", "window:size=0"], "finite number above 0"),
    "chunk of nothing": (["plan", *SMALL, "--allocator", "va:chunk=0"], "chunk 0"),
    "memory of the allocator": (
        ["plan", *SMALL, "--allocator", "va:memory=3"],
        "'va' has no parameter 'memory'",
    ),
    "plan that is a folder": (["simulate", *SMALL, "--plan", "."], "not a plan file"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_input_is_one_clear_block(kind, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, hint = WRONG[kind]
    status, out, err = run(*arguments)
    assert status in (1, 2)
    assert re.match(r"ooctrain: \[OOC-\d{3}\] ", err)
    assert hint in err
    assert "Traceback" not in err + out
    assert len(err.splitlines()) <= 5
    assert "\n  likely fix: " in err


def test_what_may_be_none_of_an_option_is_refused_by_every_command(run, tmp_path, monkeypatch):
    """No number is "nan", whichever option is given it; the block names option and command."""
    monkeypatch.chdir(tmp_path)
    for name in COMMANDS:
        command = command_line.get_command(click.Context(command_line), name)
        for option in command.params:
            if isinstance(option.type, (WholeNumber, PositiveNumber)):
                for word in ("nan", "inf", "-1", "1e400", "many", ""):
                    status, out, err = run(name, option.opts[0], word)
                    assert (status, out) == (2, "")
                    assert f"{option.opts[0]} {word!r} is not" in err
                    assert f"where: ooctrain {name} {option.opts[0]}" in err
                    assert "likely fix: such as" in err


def test_without_a_command_there_is_help(run):
    status, out, err = run()
    assert status == 2
    assert all(name in out + err for name in COMMANDS)


def test_the_numbers_of_a_step_are_no_plan(run, tmp_path):
    path = str(tmp_path / "step.json")
    assert run("simulate", *SMALL, "--json", path)[0] == 0
    status, _, err = run("simulate", *SMALL, "--plan", path)
    assert status == 2
    assert "not a plan file" in err
    assert "--save" in err


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["train", "lenet", "--batch", "many"], 2, "--batch"),
        (["train", "lenet", "--lr", "nan"], 2, "finite"),
        (["trian", "lenet"], 2, "did you mean 'train'"),
        (["plan"], 2, "MODEL"),
        (["simulate", *SMALL, "--planner", "naive", "--budget", "1"], 3, "OOC-120"),
    ],
)
def test_whoever_reads_the_numbers_finds_why_there_are_none(
    run, tmp_path, arguments, status, reason
):
    for words in (["--json", f"{tmp_path}/a.json"], [f"--json={tmp_path}/a.json"]):
        assert run(*arguments, *words)[0] == status
        written = json.loads((tmp_path / "a.json").read_text())
        assert set(written) == {"version", "command", "error"}
        assert written["command"] == arguments[0]
        assert reason in written["error"]
        (tmp_path / "a.json").unlink()


def test_a_plan_rewrites_its_step_once_and_writes_the_list_in_core_twice(run, monkeypatch):
    """Besides the verifier, which does it again. Processor time varies, this does not."""
    done = Counter()
    for owner, name in ((compose, "rewritten_with_remarks"), (KeepAll, "plan")):
        load = getattr(owner, name)

        def counted(*given, name=name, function=load, **options):
            done[name] += 1
            return function(*given, **options)

        monkeypatch.setattr(owner, name, counted)
    assert run("plan", *SMALL)[0] == 0
    assert done == {"rewritten_with_remarks": 1, "plan": 2}


def test_garbage_is_collected_again_after_a_command_is_loaded(run, monkeypatch):
    seen = []
    load = cli.import_module

    def watched(name):
        seen.append(gc.isenabled())
        return load(name)

    monkeypatch.setattr(cli, "import_module", watched)
    run("plan", "--help")
    assert (seen, gc.isenabled()) == ([False], True)


@pytest.mark.parametrize(("command", "asks"), [("plan", "exactly"), ("simulate", "make_plan")])
def test_the_numbers_of_a_command_that_is_interrupted_say_so(
    run, tmp_path, monkeypatch, command, asks
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"ooctrain.cli.{command}_command.{asks}", interrupted)
    path = tmp_path / "a.json"
    status, _, err = run(command, *SMALL, "--budget", "1GiB", "--json", str(path))
    assert (status, err.strip()) == (1, "ooctrain: interrupted")
    assert json.loads(path.read_text())["error"] in ("KeyboardInterrupt", "interrupted")


OWN = """
from ooctrain.sched.planners.keep_all import KeepAll

class Divides:
    name = "divides"

    def plan(self, question):
        return 1 / 0

class Changes(KeepAll):
    def plan(self, question):
        question.trace.calls = ()

class Starts:
    def __init__(self, *given):
        raise RuntimeError("no start")

class Wants:
    def __init__(self, depth):
        pass

class WantsMore:
    def __init__(self, memory, depth):
        pass

def net():
    raise KeyError("weights")

def leaves():
    raise SystemExit(0)

def wants(depth, width):
    return None

number = 3
"""


@pytest.mark.parametrize(
    ("arguments", "status", "hint"),
    [
        (["plan", "{own}:net"], 1, "your own code raised KeyError: 'weights'"),
        (["plan", "{own}:leaves"], 1, "your own code raised SystemExit: 0"),
        (["plan", "{own}:wants"], 2, "requires depth, width"),
        (["plan", *SMALL, "--planner", "{own}:Divides"], 1, "line 8, in plan"),
        (["plan", *SMALL, "--planner={own}:Divides"], 1, "division by zero"),
        (["plan", *SMALL, "--planner", "{own}:Changes"], 1, "FrozenInstanceError"),
        (["plan", *SMALL, "--planner", "{own}:Starts"], 1, "no start"),
        (["plan", *SMALL, "--planner", "{own}:number"], 2, "int, not a class"),
        (["plan", *SMALL, "--planner", "{own}:Wants"], 2, "missing a required argument: 'depth'"),
        (["plan", *SMALL, "--allocator", "{own}:Starts"], 1, "no start"),
        (["plan", *SMALL, "--allocator", "{own}:WantsMore"], 2, "argument: 'depth'"),
        (["train", *SMALL, "--planner", "{own}:Divides"], 1, "line 8, in plan"),
        (["plan", "{broken}:net"], 1, "SyntaxError"),
    ],
)
def test_an_error_in_one_s_own_file_names_its_line(run, tmp_path, arguments, status, hint):
    own, broken, path = tmp_path / "own.py", tmp_path / "broken.py", tmp_path / "a.json"
    own.write_text(OWN)
    broken.write_text("def net(:\n")
    words = [word.format(own=own, broken=broken) for word in arguments]
    found, out, err = run(*words, "--budget", "1GiB", "--json", str(path))
    assert found == status
    assert hint in err
    assert "Traceback" not in err + out
    assert len(err.splitlines()) <= 4
    assert json.loads(path.read_text())["error"]
    if status == 1:
        kinds = ZeroDivisionError, AttributeError, RuntimeError, KeyError, SyntaxError
        with pytest.raises((*kinds, SystemExit)):
            main(["--traceback", *words, "--budget", "1GiB"])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full device")
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_a_full_disk_is_named(run, command):
    status, _, err = run(command, *SMALL, "--budget", "1GiB", "--json", "/dev/full")
    assert status == 1
    assert "/dev/full cannot be written: No space left on device" in err


def test_traceback_shows_where_an_error_was_raised():
    with pytest.raises(ConfigError):
        main(["--traceback", "plan", "nothing"])


def test_plan_says_what_fits_and_writes_it(run, tmp_path):
    path = tmp_path / "plan.json"
    arguments = ["--budget", "50%", "--machine", "v100-pcie", "--json", str(path)]
    status, out, _ = run("plan", "resnet18", "--batch", "16", "--image-size", "32", *arguments)
    assert status == 0
    assert "layer2.1" in out
    assert "fits with planner" in out
    written = json.loads(path.read_text())
    assert written["feasible"] is True
    assert written["error"] is None
    least, most = written["trace_minimum_bytes"], written["incore_peak_bytes"]
    assert written["budget_bytes"] == least + (most - least) // 2
    assert written["peak_bytes"] <= written["budget_bytes"]
    assert written["makespan_us"] >= written["incore_us"] >= written["compute_us"]
    slower = written["makespan_us"] / written["incore_us"]
    assert f"{slower:.2f} x in-core" in out


def test_the_whole_in_core_peak_is_a_budget_of_100_percent_on_the_cpu_device_too(run, tmp_path):
    """With the region of small objects, which its allocator always takes."""
    path = tmp_path / "plan.json"
    assert run("plan", *SMALL, "--budget", "100%", "--json", str(path))[0] == 0
    written = json.loads(path.read_text())
    assert written["incore_peak_bytes"] == written["budget_bytes"] == written["peak_bytes"]
    assert written["incore_us"] == written["makespan_us"]


def test_the_machine_at_hand_has_a_name(run):
    arguments = ["plan", *SMALL, "--budget", "50%", "--planner", "window"]
    assert run(*arguments, "--machine", "here") == run(*arguments)


def test_the_table_s_totals_are_the_trace_s(run):
    from ooctrain.models import build

    model = build("lenet")
    parameter_bytes = sum(parameter.numel() * 4 for parameter in model.parameters())
    _, out, _ = run("plan", *SMALL, "--budget", "1GiB")
    from ooctrain.units import format_bytes

    total = next(line for line in out.splitlines() if line.startswith("total"))
    assert format_bytes(parameter_bytes) in total


@pytest.mark.slow
def test_what_does_not_fit_says_by_how_much_and_what_would(run, tmp_path):
    path = tmp_path / "plan.json"
    arguments = ["resnet18", "--batch", "64", "--image-size", "32", "--machine", "v100-pcie"]
    status, out, _ = run(
        "plan", *arguments, "--budget", "75MiB", "--planner", "keep-all", "--json", str(path)
    )
    assert status == 3
    assert "does not fit with planner keep-all by" in out
    written = json.loads(path.read_text())
    assert written["feasible"] is False
    kinds = {change["kind"]: change["option"] for change in written["changes"]}
    assert set(kinds) >= {"budget"}
    # Every change that is proposed really fits.
    for option in kinds.values():
        name, value = option.split()[:2]
        changed = {"--budget": "75MiB", "--planner": "keep-all", "--batch": "64", name: value}
        rest = [part for pair in changed.items() for part in pair]
        assert (
            run("plan", "resnet18", "--image-size", "32", "--machine", "v100-pcie", *rest)[0] == 0
        )
    at_minimum = ["--planner", "keep-all", "--budget", str(written["minimum_bytes"] - 1)]
    assert run("plan", *arguments, *at_minimum)[0] == 3


@pytest.mark.parametrize("command", quick(["plan", "simulate", "train"], 0, 1))
def test_no_host_memory_for_swapped_values_leaves_the_inputs(run, command):
    """The images of a step wait on the host in any case."""
    steps = ["--steps", "1"] if command == "train" else []
    assert run(command, *SMALL, "--budget", "1GiB", "--host-budget", "0", *steps)[0] == 0


@pytest.mark.slow
def test_what_lacks_on_the_host_is_proposed_and_fits(run, tmp_path):
    path = tmp_path / "plan.json"
    arguments = ["plan", *SMALL, "--budget", "1GiB", "--json", str(path), "--planner", "naive"]
    arguments.append("--host-budget")
    status, out, _ = run(*arguments, "0")
    assert status == 3
    assert "needs more host memory" in out
    written = json.loads(path.read_text())
    assert "for the inputs" in written["error"]
    change = next(each for each in written["changes"] if each["kind"] == "host")
    needed = change["option"].split()[1]
    assert run(*arguments, needed)[0] == 0
    assert run(*arguments, str(int(needed) - 1))[0] == 3


def test_a_planner_of_one_s_own_is_used(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ooctrain.sched.planners.keep_all import KeepAll\n"
        "class Mine(KeepAll):\n    name = 'mine'\n"
    )
    status, out, _ = run(
        "plan", *SMALL, "--budget", "1GiB", "--planner", f"{tmp_path}/mine.py:Mine"
    )
    assert status == 0
    assert "planner mine" in out


def test_a_model_of_one_s_own_is_used(run, tmp_path):
    (tmp_path / "net.py").write_text(
        "from ooctrain import nn\n"
        "def make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))\n"
        "def wrong():\n"
        "    return 3\n"
    )
    net = f"{tmp_path}/net.py"
    assert run("plan", f"{net}:make", "--data", "digits", "--batch", "4")[0] == 0
    status, _, err = run("plan", f"{net}:wrong")
    assert status == 2
    assert "not a model" in err
    assert "Traceback" not in run("plan", f"{net}:absent")[2]


def test_a_percentage_is_the_same_budget_for_plan_and_simulate(run, tmp_path):
    """Rounding to chunks of 64 KiB included, which small objects would otherwise take each."""
    file, peaks = tmp_path / "numbers.json", []
    arguments = [*SMALL, "--budget", "25%", "--planner", "belady", "--json", str(file)]
    for command in ("plan", "simulate"):
        assert run(command, *arguments)[0] == 0
        content = json.loads(file.read_text())
        peaks.append(content.get("timeline", content)["peak_bytes"])
    assert peaks[0] == peaks[1]


@pytest.mark.slow
def test_what_is_said_of_a_preset_depends_on_no_core_at_hand(run, tmp_path, monkeypatch):
    path = tmp_path / "numbers.json"

    def said(cores: int, command: str, *machine: str) -> object:
        monkeypatch.setattr(machines, "usable_cores", lambda: cores)
        arguments = ["lenet", "--batch", "8", "--planner", "window", "--budget", "40%", *machine]
        assert run(command, *arguments, "--json", str(path))[0] == 0
        return json.loads(path.read_text())

    for command in ("plan", "simulate"):
        for name in ("v100-pcie", "h200", "cpu-generic"):
            assert said(1, command, "--machine", name) == said(5, command, "--machine", name)
        # A step on the machine at hand has the scratch of its threads.
        assert said(1, command) != said(5, command)


def test_plan_simulate_and_compare_say_the_same(run, tmp_path):
    path, arguments = tmp_path / "numbers.json", ["--batch", "8", "--machine", "v100-pcie"]
    arguments += ["--planner", "window", "--budget", "40%", "--json", str(path)]
    found = {}
    for command in ("plan", "simulate", "compare"):
        extra = ["--fresh", "--bound", "simple", "--jobs", "1"] if command == "compare" else []
        status, shown, _ = run(command, "lenet", *arguments, *extra)
        assert status == 0
        if command == "compare":
            assert "ratio: the step divided by its lower bound (" in shown
        numbers = json.loads(path.read_text())
        found[command] = numbers["rows"][0] if command == "compare" else numbers
    assert len({numbers["budget_bytes"] for numbers in found.values()}) == 1
    simulated_us = found["simulate"]["timeline"]["makespan_us"]
    assert found["plan"]["makespan_us"] == found["compare"]["makespan_us"] == simulated_us


def test_a_saved_plan_simulates_to_what_it_claims(run, tmp_path):
    plan, line = tmp_path / "plan.json", tmp_path / "line.json"
    arguments = [*SMALL, "--machine", "v100-pcie"]
    saved = run("plan", *arguments, "--budget", "60%", "--planner", "naive", "--save", str(plan))
    assert saved[0] == 0
    status, out, _ = run("simulate", *arguments, "--plan", str(plan), "--json", str(line))
    assert status == 0
    timeline = json.loads(line.read_text())["timeline"]
    claimed = json.loads(plan.read_text())
    assert timeline["makespan_us"] == claimed["makespan_us"]
    assert timeline["peak_bytes"] == claimed["peak_bytes"]
    assert all(word in out for word in ("compute", "swap out", "swap in", "memory"))


@pytest.mark.parametrize(
    ("forge", "rule"),
    [
        (lambda plan: plan.update(peak_bytes=5), "R501"),
        (lambda plan: plan["schedule"]["instructions"].pop(0), "R201"),
    ],
    ids=["another peak", "a swap-in less"],
)
def test_a_plan_that_lies_is_not_simulated(run, tmp_path, forge, rule):
    path = tmp_path / "plan.json"
    run("plan", *SMALL, "--budget", "60%", "--planner", "naive", "--save", str(path))
    plan = json.loads(path.read_text())
    forge(plan)
    path.write_text(json.dumps(plan))
    status, _, err = run("simulate", *SMALL, "--plan", str(path))
    assert status == 1
    assert rule in err


def test_a_plan_for_another_batch_is_refused(run, tmp_path):
    plan = tmp_path / "plan.json"
    assert run("plan", *SMALL, "--budget", "1GiB", "--save", str(plan))[0] == 0
    other = ["lenet", "--batch", "4", "--threads", "1"]
    status, _, err = run("simulate", *other, "--plan", str(plan))
    assert status == 1
    assert "made for another trace" in err
    plan.write_text("{]")
    assert run("simulate", *SMALL, "--plan", str(plan))[0] == 2


@pytest.mark.slow
def test_planning_a_resnet50_answers_at_once():
    command = [sys.executable, "-X", "importtime", "-m", "ooctrain", "plan", "resnet50"]
    command += ["--batch", "256", "--budget", "8GiB", "--machine", "v100-32gb-nvlink"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ooctrain.cli" in imported
    assert "numba" not in imported
    assert "fits with planner" in done.stdout
    # Processor time, which other processes on the machine do not lengthen; the promise is 2 s.
    used = os.times()
    again = subprocess.run(command, capture_output=True, check=False)
    after = os.times()
    assert again.returncode == 0
    assert after.children_user - used.children_user < 4.0


def test_doctor_survives_broken_checks(run, monkeypatch, tmp_path):
    from ooctrain.machine import doctor

    def broken():
        raise RuntimeError("a broken installation")

    monkeypatch.setattr(doctor, "CHECKS", {"first": broken, "Python": doctor.check_python})
    path = tmp_path / "doctor.json"
    status, out, _ = run("doctor", "--json", str(path))
    assert status == 1
    assert "a broken installation" in out
    checks = json.loads(path.read_text())["checks"]
    assert {c["name"]: c["level"] for c in checks} == {"first": "fail", "Python": "ok"}
    first, how, second, last = out.splitlines()
    assert (first.split()[:2], second.split()[:2]) == (["fail", "first"], ["ok", "Python"])
    assert how.split(" -> ")[1] == checks[0]["fix"]
    assert (
        len({first.index(checks[0]["text"]), second.index(checks[1]["text"]), how.index("->")}) == 1
    )
    assert last.split()[:3] == ["1", "of", "2"]


def test_a_package_that_is_installed_and_broken_is_found(monkeypatch, tmp_path):
    from ooctrain.machine import doctor

    facts = tmp_path / "half_there-1.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: half-there\nVersion: 1.2\n")
    module = tmp_path / "half_there.py"
    module.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = doctor.check_package("half_there")
    assert (found.name, found.level, found.text) == ("half_there", "ok", "1.2")
    monkeypatch.delitem(sys.modules, "half_there")
    module.write_text("raise ImportError('its library is of another machine')  # longer")
    with pytest.raises(ImportError):
        doctor.check_package("half_there")


@pytest.mark.parametrize("command", ["plan", "simulate"])
@pytest.mark.parametrize("planner", ["naive", "vdnn-all"])
def test_a_memory_that_is_enough_for_in_core_asks_no_planner(run, command, planner, tmp_path):
    """These planners swap where nothing need be, and the slab of in-core has no room for that."""
    path = tmp_path / "numbers.json"
    words = [command, *SMALL, "--planner", planner, "--memory", "10GiB", "--json", str(path)]
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    assert "swapped out" not in out or "swapped out   0 B" in out


@pytest.mark.parametrize("planner", ["window", pytest.param("auto", marks=pytest.mark.slow)])
def test_a_plan_says_how_its_memory_is_divided_and_what_would_do(planner, run, tmp_path):
    """Only the arena was printed, and the file of numbers had no least."""
    asked = ["plan", "lenet", "--batch", "256", "--json", str(tmp_path / "x.json")]
    asked += ["--planner", planner, "--memory"]
    status, out, _ = run(*asked, "1GiB")
    numbers = json.loads((tmp_path / "x.json").read_text())
    assert status == 0
    assert "1.00 GiB for the process: arena" in out
    assert "the process itself 208 MiB" in out
    assert numbers["promised_bytes"] <= numbers["memory_bytes"] == 1 << 30
    assert run(*asked, "20MiB")[0] == 3
    least = json.loads((tmp_path / "x.json").read_text())["minimum_bytes"]
    status, out, _ = run(*asked, str(least))
    assert status == 0, out


def test_doctor_is_content_with_this_installation(run):
    status, out, _ = run("doctor")
    assert status == 0, out
    assert ("all well" in out) == ("warn  " not in out)


def test_doctor_names_a_cache_that_cannot_be_written(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OOCTRAIN_CACHE", str(tmp_path / "file" / "cache"))
    from ooctrain.machine.doctor import check_cache

    finding = check_cache()
    assert finding.level == "warn"
    assert "OOCTRAIN_CACHE" in finding.fix


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_plan_can_be_read_in_a_narrow_terminal(columns, run, monkeypatch):
    """A row stays a row: columns without room are left out and named."""
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = run("plan", "lenet", "--machine", "v100-pcie")
    assert status == 0
    table = out.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= columns
    assert len(table) == 17 + ("too narrow for" in out)
    assert ("too narrow for" in out) == (columns < 100)
    assert "activations" in table[0]


def test_the_help_of_reproduce_names_every_experiment(run):
    status, out, _ = run("reproduce", "--help")
    assert status == 0
    listed = out.split("EXPERIMENT is one of")[1].splitlines()
    for name in EXPERIMENTS:
        assert [line for line in listed if line.split()[:1] == [name] and len(line) <= 80], name


def test_explain_lists_and_explains(run):
    status, out, _ = run("explain")
    assert status == 0
    assert "OOC-120" in out
    assert "R101" in out
    assert "Smallest list" in run("explain", "r101")[1]


def test_a_pipe_that_closes_is_no_traceback():
    script = f"{sys.executable} -m ooctrain explain | head -n 1"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_search_that_is_cut_short_says_so(capsys):
    arguments = "plan resnet18 --batch 32 --budget 5% --machine v100-pcie --time-limit 0.01"
    assert main(arguments.split()) == 0
    assert "--time-limit" in capsys.readouterr().out


@pytest.mark.parametrize(
    "ending", quick(["<&- >&- 2>&-", "2>&1 | head -1", ">/dev/full 2>/dev/null"], 1)
)
def test_a_command_whose_output_nobody_takes_says_nothing_wrong(ending, tmp_path):
    """Closed streams are no fault; of a reader that leaves and of a full disk the file tells."""
    path = tmp_path / "out.json"
    arguments = ["plan", "lenet", "--batch", "2", "--json", str(path)]
    command = shlex.join([sys.executable, "-m", "ooctrain", *arguments])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} {ending}"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == (1 if "head" in ending else 0)
    if "&-" in ending:
        assert done.returncode == 0
        assert json.loads(path.read_text())["error"] is None
    else:  # whether the reader is gone when the last line is written is chance
        assert done.returncode in ((0, 1) if "head" in ending else (1,))


OFFERED = {
    "ooctrain plan resnet1": ["resnet18", "resnet101", "resnet152"],
    "ooctrain plan vgg16 --planner win": ["window", "window-cyclic"],
    "ooctrain compare vgg16 --planner lru,window-": ["lru,window-cyclic"],
    "ooctrain train lenet --allocator best-fit-": ["best-fit-caching"],
    "ooctrain simulate lenet --machine v100-p": ["v100-pcie"],
    "ooctrain explain R20": [f"R20{n}" for n in range(1, 8)],
    "ooctrain grade lru": ["lru_planner"],
    "ooctrain course strip best_": ["best_fit"],
}


@pytest.fixture
def offers(monkeypatch, capsys):
    """What bash is told that can follow a line, one a line, and nothing else."""

    def call(line: str) -> list[str]:
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        for name, value in (asked | {"_OOCTRAIN_COMPLETE": "bash_complete"}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            main([])
        said = capsys.readouterr()
        assert said.err == ""
        return said.out.split()

    return call


@pytest.mark.parametrize("line", OFFERED)
def test_a_shell_is_offered_the_names_there_are(line, offers):
    assert offers(line) == [f"plain,{name}" for name in OFFERED[line]]


def test_a_shell_is_offered_files_where_no_name_begins_so(offers):
    assert offers("ooctrain plan my_own.p") == ["file,my_own.p"]


def test_what_follows_a_mistake_is_unknown_and_nothing_is_written_over_the_prompt(offers):
    offers("ooctrain trian --pl")


ASKED_BY_A_SHELL = (
    "import sys; sys.argv = ['ooctrain']; from ooctrain.cli import main; sys.exit(main())"
)


@pytest.mark.parametrize("shell", quick(["bash", "zsh", "fish"], 0))
def test_a_shell_is_taught_what_can_follow(run, shell, tmp_path):
    status, lines, _ = run("completion", shell)
    assert status == 0
    assert "_OOCTRAIN_COMPLETE" in lines
    words = {"COMP_WORDS": "ooctrain train --pl", "COMP_CWORD": "--pl" if shell == "fish" else "2"}
    asked = os.environ | words | {"_OOCTRAIN_COMPLETE": f"{shell}_complete"}
    said = subprocess.run(
        [sys.executable, "-c", ASKED_BY_A_SHELL], env=asked, capture_output=True, text=True
    )
    assert "--planner" in said.stdout, said.stderr


def test_memory_that_has_run_out_is_said_with_what_limits_it(run, tmp_path):
    """Python's own error of it has no words."""
    (tmp_path / "net.py").write_text("def net():\n    raise MemoryError\n")
    status, out, err = run("plan", f"{tmp_path / 'net.py'}:net", "--batch", "1")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    for limit in memory_limits()[:1]:
        assert err.rstrip().endswith(f"of {format_bytes(limit.limit_bytes)} by {limit.source}")
