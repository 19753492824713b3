"""Words that the command line refuses: status, code, place and numbers of each, in a table.

The doors of the command are its options, and what several of them mean together. Each refusal here
is found before anything is planned or trained, wherever in the library the check stands. The table
is `tests/data/known/words_of_the_command.csv`; `support/known.py` says how it is written anew. What
a refusal says in words is looked at in `../unit/test_cli.py`.
"""

from __future__ import annotations

import re

import pytest
from support import known

from ooctrain.cli import main

TINY = "lenet --batch 4 --threads 1"
#: {door: wrong words, with a command that takes them}
DOORS = {
    "the network": (
        "plan", "plan lenett", "plan none.py:make", "plan ./net.py", "plan lenet vgg11",
        "plan lenet --torch none.py:make", "plan --onnx net.pt", "plan --onnx none.onnx",
        "plan lenet --classes 0", "plan lenet --classes many", "plan unet --stem resnet",
        "plan none.onnx --classes 4", "plan lenet --image-size 0", "plan unet --image-size 7",
        "train lenet --classes 3 --data digits",
    ),
    "the split": (
        "plan lenet --split depth=2", "plan lenet --split grid=2", "plan lenet --split x",
        "plan lenet --split fit=much",
    ),
    "the data": (
        f"train {TINY} --data digit", f"train {TINY} --data cifar10:none", f"train {TINY} --data =",
        "train lenet --batch 2000", "train unet --data digits", "train lenet --crop 9",
        "train lenet --crop 0", "train lenet --pad -1", "train unet --flip", "train lenet --pad x",
    ),
    "the step": (
        "plan lenet --batch 0", "plan lenet --batch 1_0", "plan lenet --accumulate 0",
        "plan lenet --threads 0",
        "plan lenet --threads 99999", f"plan {TINY} --conv-algorithm fft",
        f"plan {TINY} --device gpu", f"plan {TINY} --seed -1",
        f"plan {TINY} --seed 9223372036854775808",
        f"train {TINY} --optimizer sdg", f"train {TINY} --optimizer sgd:rate=1",
        f"train {TINY} --lr 0", f"train {TINY} --lr nan", f"train {TINY} --optimizer adam:lr=x",
        f"plan {TINY} --allow-tf32=yes",
    ),
    "budgets": (
        f"plan {TINY} --budget 0", f"plan {TINY} --budget -1MiB", f"plan {TINY} --budget 8G",
        f"plan {TINY} --budget 101%", f"plan {TINY} --budget 9999999999GiB",
        f"plan {TINY} --budget nanGB", f"plan {TINY} --host-budget -1",
        f"plan {TINY} --host-budget much", f"plan {TINY} --memory much",
        f"plan {TINY} --memory 50%", f"plan {TINY} --memory 0",
        f"plan {TINY} --memory 1GiB --budget 50%", f"train {TINY} --memory 1GiB --budget 50%",
        f"plan {TINY} --memory 1GiB --host-budget 1GiB", f"plan {TINY} --memory 1GiB --device cuda",
    ),
    "planners and allocators": (
        f"plan {TINY} --planner windwo", f"plan {TINY} --planner window:sice=2",
        f"plan {TINY} --planner window:size=0", f"plan {TINY} --planner none.py:Mine",
        f"plan {TINY} --allocator vaa",
        f"plan {TINY} --allocator va:memory=3", f"plan {TINY} --evaluations 0",
        f"plan {TINY} --evaluations 1.5", f"plan {TINY} --time-limit 0",
        f"plan {TINY} --time-limit inf", f"plan {TINY} --rewrite fuze", f"plan {TINY} --rewrite ,",
        f"plan {TINY} --rewrite bands:0:a:b", f"train {TINY} --planner windwo",
        f"train {TINY} --allocator vaa --budget 50%",
    ),
    "the machine": (
        f"plan {TINY} --machine v100", f"plan {TINY} --machine none.json",
        f"plan {TINY} --link-bandwidth 0", f"plan {TINY} --link-bandwidth nan",
        f"plan {TINY} --link-bandwidth 2", f"train {TINY} --link-bandwidth fast",
        f"plan {TINY} --spill-rate 2GB", f"train {TINY} --spill-rate 2GB",
        f"plan {TINY} --spill . --link-bandwidth 2GB",
        f"train {TINY} --spill . --link-bandwidth 2GB",
        f"plan {TINY} --spill . --spill-rate 0", f"plan {TINY} --spill . --spill-rate fast",
        f"plan {TINY} --spill none", f"train {TINY} --spill none", f"plan {TINY} --spill=",
    ),
    "how far": (
        f"train {TINY} --epochs 0", f"train {TINY} --steps 0", f"train {TINY} --steps 1e400",
        f"train {TINY} --lr-schedule cosin", f"train {TINY} --lr-schedule step:epoch=3",
        f"train {TINY} --lr-schedule step:epochs=0", f"train {TINY} --lr-schedule step:gamma=-1",
        f"train {TINY} --lr-schedule multistep", f"train {TINY} --checkpoint none/x",
        f"train {TINY} --checkpoint-steps 0", f"train {TINY} --resume none.safetensors",
        f"train {TINY} --weights none.safetensors", f"train {TINY} --save-weights .",
        f"train {TINY} --resume --steps 4", f"train {TINY} --verify=3",
        f"train {TINY} --verify-steps 0", f"train {TINY} --step --ranks 2",
        f"train {TINY} --ranks 0", f"train {TINY} --json none/x.json",
        f"train {TINY} --allocation-log .",
    ),
    "comparisons": (
        "compare", "compare lenet lenett", "compare lenet --planner windwo",
        "compare lenet --planner ,", "compare lenet --budget 5%,200%", "compare lenet --budget ,",
        "compare lenet --machine v10", "compare lenet --batch 0", "compare lenet --batch 8,x",
        "compare lenet --image-size 1_0", "compare lenet --granule 0",
        "compare lenet --granule much", "compare lenet --bound lpp", "compare lenet --classes 0",
        "compare lenet --optimizer sdg", "compare lenet --jobs 0",
        "compare lenet --accumulate 0", "compare lenet --link-bandwidth nan",
        "compare lenet --time-limit nan", "compare lenet --evaluations 0",
        "compare lenet --seed -1", "compare lenet --csv none/x.csv", "compare lenet --keep words",
    ),
    "other commands": (
        "trian", "", "plan lenet --bugdet 1MiB", "train lenet --ram 1GiB", "train lenet --save x",
        f"plan {TINY} --depth 0", f"plan {TINY} --save none/x.json", "simulate lenet --plan none",
        "simulate lenet --plan .", "calibrate lenet --spill none", "calibrate lenet --output .",
        "report none.json", "report", "diff none.json none.json", "replay none.jsonl",
        "replay none.jsonl --allocator vaa", "grade none", "course handout none",
        "tutorials copy", "docs none", "reproduce hnms", "explain OOC-999",
        "explain OOC-100 --rewrite fuze", "doctor --json none/x", "completion sh",
    ),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_wrong_words_have_their_code_their_place_and_their_numbers(
    door, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").write_text("a file", encoding="utf-8")
    known.check_rows("words_of_the_command", door, [row(words, capsys) for words in DOORS[door]])


def row(words: str, capsys) -> list[object]:
    """Of a command that is refused: its words, status, code, place, numbers; names that there are
    instead may become more."""
    status = main(words.split())
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    code = re.search(r"\[(OOC-\d{3})\]", captured.err)
    details = dict(re.findall(r"^  (where|numbers): (.*)$", captured.err, re.MULTILINE))
    return [words, status, code and code[1], details.get("where"), details.get("numbers")]
