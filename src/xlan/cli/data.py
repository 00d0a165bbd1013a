"""`xlan data`: look at captions, make a vocabulary, draw a data set to try things with."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.outputs import check_output
from xlan.cli.text import printable

if TYPE_CHECKING:
    from xlan.data.records import CaptionSet
    from xlan.data.summary import Summary

app = typer.Typer(help="Look at captions, make a vocabulary, draw a data set to try things with.", no_args_is_help=True)

_SHOWN = 5
_CAPTIONS_HELP = (
    "Captions: Karpathy's dataset_*.json, COCO's captions_*.json, a Flickr token file, captions.csv / .jsonl, "
    "or a folder with one of them."
)
Captions = Annotated[Path, typer.Argument(help=_CAPTIONS_HELP, show_default=False)]
SplitList = Annotated[
    list[str],
    typer.Option(
        "--split-list", help="SPLIT=FILE: a text file with the image names of a split, one a line; may be repeated."
    ),
]


class Tokens(StrEnum):
    """How captions are split into words."""

    FILE = "file"
    PLAIN = "plain"


def _load(path: Path, split_lists: list[str], tokens: Tokens = Tokens.FILE) -> CaptionSet:
    from xlan.data.captions import load_captions
    from xlan.errors import DataError

    lists: dict[str, str] = {}
    for item in split_lists:
        name, equals, file = item.partition("=")
        if not (name and equals and file):
            raise DataError(f"--split-list takes SPLIT=FILE, got {item!r}")
        lists[name] = file
    return load_captions(path, split_lists=lists, tokens=tokens.value)


@app.command()
def inspect(
    path: Captions,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images", help="Folder with the pictures, or with the tar files that hold them.", show_default=False
        ),
    ] = None,
    features: Annotated[
        Path | None, typer.Option("--features", help="Feature store to look for the images in.", show_default=False)
    ] = None,
    split_list: SplitList = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what is in a caption file: images, captions, splits, vocabulary, what is missing and what was left out."""
    import json
    from dataclasses import asdict

    from xlan.data.summary import pictures_of, summarise

    captions = _load(path, split_list)
    store = None
    if features is not None:
        from xlan.vision.store import FeatureStore

        store = FeatureStore(features)
    summary = summarise(captions, pictures=pictures_of(captions, images), features=store)
    typer.echo(
        json.dumps(asdict(summary), indent=2, ensure_ascii=False) if as_json else printable(_text(summary), lines=True)
    )


def _text(summary: Summary) -> str:
    per_image = ", ".join(f"{n} on {count:,}" for n, count in summary.captions_per_image.items())
    lines = [
        f"source      {summary.source} ({summary.form} form)",
        f"images      {summary.images:,}",
        f"captions    {summary.captions:,} (captions per image: {per_image})",
        "",
        "split         images  captions  words/caption  longest  over 16 words",
    ]
    for name, split in summary.splits.items():
        lines.append(
            f"{name:<10} {split.images:>8,} {split.captions:>9,} {split.mean_words:>14.1f} {split.max_words:>8} "
            f"{split.long:>8,} ({split.long / split.captions:.1%})"
        )
    lines += ["", f"vocabulary, counted on {summary.counted_on}", "at least      words  share of the text"]
    lines += [f"{v.threshold:>5} times {v.words:>8,} {v.coverage:>18.2%}" for v in summary.vocabulary]
    lines += ["", _missing("pictures", summary.missing_pictures, summary.images, "name their folder with --images")]
    if summary.missing_features is not None:
        lines.append(_missing("features", summary.missing_features, summary.images, ""))
    lines.append(f"left out    {len(summary.skipped):,} entries of the file")
    lines += [f"            {where}: {reason}" for where, reason in summary.skipped[:_SHOWN]]
    return "\n".join(lines)


def _missing(what: str, missing: list[str] | None, images: int, hint: str) -> str:
    if missing is None:
        return f"{what:<11} not looked for: {hint}"
    if not missing:
        return f"{what:<11} none missing"
    more = ", …" if len(missing) > _SHOWN else ""
    return f"{what:<11} {len(missing):,} of {images:,} missing: {', '.join(missing[:_SHOWN])}{more}"


@app.command()
def vocab(
    path: Captions,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, for example vocab.json.")],
    threshold: Annotated[int, typer.Option(help="Keep words that occur at least this often.")] = 6,
    split: Annotated[str, typer.Option(help="Count the words of this split; 'all' counts all of them.")] = "train",
    tokens: Annotated[
        Tokens, typer.Option(help="file: words as the file gives them; plain: lower-case words of its raw text.")
    ] = Tokens.FILE,
    split_list: SplitList = [],  # noqa: B006
) -> None:
    """Count words and write a vocabulary: the most frequent first, equal ones in alphabetical order.

    The paper counts all splits with the tokens of the split file: --split all --tokens file.
    """
    from xlan.data.captions import build_vocabulary
    from xlan.errors import DataError

    check_output(output, path)
    captions = _load(path, split_list, tokens)
    words = build_vocabulary(captions, None if split == "all" else split, threshold=threshold, tokens=tokens.value)
    try:
        words.save(output)
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror or error}") from None
    typer.echo(f"{output}: {len(words):,} entries ({len(words) - 4:,} words and pad, bos, eos, unk)")


@app.command()
def split(
    path: Captions,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, for example captions.jsonl.")],
    val: Annotated[float, typer.Option(help="Share of the images for validation.")] = 0.05,
    test: Annotated[float, typer.Option(help="Share of the images for the final test.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same images.", min=0)] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(help="Captions file with earlier splits: its images keep them.", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace splits that the captions have, and OUTPUT if it exists.")
    ] = False,
) -> None:
    """Give all images a split at random and write them as one file, for captions that come without splits.

    Shares are rounded to whole images. When pictures are added later, --keep OLD leaves the old ones where they are.
    """
    from xlan.data.captions import write_captions
    from xlan.errors import DataError

    captions = _load(path, [])
    if not overwrite and set(captions.splits) != {"train"}:
        there = ", ".join(f"{name} {count:,}" for name, count in captions.splits.items())
        raise DataError(f"{path}: already has splits ({there}); --overwrite gives all images new ones")
    if not overwrite and output.exists():
        raise DataError(f"{output}: already exists; choose another name or use --overwrite")
    old = None if keep is None else {image.id: image.split for image in _load(keep, [])}
    captions = captions.with_random_splits(val=val, test=test, seed=seed, keep=old)
    try:
        write_captions(output, captions)
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror or error}") from None
    typer.echo(f"{output}: " + ", ".join(f"{name} {count:,}" for name, count in captions.splits.items()))


@app.command()
def shapes(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")],
    images: Annotated[int, typer.Option(help="Number of images.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same images.", min=0)] = 0,
    pictures: Annotated[bool, typer.Option(help="Draw the pictures too, as PNG files.")] = False,
) -> None:
    """Draw coloured shapes with captions and features: a data set to try training with, in a minute."""
    from xlan.data.shapes import write_shapes
    from xlan.errors import DataError

    try:
        write_shapes(output, images, seed, pictures=pictures)
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror or error}") from None
    typer.echo(f"{output}: {images:,} images in captions.jsonl, their features in {output / 'features'}")
