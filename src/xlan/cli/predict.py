"""`xlan predict`: caption a split from its features, for scoring or submission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xlan.cli.engine import MODEL_WORDS
from xlan.cli.outputs import check_output
from xlan.cli.progress import count_progress
from xlan.cli.text import counted

if TYPE_CHECKING:
    from xlan.cli.progress import Move
    from xlan.data.collate import ImageBatch
    from xlan.data.dataset import CaptionDataset
    from xlan.options import CaptionOptions
    from xlan.pipeline import Captioner


def predict(
    model: Annotated[Path, typer.Argument(help=f"{MODEL_WORDS}, for example out/coco/xlan_scst/best.")],
    captions: Annotated[Path, typer.Option(help="Captions file with the images and splits.")],
    features: Annotated[Path, typer.Option(help="Feature store of the images.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Result file in COCO's format.")],
    split: Annotated[str, typer.Option(help="Which split to caption.")] = "test",
    beams: Annotated[int, typer.Option(min=1, max=50, help="Width of the beam search.")] = 3,
    max_length: Annotated[int, typer.Option(min=1, max=200, help="Longest caption, end included.")] = 17,
    batch_size: Annotated[int, typer.Option(min=1, help="Images decoded together.")] = 50,
    max_regions: Annotated[int | None, typer.Option(min=1, help="Use at most this many regions of an image.")] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, mps; default: cuda if there is one."),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Skip images without features; otherwise they are an error.")
    ] = False,
    as_caption: Annotated[
        bool,
        typer.Option(
            "--as-caption",
            help="Choose among the sentences found as `xlan caption` does: no word twice, complete endings, and the "
            "opinion of the model's own vision network, where it was packed with one.",
        ),
    ] = False,
) -> None:
    """Caption every image of a split; score the result with `xlan evaluate`."""
    check_output(output, captions)
    import torch

    from xlan.data.captions import load_captions
    from xlan.data.dataset import CaptionDataset
    from xlan.data.loader import evaluation_loader
    from xlan.engines.torch_engine import torch_device
    from xlan.options import CaptionOptions
    from xlan.pipeline import Captioner
    from xlan.pretrained import from_pretrained
    from xlan.training.evaluate import decode_split, write_predictions
    from xlan.vision.regions import check_same_extractor
    from xlan.vision.store import FeatureStore

    where = torch_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    loaded = from_pretrained(model, device=where)
    store = FeatureStore(features)
    check_same_extractor(
        loaded.features or _vision_of(loaded.vision), store.extractor, model=str(model), features=str(features)
    )
    dataset = CaptionDataset(
        load_captions(captions),
        store,
        loaded.vocabulary,
        split=split,
        max_regions=max_regions,
        missing="skip" if skip_missing else "error",
        feature_dim=loaded.model.feature_dim,
    )
    if loaded.model.wants_boxes:
        dataset.check_boxes()
    with count_progress(split) as move:
        if as_caption:
            captioner = Captioner.from_pretrained(model, device=str(where))
            options = CaptionOptions(beams=beams, max_length=max_length)
            found = _as_caption(captioner, dataset, options, batch_size=batch_size, move=move)
        else:
            shown = _counted(evaluation_loader(dataset, batch_size=batch_size), move, len(dataset))
            found = decode_split(
                loaded.model, shown, loaded.vocabulary, device=where, beams=beams, max_length=max_length
            )
    write_predictions(output, found)
    typer.echo(f"{output}: {counted(len(found), 'caption')}")


def _as_caption(
    captioner: Captioner, dataset: CaptionDataset, options: CaptionOptions, *, batch_size: int, move: Move
) -> dict[str, str]:
    """What `xlan caption` would say of each image."""
    found: dict[str, str] = {}
    move(0, len(dataset))
    for start in range(0, len(dataset), batch_size):
        part = range(start, min(start + batch_size, len(dataset)))
        captions = captioner.caption_regions([dataset.regions(i) for i in part], options)
        found.update((dataset.images[i].id, caption.text) for i, caption in zip(part, captions, strict=True))
        move(len(found), len(dataset))
    return found


def _counted(batches: Iterable[ImageBatch], move: Move, total: int) -> Iterator[ImageBatch]:
    """The batches; `move` is told how many images are behind them."""
    done = 0
    move(done, total)
    for batch in batches:
        yield batch
        done += len(batch.image_ids)
        move(done, total)


def _vision_of(path: Path | None) -> dict[str, Any]:
    """What a packed model's own network is called in feature stores; empty for a model without one."""
    from xlan.vision.grid_settings import read_vision

    if path is None:
        return {}
    file = read_vision(path)
    return file.settings.describe(file.digest)
