"""Fine-tune a captioning model on pictures of your own, in a training loop of your own.

    python examples/finetune.py photos/ photos/captions.csv -o my-model
    xlan caption photo.jpg --model my-model

`captions.csv` has the columns `file` and `caption`; a picture may have several captions, one per row. The captioner is
trained, the vision network stays as it is. `xlan train` is the complete version: validation, checkpoints, resume,
self-critical training, several processes. This one is to be read and changed.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

import xlan
from xlan import Captioner, CaptionModel, Vocabulary, from_pretrained, save_pretrained

SHIPPED = Path(xlan.__file__).parent / "models" / "default"
Example = tuple[torch.Tensor, list[int]]  # region features [N, D] of a picture, and the ids of one of its captions


def main(arguments: list[str] | None = None) -> int:
    """Fine-tune and save; returns the exit status."""
    parser = argparse.ArgumentParser(description="Fine-tune a captioning model on pictures of your own.")
    parser.add_argument("pictures", type=Path, help="folder with the pictures")
    parser.add_argument("captions", type=Path, help="CSV file with the columns file and caption")
    parser.add_argument("-o", "--output", type=Path, default=Path("my-model"))
    parser.add_argument("--model", type=Path, default=SHIPPED, help="model directory to begin with")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-4)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    begin = from_pretrained(options.model)  # the model in PyTorch, its words, and the file of its vision network
    model, vocabulary = begin.model.train(), begin.vocabulary
    examples = read_examples(Captioner.from_pretrained(options.model), options.pictures, options.captions)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    order = random.Random(0)
    for epoch in range(1, options.epochs + 1):
        order.shuffle(examples)
        losses = []
        for start in range(0, len(examples), options.batch_size):
            loss = batch_loss(model, vocabulary, examples[start : start + options.batch_size])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss per word {sum(losses) / len(losses):.3f}")
    extras = {} if begin.vision is None else {"vision.safetensors": begin.vision}
    save_pretrained(options.output, model.spec, model.state_dict(), vocabulary, extras=extras)
    print(f"{options.output}: written; try it with: xlan caption photo.jpg --model {options.output}")
    return 0


def read_examples(captioner: Captioner, folder: Path, table: Path) -> list[Example]:
    """One example for each row of the table; every picture is looked at once."""
    vocabulary, features = captioner.vocabulary, {}
    examples, unknown = [], set()
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["file"] not in features:
                (regions,) = captioner.extractor.extract([captioner.prepare(folder / row["file"])])
                features[row["file"]] = torch.from_numpy(regions.features)
            words = re.findall(r"\w+", row["caption"].lower())
            unknown.update(word for word in words if word not in vocabulary)
            examples.append((features[row["file"]], vocabulary.encode(words)))
    if unknown:
        print(f"words the model does not know, which it cannot learn to say: {', '.join(sorted(unknown))}")
    return examples


def batch_loss(model: CaptionModel, vocabulary: Vocabulary, batch: list[Example]) -> torch.Tensor:
    """Cross-entropy per word, its end included. The model reads `bos a dog` and is to say `a dog eos`."""
    special = vocabulary.special
    inputs = [torch.tensor([special.bos, *ids]) for _, ids in batch]
    targets = [torch.tensor([*ids, special.eos]) for _, ids in batch]
    lengths = torch.tensor([len(ids) for ids in inputs])
    features, mask = pad([regions for regions, _ in batch])
    tokens = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True, padding_value=special.pad)
    # The logits are those of the real positions only, caption after caption: so are the targets.
    logits = model(features, mask, tokens, lengths)
    return F.cross_entropy(logits, torch.cat(targets))


def pad(regions: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features `[B, N, D]` of pictures with different numbers of regions, and the mask `[B, N]` of those that exist."""
    counts = torch.tensor([len(one) for one in regions])
    mask = torch.arange(int(counts.max())) < counts[:, None]
    return torch.nn.utils.rnn.pad_sequence(regions, batch_first=True), mask


if __name__ == "__main__":
    sys.exit(main())
