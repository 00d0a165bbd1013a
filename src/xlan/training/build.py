"""RunConfig → objects: data, model, loader, schedule, reward, step function. Nothing here runs anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from xlan.config import ModelConfig, NoamConfig, RunConfig, TrainConfig
from xlan.data.captions import build_vocabulary, load_captions
from xlan.data.dataset import CaptionDataset
from xlan.data.loader import TrainingLoader, training_loader
from xlan.data.records import CaptionSet
from xlan.data.shapes import make_shapes
from xlan.errors import ConfigError, ShapeError
from xlan.model.build import build_model
from xlan.model.captioner import CaptionModel
from xlan.model.plain import AttributeEncoder
from xlan.model.spec import Spec, TransformerSpec, check_has_attributes, model_spec, spec_to_dict
from xlan.pretrained import from_pretrained, read_model_directory
from xlan.text.endings import bad_ending_ids
from xlan.text.vocab import Vocabulary
from xlan.training import schedule as schedules
from xlan.training.distributed import World
from xlan.training.folder import RunFolder
from xlan.training.loop import Plan
from xlan.training.rewards import RewardPool, Scorer, WithBleu
from xlan.training.scoring import cider_reward
from xlan.training.steps import Batch, SelfCritical, StepOutput, scst_step, xe_step
from xlan.vision.regions import check_same_extractor
from xlan.vision.store import FeatureStore, FeatureStoreWriter
from xlan.vision.words import WordHead
from xlan.weights import compare_weights

StepFunction = Callable[[Batch, int, int], StepOutput]


@dataclass(frozen=True)
class Data:
    """What is trained and validated on."""

    train: CaptionDataset
    val: CaptionDataset
    vocabulary: Vocabulary


def load_data(config: RunConfig, folder: RunFolder, world: World) -> Data:
    """Captions, features and vocabulary; the toy data set is drawn into the run's folder."""
    captions, store = _sources(config, folder, world)
    settings = config.data
    if config.model.init is not None and not config.model.new_words:
        vocabulary = read_model_directory(config.model.init).vocabulary
    elif settings.vocab is not None:
        vocabulary = Vocabulary.load(settings.vocab)
    else:
        counted_on = None if settings.vocab_split == "all" else settings.train_split
        vocabulary = build_vocabulary(captions, counted_on, threshold=settings.min_count, tokens=settings.tokens)

    def dataset(split: str, limit: int | None) -> CaptionDataset:
        images = captions.split(split)
        chosen = captions if limit is None else CaptionSet(images[:limit], captions.source, captions.form)
        return CaptionDataset(
            chosen,
            store,
            vocabulary,
            split=split,
            max_words=settings.max_words,
            max_regions=settings.max_regions,
            missing=settings.missing,
        )

    return Data(
        dataset(settings.train_split, settings.limit_train), dataset(settings.val_split, settings.limit_val), vocabulary
    )


def _sources(config: RunConfig, folder: RunFolder, world: World) -> tuple[CaptionSet, FeatureStore]:
    shapes = config.data.shapes
    if shapes is None:
        assert config.data.captions is not None
        assert config.data.features is not None
        captions = load_captions(config.data.captions, tokens=config.data.tokens)
        return captions, FeatureStore(config.data.features)
    captions, features = make_shapes(shapes.images, shapes.seed)
    if world.is_main:
        extractor = {"name": "drawn shapes", "images": shapes.images, "seed": shapes.seed}
        with FeatureStoreWriter(folder.path / "shapes", dtype="float32", extractor=extractor) as writer:
            for image, regions in features.items():
                if image not in writer:
                    writer.add(image, regions)
    world.broadcast(None)  # nobody reads before it is written
    return captions, FeatureStore(folder.path / "shapes")


