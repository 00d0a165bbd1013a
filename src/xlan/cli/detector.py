"""`xlan detector`: train and measure your own small detector."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.health import refuse_broken_bf16
from xlan.cli.single_run import claimed, run_to_end

if TYPE_CHECKING:
    from xlan.config import DetectorConfig
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
    settings = _settings(config, overrides)
    with claimed(Path(settings.output), "output=…"):
        run = _build(settings)
        about = f"{run.pictures} pictures, {run.total_steps} steps, measured on {run.measured}"
        run_to_end(run, about, checkpoint_minutes=settings.checkpoint_minutes)
    typer.echo(str(run.folder / "detector"))


@app.command("evaluate")
def evaluate(
    config: Annotated[Path, typer.Argument(help="YAML file of the run that trained it.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to it, as key=value.")] = None,
) -> None:
    """Measure the detector of a run on whole pictures: COCO's average precision and the recall of proposals."""
    import json

    from xlan.errors import TrainingError
    from xlan.training.single import CHECKPOINT

    settings = _settings(config, overrides)
    if not (Path(settings.output) / CHECKPOINT).is_file():
        raise TrainingError(
            f"{settings.output}: holds no run of a detector; train one with `xlan detector train`, or name its folder "
            "(output=…)"
        )
    with claimed(Path(settings.output), "output=…"):  # opening a run tidies its folder up, under a writer's hands
        run = _build(settings)
        typer.echo(json.dumps({"step": run.step, "pictures": run.measured, **run.evaluate()}))


def _settings(config: Path, overrides: list[str] | None) -> DetectorConfig:
    from xlan.config import load_detector_config

    settings = load_detector_config(config, overrides or [])
    refuse_broken_bf16("precision", settings.precision)
    return settings


def _build(settings: DetectorConfig) -> DetectorRun:
    from xlan.detector_training.build import build_run

    missing: list[str] = []
    run = build_run(settings, on_missing=missing.append)
    if missing:
        typer.echo(f"{len(missing):,} images have no picture in {settings.pictures}; they are skipped", err=True)
    return run
