"""`xlan train`: a configuration in, a run folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="YAML file of the run; configs/ has those of the paper.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to it, as key=value: train.epochs=3 output=runs/try model.name=xlan-tiny"),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="'auto' goes on from the newest complete checkpoint of the output folder, or starts when there is "
            "none; otherwise the path of a checkpoint."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the configuration and print it with every default written out.")
    ] = False,
) -> None:
    """Train a model: cross-entropy or self-critical, as the configuration says.

    Works on one CPU or GPU as it is, and on many with `torchrun --nproc-per-node N -m xlan train …` or
    `accelerate launch -m xlan train …`. SIGTERM or Ctrl-C saves a checkpoint and ends the run.
    """
    from xlan.config import dump_config, load_config

    settings = load_config(config, overrides or [])
    if check:
        import yaml

        typer.echo(yaml.safe_dump(dump_config(settings), sort_keys=False, allow_unicode=True), nl=False)
        return
    from xlan.training.run import run_training

    raise typer.Exit(run_training(settings, resume_from=resume))
