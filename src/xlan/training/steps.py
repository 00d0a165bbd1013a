"""The two step functions: (model, batch) → a loss to follow, and what to log.

Both return a loss scaled so that averaging gradients over processes, as DDP and FSDP do, gives the gradient of the
mean per word over the whole step, however its images are spread over processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from xlan.decoding.sample import sample
from xlan.lengths import real_positions
from xlan.training.distributed import World
from xlan.training.losses import caption_loss, log_probabilities, policy_gradient
from xlan.training.rewards import RewardPool, Rewards
from xlan.training.state import whole_weights
from xlan.types import SpecialIds


class Batch(Protocol):
    """What the step functions need of a batch of B images and C captions."""

    features: Tensor  # [B, N, D]
    mask: Tensor | None  # [B, N] bool
    boxes: Tensor | None  # [B, N, 4] in units of each image's diagonal
    inputs: Tensor  # [C, T] int64, starting with bos
    targets: Tensor  # [C, T] int64
    lengths: Tensor  # [C]
    owner: Tensor  # [C]
    image_ids: Sequence[str]


@dataclass(frozen=True)
class StepOutput:
    """What a step function gives back.

    Attributes:
        loss: scalar to call backward on.
        captions: captions this process worked on.
        values: what to log, as name → (sum, count) over this process.
        shown: the names among them that the progress line shows.
    """

    loss: Tensor
    captions: int
    values: dict[str, tuple[float, float]] = field(default_factory=dict)
    shown: tuple[str, ...] = ("loss",)


@dataclass(frozen=True)
class SelfCritical:
    """How captions are sampled and judged in self-critical training.

    Attributes:
        rewards: scores captions.
        special: special ids.
        bad_endings: ids on which a caption should not end (logged only).
        samples: captions per image, n.
        baseline: `greedy`, the reward of the greedy caption, or `mean`, the mean reward of the image's other samples.
        temperature: of sampling.
        max_length: longest caption, end included.
        dropout: keep dropout on in the teacher-forced pass.
    """

    rewards: RewardPool
    special: SpecialIds
    bad_endings: frozenset[int]
    samples: int = 5
    baseline: str = "greedy"
    temperature: float = 1.0
    max_length: int = 17
    dropout: bool = False


def xe_step(model: nn.Module, batch: Batch, *, world: World, smoothing: float, own_words: float) -> StepOutput:
    """Cross-entropy: one teacher-forced pass over the batch's captions.

    Args:
        model: possibly wrapped; in training mode.
        batch: images with their captions.
        world: the processes of the run.
        smoothing: label smoothing.
        own_words: probability of feeding the model its own words (scheduled sampling).
    """
    options = {"scheduled_sampling": own_words} if own_words else {}
    inputs = (batch.features, batch.mask, batch.inputs, batch.lengths, batch.owner)
    logits: Tensor = model(*inputs, boxes=batch.boxes, **options)
    total = caption_loss(logits, batch.targets, batch.lengths, smoothing=smoothing, reduction="sum")
    words = logits.shape[0]
    loss = total * (world.size / world.sum([words])[0])
    return StepOutput(loss, captions=len(batch.lengths), values={"loss": (float(total.detach()), words)})


def scst_step(
    model: nn.Module, batch: Batch, *, policy: Any, how: SelfCritical, world: World, seed: tuple[int, int]
) -> StepOutput:
    """Self-critical training: reward sampled captions that beat the baseline, punish the others.

    Differences from the textbook algorithm (REINFORCE with a baseline, Rennie et al. 2017), and from the released code:

    - Sampling happens without gradients and without dropout, on images encoded once; a second, teacher-forced pass over
      the sampled words gives the gradients. The released code keeps the graph of the sampling pass, dropout on, and
      encodes every image once per sample. With `dropout` off, ours is exactly REINFORCE. With it on, it follows the
      gradient of a thinned network on captions of the whole one, without correcting for the ratio of the two.
    - The gradients come from the wrapped model's `forward`, so data-parallel processes stay in step.
    - The loss is the mean over *words* (end included), as released, not over captions: long captions weigh more.
    - `baseline="greedy"` is the paper's; the greedy captions are decoded in the same pass as the samples. `"mean"` is
      the mean reward of the image's *other* samples: lower variance, still unbiased because it does not depend on the
      sample itself.
    - Rewards are neither scaled nor clipped; there is no KL or entropy term and no importance weight: every batch is
      sampled from the current weights and used for one update.
    - Captions cut off at `max_length` are trained on as they are, without an end.
    - A caption that was drawn several times for an image goes through the second pass once, with the sum of its
      advantages: the same gradient, and late in training, when samples resemble one another, much less work. With
      `dropout` on each goes through by itself, under a mask of its own.

    Rewards are computed on worker processes while this process runs the teacher-forced pass, which does not need them.
    Sampling the *next* batch during that time would hide no more and would cost on-policy samples: they would come from
    weights one update old.

    Args:
        model: possibly wrapped; its forward gives the gradients.
        batch: images; their own captions are not used.
        policy: the bare model, as a Stepper.
        how: how captions are sampled and judged.
        world: the processes of the run.
        seed: (run, step): decides what is drawn, whatever the number of processes.
    """
    images, samples, with_greedy = len(batch.image_ids), how.samples, how.baseline == "greedy"
    chance = _chances(seed, world, images=images, samples=samples, length=how.max_length)
    if with_greedy:  # one row more for every image, which takes the most likely word: cheaper than a pass of its own
        chance = torch.cat([torch.full_like(chance[:, :1], -1.0), chance], dim=1)
    rows = chance.shape[1]
    with whole_weights(model), torch.inference_mode(), evaluating(policy):
        encoded = policy.encode(batch.features, batch.mask, batch.boxes)
        drawn = sample(
            policy,
            encoded,
            how.special,
            n=rows,
            max_length=how.max_length,
            temperature=how.temperature,
            uniform=chance.flatten(0, 1),
        )
    said = [_captions(ids, lengths) for ids, lengths in zip(drawn.ids.tolist(), drawn.lengths.tolist(), strict=True)]
    names = [image for image in batch.image_ids for _ in range(rows)]
    pending = how.rewards.submit(names, [caption for several in said for caption in several])

    ids, all_lengths = drawn.ids[:, -samples:], drawn.lengths[:, -samples:]
    once, which = _each(ids) if how.dropout else distinct(ids, all_lengths)
    tokens, targets, lengths, owner = sampled_words(ids, all_lengths, how.special, once)
    with contextlib.nullcontext() if how.dropout else evaluating(model):
        logits: Tensor = model(batch.features, batch.mask, tokens, lengths, owner, boxes=batch.boxes)
    log_p_all = log_probabilities(logits)
    log_p = log_p_all.gather(1, targets[:, None]).squeeze(1)

    waiting = time.perf_counter()
    scored = pending.result().reshape(images, rows)
    waiting = time.perf_counter() - waiting
    reward = scored[:, -samples:]
    base = scored[:, :1] if with_greedy else leave_one_out(reward)

    advantage = torch.from_numpy(reward - base).flatten().to(log_p.device)
    total = policy_gradient(log_p, summed(advantage, which).repeat_interleave(lengths))
    words = int(all_lengths.sum())
    loss = total * (world.size / world.sum([words])[0])
    captions = [caption for several in said for caption in several[-samples:]]
    count = len(captions)
    lines = [caption[:-1] if caption[-1] == how.special.eos else caption for caption in captions]
    entropy = -(log_p_all.detach() * log_p_all.detach().exp()).sum(dim=1)
    entropy *= summed(torch.ones_like(advantage), which).repeat_interleave(lengths)
    values = {
        "loss": (float(total.detach()), words),
        "reward": (float(reward.sum()), count),
        "baseline": (float(base.sum()), base.size),
        "advantage": (float(abs(reward - base).sum()), count),
        "length": (float(sum(map(len, lines))), count),
        "bad_endings": (float(sum(not line or line[-1] in how.bad_endings for line in lines)), count),
        "distinct": (float(len(set(map(tuple, lines)))), count),
        "entropy": (float(entropy.sum()), words),
        "reward_wait": (waiting, 1.0),
    }
    return StepOutput(loss, captions=count, values=values, shown=("loss", "reward"))


def distinct(ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the sampled captions, `ids` `[B, n, T]` with `lengths` `[B, n]`, are the same caption of the same image.

    Returns:
        rows `[U]`, one of the B·n captions for each different one, in the order of images; and which `[B·n]`, the place
        of each caption among them.
    """
    images, n, positions = ids.shape
    owner = torch.arange(images, device=ids.device).repeat_interleave(n)
    real = ids.masked_fill(~real_positions(lengths, positions), 0).flatten(0, 1)
    keys = torch.cat([owner[:, None], lengths.flatten()[:, None], real], dim=1)
    found, which = torch.unique(keys, dim=0, return_inverse=True)
    rows = torch.empty(len(found), dtype=torch.int64, device=ids.device)
    rows[which] = torch.arange(images * n, device=ids.device)  # any of those that are the same
    return rows, which


