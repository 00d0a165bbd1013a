"""RunConfig → objects → loop: the only training file that sees configuration."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from xlan.config import NoamConfig, RunConfig, TrainConfig, changed_keys, dump_config, save_config
from xlan.data.captions import build_vocabulary, load_captions
from xlan.data.dataset import CaptionDataset
from xlan.data.loader import TrainingLoader, evaluation_loader, reference_loader, training_loader
from xlan.data.records import CaptionSet
from xlan.data.shapes import make_shapes
from xlan.errors import ConfigError, MissingExtraError, TrainingError
from xlan.files import write_json
from xlan.model.build import build_model
from xlan.model.captioner import CaptionModel
from xlan.model.spec import TransformerSpec
from xlan.pretrained import from_pretrained
from xlan.text.endings import bad_ending_ids
from xlan.text.vocab import Vocabulary
from xlan.training import schedule as schedules
from xlan.training.checkpoint import Checkpoint
from xlan.training.collapse import CollapseWatch
from xlan.training.distributed import World, explain_lost_peers
from xlan.training.evaluate import decode_split, evaluate_split, reference_loss
from xlan.training.folder import RunFolder, model_card, save_model, vocabulary_hash
from xlan.training.logs import RunLog, environment
from xlan.training.loop import Job, Plan, resume, seed_everything, train
from xlan.training.optim import build_optimizer
from xlan.training.rewards import RewardPool
from xlan.training.scoring import Scores, cider_reward, score_captions
from xlan.training.state import model_tensors, whole_weights
from xlan.training.steps import Batch, StepOutput, scst_step, xe_step
from xlan.training.stop import Stopped, StopRequest
from xlan.vision.regions import check_same_extractor
from xlan.vision.store import FeatureStore, FeatureStoreWriter

DISTRIBUTED_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class _Data:
    """What is trained and validated on."""

    train: CaptionDataset
    val: CaptionDataset
    vocabulary: Vocabulary


def run_training(config: RunConfig, *, resume_from: str | None = None) -> int:
    """Run a configuration to its end; returns the exit status (0, or 128 + signal when asked to stop).

    Args:
        config: what to do.
        resume_from: None starts anew and refuses a folder that holds a run; `auto` goes on from the newest complete
            checkpoint of the folder, or starts when there is none; anything else is the path of a checkpoint.

    Raises:
        XlanError: anything a user can mend, in one line.
    """
    accelerator = _accelerator(config)
    world = World(accelerator.process_index, accelerator.num_processes, accelerator.device)
    stop = StopRequest()
    with explain_lost_peers(world), stop.listening():
        try:
            return _run(config, accelerator, world, stop, resume_from)
        except Stopped:
            return stop.status
        except OSError as error:  # a full disk, a share that went away
            reason = f"{error.filename or config.output}: {error.strerror or error}"
            raise TrainingError(f"{reason}; mend that and go on with --resume auto") from error
        finally:
            _leave()


def _accelerator(config: RunConfig) -> Any:
    try:
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs
    except ImportError:
        raise MissingExtraError("training", "train") from None
    precision = config.train.precision
    if precision == "fp16" and not torch.cuda.is_available():
        raise ConfigError("train.precision 'fp16' needs a GPU; allowed here: fp32, bf16")
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return Accelerator(
        # Without this, processes started by torchrun on a machine without a GPU would not find one another.
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no" if precision == "fp32" else precision,
        kwargs_handlers=[InitProcessGroupKwargs(backend=None, timeout=DISTRIBUTED_TIMEOUT)] if many else [],
    )


def _leave() -> None:
    """Take leave of the other processes; a second run in this process starts afresh."""
    from accelerate.state import AcceleratorState

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    gc.collect()  # the wrapped model is a cycle that keeps the group's threads running


def _run(config: RunConfig, accelerator: Any, world: World, stop: StopRequest, resume_from: str | None) -> int:
    folder = RunFolder(config.output, keep=config.checkpoint.keep)
    checkpoint = folder.find_checkpoint(resume_from)
    folder.claim(world)
    try:
        return _run_in(folder, config, accelerator, world, stop, checkpoint)
    finally:
        folder.release()


def _run_in(
    folder: RunFolder,
    config: RunConfig,
    accelerator: Any,
    world: World,
    stop: StopRequest,
    checkpoint: Checkpoint | None,
) -> int:
    seed_everything(config.seed, world.rank)
    data = _load_data(config, folder, world)
    model = _build(config, data)
    if checkpoint is not None:
        _check_same_run(config, data.vocabulary, checkpoint)
    log = RunLog(folder.path, tensorboard=config.logging.tensorboard, quiet=not world.is_main)
    rewards: RewardPool | None = None
    try:
        if config.scst is not None:
            scorer = cider_reward(
                data.train.reference_ids(), data.vocabulary, document_frequency=config.scst.document_frequency
            )
            rewards = RewardPool(scorer, workers=config.scst.reward_workers)
        job = _job(config, accelerator, world, stop, folder=folder, data=data, model=model, log=log, rewards=rewards)
        if checkpoint is not None:
            resume(job, checkpoint)
        else:
            log.rewind(-1)  # a run that was killed before its first checkpoint may have left a log
        _describe(config, job, data, folder, resumed=checkpoint)
        reason = train(job)
        _keep(config, job, data, folder.last, {}, job.position.epoch)
        best = "" if job.position.best is None else f"; best CIDEr {job.position.best:.4f}"
        log.write("end", step=job.position.step, reason=reason)
        log.say(f"{reason}{best}; the run is in {folder.path}")
        return stop.status if stop.signal is not None or reason.startswith("stopped") else 0
    finally:
        log.close()
        if rewards is not None:
            rewards.close()


def _load_data(config: RunConfig, folder: RunFolder, world: World) -> _Data:
    captions, store = _sources(config, folder, world)
    settings = config.data
    if config.model.init is not None:
        vocabulary = from_pretrained(config.model.init).vocabulary
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

    return _Data(
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


def _build(config: RunConfig, data: _Data) -> CaptionModel:
    settings, width = config.model, data.train.store.feature_dim
    if settings.init is None:
        assert settings.name is not None
        sizes = {"vocab_size": len(data.vocabulary), "feature_dim": width}
        model = build_model(settings.name, **{**settings.options, **sizes})
    else:
        before = from_pretrained(settings.init)
        start, store = before.model, data.train.store
        check_same_extractor(
            before.features, store.extractor, model=f"model.init {settings.init}", features=str(store.path)
        )
        if start.feature_dim != width:
            raise ConfigError(
                f"model.init {settings.init} takes features {start.feature_dim} wide, but {data.train.store.path} has "
                f"{width}; use the features it was trained with"
            )
        model = build_model(start.spec, **settings.options)
        model.load_state_dict(start.state_dict())
    if config.train.scheduled_sampling is not None and isinstance(model.spec, TransformerSpec):
        raise ConfigError("train.scheduled_sampling works with LSTM decoders only: remove it for this model")
    return model


def _check_same_run(config: RunConfig, vocabulary: Vocabulary, checkpoint: Checkpoint) -> None:
    if checkpoint.state.get("vocabulary") != vocabulary_hash(vocabulary):
        raise TrainingError(
            f"{checkpoint.path}: was trained with another vocabulary ({checkpoint.state.get('words')} words, now "
            f"{len(vocabulary)}); resume with the captions and data.min_count it began with"
        )
    changed = changed_keys(checkpoint.state.get("config", {}), dump_config(config))
    if changed:
        raise ConfigError(
            f"{checkpoint.path}: a resumed run must keep its settings, but these changed: {', '.join(changed)}; "
            f"change them back, or start anew in another folder with model.init"
        )


def _job(
    config: RunConfig,
    accelerator: Any,
    world: World,
    stop: StopRequest,
    *,
    folder: RunFolder,
    data: _Data,
    model: CaptionModel,
    log: RunLog,
    rewards: RewardPool | None,
) -> Job:
    loader = _loader(config, data.train, world)
    settings = config.train.optimizer
    optimizer = build_optimizer(
        settings.name,
        model.parameters(),
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    wrapped, prepared = accelerator.prepare(model, optimizer)
    policy = accelerator.unwrap_model(wrapped)
    job = Job(
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        world=world,
        loader=loader,
        step=_step(config, wrapped, policy, data=data, world=world, rewards=rewards),
        schedule=_schedule(config.train, total=len(loader) * config.train.epochs),
        evaluate=partial(_evaluate, config, folder, wrapped, policy, data, world, stop),
        keep_best=lambda scores, epoch: _keep(config, job, data, folder.best, scores, epoch + 1),
        checkpoints=folder.checkpoints,
        log=log,
        plan=_plan(config, batches=len(loader)),
        stop=stop,
        collapse=None if config.scst is None else CollapseWatch(config.scst.collapse_window),
        record={
            "config": dump_config(config),
            "environment": environment(),
            "vocabulary": vocabulary_hash(data.vocabulary),
            "words": len(data.vocabulary),
        },
    )
    return job


def _loader(config: RunConfig, dataset: CaptionDataset, world: World) -> TrainingLoader:
    size, left = divmod(config.train.batch_size, world.size)
    if left or not size:
        raise ConfigError(
            f"train.batch_size {config.train.batch_size} cannot be shared by {world.size} processes; use a multiple"
        )
    return training_loader(
        dataset,
        batch_size=size,
        # Self-critical training samples captions of its own and reads none.
        captions_per_image=config.train.captions_per_image if config.stage == "xe" else 1,
        seed=config.seed,
        rank=world.rank,
        world_size=world.size,
        num_workers=config.data.workers,
        pin_memory=world.device.type == "cuda",
        bucket_by_length=config.data.bucket_by_length,
    )


def _plan(config: RunConfig, *, batches: int) -> Plan:
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


def _schedule(config: TrainConfig, *, total: int) -> schedules.Schedule:
    settings, base = config.schedule, config.optimizer.lr
    if isinstance(settings, NoamConfig):
        return schedules.Noam(width=settings.width, warmup=settings.warmup, factor=base)
    if settings.name == "plateau":
        return schedules.Plateau(base, settings.factor, settings.patience)
    if settings.name == "cosine":
        return schedules.Cosine(base, total=total, warmup=settings.warmup, floor=settings.floor)
    return schedules.Constant(base, warmup=settings.warmup)


def _step(
    config: RunConfig,
    model: torch.nn.Module,
    policy: CaptionModel,
    *,
    data: _Data,
    world: World,
    rewards: RewardPool | None,
) -> Callable[[Batch, int, int], StepOutput]:
    if config.scst is None:
        settings = config.train.scheduled_sampling
        own = None if settings is None else schedules.ScheduledSampling(**settings.model_dump())
        smoothing = config.train.label_smoothing

        def xe(batch: Batch, epoch: int, step: int) -> StepOutput:  # noqa: ARG001
            own_words = 0.0 if own is None else own.probability(epoch)
            return xe_step(model, batch, world=world, smoothing=smoothing, own_words=own_words)

        return xe
    scst, special = config.scst, data.vocabulary.special
    assert rewards is not None
    endings = bad_ending_ids(data.vocabulary)

    def self_critical(batch: Batch, epoch: int, step: int) -> StepOutput:  # noqa: ARG001
        return scst_step(
            model,
            batch,
            policy=policy,
            special=special,
            world=world,
            rewards=rewards,
            bad_endings=endings,
            samples=scst.samples,
            baseline=scst.baseline,
            temperature=scst.temperature,
            max_length=scst.max_length,
            dropout=scst.dropout,
            seed=(config.seed, step),
        )

    return self_critical


def _evaluate(
    config: RunConfig,
    folder: RunFolder,
    model: torch.nn.Module,
    policy: CaptionModel,
    data: _Data,
    world: World,
    stop: StopRequest,
    epoch: int,
) -> Scores:
    settings = config.evaluation
    share: dict[str, Any] = {"rank": world.rank, "world_size": world.size, "num_workers": config.data.workers}
    loss: dict[str, float] = {}
    with whole_weights(model):
        captions = decode_split(
            policy,
            evaluation_loader(data.val, batch_size=settings.batch_size, **share),
            data.vocabulary,
            device=world.device,
            beams=settings.beams,
            max_length=settings.max_length,
            stop=stop,
        )
        if config.stage == "xe":  # what this stage makes smaller; self-critical training does not
            references = reference_loader(
                data.val,
                batch_size=config.train.batch_size // world.size,  # fits in memory with gradients, so it does without
                captions_per_image=config.train.captions_per_image,
                **share,
            )
            loss["loss"] = reference_loss(policy, references, world=world, stop=stop)
    scores = evaluate_split(
        captions,
        data.val.reference_texts(),
        world=world,
        path=folder.prediction_file(config.data.val_split, epoch),
        score=partial(score_captions, metrics=settings.metrics),
    )
    return Scores({**loss, **scores.values}, scores.notes)


def _keep(config: RunConfig, job: Job, data: _Data, directory: Path, scores: Mapping[str, float], epochs: int) -> None:
    """Leave a model directory behind."""
    card = model_card(
        name=config.model.name or f"from {config.model.init}",
        stage=config.stage,
        epochs=epochs,
        split=config.data.val_split,
        scores=scores,
        config=dump_config(config),
        vocabulary=data.vocabulary,
    )
    spec = job.accelerator.unwrap_model(job.model).spec
    save_model(
        directory,
        model_tensors(job.model),
        spec,
        data.vocabulary,
        card=card,
        world=job.world,
        features=data.train.store.extractor,
    )


def _describe(config: RunConfig, job: Job, data: _Data, folder: RunFolder, *, resumed: Checkpoint | None) -> None:
    """Write down what the run is."""
    if not job.world.is_main:
        return
    save_config(config, folder.config)
    write_json(folder.environment, {**environment(), "processes": job.world.size})
    data.vocabulary.save(folder.vocabulary)
    some = data.val.images[: config.logging.samples]
    write_json(folder.samples, {image.id: list(image.captions) for image in some})
    for left_out in (data.train, data.val):
        if left_out.missing:
            text = f"{len(left_out.missing):,} images of split {left_out.split!r} have no features and were left out"
            job.log.warn(text, step=job.position.step)
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    position = job.position
    job.log.write("start", step=position.step, resumed=resumed is not None, parameters=parameters)
    what = f"going on after step {position.step}" if resumed else "starting"
    job.log.say(
        f"{what}: {config.stage}, {parameters:,} parameters, {len(data.train):,} images to train on, "
        f"{len(data.val):,} to validate on, {len(data.vocabulary):,} words, {job.world.size} process(es) on "
        f"{job.world.device}"
    )
