"""`ooctrain doctor`: what works, what is missing, and the command that mends it.

It prints a line for each check, and ends with status 1 if one of them fails. It needs nothing but
click, since the installation itself may be broken. Read next: `ooctrain/machine/doctor.py`, which
holds the checks.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from ooctrain.cli import DONE, FAILED
from ooctrain.cli.options import json_option
from ooctrain.errors import printable
from ooctrain.machine.doctor import Finding, examine
from ooctrain.report.numbers_file import write_numbers

JSON_VERSION = 1
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@json_option
def doctor(json_path: str | None) -> int:
    """Check this installation and say how to mend it."""
    findings = examine()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        _print(finding, width)
    if json_path:
        rows = [asdict(finding) for finding in findings]
        write_numbers(json_path, {"version": JSON_VERSION, "checks": rows, "error": None})
    broken, warned = (sum(f.level == level for f in findings) for level in ("fail", "warn"))
    if broken:
        click.echo(f"{broken} of {len(findings)} checks failed")
    elif warned:
        click.echo(f"{warned} of {len(findings)} checks warn; the rest is well")
    else:
        click.echo("all well")
    return FAILED if broken else DONE


def _print(finding: Finding, width: int) -> None:
    level = click.style(f"{finding.level:4}", fg=COLOURS[finding.level])
    click.echo(f"{level}  {finding.name:{width}}  {printable(finding.text)}")
    if finding.fix:
        click.echo(f"{'':4}  {'':{width}}  -> {printable(finding.fix)}")
