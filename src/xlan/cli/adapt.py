"""`xlan adapt`: teach the vision network the words of captions, before features are extracted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xlan.cli.health import refuse_broken_bf16
from xlan.cli.single_run import claimed, run_to_end
from xlan.cli.text import counted


def adapt(
    dataset: Annotated[
        Path,
        typer.Argument(
            help="Captions with splits: Karpathy's JSON (.json, .json.gz, .json.xz), captions.csv, .tsv or .jsonl, a "
            "Flickr token file."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="Folder for vision.safetensors, checkpoint and log; an existing run continues."
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
    init: Annotated[
        Path | None,
        typer.Option(help="Start from this vision.safetensors of an earlier run.", show_default="ImageNet weights"),
    ] = None,
    boxes: Annotated[
        list[Path] | None,
        typer.Option(
            help="Boxes of things (JSON, may be compressed), as a second target for the cells; may be repeated. Boxes "
            "made by people replace a machine's.",
        ),
    ] = None,
    box_weight: Annotated[
        float | None, typer.Option(help="With --boxes: weight of their loss; default 5.", min=0, max=1000)
    ] = None,
    input_size: Annotated[int, typer.Option(help="Side in pixels of the random views in training.", min=32)] = 192,
    test_size: Annotated[
        int, typer.Option(help="Side in pixels that whole pictures are squashed to: evaluation, extraction.", min=32)
    ] = 224,
    words: Annotated[int, typer.Option(help="How many of the commonest caption words to predict.")] = 1000,
    epochs: Annotated[
        float, typer.Option(help="Passes over the training pictures; may be a fraction.", min=0.001, max=10_000)
    ] = 4,
    batch: Annotated[int, typer.Option(help="Pictures per step.")] = 32,
    rate: Annotated[float, typer.Option(help="Peak learning rate of the network.")] = 3e-4,
    precision: Annotated[
        str, typer.Option(help="fp32, or bf16: a fifth faster where the processor has it (see `xlan doctor`).")
    ] = "fp32",
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    limit: Annotated[
        int | None, typer.Option(help="Use only the first pictures of each split, for a trial.", min=1)
    ] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.", min=0.0)] = 5.0,
    threads: Annotated[int, typer.Option(help="Threads that decode pictures.", min=1, max=256)] = 2,
) -> None:
    """Adapt the vision network to captions: predict which words people use for a picture.

    Ctrl-C or a TERM signal saves and stops; the same command continues from the last checkpoint.
    """
    from xlan.adapt.data import BoxLabels
    from xlan.adapt.run import Adaptation, AdaptSettings
    from xlan.data.pictures import captioned_pictures
    from xlan.errors import DataError, TrainingError
    from xlan.vision import efficientnet
    from xlan.vision.grid import load_vision

    if box_weight is not None and not boxes:
        raise typer.BadParameter("has an effect only together with --boxes", param_hint="--box-weight")
    start, digest = None, ""
    if init is not None:
        start, found, digest = load_vision(init)
        if found.network != network:
            raise TrainingError(f"{init}: is of {found.network}, not {network}; give --network {found.network}")
        start = efficientnet.unfolded(start, efficientnet.load_imagenet(network)[0])
    refuse_broken_bf16("--precision", precision)
    settings = AdaptSettings(
        network=network,
        input_size=input_size,
        test_size=test_size,
        words=words,
        epochs=epochs,
        batch=batch,
        rate=rate,
        box_weight=AdaptSettings.box_weight if box_weight is None else box_weight,
        seed=seed,
        precision=precision,  # type: ignore[arg-type]
        init=digest,
    )
    missing: list[str] = []
    pictures = captioned_pictures(dataset, folder=pictures_folder, on_missing=missing.append)
    if missing:
        place = "beside the captions" if pictures_folder is None else f"in {pictures_folder}"
        typer.echo(f"{counted(len(missing), 'image')} without a picture {place}; skipped", err=True)
    train = [picture for picture in pictures if picture.split == "train"][:limit]
    val = [picture for picture in pictures if picture.split == "val"][:limit]
    if not train or not val:
        raise DataError(f"{dataset}: needs pictures of the splits train and val, has {len(train)} and {len(val)}")
    labels = BoxLabels.load(*boxes) if boxes else None
    with claimed(output, "-o"):
        run = Adaptation(settings, train=train, val=val, folder=output, boxes=labels, network=start, threads=threads)
        about = f"{len(train)} pictures, {run.total_steps} steps, {len(run.words)} words"
        run_to_end(run, about, checkpoint_minutes=checkpoint_minutes)
    typer.echo(str(output / "vision.safetensors"))
