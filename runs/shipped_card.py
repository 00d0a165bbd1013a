"""The card of the shipped model, from what runs/shipped_model.sh left in a folder.

    python runs/shipped_card.py FOLDER runs/mistakes.json runs/stages.json > card.md

The mistakes were counted by a person reading captions beside photos; everything else is computed. `stages.json` keeps
what the card says of each stage: a stage whose run is in the folder is written into it, one that is not is taken from it.
"""

# ruff: noqa: E501 - lines of a table cannot be broken
from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from xlan.files import read_json_lines, write_json
from xlan.pretrained import VISION, WORD_HEAD, read_model_directory
from xlan.vision.grid_settings import read_vision, trained_sizes
from xlan.vision.words import WordHead

CARD = """# The model that comes with xlan

X-LAN (*X-Linear Attention Networks for Image Captioning*, CVPR 2020; released form, {dim} wide, {depth} blocks) on an
8 × 8 grid of {network} features. It says in one English sentence what a photo shows, offline, on a laptop.

| | |
|---|---|
| captioner | {parameters:.1f} M parameters, {words:,} words (those seen at least 10 times in the training captions) |
| vision | {network} at {pixels} × {pixels} pixels, from ImageNet weights, trained to name {named:,} caption words and 80 kinds of things |
| training data | {train:,} COCO photos with five captions each (Karpathy's train + restval as far as at hand), 256 × 256 pixels |
| training | started from a model of a fifth of these photos; cross-entropy ({xe_steps:,} steps of 16 photos with 3 captions, {xe_minutes:.0f} minutes), then self-critical with CIDEr-D and BLEU-4 ({scst_steps:,} steps of 16 photos with 5 samples, {scst_minutes:.0f} minutes; all but the first {small_steps:,} on one core and with features of 288 instead of 256 pixels) |
| made by | `runs/shipped_model.sh`, on two CPU cores |

## Scores

On {images:,} photos of Karpathy's test split (those of its 5,000 that were at hand: comparable with published scores,
not equal to them), beam 3, in percent:

{table}

The commands, for `STAGE` = `xe`, `scst`, and `larger` and `longer` (whose features are `out/shipped/features288`):

```sh
xlan predict out/shipped/STAGE/last --captions data/coco/dataset_coco.json --features out/shipped/features -o STAGE.json --skip-missing
xlan evaluate STAGE.json data/coco/dataset_coco.json --metrics bleu,meteor,rouge,cider,spice-spacy --subset
```

The last row is what a user gets: of the sentences that the search finds, the one that comes first when the vision network has a say in it
(`xlan predict out/shipped/model … --as-caption`).

## Confidence

Confidence is the expected share of a caption's content words that people also use for that photo, fitted on {fitted:,}
captions of validation photos and drawn pictures. On the test photos its expected calibration error is {caption_error:.3f} for captions and {word_error:.3f} for
single words (ten bins of equal count); its rank correlation with the caption's own CIDEr is {rank:.2f}.

```sh
xlan confidence check out/shipped/model --captions data/coco/dataset_coco.json --features out/shipped/features288 --split test
```

## What it gets wrong

{mistakes}

- It knows the everyday scenes of COCO: people, animals, traffic, food, rooms, sports. Drawings, documents, faces,
  places and names it has never seen; it will still say something, with a lower confidence.
- It counts badly, reads no text, and repeats what its training captions took for granted, about men and women among
  others.
- Do not use it where a wrong sentence does harm.

The captions of COCO are CC BY 4.0; its photos are their photographers' and are not part of this package. The ImageNet
weights of EfficientNet-Lite are Apache 2.0.
"""
ROWS = ("BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE-spaCy")
STAGES = {
    "xe": "cross-entropy",
    "scst": "self-critical",
    "larger": "self-critical, larger pictures",
    "longer": "self-critical, longer",
    "captions": "the same, as `xlan caption` says it (this model)",
}
NETWORKS = {"efficientnet-lite0": "EfficientNet-Lite0", "efficientnet-lite2": "EfficientNet-Lite2"}


