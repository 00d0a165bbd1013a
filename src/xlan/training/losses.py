"""The three losses, as pure functions: inputs are never changed.

All of them return a *sum* over words. The caller divides by the number of words of the whole step over all processes,
so a step does not depend on how its images are spread over processes. Logits come one row per real word, so padding
cannot contribute.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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