def build_captioner(config: RunConfig, data: Data) -> CaptionModel:
    """The model to train, with random weights or those of `model.init`."""
    settings, width = config.model, data.train.store.feature_dim
    if settings.init is None:
        assert settings.name is not None
        sizes = {"vocab_size": len(data.vocabulary), "feature_dim": width}
        spec = model_spec(settings.name, **{**settings.options, **sizes})
        if settings.attributes is not None:
            check_has_attributes(spec)
        _refuse_too_large(spec)
        model = build_model(spec)
        if settings.attributes is not None:
            _start_attributes(model, settings.attributes)
    else:
        before = from_pretrained(settings.init)
        start, store = before.model, data.train.store
        _refuse_other_model(settings, start.spec)
        if not settings.new_features:
            check_same_extractor(
                before.features, store.extractor, model=f"model.init {settings.init}", features=str(store.path)
            )
        if start.feature_dim != width:
            raise ConfigError(
                f"model.init {settings.init} takes features {start.feature_dim} wide, but {store.path} has "
                f"{width}; use the features it was trained with"
            )
        if faults := compare_weights(_shapes(start.spec, **settings.options), _shapes(start.spec)):
            raise ConfigError(
                f"model.options: the weights of model.init {settings.init} do not fit ({faults}); options that change "
                "sizes need a new model: remove them, or model.init"
            )
        model = build_model(start.spec, **{**settings.options, "vocab_size": len(data.vocabulary)})
        weights = start.state_dict()
        if data.vocabulary != before.vocabulary:
            weights = _with_words(model, weights, before.vocabulary, data.vocabulary)
        model.load_state_dict(weights)
    if model.wants_boxes:
        data.train.check_boxes()
    if config.train.scheduled_sampling is not None and isinstance(model.spec, TransformerSpec):
        raise ConfigError("train.scheduled_sampling works with LSTM decoders only: remove it for this model")
    return model


def _refuse_other_model(settings: ModelConfig, start: Spec) -> None:
    """Refuse a name that promises another model than the weights are of; dropout may change."""
    if settings.name is None:
        return
    found = spec_to_dict(start)
    sizes = {key: found[key] for key in ("vocab_size", "feature_dim")}
    wanted = spec_to_dict(model_spec(settings.name, **{**settings.options, **sizes}))
    name, init = f"model.name is {settings.name}", f"model.init {settings.init}"
    if wanted["architecture"] != found["architecture"]:
        raise ConfigError(f"{name}, but {init} is a model of another kind; remove one of the two")
    for key, value in wanted.items():
        if value != found[key] and not key.endswith("dropout"):
            raise ConfigError(f"{name}, with {key} {value}, but {init} has {key} {found[key]}; remove one of the two")


def _with_words(
    model: CaptionModel, weights: Mapping[str, Tensor], before: Vocabulary, now: Vocabulary
) -> dict[str, Tensor]:
    """Weights of a model with the vocabulary `before`, for `model`, whose vocabulary is `now`.

    Words and special ids that both have keep their rows; those of new words are as `model` has drawn them.
    """
    known = {word: number for number, word in enumerate(before.words)}
    rows = {number: known[word] for number, word in enumerate(now.words) if word in known}
    rows |= {getattr(now.special, name): getattr(before.special, name) for name in ("pad", "bos", "eos", "unk")}
    to, source = torch.tensor(list(rows)), torch.tensor(list(rows.values()))
    # What has a row for every word shows in a model with one word more: both vocabularies may be equally large.
    larger = _shapes(model.spec, vocab_size=len(now) + 1)
    result = {}
    for name, fresh in model.state_dict().items():
        if fresh.shape == larger[name]:
            result[name] = weights[name]
        else:
            result[name] = fresh.clone()
            result[name][to] = weights[name][source]
    return result


def _shapes(spec: Spec, **changes: Any) -> dict[str, torch.Size]:
    """Shapes of the weights, by name, of a model with these changes."""
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in build_model(spec, **changes).state_dict().items()}


def _start_attributes(model: CaptionModel, path: str) -> None:
    """Let the attributes of an LSTM-A start from the words that an adapted vision network names."""
    assert isinstance(model.encoder, AttributeEncoder), "checked with the spec"
    head = WordHead.load(path)
    try:
        model.encoder.start_from(torch.from_numpy(head.weight), torch.from_numpy(head.bias))
    except ShapeError as error:
        raise ConfigError(f"model.attributes {path}: {error}") from None


