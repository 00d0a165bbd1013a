"""`xlan doctor`: what works here, what does not, and what to do."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan import __version__
from xlan.cli.engine import MODEL_WORDS

if TYPE_CHECKING:
    from xlan.cli.health import Check

_MARKS = {"ok": ("ok", "green"), "absent": ("–", "yellow"), "broken": ("BROKEN", "red")}


def doctor(
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help=f"{MODEL_WORDS}, to check instead of the model of xlan.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at this installation: what works, what does not, and what to do about it.

    The exit status is 1 if something that captioning needs is broken; missing optional parts do not count.
    """
    from xlan.cli.health import all_checks

    found: list[Check] = []
    for check in all_checks(model):
        found.append(check)
        if not as_json:
            _show(check)
    healthy = not any(check.core and check.status == "broken" for check in found)
    if as_json:
        typer.echo(
            json.dumps({"xlan": __version__, "ok": healthy, "checks": [asdict(check) for check in found]}, indent=2)
        )
    else:
        typer.echo(_summary(found, healthy))
    if not healthy:
        raise typer.Exit(1)


def _show(check: Check) -> None:
    word, colour = _MARKS[check.status]
    typer.echo(f"{typer.style(f'{word:<7}', fg=colour)}{check.name:<17} {check.detail}")
    if check.fix:
        typer.echo(f"{'':25}{'type: ' if check.typed else ''}{check.fix}")


def _summary(found: list[Check], healthy: bool) -> str:
    if not healthy:
        return f"\nxlan {__version__}: does not work here; see BROKEN above"
    counts = {status: sum(check.status == status for check in found) for status in _MARKS}
    state = "captioning works"
    if counts["broken"]:
        state += f", but {counts['broken']} optional {'part is' if counts['broken'] == 1 else 'parts are'} broken"
    return f"\nxlan {__version__}: {state}; {counts['ok']} checks passed, {counts['absent']} not installed"
