"""`xlan train`: a configuration in, a run folder out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from xlan.cli.health import refuse_broken_bf16


def train(
    config: Annotated[Path, typer.Argument(help="YAML file of the run; configs/ has those of the paper.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to it, as key=value: train.epochs=3 output=runs/try model.name=xlan-tiny"),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="'auto' resumes from the newest undamaged checkpoint of the output folder, or starts when there is "
            "none; otherwise the path of a checkpoint."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Threads of torch; default: OMP_NUM_THREADS, else as in the checkpoint, else one per core. The same "
            "number gives the same weights, bit for bit.",
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

    if check and resume is not None:
        raise typer.BadParameter("reads no checkpoint: leave out --resume", param_hint="--check")
    settings = load_config(config, overrides or [])
    if check:
        import yaml

        from xlan.model.spec import check_has_attributes, model_spec

        if settings.model.init is None and settings.model.name is not None:
            spec = model_spec(settings.model.name, **settings.model.options)
            if settings.model.attributes is not None:
                check_has_attributes(spec)
        typer.echo(yaml.safe_dump(dump_config(settings), sort_keys=False, allow_unicode=True), nl=False)
        return
    refuse_broken_bf16("train.precision", settings.train.precision)
    from xlan.training.run import run_training

    status = run_training(settings, resume_from=resume, threads=threads)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _leave_at_once(status)
    raise typer.Exit(status)


def _leave_at_once(status: int) -> NoReturn:
    """End this process of several without shutting the interpreter down.

    The threads of a process group outlive `destroy_process_group` when something still refers to it, as torch's own
    caches do after sharding. A thread that frees a tensor while the interpreter closes aborts the process, and torchrun
    then reports a finished run as failed. By now everything is written and closed, so nothing is lost.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
