"""`xlan pack`: a trained captioner and the network its features came from → one directory that captions pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xlan.cli.engine import MODEL_WORDS


def pack(
    model: Annotated[Path, typer.Argument(help=f"{MODEL_WORDS}, for example out/coco-mini/xlan_scst/best.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model directory to write.")],
    vision: Annotated[
        Path | None, typer.Option(help="The vision.safetensors with which `xlan features extract` made its features.")
    ] = None,
    detector: Annotated[
        Path | None, typer.Option(help="The detector directory with which `xlan features extract` made its features.")
    ] = None,
    half: Annotated[
        bool, typer.Option("--half/--full", help="Store weights as float16 (half the size), or as they are.")
    ] = True,
    features: Annotated[
        Path | None,
        typer.Option(help="Feature store it was trained on: pictures unlike those in it will lower its confidence."),
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="With --features, take only the training split of this captions file.")
    ] = None,
    words: Annotated[
        Path | None,
        typer.Option(help="The words.safetensors that `xlan adapt` wrote beside --vision, as evidence for confidence."),
    ] = None,
    card: Annotated[
        Path | None, typer.Option(help="Text of the model card (Markdown); without it, the card of MODEL.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model directory that already exists.")] = False,
) -> None:
    """Join a trained model and its vision network or detector, so that `xlan caption --model OUTPUT` takes pictures.

    What MODEL knows of its training pictures is kept unless --features replaces it.
    """
    if captions is not None and features is None:
        raise typer.BadParameter("has an effect only together with --features STORE", param_hint="--captions")
    if vision is None and detector is None:
        raise typer.BadParameter("give --vision FILE, --detector DIR or both", param_hint="--vision")
    import torch

    from xlan.packing import familiar_pictures, pack_model, read_card

    extras = pack_model(
        model,
        vision,
        output,
        detector=detector,
        dtype=torch.float16 if half else None,
        familiar=None if features is None else familiar_pictures(features, captions=captions, model=model),
        words=words,
        card="" if card is None else read_card(card),
        replace=force,
    )
    megabytes = sum(file.stat().st_size for file in output.rglob("*") if file.is_file()) / 1e6
    typer.echo(f"{output}: {megabytes:.1f} MB with {', '.join(extras)}; try: xlan caption --model {output} PHOTO")
