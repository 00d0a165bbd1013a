"""Every system learns to look: on drawn shapes it soon knows more than a language model that sees nothing."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from xlan import build_model, from_pretrained, save_pretrained
from xlan.data.dataset import CaptionDataset
from xlan.data.loader import reference_loader
from xlan.data.shapes import make_shapes
from xlan.decoding import beam_search
from xlan.model.spec import MODELS, PlainSpec
from xlan.text.vocab import Vocabulary
from xlan.training.losses import caption_loss
from xlan.vision.store import FeatureStore, FeatureStoreWriter

NAMES = [
    "lstm-tiny",
    "show-tell-tiny",
    "lstm-a3-tiny",
    "att2in-tiny",
    "att2all-tiny",
    "updown-tiny",
    "updown-lb-tiny",
    "gcn-lstm-spatial-tiny",
    "aoanet-tiny",
]
# Without attention a model knows what is there but not what belongs together: it learns less, and later.
STEPS = {"plain": 140, "attention": 80}
SHARE_OF_BLIND_LOSS = {"plain": 0.97, "attention": 0.8}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Vocabulary, list[Any], Any]:
    """The vocabulary, training batches and one batch of pairs that training never shows."""
    folder = tmp_path_factory.mktemp("shapes")
    captions, features = make_shapes(800, seed=5)
    with FeatureStoreWriter(folder / "features", dtype="float32", extractor={"name": "shapes"}) as writer:
        for image, regions in features.items():
            writer.add(image, regions)
    store = FeatureStore(folder / "features")
    words = Vocabulary.build((w for image in captions for w in image.words), threshold=1)
    train, val = (CaptionDataset(captions, store, words, split=split) for split in ("train", "val"))
    batches = list(reference_loader(train, batch_size=32, captions_per_image=3))
    return words, batches, next(iter(reference_loader(val, batch_size=100, captions_per_image=3)))


def made(name: str, vocabulary: Vocabulary) -> Any:
    torch.manual_seed(0)
    dropout = [field.name for field in fields(MODELS[name]) if field.name.endswith("dropout")]
    sizes = {"vocab_size": len(vocabulary), "feature_dim": 32, "dim": 64}
    return build_model(name, **sizes, **dict.fromkeys(dropout, 0.0))


def kind(name: str) -> str:
    return "plain" if isinstance(MODELS[name], PlainSpec) else "attention"


def loss_of(model: Any, batch: Any, *, blind: bool) -> torch.Tensor:
    features = torch.zeros_like(batch.features) if blind else batch.features
    logits = model(features, batch.mask, batch.inputs, batch.lengths, batch.owner, boxes=batch.boxes)
    return caption_loss(logits, batch.targets, batch.lengths)


def learnt(name: str, shapes: tuple[Vocabulary, list[Any], Any], *, blind: bool = False) -> tuple[Any, float]:
    vocabulary, batches, held_out = shapes
    model = made(name, vocabulary)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.008)
    for step in range(STEPS[kind(name)]):
        optimizer.zero_grad()
        loss_of(model, batches[step % len(batches)], blind=blind).backward()
        optimizer.step()
    with torch.no_grad():
        return model.eval(), float(loss_of(model, held_out, blind=blind))


@pytest.fixture(scope="module")
def blind(shapes: tuple[Vocabulary, list[Any], Any]) -> float:
    """Loss of a language model that sees nothing, trained as long."""
    return learnt("lstm-tiny", shapes, blind=True)[1]


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_and_survives_its_directory(
    name: str, shapes: tuple[Vocabulary, list[Any], Any], blind: float, tmp_path: Path
) -> None:
    vocabulary, _, held_out = shapes
    model, loss = learnt(name, shapes)
    assert loss < SHARE_OF_BLIND_LOSS[kind(name)] * blind
    save_pretrained(tmp_path / "model", model.spec, model.state_dict(), vocabulary)
    again = from_pretrained(tmp_path / "model").model.eval()
    found = [
        beam_search(one, one.encode(held_out.features, held_out.mask, held_out.boxes), vocabulary.special, width=3)
        for one in (model, again)
    ]
    assert torch.equal(found[0].ids, found[1].ids)
    torch.testing.assert_close(found[0].log_probs, found[1].log_probs)
