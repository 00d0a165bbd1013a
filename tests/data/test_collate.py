"""Batches have the shapes and the contents they promise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from xlan.data.collate import caption_batch, collate_captions, image_batch
from xlan.data.dataset import CaptionDataset
from xlan.data.plan import BatchPlan
from xlan.data.records import CaptionedImage, CaptionSet
from xlan.text.vocab import Vocabulary
from xlan.types import SpecialIds
from xlan.vision.store import FeatureStore

Make = Callable[..., CaptionDataset]


def dataset_of(captions: list[str], store: FeatureStore, vocab: Vocabulary, max_words: int = 4) -> CaptionDataset:
    image = CaptionedImage("1", "train", "", tuple(captions), tuple(tuple(c.split()) for c in captions))
    return CaptionDataset(CaptionSet((image,), "here", "table"), store, vocab, split="train", max_words=max_words)


def test_inputs_and_targets(store: FeatureStore, vocab: Vocabulary) -> None:
    pad, bos, eos = vocab.special.pad, vocab.special.bos, vocab.special.eos
    dataset = dataset_of(["w0 w1", "w2 w3 w4 w5", "w6 w7 w8 w9 w10 w11"], store, vocab)
    inputs, targets, lengths = collate_captions(dataset, [0, 1, 2])
    assert inputs.tolist() == [[bos, 4, 5, pad, pad], [bos, 6, 7, 8, 9], [bos, 10, 11, 12, 13]]
    # The third caption is cut: its fifth word is asked for where the end would be, and nothing after it.
    assert targets.tolist() == [[4, 5, eos, pad, pad], [6, 7, 8, 9, eos], [10, 11, 12, 13, 14]]
    assert lengths.tolist() == [3, 5, 5]
    assert inputs.dtype == targets.dtype == lengths.dtype == torch.int64


def test_one_id_for_start_end_and_padding_as_released(store: FeatureStore) -> None:
    """`[0, w1 …]` and `[w1 …, 0]`; only the lengths tell the end from padding."""
    shared = Vocabulary([".", *(f"w{i}" for i in range(9)), "UNK"], SpecialIds(pad=0, bos=0, eos=0, unk=10))
    inputs, targets, lengths = collate_captions(dataset_of(["w0 w1", "w2 w3 w4"], store, shared), [0, 1])
    assert inputs.tolist() == [[0, 1, 2, 0], [0, 3, 4, 5]]
    assert targets.tolist() == [[1, 2, 0, 0], [3, 4, 5, 0]]
    assert lengths.tolist() == [3, 4]


def test_a_batch_does_not_change_the_store(make: Make) -> None:
    dataset = make()
    batch = image_batch(dataset, [0])
    batch.features.zero_()
    assert (dataset.regions(0).features == 1).all()
    assert not dataset.regions(0).features.flags.writeable


def test_captions_name_their_owner(make: Make) -> None:
    dataset = make()
    first = dataset.first_caption
    plan = BatchPlan(np.array([5, 2]), np.stack([first[[5, 5]], first[[2, 2]]]))
    batch = caption_batch(dataset, plan)
    assert batch.owner.tolist() == [0, 0, 1, 1]
    assert batch.image_ids == [dataset.images[5].id, dataset.images[2].id]
    assert (batch.features[0][batch.mask[0]] == float(batch.image_ids[0])).all()
    assert batch.boxes.shape == (*batch.mask.shape, 4)
    assert torch.equal(batch.boxes[0][batch.mask[0]], torch.from_numpy(dataset.regions(5).boxes_by_diagonal()))
    assert batch.inputs.shape == batch.targets.shape
    assert batch.inputs.shape[0] == batch.lengths.shape[0] == 4


def test_a_batch_moves_as_a_whole(make: Make) -> None:
    dataset = make()
    first = dataset.first_caption[:1]
    batch = caption_batch(dataset, BatchPlan(np.array([0]), first[None, :])).to("meta")
    tensors = (batch.features, batch.mask, batch.boxes, batch.inputs, batch.targets, batch.lengths, batch.owner)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
