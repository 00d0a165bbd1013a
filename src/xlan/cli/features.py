"""`xlan features`: bring features into a store and check stores."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.extract import extract
from xlan.cli.stopping import ended_by_sigterm
from xlan.cli.text import printable

if TYPE_CHECKING:
    from xlan.data.importers.run import ImportReport

app = typer.Typer(help="Make, import and check image features.", no_args_is_help=True)
app.command("extract")(extract)

SOME_LEFT_OUT = 3  # exit status of an import that worked but for some entries
_SHOWN = 5


class Form(StrEnum):
    """Forms of feature files."""

    AUTO = "auto"
    TSV = "tsv"
    NPZ = "npz"
    NPY = "npy"
    HDF5 = "hdf5"


class Dtype(StrEnum):
    """Number types of stored features."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"
    INT8 = "int8"


Store = Annotated[Path, typer.Argument(help="Folder of a feature store.", show_default=False)]


@app.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="Bottom-up TSV file(s), an HDF5 file, or a folder of .npz or .npy files, one per image.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the store; an interrupted import resumes.")],
    form: Annotated[Form, typer.Option("--format", help="Form of the source; auto looks at it.")] = Form.AUTO,
    dtype: Annotated[
        Dtype, typer.Option(help="How features are stored; int8 takes half the space of float16.")
    ] = Dtype.FLOAT16,
    max_regions: Annotated[
        int | None, typer.Option(help="Keep at most this many regions of an image.", show_default="all")
    ] = None,
    boxes: Annotated[
        Path | None, typer.Option(help="Folder with boxes as <id>.npy, for features without boxes.", show_default=False)
    ] = None,
    captions: Annotated[
        Path | None,
        typer.Option(help="Captions: list the images that have captions but no features.", show_default=False),
    ] = None,
) -> None:
    """Import features that exist already.

    Entries that cannot be used are counted here and listed with reasons in import-report.json inside the store. Exit
    status: 0 when everything came in, 3 when entries were left out or captioned images lack features, 1 when nothing
    could be imported.
    """
    from xlan.cli.progress import bytes_progress
    from xlan.data.importers.run import import_features

    with ended_by_sigterm(), bytes_progress(f"importing {source.name}") as on_progress:
        report = import_features(
            source,
            output,
            form=form.value,
            dtype=dtype.value,
            max_regions=max_regions,
            boxes=boxes,
            on_progress=on_progress,
        )
    missing = [] if captions is None else _without_features(captions, output)
    typer.echo(printable(_text(report, output), lines=True))
    if missing:
        typer.echo(printable(f"without     {len(missing):,} images with captions have no features: {_some(missing)}"))
    if report.left_out or missing:
        raise typer.Exit(SOME_LEFT_OUT)


def _without_features(captions: Path, output: Path) -> list[str]:
    from xlan.data.captions import load_captions
    from xlan.data.summary import summarise
    from xlan.vision.store import FeatureStore

    return summarise(load_captions(captions), features=FeatureStore(output)).missing_features or []


def _text(report: ImportReport, output: Path) -> str:
    lines = [f"imported    {report.imported:,} images into {output} ({report.form})"]
    if report.already_there:
        lines.append(f"kept        {report.already_there:,} images that were already in the store")
    if report.without_boxes:
        lines.append(
            f"boxes       {report.without_boxes:,} images have no usable ones; the whole picture is used instead"
        )
    if report.left_out:
        lines.append(f"left out    {len(report.left_out):,} entries, all listed in {output / 'import-report.json'}")
        lines += [f"            {bad.where}: {bad.reason}" for bad in report.left_out[:_SHOWN]]
    return "\n".join(lines)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


@app.command()
def info(store: Store) -> None:
    """Say what a feature store holds, from its index alone."""
    import json

    from xlan.vision.store import FeatureStore

    opened = FeatureStore(store)
    regions = sum(shard.regions for shard in opened.shards)
    size = sum(shard.bytes for shard in opened.shards)
    typer.echo(f"images      {len(opened):,}")
    typer.echo(f"regions     {regions:,} ({regions / max(1, len(opened)):.1f} an image)")
    typer.echo(f"features    {opened.dtype}, {opened.feature_dim} wide")
    typer.echo(f"size        {size / 1e6:,.1f} MB in {len(opened.shards):,} shards")
    typer.echo(
        f"complete    {'yes' if opened.complete else 'no: its writer was interrupted; start it again to continue'}"
    )
    typer.echo(f"extractor   {json.dumps(opened.extractor, ensure_ascii=False)}")


@app.command()
def verify(store: Store) -> None:
    """Read every byte of a store and compare it with the hashes of its index."""
    from xlan.cli.progress import bytes_progress
    from xlan.errors import FeatureError
    from xlan.vision.store import FeatureStore

    opened = FeatureStore(store)
    total, done, faults = sum(shard.bytes for shard in opened.shards), 0, []
    with bytes_progress(f"reading {store.name}") as on_progress:
        for shard, fault in opened.verify():
            done += shard.bytes
            on_progress(done, total)
            if fault:
                faults.append(fault)
                typer.echo(f"bad         {fault}")
    if faults:
        raise FeatureError(f"{store}: {len(faults):,} of {len(opened.shards):,} shards are damaged")
    if not opened.complete:
        raise FeatureError(
            f"{store}: incomplete ({len(opened):,} images so far are whole): its writer was interrupted; start it again"
        )
    typer.echo(f"{store}: {len(opened):,} images in {len(opened.shards):,} shards, all intact")
