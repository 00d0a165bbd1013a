"""The card of the shipped model, from what runs/shipped_model.sh left in a folder.

    python runs/shipped_card.py FOLDER runs/mistakes.json > card.md

The mistakes were counted by a person reading captions beside photos; everything else is computed.
"""

# ruff: noqa: E501 - lines of a table cannot be broken
from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from xlan.files import read_json_lines
from xlan.pretrained import from_pretrained
from xlan.vision.grid import load_vision
from xlan.vision.words import WordHead

CARD = """# The model that comes with xlan

X-LAN (*X-Linear Attention Networks for Image Captioning*, CVPR 2020; released form, {dim} wide, {depth} blocks) on an
8 × 8 grid of {network} features. It says in one English sentence what a photo shows, offline, on a laptop.

| | |
|---|---|
| captioner | {parameters:.1f} M parameters, {words:,} words (those seen at least 10 times in the training captions) |
| vision | {network} at {pixels} × {pixels} pixels, from ImageNet weights, trained to name {named:,} caption words and 80 kinds of things |
| training data | {train:,} COCO photos with five captions each (Karpathy's train + restval as far as at hand), 256 × 256 pixels |
| training | started from a model of a fifth of these photos; cross-entropy ({xe_steps:,} steps of 16 photos with 3 captions, {xe_minutes:.0f} minutes), then self-critical with CIDEr-D and BLEU-4 ({scst_steps:,} steps of 16 photos with 5 samples, {scst_minutes:.0f} minutes) |
| made by | `runs/shipped_model.sh`, on two CPU cores |

## Scores

On {images:,} photos of Karpathy's test split (those of its 5,000 that were at hand: comparable with published scores,
not equal to them), beam 3, in percent:

{table}

The commands, for `STAGE` = `xe` and `scst`:

```sh
xlan predict out/shipped/STAGE/last --captions data/coco/dataset_coco.json --features out/shipped/features -o STAGE.json --skip-missing
xlan evaluate STAGE.json data/coco/dataset_coco.json --metrics bleu,meteor,rouge,cider,spice-spacy --subset
```

## Confidence

Confidence is the expected share of a caption's content words that people also use for that photo, fitted on {fitted:,}
captions of validation photos and drawn pictures. On the test photos its expected calibration error is {caption_error:.3f} for captions and {word_error:.3f} for
single words (ten bins of equal count); its rank correlation with the caption's own CIDEr is {rank:.2f}.

```sh
xlan confidence check out/shipped/model --captions data/coco/dataset_coco.json --features out/shipped/features --split test
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
STAGES = {"xe": "cross-entropy", "scst": "self-critical (this model)"}
NETWORKS = {"efficientnet-lite0": "EfficientNet-Lite0", "efficientnet-lite2": "EfficientNet-Lite2"}


def main(out: Path, mistakes: Path) -> None:
    """Print the card."""
    model = from_pretrained(out / "scst" / "last")
    _, vision, _ = load_vision(out / "vision" / "vision.safetensors")
    table, images = scores(out)
    found = json.loads((out / "confidence.json").read_text(encoding="utf-8"))
    calibration = json.loads((out / "model" / "confidence.json").read_text(encoding="utf-8"))
    named = WordHead.load(out / "vision" / "words.safetensors").words
    spec = model.model.spec
    first, xe, scst = (run(out / stage) for stage in ("first", *STAGES))
    card = CARD.format(
        dim=spec.dim,
        depth=getattr(spec, "depth", 0),
        network=NETWORKS[vision.network],
        pixels=vision.input_size,
        parameters=sum(p.numel() for p in model.model.parameters()) / 1e6,
        words=len(model.vocabulary),
        named=len(named),
        train=xe["images"],
        xe_steps=first["steps"] + xe["steps"],
        xe_minutes=first["minutes"] + xe["minutes"],
        scst_steps=scst["steps"],
        scst_minutes=scst["minutes"],
        images=images,
        table=table,
        fitted=calibration["fitted_on"],
        caption_error=found["captions"]["error"],
        word_error=found["words"]["error"],
        rank=found["rank"],
        mistakes=counted(json.loads(mistakes.read_text(encoding="utf-8"))),
    )
    sys.stdout.write(card)


def scores(out: Path) -> tuple[str, int]:
    """The table of scores, and how many pictures they are from."""
    lines, images = [f"| | {' | '.join(ROWS)} | bad endings |", "|---" * (len(ROWS) + 2) + "|"], 0
    for stage, name in STAGES.items():
        values = json.loads((out / f"{stage}.scores.json").read_text(encoding="utf-8"))
        bad = [record["bad_ending"] for record in read_json_lines(out / f"{stage}.images.jsonl")]
        images = len(bad)
        row = [*(values[metric] for metric in ROWS), sum(bad) / len(bad)]
        lines.append(f"| {name} | {' | '.join(f'{100 * value:.1f}' for value in row)} |")
    return "\n".join(lines), images


def run(folder: Path) -> dict[str, Any]:
    """Images, steps and minutes of a training run, from its log; pauses of more than five minutes are left out."""
    records = list(read_json_lines(folder / "log.jsonl"))
    times = [record["time"] for record in records]
    seconds = sum(b - a for a, b in itertools.pairwise(times) if b - a < 300)
    steps = max(record.get("step", 0) for record in records)
    images = next(record["train_images"] for record in records if record["kind"] == "start")
    return {"images": images, "steps": steps, "minutes": seconds / 60}


def counted(mistakes: dict[str, Any]) -> str:
    """What a person counted, as a table."""
    lines = [mistakes["how"], "", "| in percent of captions | this model | the model before |", "|---|---|---|"]
    lines += [f"| {kind} | {now} | {before} |" for kind, (now, before) in mistakes["rates"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
