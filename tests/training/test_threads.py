"""With several threads the same step gives the same gradients, every time: nothing is added up in a random order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from xlan.adapt.network import WordModel
from xlan.data.collate import CaptionBatch
from xlan.model.build import build_model
from xlan.training.distributed import World
from xlan.training.rewards import RewardPool, Rewards
from xlan.training.steps import SelfCritical, StepOutput, scst_step, xe_step
from xlan.types import SpecialIds
from xlan.vision.efficientnet import EfficientNetLite, LiteSpec

ALONE = World(0, 1, torch.device("cpu"))
SPECIAL = SpecialIds(pad=0, bos=1, eos=2, unk=3)
REPEATS = 8


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def batch_of(images: int, regions: int, width: int, words: int) -> CaptionBatch:
    random = torch.Generator().manual_seed(1)
    captions = torch.randint(4, words, (5 * images, 12), generator=random)
    return CaptionBatch(
        image_ids=tuple(map(str, range(images))),
        features=torch.randn(images, regions, width, generator=random),
        mask=torch.ones(images, regions, dtype=torch.bool),
        boxes=torch.rand(images, regions, 4, generator=random),
        inputs=torch.cat([torch.full((5 * images, 1), SPECIAL.bos), captions[:, :-1]], dim=1),
        targets=captions,
        lengths=torch.randint(4, 13, (5 * images,), generator=random),
        owner=torch.arange(images).repeat_interleave(5),
    )


def reward(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
    return np.array([float(sum(caption) % 7) for caption in captions])


def gradients(model: torch.nn.Module, output: StepOutput) -> list[torch.Tensor]:
    model.zero_grad()
    output.loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("stage", ["xe", "scst"])
@pytest.mark.parametrize(("images", "dim", "words"), [(4, 16, 50), (50, 64, 200)])
@pytest.mark.parametrize("name", ["xlan-tiny", "xtransformer-tiny"])
def test_gradients_do_not_depend_on_the_order_of_threads(
    stage: str, name: str, images: int, dim: int, words: int
) -> None:
    torch.manual_seed(0)
    model: Any = build_model(name, vocab_size=words, feature_dim=dim, dim=dim, heads=2)
    batch = batch_of(images, 20, dim, words)

    def step() -> StepOutput:
        torch.manual_seed(3)
        if stage == "xe":
            return xe_step(model, batch, world=ALONE, smoothing=0.1, own_words=0.0)
        with RewardPool(reward, workers=0) as rewards:
            how = SelfCritical(rewards, SPECIAL, frozenset(), max_length=12, dropout=True)
            return scst_step(model, batch, policy=model, how=how, world=ALONE, seed=(1, 0))

    first = gradients(model, step())
    for _ in range(REPEATS):
        assert all(map(torch.equal, gradients(model, step()), first))


@pytest.mark.parametrize("size", [64, 160])
def test_adapting_vision_does_not_depend_on_the_order_of_threads(size: int) -> None:
    torch.manual_seed(0)
    network = EfficientNetLite(LiteSpec("tiny", width=0.5, depth=0.5, input_size=size, head=64))
    model = WordModel(network, words=200, classes=10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(8, 3, size, size).contiguous(memory_format=torch.channels_last)

    def step() -> list[torch.Tensor]:
        words, things = model(images)
        return gradients(model, StepOutput(words.square().mean() + things.square().mean(), captions=8))

    first = step()
    for _ in range(REPEATS):
        assert all(map(torch.equal, step(), first))
