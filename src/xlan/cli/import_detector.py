"""`xlan import-detector`: public weights of bottom-up attention → a detector directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CARD = """# Bottom-up attention

Converted by `xlan import-detector`. The weights stay under the terms of their source.

| | |
|---|---|
| source file | `{source}` ({layout} layout) |
| network | Faster R-CNN on a ResNet with {blocks} bottlenecks |
| regions | {fewest} to {most} a picture, features {feature_dim} wide |
| classes | {classes:,} objects, {attributes:,} attributes |
| convention | {convention} |

Use it with `xlan features extract --detector DIR`, `xlan caption --detector DIR` or `xlan detect --detector DIR`.
"""


def parse_regions(text: str | None) -> tuple[int, int] | None:
    """`36` → (36, 36), `10-100` → (10, 100)."""
    if text is None:
        return None
    fewest, dash, most = text.partition("-")
    try:
        pair = int(fewest), int(most if dash else fewest)
    except ValueError:
        pair = 0, 0
    if not 1 <= pair[0] <= pair[1] <= 1000:
        raise typer.BadParameter(
            f"expected a number such as 36 or a range such as 10-100, got {text}", param_hint="--regions"
        )
    return pair


def import_detector(
    weights: Annotated[
        Path, typer.Argument(help="Weight file of bottom-up attention: .bin, .pth, .pkl, .safetensors or .caffemodel.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The detector directory to write.")],
    objects: Annotated[
        Path | None, typer.Option(help="Names of the classes, objects_vocab.txt: one a line, synonyms after commas.")
    ] = None,
    attributes: Annotated[
        Path | None, typer.Option(help="Names of the attributes, attributes_vocab.txt: one a line.")
    ] = None,
    convention: Annotated[
        str | None,
        typer.Option(help="Convention of boxes and selection: caffe, milvlg, lxmert or airsplay; default: the file's."),
    ] = None,
    regions: Annotated[
        str | None, typer.Option(help="Regions of a picture: 10-100, 36, …; by default those of the convention.")
    ] = None,
    half: Annotated[
        bool, typer.Option("--half/--full", help="Store the weights as float16 (half the size), or as they are.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a detector directory that already exists.")] = False,
) -> None:
    """Turn public weights of bottom-up attention into a detector directory.

    The layout is recognised by the names in the file; nothing in the file is executed. docs/detector.md lists the
    weight files and says which rule fits which captioner.
    """
    pair = parse_regions(regions)
    from dataclasses import replace

    from xlan.errors import ModelError
    from xlan.vision.detector.conventions import CONVENTIONS
    from xlan.vision.detector.directory import save_bottom_up
    from xlan.vision.detector.directory_settings import is_detector_directory
    from xlan.vision.detector.weights import import_weights, read_names

    if convention is not None and convention not in CONVENTIONS:
        raise typer.BadParameter(
            f"expected one of {', '.join(CONVENTIONS)}, got {convention}", param_hint="--convention"
        )
    if is_detector_directory(output) and not force:
        raise ModelError(f"{output}: a detector directory already exists; use --force to replace it")
    found = import_weights(weights, convention=CONVENTIONS[convention] if convention else None)
    chosen = found.convention
    if pair is not None:
        chosen = replace(chosen, selection=replace(chosen.selection, fewest=pair[0], most=pair[1]))
    names = read_names(objects, expected=found.spec.classes, what="classes") if objects else []
    qualities = read_names(attributes, expected=found.spec.attributes, what="attributes") if attributes else []
    tensors = {name: tensor.half() for name, tensor in found.weights.items()} if half else found.weights
    tensors["shapes"] = found.weights["shapes"]  # corners of anchors up to 700 need more digits
    card = CARD.format(
        source=weights.name,
        layout=found.layout,
        blocks="+".join(str(number) for number in found.spec.resnet.blocks),
        fewest=chosen.selection.fewest,
        most=chosen.selection.most,
        feature_dim=found.spec.feature_dim,
        classes=found.spec.classes,
        attributes=found.spec.attributes,
        convention=chosen.name,
    )
    save_bottom_up(output, found.spec, chosen, tensors, objects=names, attributes=qualities, card=card)
    rule = chosen.selection
    many = f"{rule.fewest}" if rule.fewest == rule.most else f"{rule.fewest} to {rule.most}"
    typer.echo(
        f"{output}: {found.layout} layout, {chosen.name} convention, {many} regions, "
        f"{found.spec.classes:,} classes, {found.spec.attributes:,} attributes, features {found.spec.feature_dim} wide"
    )
    if not names:
        typer.echo("no names of objects were given; add --objects objects_vocab.txt to see them", err=True)
