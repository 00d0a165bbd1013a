"""The card of the shipped model, from what runs/shipped_model.sh left in a folder: shipped_card.py FOLDER > card.md"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from xlan.pretrained import from_pretrained
from xlan.vision.grid import load_vision

CARD = """# The model that comes with xlan

X-LAN (*X-Linear Attention Networks for Image Captioning*, CVPR 2020; released form, {dim} wide, {depth} blocks) on a
7 × 7 grid of {network} features. It says in one English sentence what a photo shows, offline, on a laptop.

| | |
|---|---|
| captioner | {parameters:.1f} M parameters, {words:,} words |
| vision | {network} at {pixels} × {pixels} pixels, from ImageNet weights, trained to name 1,000 caption words |
| training data | {train:,} COCO photos with five captions each (Karpathy's split), squashed to 224 × 224 pixels |
| training | cross-entropy, then self-critical with CIDEr-D; selected on 2,000 validation photos |
| made by | `runs/shipped_model.sh`, on two CPU cores |

## Scores

On {images:,} photos of Karpathy's test split (those of its 5,000 that were at hand: comparable with published scores,
not equal to them), beam 3, in percent:

{table}

The commands, for `STAGE` = `xe`, `scst` and `scst2`:

```sh
xlan predict out/shipped/STAGE/best --captions data/coco-mini/dataset.json --features out/shipped/features -o STAGE.json
xlan evaluate STAGE.json data/coco-mini/dataset.json --metrics bleu,meteor,rouge,cider
```

## What it cannot do

- It knows the everyday scenes of COCO: people, animals, traffic, food, rooms, sports. Drawings, documents, faces,
  places and names it has never seen; it will still say something, with a lower confidence.
- It counts badly, reads no text, and repeats what its training captions took for granted, about men and women among
  others.
- Do not use it where a wrong sentence does harm.

The captions of COCO are CC BY 4.0; its photos are their photographers' and are not part of this package. The ImageNet
weights of EfficientNet-Lite are Apache 2.0.
"""
ROWS = ("BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr")


def main(out: Path) -> None:
    """Print the card."""
    loaded = from_pretrained(out / "scst2" / "best")
    _, vision, _ = load_vision(out / "vision" / "vision.safetensors")
    stages = {"xe": "cross-entropy", "scst": "self-critical, 1 epoch", "scst2": "self-critical, 2 epochs (this model)"}
    lines = [f"| | {' | '.join(ROWS)} | bad endings |", "|---" * (len(ROWS) + 2) + "|"]
    images = 0
    for stage, name in stages.items():
        scores = json.loads((out / f"{stage}.scores.json").read_text(encoding="utf-8"))
        with (out / f"{stage}.images.jsonl").open(encoding="utf-8") as file:
            bad = [json.loads(line)["bad_ending"] for line in file]
        images = len(bad)
        values = [*(scores[row] for row in ROWS), sum(bad) / len(bad)]
        lines.append(f"| {name} | {' | '.join(f'{100 * value:.1f}' for value in values)} |")
    spec = loaded.model.spec
    card = CARD.format(
        dim=spec.dim,
        depth=getattr(spec, "depth", 0),
        network={"efficientnet-lite0": "EfficientNet-Lite0", "efficientnet-lite2": "EfficientNet-Lite2"}[
            vision.network
        ],
        pixels=vision.input_size,
        parameters=sum(p.numel() for p in loaded.model.parameters()) / 1e6,
        words=len(loaded.vocabulary),
        train=22178,
        images=images,
        table="\n".join(lines),
    )
    sys.stdout.write(card)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
