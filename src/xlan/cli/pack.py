"""`xlan pack`: a trained captioner and the network its features came from → one directory that captions pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pack(
    model: Annotated[Path, typer.Argument(help="Trained model directory, for example out/coco-mini/xlan_scst/best.")],
    vision: Annotated[
        Path, typer.Option(help="The vision.safetensors with which `xlan features extract` made its features.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model directory to write.")],
    half: Annotated[
        bool, typer.Option("--half/--full", help="Store weights as float16 (half the size), or as they are.")
    ] = True,
    card: Annotated[
        Path | None, typer.Option(help="Text of the model card (Markdown); without it, the card of MODEL.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model directory that is already there.")] = False,
) -> None:
    """Join a trained model and its vision network, so that `xlan caption --model OUTPUT` takes pictures."""
    import torch

    from xlan.errors import ModelError
    from xlan.files import read_text
    from xlan.pretrained import CARD, from_pretrained, is_model_directory, save_pretrained
    from xlan.vision.grid import GridExtractor

    if is_model_directory(output) and not force:
        raise ModelError(f"{output}: a model directory is already there; use --force to replace it")
    trained = from_pretrained(model, verify=True)
    extractor = GridExtractor.load(vision)
    if extractor.feature_dim != trained.model.feature_dim:
        raise ModelError(
            f"{vision}: makes features {extractor.feature_dim} wide, {model} was trained on "
            f"{trained.model.feature_dim}; give the network with which its features were extracted"
        )
    text_of_card = read_text(card or model / CARD, max_bytes=1 << 20) if card or (model / CARD).is_file() else ""
    save_pretrained(
        output,
        trained.model,
        trained.vocabulary,
        card=text_of_card,
        dtype=torch.float16 if half else None,
        vision=vision,
    )
    megabytes = sum(file.stat().st_size for file in output.iterdir()) / 1e6
    typer.echo(f"{output}: {megabytes:.1f} MB; try: xlan caption --model {output} PHOTO")
