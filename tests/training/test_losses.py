from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from xlan.training.losses import caption_loss, cross_entropy, label_smoothed, policy_gradient


@pytest.mark.parametrize("tag", ["xlan", "xtransformer"])
class TestReleasedCode:
    def words(self, folder: Path, tag: str) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        outputs = load_file(folder / f"{tag}_outputs_f64.safetensors")
        targets = load_file(folder / f"{tag}_inputs.safetensors")["target_seq"]
        real = targets >= 0
        return outputs, outputs["tf_logits"][real], targets[real]

    def test_cross_entropy(self, reference_folder: Path, tag: str) -> None:
        outputs, logits, targets = self.words(reference_folder, tag)
        torch.testing.assert_close(
            cross_entropy(logits, targets) / len(targets), outputs["xe_loss"][0], rtol=1e-12, atol=0
        )

    def test_label_smoothing(self, reference_folder: Path, tag: str) -> None:
        outputs, logits, targets = self.words(reference_folder, tag)
        loss = label_smoothed(logits, targets, 0.1) / len(targets)
        torch.testing.assert_close(loss, outputs["ls_loss"][0], rtol=1e-12, atol=0)

    def test_self_critical_loss(self, reference_folder: Path, tag: str) -> None:
        outputs, _, _ = self.words(reference_folder, tag)
        ids, log_p = outputs["greedy_seq"], outputs["greedy_logprobs"]
        ended = ids == 0
        lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, ids.shape[1])
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        advantage = outputs["rl_rewards"].repeat_interleave(lengths)
        loss = policy_gradient(log_p[real], advantage) / real.sum()
        torch.testing.assert_close(loss, outputs["rl_loss_on_greedy"][0], rtol=1e-12, atol=0)


def test_no_smoothing_is_cross_entropy() -> None:
    logits, targets = torch.randn(7, 5), torch.randint(5, (7,))
    assert label_smoothed(logits, targets, 0.0) == cross_entropy(logits, targets)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.01, 0.9), st.integers(2, 30))
def test_smoothing_is_a_divergence_from_the_soft_target(smoothing: float, words: int) -> None:
    logits, targets = torch.randn(4, words, dtype=torch.float64), torch.randint(words, (4,))
    soft = torch.full((4, words), smoothing / (words - 1), dtype=torch.float64)
    soft.scatter_(1, targets[:, None], 1 - smoothing)
    expected = (soft * (soft.log() - logits.log_softmax(1))).sum()
    torch.testing.assert_close(label_smoothed(logits, targets, smoothing), expected)


def test_inputs_are_left_as_they_were() -> None:
    logits, targets = torch.randn(7, 5), torch.randint(5, (7,))
    before = logits.clone(), targets.clone()
    label_smoothed(logits, targets, 0.1)
    cross_entropy(logits, targets)
    assert torch.equal(logits, before[0])
    assert torch.equal(targets, before[1])


def test_half_precision_logits_are_summed_in_single_precision() -> None:
    logits, targets = torch.randn(3, 5).bfloat16(), torch.tensor([0, 1, 2])
    assert cross_entropy(logits, targets).dtype is torch.float32
    assert label_smoothed(logits, targets, 0.1).dtype is torch.float32


def test_zero_advantage_gives_zero_gradient() -> None:
    logits = torch.randn(6, 5, requires_grad=True)
    log_p = logits.log_softmax(1)[:, 0]
    policy_gradient(log_p, torch.zeros(6)).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.equal(logits.grad, torch.zeros(6, 5))


def test_a_better_sample_becomes_likelier() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    policy_gradient(logits.log_softmax(1)[:, 2], torch.tensor([1.0])).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad[0, 2] < 0 < logits.grad[0, 0]


def test_the_loss_of_captions_ignores_what_is_behind_their_ends() -> None:
    torch.manual_seed(0)
    logits, targets, lengths = torch.randn(5, 7), torch.randint(0, 7, (2, 4)), torch.tensor([2, 3])
    words = torch.cat([targets[0, :2], targets[1, :3]])
    expected = torch.nn.functional.cross_entropy(logits, words)
    torch.testing.assert_close(caption_loss(logits, targets, lengths), expected)
    torch.testing.assert_close(caption_loss(logits, targets, lengths, reduction="sum"), 5 * expected)
