"""`xlan features extract`: pictures → a feature store."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xlan.cli.health import refuse_broken_bf16
from xlan.cli.stopping import ended_by_sigterm
from xlan.cli.text import printable

if TYPE_CHECKING:
    from xlan.vision.extract import ExtractReport
    from xlan.vision.grid import GridExtractor
    from xlan.vision.regions import RegionExtractor

# Finished, but some pictures could not be used: neither success nor a failure of the run.
EXIT_SOME_BAD = 3
# Pictures for bottom-up attention are kept as floats, 7 MB each: more than a few would only fill the memory.
_DETECTOR_BATCH = 4
_NETWORK = "efficientnet-lite2"


def extract(
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Pictures, folders, .tar shards, or a dataset in Karpathy's JSON (.json, .json.gz, .json.xz)."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the feature store; resumed if it exists.")],
    network: Annotated[
        str | None,
        typer.Option(
            help="Network with ImageNet weights: efficientnet-lite0 or efficientnet-lite2.", show_default=_NETWORK
        ),
    ] = None,
    vision: Annotated[
        Path | None, typer.Option(help="Adapted network, a vision.safetensors, instead of --network.")
    ] = None,
    detector: Annotated[
        Path | None, typer.Option(help="Detector directory (see `xlan import-detector`) instead of a grid.")
    ] = None,
    regions: Annotated[
        str | None, typer.Option(help="With --detector: regions per picture, 36 or 10-100; default: its own.")
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="With a small --detector: add its grid cells to the regions.")
    ] = False,
    onnx: Annotated[
        Path | None, typer.Option(help="Detector in an ONNX file (outputs boxes, features, scores) instead of a grid.")
    ] = None,
    onnx_pixels: Annotated[bool, typer.Option(help="The detector's boxes are pixels, not fractions.")] = False,
    input_size: Annotated[
        int | None, typer.Option(help="Side in pixels that pictures are squashed to; 224, or what the file says.")
    ] = None,
    cells: Annotated[
        int | None, typer.Option(help="Side of the grid; by default that of the coarsest map (7 at 224 pixels).")
    ] = None,
    levels: Annotated[
        str | None, typer.Option(help="Strides of the maps to use: 32 (default), 16, or 16+32 (put together).")
    ] = None,
    image_region: Annotated[
        bool | None, typer.Option(help="Add the whole image as the first region (default) or not.")
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(help="How features are kept: float16, float32 or int8 (half of float16, scaled by region)."),
    ] = "float16",
    precision: Annotated[
        str,
        typer.Option(help="Precision of the network: fp32, or bf16, faster where supported (not with --onnx)."),
    ] = "fp32",
    pictures_folder: Annotated[
        Path | None,
        typer.Option(
            "--pictures",
            help="Folder with the pictures of a dataset, found by file name or COCO number (000000391895.jpg).",
            show_default="beside the dataset",
        ),
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Only these splits of a dataset (train includes restval); may be repeated.")
    ] = None,
    number_ids: Annotated[
        bool, typer.Option("--number-ids", help="Take the number at the end of a file's name as its id, as COCO does.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Pictures per call of the network.", min=1)] = 16,
    threads: Annotated[int, typer.Option(help="Threads that decode pictures.", min=1, max=256)] = 2,
    max_megapixels: Annotated[
        float, typer.Option(help="Refuse pictures with more pixels.", min=0.001, max=100_000)
    ] = 120.0,
    max_megabytes: Annotated[float, typer.Option(help="Refuse larger files.", min=0.001, max=100_000)] = 64.0,
    bad_list: Annotated[Path | None, typer.Option(help="Also write the skipped pictures to this file.")] = None,
) -> None:
    """Extract region features of pictures into a store. Stop it at any time; the same command resumes.

    Pictures that cannot be used are listed and skipped; the exit status is then 3.
    """
    from xlan.cli.progress import count_progress
    from xlan.errors import DataError
    from xlan.files import is_json, write_text
    from xlan.karpathy import split_name
    from xlan.vision.extract import extract_to_store
    from xlan.vision.image import ImageLimits
    from xlan.vision.shards import FEATURE_DTYPES
    from xlan.vision.sources import find_pictures
    from xlan.vision.store import FeatureStoreWriter

    if detector is None and (regions is not None or grid):
        raise typer.BadParameter("has an effect only together with --detector DIR", param_hint="--regions, --grid")
    if precision not in ("fp32", "bf16"):
        raise typer.BadParameter(f"expected fp32 or bf16, got {precision}", param_hint="--precision")
    if precision == "bf16" and onnx is not None:
        raise typer.BadParameter("bf16 has no effect on a network in an ONNX file", param_hint="--precision")
    refuse_broken_bf16("--precision", precision)
    if detector is not None and onnx is not None:
        raise typer.BadParameter("give one of --detector and --onnx", param_hint="--detector")
    of_grids = {"--network": network, "--cells": cells, "--levels": levels, "--image-region": image_region}
    if detector is not None:
        _refuse(
            "together with --detector", {**of_grids, "--input-size": input_size, "--onnx-pixels": onnx_pixels or None}
        )
    elif onnx is not None:
        _refuse("together with --onnx", {**of_grids, "--vision": vision})
    else:
        _refuse("without --onnx FILE", {"--onnx-pixels": onnx_pixels or None})
        if vision is not None:
            _refuse("together with --vision", {"--network": network})
    datasets = [path for path in images if is_json(path)]
    if not datasets:
        _refuse("without a dataset", {"--pictures": pictures_folder})
    if len(datasets) == len(images):
        _refuse("on the images of a dataset, which have ids", {"--number-ids": number_ids or None})
    # Decoders warn about broken EXIF and odd palettes; users can do nothing about it.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    if dtype not in FEATURE_DTYPES:
        raise typer.BadParameter(f"expected {', '.join(FEATURE_DTYPES)}, got {dtype}", param_hint="--dtype")
    missing: list[str] = []
    found = find_pictures(images, number_ids=number_ids, folder=pictures_folder, on_missing=missing.append)
    pictures = found
    if split:
        wanted = {split_name(name) for name in split}
        pictures = [picture for picture in found if picture.split in wanted]
    if missing:
        typer.echo(f"{len(missing):,} images have no picture in {pictures_folder}; they are skipped", err=True)
    if not pictures:
        where = f"{', '.join(map(str, images))}" + (f" (split {', '.join(split)})" if split else "")
        there = ", ".join(sorted({picture.split or "none" for picture in found}))
        raise DataError(f"no pictures found in {where}" + (f"; splits found: {there}" if split and found else ""))
    extractor: RegionExtractor
    if detector is not None:
        extractor = _from_directory(detector, vision, regions, grid, bf16=precision == "bf16")
        batch = min(batch, _DETECTOR_BATCH)
    elif onnx is not None:
        extractor = _detector(onnx, pixels=onnx_pixels, input_size=input_size)
    else:
        changes = {"input_size": input_size, "cells": cells, "levels": _levels(levels), "image_region": image_region}
        extractor = _grid(
            network or _NETWORK, vision, {key: value for key, value in changes.items() if value is not None}
        )
        extractor.bf16 = precision == "bf16"
    limits = ImageLimits(max_bytes=int(max_megabytes * 2**20), max_pixels=int(max_megapixels * 1e6))
    with (
        ended_by_sigterm(),
        FeatureStoreWriter(output, dtype=dtype, extractor=extractor.description) as writer,  # type: ignore[arg-type]
        count_progress("extracting") as move,
    ):

        def show(report: ExtractReport) -> None:
            move(report.present + report.written + len(report.bad), len(pictures))

        report = extract_to_store(
            extractor, pictures, writer, batch=batch, threads=threads, limits=limits, on_progress=show
        )
    bad = [printable(line) for line in report.bad]
    for line in bad:
        typer.echo(f"skipped {line}", err=True)
    if bad_list is not None:
        write_text(bad_list, "".join(line + "\n" for line in bad))
    typer.echo(
        f"{output}: {report.written} pictures extracted, {report.present} already there, {len(report.bad)} skipped; "
        f"{report.images_per_second:.1f} pictures/s, features of width {extractor.feature_dim}"
    )
    if report.bad:
        raise typer.Exit(EXIT_SOME_BAD)


def _refuse(where: str, options: Mapping[str, object]) -> None:
    """Options that are given (not None) but would be ignored are mistakes."""
    if given := [name for name, value in options.items() if value is not None]:
        raise typer.BadParameter(f"has no effect {where}; leave it out", param_hint=", ".join(given))


def _levels(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split("+"))
    except ValueError:
        raise typer.BadParameter(f"expected 32, 16 or 16+32, got {text}", param_hint="--levels") from None


def _grid(network: str, vision: Path | None, changes: dict[str, Any]) -> GridExtractor:
    from xlan.vision.grid import GridExtractor
    from xlan.vision.grid_settings import GridSettings

    if vision is not None:
        return GridExtractor.load(vision, **changes)
    return GridExtractor.imagenet(GridSettings(network=network, **changes))


def _from_directory(
    directory: Path, vision: Path | None, regions: str | None, grid: bool, *, bf16: bool
) -> RegionExtractor:
    from xlan.cli.import_detector import parse_regions
    from xlan.vision.detector.directory import load_detector
    from xlan.vision.detector.lite_extractor import LiteExtractor

    detector = load_detector(directory, regions=parse_regions(regions), grid=grid, vision=vision)
    if isinstance(detector, LiteExtractor):
        detector.bf16 = bf16
    elif bf16:
        raise typer.BadParameter("bf16 has an effect on grids and small detectors only", param_hint="--precision")
    return detector


def _detector(path: Path, *, pixels: bool, input_size: int | None) -> RegionExtractor:
    from xlan.vision.onnx_detector import OnnxDetector

    size = (input_size, input_size) if input_size is not None else None
    return OnnxDetector(path, box_units="pixel" if pixels else "fraction", input_size=size)
