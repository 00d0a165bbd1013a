"""`xlan adapt`: teach the vision network the words of captions, before features are extracted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer


def adapt(
    dataset: Annotated[Path, typer.Argument(help="Dataset in Karpathy's JSON format (.json, .json.gz, .json.xz).")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="Folder for vision.safetensors, checkpoint and log; a run in it is continued."
        ),
    ],
    pictures_folder: Annotated[
        Path | None,
        typer.Option(
            "--pictures",
            help="Folder with the pictures, found by file name or COCO number (000000391895.jpg).",
            show_default="beside the dataset",
        ),
    ] = None,
    network: Annotated[str, typer.Option(help="efficientnet-lite0 or efficientnet-lite2.")] = "efficientnet-lite2",
    boxes: Annotated[
        list[Path] | None,
        typer.Option(
            help="Boxes of things (JSON, may be compressed), as a second target for the cells; may be repeated. Boxes "
            "made by people replace a machine's.",
        ),
    ] = None,
    box_weight: Annotated[float, typer.Option(help="Weight of the boxes' loss.")] = 5.0,
    input_size: Annotated[int, typer.Option(help="Side in pixels of the random views in training.", min=32)] = 192,
    test_size: Annotated[
        int, typer.Option(help="Side in pixels that whole pictures are squashed to: evaluation, extraction.", min=32)
    ] = 224,
    words: Annotated[int, typer.Option(help="How many of the commonest caption words to predict.")] = 1000,
    epochs: Annotated[int, typer.Option(help="Passes over the training pictures.", min=1)] = 4,
    batch: Annotated[int, typer.Option(help="Pictures per step.")] = 32,
    rate: Annotated[float, typer.Option(help="Peak learning rate of the network.")] = 3e-4,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    limit: Annotated[
        int | None, typer.Option(help="Use only the first pictures of each split, for a trial.", min=1)
    ] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.", min=0.0)] = 5.0,
    threads: Annotated[int, typer.Option(help="Threads that decode pictures.", min=1)] = 2,
) -> None:
    """Adapt the vision network to captions: predict which words people use for a picture.

    Ctrl-C or a TERM signal saves and stops; the same command continues from the last checkpoint.
    """
    from xlan.adapt.data import BoxLabels
    from xlan.adapt.run import Adaptation, AdaptSettings
    from xlan.errors import DataError, TrainingError
    from xlan.files import open_locked
    from xlan.training.stop import StopRequest
    from xlan.vision.sources import karpathy_pictures

    settings = AdaptSettings(
        network=network,
        input_size=input_size,
        test_size=test_size,
        words=words,
        epochs=epochs,
        batch=batch,
        rate=rate,
        box_weight=box_weight,
        seed=seed,
    )
    missing: list[str] = []
    pictures = karpathy_pictures(dataset, folder=pictures_folder, on_missing=missing.append)
    if missing:
        typer.echo(f"{len(missing):,} images have no picture in {pictures_folder}; they are skipped", err=True)
    train = [picture for picture in pictures if picture.split == "train"][:limit]
    val = [picture for picture in pictures if picture.split == "val"][:limit]
    if not train or not val:
        raise DataError(f"{dataset}: needs pictures of the splits train and val, has {len(train)} and {len(val)}")
    labels = BoxLabels.load(*boxes) if boxes else None
    output.mkdir(parents=True, exist_ok=True)
    try:
        lock = open_locked(output / ".lock")
    except BlockingIOError:
        raise TrainingError(f"{output}: another run is using this folder; choose another (-o)") from None
    try:
        run = Adaptation(settings, train=train, val=val, folder=output, boxes=labels, threads=threads)
        how = f"continuing after step {run.step}" if run.resumed else "starting"
        typer.echo(f"{how}: {len(train)} pictures, {run.total_steps} steps, {len(run.words)} words", err=True)
        stop = StopRequest()
        with stop.listening():
            done = run.run(checkpoint_minutes=checkpoint_minutes, on_log=_show, stop=stop)
    finally:
        os.close(lock)
    if not done:
        typer.echo(f"{stop.reason} after step {run.step}; saved. The same command continues from here.", err=True)
        raise typer.Exit(stop.status)
    typer.echo(str(output / "vision.safetensors"))


def _show(record: dict[str, Any]) -> None:
    values = " · ".join(f"{key} {value}" for key, value in record.items() if key not in ("step", "of"))
    typer.echo(f"step {record['step']}/{record['of']} · {values}", err=True)
