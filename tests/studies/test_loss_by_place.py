"""runs/loss_by_place.py: its mean is the loss that training reports, and places are counted from the first word."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import loss_by_place
from xlan.data.captions import load_captions
from xlan.data.dataset import CaptionDataset
from xlan.data.loader import reference_loader
from xlan.data.shapes import write_shapes
from xlan.model.build import build_model
from xlan.pretrained import save_pretrained
from xlan.text.vocab import Vocabulary
from xlan.training.distributed import World
from xlan.training.evaluate import reference_loss
from xlan.vision.store import FeatureStore


def test_the_mean_over_places_is_the_loss_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shapes(tmp_path, 40, seed=1)
    captions, store = load_captions(tmp_path / "captions.jsonl"), FeatureStore(tmp_path / "features")
    vocabulary = Vocabulary.build((words for image in captions.split("train") for words in image.words), threshold=1)
    torch.manual_seed(0)
    model = build_model("xlan-tiny", vocab_size=len(vocabulary), feature_dim=store.feature_dim).eval()
    save_pretrained(tmp_path / "model", model.spec, model.state_dict(), vocabulary)

    files = (str(tmp_path / "captions.jsonl"), str(tmp_path / "features"))
    by_place, mean = loss_by_place.loss_by_place(str(tmp_path / "model"), *files, split="val", images=1000)

    batches = reference_loader(
        CaptionDataset(captions, store, vocabulary, split="val"), batch_size=7, captions_per_image=5
    )
    assert mean == pytest.approx(reference_loss(model, batches, world=World(0, 1, torch.device("cpu"))), rel=1e-5)
    longest = max(int(batch.lengths.max()) for batch in batches)
    assert by_place[:longest].isfinite().all()
    assert math.isnan(by_place[longest])

    loss_by_place.main([*files, str(tmp_path / "model"), "--places", "2"])
    [row] = _rows(capsys)
    assert [float(cell) for cell in row.split("|")[2:5]] == pytest.approx([*by_place[:2].tolist(), mean], abs=5e-4)

    loss_by_place.main([*files, str(tmp_path / "model"), "--places", "2", "--blind"])
    right, wrong, learned = ([float(cell) for cell in line.split("|")[2:5]] for line in _rows(capsys))
    assert right != wrong
    assert learned == pytest.approx([b - a for a, b in zip(right, wrong, strict=True)], abs=1.1e-3)


def _rows(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The rows of the table that was printed last."""
    return capsys.readouterr().out.splitlines()[2:]
