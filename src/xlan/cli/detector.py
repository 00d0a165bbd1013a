"""`xlan detector`: train and measure a small detector of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from xlan.detector_training.run import DetectorRun

app = typer.Typer(help="Train and measure a small detector.", no_args_is_help=True)


@app.command("train")
def train(
    config: Annotated[Path, typer.Argument(help="YAML file of the run; configs/detector/coco.yaml is one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to it, as key=value: epochs=2 output=out/try")
    ] = None,
) -> None:
    """Train a two-stage detector on boxes; the result is the folder `detector` of the output.

    Ctrl-C or a TERM signal saves and stops; the same command continues from the last checkpoint.
    """
    from xlan.training.stop import StopRequest

    settings, run = _build(config, overrides)
    begun = f"continuing after step {run.step}" if run.resumed else "starting"
    typer.echo(f"{begun}: {run.pictures} pictures, {run.total_steps} steps, measured on {run.measured}", err=True)
    stop = StopRequest()
    with stop.listening():
        done = run.run(checkpoint_minutes=settings.checkpoint_minutes, on_log=_show, stop=stop)
    if not done:
        typer.echo(f"{stop.reason} after step {run.step}; saved. The same command continues from here.", err=True)
        raise typer.Exit(stop.status)
    typer.echo(str(run.folder / "detector"))


@app.command("evaluate")
def evaluate(
    config: Annotated[Path, typer.Argument(help="YAML file of the run that trained it.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to it, as key=value.")] = None,
) -> None:
    """Measure the detector of a run on whole pictures: COCO's average precision and the recall of proposals."""
    import json

    _, run = _build(config, overrides)
    typer.echo(json.dumps({"step": run.step, "pictures": run.measured, **run.evaluate()}))


def _build(config: Path, overrides: list[str] | None) -> tuple[Any, DetectorRun]:
    from xlan.config import load_detector_config
    from xlan.detector_training.build import build_run

    settings = load_detector_config(config, overrides or [])
    missing: list[str] = []
    run = build_run(settings, on_missing=missing.append)
    if missing:
        typer.echo(f"{len(missing):,} images have no picture in {settings.pictures}; they are skipped", err=True)
    return settings, run


def _show(record: dict[str, Any]) -> None:
    values = " · ".join(f"{key} {value}" for key, value in record.items() if key not in ("step", "of"))
    typer.echo(f"step {record['step']}/{record['of']} · {values}", err=True)
