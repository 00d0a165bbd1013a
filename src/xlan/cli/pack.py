"""`xlan pack`: a trained captioner and the network its features came from → one directory that captions pictures."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from xlan.vision.familiar import Familiar


def pack(
    model: Annotated[Path, typer.Argument(help="Trained model directory, for example out/coco-mini/xlan_scst/best.")],
    vision: Annotated[
        Path, typer.Option(help="The vision.safetensors with which `xlan features extract` made its features.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model directory to write.")],
    half: Annotated[
        bool, typer.Option("--half/--full", help="Store weights as float16 (half the size), or as they are.")
    ] = True,
    features: Annotated[
        Path | None,
        typer.Option(help="Feature store it was trained on: pictures unlike those in it will lower its confidence."),
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="Of --features, take only the training split of this captions file.")
    ] = None,
    card: Annotated[
        Path | None, typer.Option(help="Text of the model card (Markdown); without it, the card of MODEL.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model directory that is already there.")] = False,
) -> None:
    """Join a trained model and its vision network, so that `xlan caption --model OUTPUT` takes pictures."""
    if captions is not None and features is None:
        raise typer.BadParameter("does something only together with --features STORE", param_hint="--captions")
    import torch

    from xlan.errors import ModelError
    from xlan.files import read_text
    from xlan.pretrained import CARD, FAMILIAR, from_pretrained, is_model_directory, save_pretrained
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
    with tempfile.TemporaryDirectory() as folder:
        familiar = None if features is None else Path(folder) / FAMILIAR
        if features is not None and familiar is not None:
            _familiar(features, captions, extractor.feature_dim).save(familiar)
        save_pretrained(
            output,
            trained.model,
            trained.vocabulary,
            card=text_of_card,
            dtype=torch.float16 if half else None,
            vision=vision,
            familiar=familiar,
        )
    megabytes = sum(file.stat().st_size for file in output.iterdir()) / 1e6
    typer.echo(f"{output}: {megabytes:.1f} MB; try: xlan caption --model {output} PHOTO")


def _familiar(features: Path, captions: Path | None, width: int) -> Familiar:
    """From up to a thousand pictures of the store, evenly spread."""
    from xlan.data.captions import load_captions
    from xlan.errors import DataError
    from xlan.vision.familiar import EXAMPLES, Familiar
    from xlan.vision.store import FeatureStore

    store = FeatureStore(features)
    ids = list(store.ids)
    if captions is not None:
        trained_on = {image.id for image in load_captions(captions).split("train")}
        ids = [image for image in ids if image in trained_on]
    step = max(1, len(ids) // EXAMPLES)
    chosen = ids[::step][:EXAMPLES]
    if chosen and store[chosen[0]].features.shape[1] != width:
        raise DataError(f"{features}: has features {store[chosen[0]].features.shape[1]} wide, expected {width}")
    return Familiar.of(store[image].features for image in chosen)
