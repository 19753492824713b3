"""`ooctrain explain CODE`: what an error code or a rule of the verifier means, with an example.

CODE is a code such as OOC-120 or R203, or names of rewrites. The example is the smallest one.
Read next: `ooctrain/explain/`, which holds the pages.
"""

from __future__ import annotations

import click

from ooctrain.cli.options import json_option, options_of
from ooctrain.execution.settings import Options
from ooctrain.explain import all_codes, explain_code, find_code
from ooctrain.report.numbers_file import write_numbers
from ooctrain.rewrite import keeps_of
from ooctrain.rewrite.plugged import KEPT

JSON_VERSION = 1


@click.command()
@click.argument("code", required=False)
@options_of(Options, "rewrites")
@json_option
def explain(code: str | None, rewrites: list[str], json_path: str | None) -> None:
    """Explain an error code (OOC-120), a rule of the verifier (R203), a law of allocators (P8), an
    instruction of a list (run), or what a rewrite keeps; without any, list the codes."""
    for name in rewrites:
        click.echo(f"{name} keeps: {KEPT[keeps_of(name)]}")
    if rewrites and code is None:
        return
    if code is None:
        for known, title in all_codes().items():
            click.echo(f"{known:8} {title}")
    else:
        click.echo(explain_code(code))
    if json_path:
        found = [find_code(known) for known in ([code] if code else all_codes())]
        parts = ("title", "meaning", "example", "fix")
        rows = [{"code": c, **{part: getattr(e, part) for part in parts}} for c, e in found]
        write_numbers(json_path, {"version": JSON_VERSION, "codes": rows, "error": None})
