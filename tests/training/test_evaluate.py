from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from xlan.data.collate import CaptionBatch, ImageBatch
from xlan.metrics.coco import load_results
from xlan.model.build import build_model
from xlan.text.vocab import Vocabulary
from xlan.training.distributed import World
from xlan.training.evaluate import (
    decode_split,
    evaluate_split,
    reference_loss,
    write_predictions,
)
from xlan.training.scoring import Scores, cider_reward, score_captions
from xlan.training.stop import Stopped, StopRequest

ALONE = World(0, 1, torch.device("cpu"))
VOCABULARY = Vocabulary.from_words(["a", "dog", "cat", "of", "runs"])


def batches() -> list[ImageBatch]:
    torch.manual_seed(0)
    mask = torch.ones(2, 3, dtype=torch.bool)
    return [ImageBatch(torch.randn(2, 3, 6), mask, torch.rand(2, 3, 4), [f"{i}", f"{i + 1}"]) for i in (0, 2)]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model("xlan-tiny", vocab_size=len(VOCABULARY), feature_dim=6, dim=16, heads=2).train()


def test_every_image_gets_a_caption_and_the_mode_comes_back() -> None:
    policy = model()
    found = decode_split(policy, batches(), VOCABULARY, device=ALONE.device, beams=2, max_length=5)
    assert list(found) == ["0", "1", "2", "3"]
    assert all(set(caption.split()) <= set(VOCABULARY.words) for caption in found.values())
    assert policy.training


def test_a_request_to_stop_ends_the_decoding() -> None:
    import signal

    stop = StopRequest()
    stop.signal = signal.SIGTERM
    with pytest.raises(Stopped, match="SIGTERM"):
        decode_split(model(), batches(), VOCABULARY, device=ALONE.device, beams=1, max_length=3, stop=stop)


def test_the_loss_is_that_of_every_caption_on_its_own() -> None:
    def captioned(images: ImageBatch) -> CaptionBatch:
        inputs, lengths = torch.randint(len(VOCABULARY), (4, 5)), torch.tensor([5, 1, 3, 2])
        targets = torch.randint(len(VOCABULARY), (4, 5))
        owner = torch.tensor([0, 0, 1, 1])
        shared = (images.features, images.mask, images.boxes, images.image_ids)
        return CaptionBatch(*shared, inputs, targets, lengths, owner)

    policy, some = model(), [captioned(batch) for batch in batches()]
    found = reference_loss(policy, some, world=ALONE)
    assert policy.training
    policy.eval()
    losses = []
    for batch in some:
        for row, length in enumerate(batch.lengths.tolist()):
            image = slice(int(batch.owner[row]), int(batch.owner[row]) + 1)
            inputs = batch.inputs[row : row + 1, :length]
            logits = policy(batch.features[image], batch.mask[image], inputs, torch.tensor([length]))
            losses += (-logits.log_softmax(-1)[range(length), batch.targets[row, :length]]).tolist()
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_predictions_are_on_disk_before_they_are_scored(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"

    def score(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Scores:
        assert json.loads(path.read_text()) == [{"image_id": 7, "caption": "a dog"}]
        raise RuntimeError("the metric fails")

    with pytest.raises(RuntimeError):
        evaluate_split({"7": "a dog"}, {"7": ["a dog"]}, world=ALONE, path=path, score=score)
    assert path.exists()


def test_ids_that_are_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    captions = {"391895": "a dog", "dogs/1": "a cat", "²": "a"}
    write_predictions(tmp_path / "p.json", captions)
    assert [row["image_id"] for row in json.loads((tmp_path / "p.json").read_text())] == [391895, "dogs/1", "²"]
    assert load_results(tmp_path / "p.json") == {391895: "a dog", "dogs/1": "a cat", "²": "a"}


def test_scores_are_those_of_the_metrics() -> None:
    references = {"1": ["a dog runs", "the dog runs"], "2": ["a cat sits", "one cat sits"]}
    scores = score_captions({"1": "a dog runs", "2": "a cat sits"}, references, metrics=["BLEU", "CIDEr"])
    assert scores.values["BLEU-1"] == pytest.approx(1.0)
    assert scores.values["mean length"] == 3.0
    assert scores.values["bad endings"] == 0.0
    assert scores.values["CIDEr"] > 0
    assert scores.notes == ()


def test_the_reward_counts_the_end_of_a_caption() -> None:
    references = {"x": [[*VOCABULARY.encode(["a", "dog", "runs"]), VOCABULARY.special.eos]], "y": [[5, 4, 2]]}
    reward = cider_reward(references, VOCABULARY)
    whole = list(references["x"][0])
    assert reward(["x"], [whole])[0] > reward(["x"], [whole[:-1]])[0] > reward(["x"], [whole[:1]])[0]


def test_the_reward_reads_a_table_of_another_corpus(tmp_path: Path) -> None:
    references = {"x": [[*VOCABULARY.encode(["a", "dog", "runs"]), VOCABULARY.special.eos]], "y": [[5, 4, 2]]}
    own = cider_reward(references, VOCABULARY)
    replace(own.table, log_documents=own.table.log_documents + 3).save(tmp_path / "df.safetensors")
    theirs = cider_reward(references, VOCABULARY, document_frequency=str(tmp_path / "df.safetensors"))
    assert theirs.table.log_documents == own.table.log_documents + 3
    # A rarer word weighs more: in the larger corpus the rewards of a partial match move.
    partial = [references["x"][0][:2]]
    assert theirs(["x"], partial)[0] != own(["x"], partial)[0]