def _refuse_too_large(spec: Spec) -> None:
    """Raise a clear error before the system runs out of memory and kills the process."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not tell
        return
    try:
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in build_model(spec).parameters())
    except RuntimeError:  # more elements than torch can count
        parameters = 2**63
    if 4 * parameters > memory:
        raise ConfigError(
            f"model.options: a model of {parameters:.3g} parameters needs {4 * parameters / 2**30:,.0f} GiB for its "
            f"weights alone, this machine has {memory / 2**30:,.0f} GiB; choose smaller sizes"
        )


def build_loader(config: RunConfig, dataset: CaptionDataset, world: World) -> TrainingLoader:
    """This process's share of the training batches."""
    size, left = divmod(config.train.batch_size, world.size)
    if left or not size:
        raise ConfigError(
            f"train.batch_size {config.train.batch_size} cannot be shared by {world.size} processes; use a multiple"
        )
    return training_loader(
        dataset,
        # A batch is filled up with repeated images, which is meant for an epoch's last one and not for millions.
        batch_size=min(size, -(-len(dataset) // world.size)),
        # Self-critical training samples captions of its own and reads none.
        captions_per_image=config.train.captions_per_image if config.stage == "xe" else 1,
        seed=config.seed,
        rank=world.rank,
        world_size=world.size,
        num_workers=config.data.workers,
        pin_memory=world.device.type == "cuda",
        bucket_by_length=config.data.bucket_by_length,
    )


def build_plan(config: RunConfig, *, batches: int) -> Plan:
    """The loop's numbers."""
    return Plan(
        epochs=config.train.epochs,
        batches=batches,
        max_steps=config.train.max_steps,
        clip_by=config.train.clip.by,
        clip_at=config.train.clip.at,
        evaluate_every=config.evaluation.every,
        early_stop=config.evaluation.early_stop,
        save_every=config.checkpoint.every,
        log_every=config.logging.every,
    )


def build_schedule(config: TrainConfig, *, batches: int) -> schedules.Schedule:
    """The learning rate; `batches` are those of an epoch."""
    settings, base = config.schedule, config.optimizer.lr
    if isinstance(settings, NoamConfig):
        return schedules.Noam(width=settings.width, warmup=settings.warmup, factor=base)
    if settings.name == "plateau":
        return schedules.Plateau(base, settings.factor, settings.patience)
    if settings.name == "cosine":
        return schedules.Cosine(base, total=batches * config.epochs, warmup=settings.warmup, floor=settings.floor)
    if settings.name == "step":
        return schedules.StepDecay(
            base, settings.factor, settings.every, batches, start=settings.start, warmup=settings.warmup
        )
    return schedules.Constant(base, warmup=settings.warmup)


def build_rewards(config: RunConfig, data: Data) -> RewardPool | None:
    """What scores sampled captions; None in the first stage."""
    scst = config.scst
    if scst is None:
        return None
    references, vocabulary = data.train.reference_ids(), data.vocabulary
    scorer: Scorer = cider_reward(references, vocabulary, document_frequency=scst.document_frequency)
    if scst.bleu_weight:
        scorer = WithBleu(scorer, references, weight=scst.bleu_weight, end=vocabulary.special.eos)
    return RewardPool(scorer, workers=scst.reward_workers)


def build_step(
    config: RunConfig,
    model: nn.Module,
    policy: CaptionModel,
    *,
    vocabulary: Vocabulary,
    world: World,
    rewards: RewardPool | None,
) -> StepFunction:
    """The step function of the stage; `policy` is the bare model inside `model`."""
    if config.scst is None:
        settings = config.train.scheduled_sampling
        own = None if settings is None else schedules.ScheduledSampling(**settings.model_dump())
        smoothing = config.train.label_smoothing

        def xe(batch: Batch, epoch: int, step: int) -> StepOutput:  # noqa: ARG001
            own_words = 0.0 if own is None else own.probability(epoch)
            return xe_step(model, batch, world=world, smoothing=smoothing, own_words=own_words)

        return xe
    assert rewards is not None
    scst = config.scst
    how = SelfCritical(
        rewards,
        vocabulary.special,
        bad_ending_ids(vocabulary),
        samples=scst.samples,
        baseline=scst.baseline,
        temperature=scst.temperature,
        max_length=scst.max_length,
        dropout=scst.dropout,
    )

    def self_critical(batch: Batch, epoch: int, step: int) -> StepOutput:  # noqa: ARG001
        return scst_step(model, batch, policy=policy, how=how, world=world, seed=(config.seed, step))

    return self_critical
