"""Whole training steps of full-size X-LAN against the released order of work, and the loader against the step.

    python benchmarks/train_speed.py [--images 10] [--repeats 3]

A step is everything: encoding, words, loss, gradients, clipping and the optimiser; for self-critical training also
sampling five captions an image, the greedy baseline and the CIDEr-D reward. Weights are random, so captions run to all
17 steps.

Both steps are compared, in the same run, with the released order of work written on our model. Cross-entropy: all
captions run for all words, words are embedded and logits computed step by step, written into one large tensor.
Self-critical: images repeated before they are encoded, the graph of the sampling pass kept and followed backwards.
How the released code itself compares is in RESULTS.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from xlan import build_model
from xlan.data.collate import CaptionBatch
from xlan.data.dataset import CaptionDataset
from xlan.data.loader import training_loader
from xlan.data.records import CaptionedImage, CaptionSet
from xlan.decoding.greedy import greedy
from xlan.decoding.sample import sample
from xlan.text.vocab import Vocabulary
from xlan.training.distributed import World
from xlan.training.optim import build_optimizer, clip_gradients, set_rate
from xlan.training.rewards import RewardPool
from xlan.training.scoring import cider_reward
from xlan.training.steps import SelfCritical, scst_step, xe_step
from xlan.types import Regions
from xlan.vision.store import FeatureStore, FeatureStoreWriter

TARGET_LOADER = 5.0
CAPTIONS, REGIONS, WIDTH, LENGTH = 5, 50, 2048, 17
ALONE = World(0, 1, torch.device("cpu"))


def made_up(images: int, folder: Path) -> CaptionDataset:
    """A feature store and captions of COCO's shape."""
    random = np.random.default_rng(0)
    words = [f"word{i}" for i in range(9484)]
    vocabulary = Vocabulary.from_words(words)
    with FeatureStoreWriter(folder / "store") as writer:
        for i in range(images):
            features = random.standard_normal((REGIONS, WIDTH), dtype=np.float32)
            writer.add(str(i), Regions(features, np.zeros((REGIONS, 4), np.float32)))
    records = []
    for i in range(images):
        lines = tuple(tuple(random.choice(words, random.integers(8, 16))) for _ in range(CAPTIONS))
        records.append(CaptionedImage(str(i), "train", "", tuple(map(" ".join, lines)), lines))
    captions = CaptionSet(tuple(records), "made up", "table")
    return CaptionDataset(captions, FeatureStore(folder / "store"), vocabulary, split="train")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Steps:
    """The steps that are compared, on one model and one batch."""

    def __init__(self, dataset: CaptionDataset, batch: CaptionBatch, rewards: RewardPool) -> None:
        self.batch, self.rewards, self.special = batch, rewards, dataset.vocab.special
        torch.manual_seed(0)
        self.model = build_model("xlan", vocab_size=len(dataset.vocab), feature_dim=WIDTH).train()
        self.optimizer = build_optimizer("adam", self.model.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
        set_rate(self.optimizer, 1e-7)
        self.waited = 0.0

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        clip_gradients(self.model.parameters(), by="norm", at=0.5)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def cross_entropy(self) -> None:
        self.update(xe_step(self.model, self.batch, world=ALONE, smoothing=0.0, own_words=0.0).loss)

    def cross_entropy_released_order(self) -> None:
        """Step by step over all positions of all captions, finished or not."""
        batch = self.batch
        captions, words = batch.inputs.shape
        state = self.model.start(self.model.encode(batch.features, batch.mask)).select(batch.owner)
        everything = torch.zeros(captions, words, self.model.vocab_size)
        for t in range(words):
            log_probs, state = self.model.step(batch.inputs[:, t], state)
            everything[:, t] = log_probs
        real = torch.arange(words) < batch.lengths[:, None]
        self.update(torch.nn.functional.nll_loss(everything[real], batch.targets[real]))

    def self_critical(self) -> None:
        how = SelfCritical(self.rewards, self.special, frozenset(), samples=CAPTIONS, max_length=LENGTH, dropout=True)
        output = scst_step(self.model, self.batch, policy=self.model, how=how, world=ALONE, seed=(0, 0))
        self.waited = output.values["reward_wait"][0]
        self.update(output.loss)

    def released_order(self) -> None:
        """Greedy without dropout; then every image five times through the encoder, sampled with the graph kept."""
        model, batch = self.model, self.batch
        model.eval()
        with torch.inference_mode():
            base = greedy(model, model.encode(batch.features, batch.mask), self.special, max_length=LENGTH)
        model.train()
        features, mask = (tensor.repeat_interleave(CAPTIONS, 0) for tensor in (batch.features, batch.mask))
        drawn = sample(model, model.encode(features, mask), self.special, max_length=LENGTH, grad=True)
        ids = [image for image in batch.image_ids for _ in range(CAPTIONS)]
        reward = self.rewards.submit(ids, drawn.ids[:, 0].tolist()).result()
        greedy_reward = self.rewards.submit(batch.image_ids, base.ids[:, 0].tolist()).result()
        advantage = torch.from_numpy(reward - np.repeat(greedy_reward, CAPTIONS)).float()
        self.update(-(drawn.log_probs[:, 0] * advantage[:, None]).sum() / drawn.lengths.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = made_up(200, Path(folder))
        loader = training_loader(dataset, batch_size=options.images, captions_per_image=CAPTIONS)
        with RewardPool(cider_reward(dataset.reference_ids(), dataset.vocab), workers=1) as rewards:
            compare(Steps(dataset, next(iter(loader)), rewards), loader, options.images, options.repeats)


def compare(steps: Steps, loader: object, images: int, repeats: int) -> None:
    works = {
        "cross-entropy": steps.cross_entropy,
        "self-critical": steps.self_critical,
        "cross-entropy, released order": steps.cross_entropy_released_order,
        "self-critical, released order": steps.released_order,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()  # warm up
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(timed(work))
    print(f"{torch.get_num_threads()} threads, {images} images × {CAPTIONS} captions")
    for name in ("cross-entropy", "self-critical"):
        slow, ours = (statistics.median(times[key]) for key in (f"{name}, released order", name))
        print(
            f"{name:16s} {ours:6.2f} s  {images * CAPTIONS / ours:6.1f} captions/s   "
            f"released order of work: {slow:.2f} s → {slow / ours:.2f}×"
        )
    print(f"waiting for rewards: {1000 * steps.waited:.1f} ms of a self-critical step")
    batches = sum(1 for _ in loader)  # type: ignore[attr-defined]
    speed = batches * images / timed(lambda: [None for _ in loader])  # type: ignore[attr-defined]
    step = images / statistics.median(times["cross-entropy"])
    print(f"loader alone: {speed:.0f} images/s, {speed / step:.0f}× what the step takes (target {TARGET_LOADER:.0f}×)")


if __name__ == "__main__":
    main()
