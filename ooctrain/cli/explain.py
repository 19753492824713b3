"""`ooctrain explain CODE`: what an error code or a rule of the verifier means, with the smallest
example.

In: a code such as OOC-120 or R203. Out: text. Read next: `ooctrain/explain.py`, which holds the
texts.
"""

from __future__ import annotations

import click

from ooctrain.explain import all_codes, explain_code


@click.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """Explain an error code (OOC-120) or a rule of the verifier (R203); without a code, list
    them."""
    if code is None:
        for known, title in all_codes().items():
            click.echo(f"{known:8} {title}")
    else:
        click.echo(explain_code(code))
