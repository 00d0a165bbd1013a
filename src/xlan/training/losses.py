"""The losses, as pure functions: inputs are never changed.

`caption_loss` is the one for a training loop of your own. The others return a *sum* over words: the caller divides by
the number of words of the whole step over all processes, so a step does not depend on how its images are spread over
processes. Logits come one row per real word, so padding cannot contribute.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from xlan.lengths import real_positions


def caption_loss(
    logits: Tensor, targets: Tensor, lengths: Tensor, *, smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Cross-entropy of captions under teacher forcing: what `CaptionModel.forward` returns against what it should say.

    Args:
        logits: `[W, V]`, one row per real position of the C captions, caption after caption, W the sum of `lengths`.
        targets: `[C, T]` int64, the word that should follow at every position; what is behind a caption's end does not
            matter.
        lengths: `[C]` positions of each caption, its end included.
        smoothing: label smoothing, 0 for plain cross-entropy.
        reduction: `mean` over the words, or `sum`.
    """
    words = targets[real_positions(lengths, targets.shape[1])]
    total = label_smoothed(logits, words, smoothing)
    return total / words.numel() if reduction == "mean" else total


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum over words of −log p(target). `logits` `[W, V]`, `targets` `[W]` int64; returns a scalar."""
    return F.cross_entropy(logits.float() if logits.dtype is not torch.float64 else logits, targets, reduction="sum")


def label_smoothed(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Sum over words of the divergence from a softened target; 0 smoothing gives cross-entropy.

    The target keeps 1 − s and the *other* V − 1 words share s, as released (`torch`'s own label smoothing spreads s
    over all V words). The value is the Kullback–Leibler divergence, so it is 0 for a perfect prediction: it differs
    from cross-entropy by the entropy of the softened target, a constant.

    Args:
        logits: `[W, V]`.
        targets: `[W]` int64.
        smoothing: s, 0 ≤ s < 1.
    """
    if smoothing == 0.0:
        return cross_entropy(logits, targets)
    log_p = log_probabilities(logits)
    other = smoothing / (logits.shape[-1] - 1)
    keep = 1.0 - smoothing
    at_target = log_p.gather(1, targets[:, None]).sum()
    # Σ_j q_j log p_j with q_j = other everywhere but at the target.
    expected = other * (log_p.sum() - at_target) + keep * at_target
    entropy = keep * _log(keep) + smoothing * _log(other)
    return entropy * targets.numel() - expected


def policy_gradient(log_p: Tensor, advantage: Tensor) -> Tensor:
    """Sum over sampled words of −log p(word) · advantage (self-critical training).

    Args:
        log_p: `[W]` log-probability of every sampled word, the end of the caption included.
        advantage: `[W]` reward minus baseline of the caption the word belongs to; no gradient flows through it.
    """
    return -(log_p * advantage.detach().to(log_p.dtype)).sum()


def log_probabilities(logits: Tensor) -> Tensor:
    """Natural log-probabilities in at least single precision. `[W, V]` → `[W, V]`."""
    return F.log_softmax(logits, dim=-1, dtype=torch.float64 if logits.dtype is torch.float64 else torch.float32)


def _log(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log())