def main(out: Path, mistakes: Path, stages: Path) -> None:
    """Print the card."""
    model = read_model_directory(out / "model")
    vision = read_vision(out / "model" / VISION, **trained_sizes(model.features)).settings
    found = json.loads((out / "confidence.json").read_text(encoding="utf-8"))
    calibration = json.loads((out / "model" / "confidence.json").read_text(encoding="utf-8"))
    named = WordHead.load(out / "model" / WORD_HEAD).words
    known = json.loads(stages.read_text(encoding="utf-8"))
    known |= {stage: run(out, stage) for stage in ("first", *STAGES) if (out / stage / "log.jsonl").is_file()}
    known["captions"] = scored(out, "captions")
    write_json(stages, known)
    first, xe, scst, larger, longer, _ = (known[stage] for stage in ("first", *STAGES))
    card = CARD.format(
        dim=model.spec.dim,
        depth=getattr(model.spec, "depth", 0),
        network=NETWORKS[vision.network],
        pixels=vision.input_size,
        parameters=sum(weight.numel() for weight in model.weights().values()) / 1e6,
        words=len(model.vocabulary) - 4,  # padding, start, end, unknown
        named=len(named),
        train=xe["images"],
        xe_steps=first["steps"] + xe["steps"],
        xe_minutes=first["minutes"] + xe["minutes"],
        scst_steps=scst["steps"] + larger["steps"] + longer["steps"],
        scst_minutes=scst["minutes"] + larger["minutes"] + longer["minutes"],
        small_steps=scst["steps"],
        images=longer["tested"],
        table=table(known),
        fitted=calibration["fitted_on"],
        caption_error=found["captions"]["error"],
        word_error=found["words"]["error"],
        rank=found["rank"],
        mistakes=counted(json.loads(mistakes.read_text(encoding="utf-8"))),
    )
    sys.stdout.write(card)


def table(known: dict[str, Any]) -> str:
    """The scores of every stage."""
    lines = [f"| | {' | '.join(ROWS)} | bad endings |", "|---" * (len(ROWS) + 2) + "|"]
    for stage, name in STAGES.items():
        values = [known[stage]["scores"][metric] for metric in (*ROWS, "bad endings")]
        lines.append(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |")
    return "\n".join(lines)


def run(out: Path, stage: str) -> dict[str, Any]:
    """Images, steps, minutes and scores of a stage; pauses of more than five minutes are left out."""
    records = list(read_json_lines(out / stage / "log.jsonl"))
    times = [record["time"] for record in records]
    seconds = sum(b - a for a, b in itertools.pairwise(times) if b - a < 300)
    said: dict[str, Any] = {
        "images": next(record["train_images"] for record in records if record["kind"] == "start"),
        "steps": max(record.get("step", 0) for record in records),
        "minutes": round(seconds / 60, 1),
    }
    return {**said, **scored(out, stage)} if stage in STAGES else said


def scored(out: Path, stage: str) -> dict[str, Any]:
    """Scores of a stage, in percent, and on how many photos."""
    values = json.loads((out / f"{stage}.scores.json").read_text(encoding="utf-8"))
    bad = [record["bad_ending"] for record in read_json_lines(out / f"{stage}.images.jsonl")]
    percent = {metric: round(100 * values[metric], 2) for metric in ROWS}
    return {"tested": len(bad), "scores": {**percent, "bad endings": round(100 * sum(bad) / len(bad), 2)}}


def counted(mistakes: dict[str, Any]) -> str:
    """What a person counted, as a table."""
    lines = [
        mistakes["how"],
        "",
        f"| in percent of captions | {' | '.join(mistakes['columns'])} |",
        "|---|---|---|",
    ]
    lines += [f"| {kind} | {now} | {before} |" for kind, (now, before) in mistakes["rates"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
