"""The two step functions, with models small enough to check by hand or against the released code's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from xlan.decoding.greedy import greedy
from xlan.decoding.sample import sample
from xlan.model.build import build_model
from xlan.model.released import convert_released
from xlan.training.distributed import World
from xlan.training.rewards import RewardPool, Rewards
from xlan.training.steps import (
    SelfCritical,
    StepOutput,
    distinct,
    evaluating,
    leave_one_out,
    sampled_words,
    scst_step,
    xe_step,
)
from xlan.types import SpecialIds

ALONE = World(0, 1, torch.device("cpu"))
SPECIAL = SpecialIds(pad=0, bos=1, eos=2, unk=3)
WORDS = 12


@dataclass
class FakeBatch:
    features: Tensor
    mask: Tensor | None
    inputs: Tensor
    targets: Tensor
    lengths: Tensor
    owner: Tensor
    image_ids: Sequence[str]
    boxes: Tensor | None = None


def tiny(**changes: Any) -> Any:
    torch.manual_seed(0)
    numbers = {"vocab_size": WORDS, "feature_dim": 6, "dim": 16, "heads": 2, "hidden_dim": 4, "depth": 1, **changes}
    return build_model("xlan-tiny", **numbers)


def without_dropout() -> dict[str, float]:
    names = ("region_dropout", "block_dropout", "dropout", "update_dropout", "word_dropout", "logit_dropout")
    return dict.fromkeys(names, 0.0)


def batch_of(images: int) -> FakeBatch:
    torch.manual_seed(1)
    inputs = torch.randint(3, WORDS, (2 * images, 5))
    inputs[:, 0] = SPECIAL.bos
    return FakeBatch(
        features=torch.randn(images, 3, 6),
        mask=torch.ones(images, 3, dtype=torch.bool),
        inputs=inputs,
        targets=torch.randint(3, WORDS, (2 * images, 5)),
        lengths=torch.randint(1, 6, (2 * images,)),
        owner=torch.arange(images).repeat_interleave(2),
        image_ids=[f"image{i}" for i in range(images)],
    )


def count_word(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
    """A reward that is easy to get: how often word 5 was said."""
    return np.array([float(sum(word == 5 for word in caption)) for caption in captions])


def always_one(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
    return np.ones(len(captions))


def critical(
    model: Any,
    batch: FakeBatch,
    reward: Any = count_word,
    *,
    seed: tuple[int, int] = (1, 0),
    world: World = ALONE,
    **changes: Any,
) -> StepOutput:
    options: dict[str, Any] = {"samples": 4, "max_length": 6, **changes}
    with RewardPool(reward, workers=0) as rewards:
        how = SelfCritical(rewards, SPECIAL, frozenset({7}), **options)
        return scst_step(model, batch, policy=model, how=how, world=world, seed=seed)


class TestCrossEntropy:
    def test_the_loss_is_the_mean_over_words(self) -> None:
        model, batch = tiny(**without_dropout()), batch_of(3)
        output = xe_step(model, batch, world=ALONE, smoothing=0.0, own_words=0.0)
        logits = model(batch.features, batch.mask, batch.inputs, batch.lengths, batch.owner)
        real = torch.arange(5) < batch.lengths[:, None]
        torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(logits, batch.targets[real]))

    def test_padding_in_the_targets_contributes_nothing(self) -> None:
        model, batch = tiny(**without_dropout()), batch_of(3)
        before = xe_step(model, batch, world=ALONE, smoothing=0.1, own_words=0.0).loss
        batch.targets[torch.arange(5) >= batch.lengths[:, None]] = 11
        assert xe_step(model, batch, world=ALONE, smoothing=0.1, own_words=0.0).loss == before

    def test_scheduled_sampling_reaches_the_model(self) -> None:
        model, batch = tiny(**without_dropout()), batch_of(3)
        plain = xe_step(model, batch, world=ALONE, smoothing=0.0, own_words=0.0).loss
        assert xe_step(model, batch, world=ALONE, smoothing=0.0, own_words=1.0).loss != plain


class TestSelfCritical:
    def test_reward_equal_to_the_baseline_gives_exactly_no_gradient(self) -> None:
        model = tiny()
        critical(model, batch_of(3), always_one).loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert all(not parameter.grad.any() for parameter in model.parameters())

    @pytest.mark.parametrize("baseline", ["greedy", "mean"])
    @pytest.mark.parametrize("dropout", [True, False])
    def test_it_raises_the_reward(self, baseline: str, dropout: bool) -> None:
        model, batch = tiny(**without_dropout()), batch_of(4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        rewards = []
        for step in range(25):
            output = critical(model, batch, baseline=baseline, dropout=dropout, seed=(1, step))
            rewards.append(output.values["reward"][0] / output.values["reward"][1])
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
        assert sum(rewards[-5:]) > 2 * sum(rewards[:5])

    def test_gradients_equal_those_of_the_formula(self) -> None:
        model, batch = tiny(**without_dropout()), batch_of(2)
        with RewardPool(count_word, workers=0):
            output = critical(model, batch)
        output.loss.backward()
        ours = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        captions, advantage = self.samples_and_advantage(model, batch)
        total, words = torch.zeros(()), 0
        for row, (caption, gain) in enumerate(zip(captions, advantage, strict=True)):
            inputs = torch.tensor([[SPECIAL.bos, *caption[:-1]]])
            owner = torch.tensor([row // 4])
            logits = model(batch.features, batch.mask, inputs, torch.tensor([len(caption)]), owner)
            log_p = logits.log_softmax(-1)[torch.arange(len(caption)), torch.tensor(caption)]
            total, words = total - gain * log_p.sum(), words + len(caption)
        (total / words).backward()
        for ours_one, parameter in zip(ours, model.parameters(), strict=True):
            torch.testing.assert_close(ours_one, parameter.grad, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("baseline", ["greedy", "mean"])
    def test_captions_drawn_twice_count_twice(self, baseline: str) -> None:
        """Cold samples repeat themselves; each goes through the model once, and nothing else may tell."""
        model, batch = tiny(**without_dropout()).double(), batch_of(3)
        batch.features = batch.features.double()
        results = []
        for dropout in (True, False):  # there is no dropout to switch on: it only keeps equal captions apart
            model.zero_grad()
            output = critical(model, batch, samples=6, temperature=0.03, baseline=baseline, dropout=dropout)
            output.loss.backward()
            results.append((output, [parameter.grad.clone() for parameter in model.parameters()]))
        (apart, gradients), (together, same_gradients) = results
        assert apart.values["distinct"][0] < apart.values["distinct"][1]
        assert any(gradient.abs().max() > 1e-3 for gradient in gradients)
        torch.testing.assert_close(together.loss, apart.loss)
        torch.testing.assert_close(same_gradients, gradients)
        assert together.values["entropy"] == pytest.approx(apart.values["entropy"])

    def samples_and_advantage(self, model: Any, batch: FakeBatch) -> tuple[list[list[int]], list[float]]:
        seen: list[list[list[int]]] = []

        def spy(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
            seen.append([list(caption) for caption in captions])
            return count_word(images, captions)

        critical(model, batch, spy)
        (captions,) = seen
        rows = [captions[i : i + 5] for i in range(0, len(captions), 5)]  # the greedy caption, then four samples
        samples = [caption for row in rows for caption in row[1:]]
        advantage = [float(gain) for row in rows for gain in count_word([], row[1:]) - count_word([], row[:1])]
        return samples, advantage

    def test_the_greedy_row_is_what_greedy_decoding_finds(self) -> None:
        model, batch = tiny(), batch_of(3)
        seen: list[list[list[int]]] = []

        def spy(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
            seen.append([list(caption) for caption in captions])
            return always_one(images, captions)

        critical(model, batch, spy, temperature=2.0)
        model.eval()
        found = greedy(model, model.encode(batch.features, batch.mask), SPECIAL, max_length=6)
        assert [list(best.ids) for best in found.best()] == seen[0][::5]

    def test_what_is_logged(self) -> None:
        values = critical(tiny(), batch_of(3)).values
        assert values["reward"][1] == 12
        assert 0 <= values["bad_endings"][0] <= 12
        assert 1 <= values["distinct"][0] <= 12
        assert 0 < values["entropy"][0] / values["entropy"][1] <= np.log(WORDS) + 1e-4

    def test_sampling_leaves_the_random_state_alone(self) -> None:
        model, batch = tiny(**without_dropout()), batch_of(3)
        state = torch.get_rng_state()
        critical(model, batch)
        assert torch.equal(torch.get_rng_state(), state)

    def test_shares_of_two_processes_draw_what_one_process_draws(self) -> None:
        model, whole = tiny(**without_dropout()), batch_of(4)
        seen: dict[str, list[list[int]]] = {}

        def spy(images: Sequence[str], captions: Sequence[Sequence[int]]) -> Rewards:
            for image, caption in zip(images, captions, strict=True):
                seen.setdefault(image, []).append(list(caption))
            return always_one(images, captions)

        critical(model, whole, spy, baseline="mean")
        alone, seen = seen, {}
        for rank in (0, 1):
            share = FakeBatch(
                whole.features[rank::2], None, whole.inputs, whole.targets, whole.lengths, whole.owner,
                whole.image_ids[rank::2],
            )  # fmt: skip
            world = _Pretended(rank, 2, torch.device("cpu"))
            critical(model, share, spy, baseline="mean", world=world)
        assert seen == alone


def test_evenly_spread_numbers_draw_words_in_proportion_to_their_probability() -> None:
    model, batch = tiny(**without_dropout()).eval(), batch_of(1)
    encoded = model.encode(batch.features, batch.mask)
    numbers = ((torch.arange(4000) + 0.5) / 4000)[:, None]
    drawn = sample(model, encoded, SPECIAL, n=4000, max_length=1, uniform=numbers)
    log_p, _ = model.step(torch.tensor([SPECIAL.bos]), model.start(encoded))
    shares = torch.bincount(drawn.ids.flatten(), minlength=WORDS) / 4000
    torch.testing.assert_close(shares, log_p[0].exp().detach(), rtol=0, atol=1 / 4000)


class _Pretended(World):
    """Says it is one of several, without the others."""

    def sum(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in values]


@pytest.mark.parametrize("tag", ["xlan", "xtransformer"])
def test_loss_on_greedy_captions_equals_the_released_code(reference_folder: Path, tag: str) -> None:
    """Rewards given, the loss over the words of a decoded caption, through our model, decoding and step code."""
    spec, weights = convert_released(load_file(reference_folder / f"{tag}_weights.safetensors"))
    model = build_model(spec)
    model.load_state_dict(weights)
    model.double().eval()
    special = SpecialIds(pad=0, bos=0, eos=0, unk=49)
    inputs = load_file(reference_folder / f"{tag}_inputs.safetensors")
    outputs = load_file(reference_folder / f"{tag}_outputs_f64.safetensors")
    features, mask = inputs["att_feats"].double(), inputs["att_mask"].bool()
    drawn = greedy(model, model.encode(features, mask), special, max_length=17)
    tokens, targets, lengths, owner = sampled_words(drawn.ids, drawn.lengths, special)
    log_p = model(features, mask, tokens, lengths, owner).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    loss = -(log_p * outputs["rl_rewards"].repeat_interleave(lengths)).mean()
    torch.testing.assert_close(loss, outputs["rl_loss_on_greedy"][0], rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_distinct_finds_every_caption_of_every_image_once(data: st.DataObject, images: int, n: int) -> None:
    captions = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=images * n, max_size=images * n)
    drawn = data.draw(captions)
    behind = data.draw(st.integers(0, 2))  # what stands behind the end must not matter
    ids = torch.tensor([caption + [behind] * (4 - len(caption)) for caption in drawn]).reshape(images, n, 4)
    rows, which = distinct(ids, torch.tensor([len(caption) for caption in drawn]).reshape(images, n))
    keys = [(row // n, tuple(caption)) for row, caption in enumerate(drawn)]
    assert sorted(keys[row] for row in rows.tolist()) == sorted(set(keys))
    assert [keys[rows[group]] for group in which.tolist()] == keys
    assert [row // n for row in rows.tolist()] == sorted(row // n for row in rows.tolist())


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_leave_one_out_is_the_mean_of_the_others(images: int, n: int, seed: int) -> None:
    reward = np.random.default_rng(seed).random((images, n))
    expected = [[np.delete(row, i).mean() for i in range(n)] for row in reward]
    np.testing.assert_allclose(leave_one_out(reward), expected)


def test_evaluating_restores_the_mode() -> None:
    model = torch.nn.Dropout()
    with evaluating(model):
        assert not model.training
    assert model.training