def _each(ids: Tensor) -> tuple[Tensor, Tensor]:
    """As `distinct`, but every caption counts as different."""
    rows = torch.arange(ids.shape[0] * ids.shape[1], device=ids.device)
    return rows, rows


def summed(values: Tensor, which: Tensor) -> Tensor:
    """Values `[R]` added up by group: `which` `[R]` has the group of each, 0 to U − 1. → `[U]`."""
    return values.new_zeros(int(which.max()) + 1).index_add_(0, which, values)


def sampled_words(
    ids: Tensor, lengths: Tensor, special: SpecialIds, rows: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sampled captions, `ids` `[B, n, T]` with `lengths` `[B, n]`, as teacher forcing wants them.

    Args:
        ids: the captions.
        lengths: of the captions, end included.
        special: special ids.
        rows: `[C]` only these of the B·n captions; by default all.

    Returns:
        tokens `[C, T']` starting with `bos`, T' the longest length; targets `[W]`, the sampled words one after
        another; lengths `[C]`; and owner `[C]`, the image of each caption.
    """
    images, n, _ = ids.shape
    owner = torch.arange(images, device=ids.device).repeat_interleave(n)
    flat, lengths = ids.flatten(0, 1), lengths.flatten()
    if rows is not None:
        flat, lengths, owner = flat[rows], lengths[rows], owner[rows]
    longest = int(lengths.max())
    flat = flat[:, :longest]
    start = flat.new_full((len(flat), 1), special.bos)
    return torch.cat([start, flat[:, :-1]], dim=1), flat[real_positions(lengths, longest)], lengths, owner


def _chances(seed: tuple[int, int], world: World, *, images: int, samples: int, length: int) -> Tensor:
    """This process's share `[images, samples, length]` of the random numbers that decide the step's samples.

    Every process draws the numbers of all of them and takes those of its images (the loader deals images out in turn),
    so one process with the whole batch and many with a share each draw the same captions.
    """
    random = np.random.default_rng(seed)
    numbers = random.random((images, world.size, samples, length))[:, world.rank]
    return torch.from_numpy(numbers).to(world.device)


def leave_one_out(reward: Rewards) -> Rewards:
    """For every sample the mean reward of the other samples of its image. `[B, n]` → `[B, n]`, n ≥ 2."""
    n = reward.shape[1]
    mean: Rewards = (reward.sum(axis=1, keepdims=True) - reward) / (n - 1)
    return mean


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off inside; the mode of before afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _captions(ids: list[list[int]], lengths: list[int]) -> list[list[int]]:
    """Captions as lists of ids with their `eos`, without what is behind."""
    return [caption[:length] for caption, length in zip(ids, lengths, strict=True)]
