"""The pages "bring your own" run as they stand: their Python, their files, their commands."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from support.quick import all_but

from ooctrain.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+)\.py\n")


NAMES = sorted({page.stem for page in PAGES} - {"index"})


@pytest.mark.parametrize("name", all_but(NAMES, *set(NAMES) - {"operation"}))
def test_a_page_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    page = ROOT / "docs" / "howto" / f"{name}.md"
    if "import torch\n" in page.read_text(encoding="utf-8"):
        pytest.importorskip("torch", reason="torch is not installed")
    if "import onnx\n" in page.read_text(encoding="utf-8"):
        pytest.importorskip("onnx", reason="onnx is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {"__name__": name}
    files = []
    try:
        for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind == "console":
                for line in text.splitlines():
                    assert line.startswith("$ ooctrain "), line
                    assert main(shlex.split(line)[2:]) == 0, line
            elif found := FILE.match(text):
                Path(f"{found[1]}.py").write_text(text, encoding="utf-8")
                files.append(found[1])
            else:
                exec(compile(text, page.name, "exec"), names)
    finally:
        for file in files:
            sys.modules.pop(file, None)


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "howto" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^(\w+)$", index, re.MULTILINE)) == {p.stem for p in PAGES} - {"index"}
