"""One training run, from its configuration to its end.

With `build.py`, which makes the parts, the only training file that sees configuration.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xlan.config import RunConfig, changed_keys, dump_config, parse_config, save_config
from xlan.data.loader import evaluation_loader, reference_loader
from xlan.errors import ConfigError, MissingExtraError, TrainingError
from xlan.files import write_json
from xlan.model.captioner import CaptionModel
from xlan.training.average import AveragedWeights
from xlan.training.build import (
    Data,
    build_captioner,
    build_loader,
    build_plan,
    build_rewards,
    build_schedule,
    build_step,
    load_data,
)
from xlan.training.checkpoint import Checkpoint
from xlan.training.collapse import CollapseWatch
from xlan.training.distributed import World, explain_lost_peers
from xlan.training.evaluate import decode_split, evaluate_split, reference_loss
from xlan.training.folder import RunFolder, model_card, save_model, vocabulary_hash
from xlan.training.logs import RunLog, environment
from xlan.training.loop import Job, resume, seed_everything, train
from xlan.training.optim import build_optimizer
from xlan.training.rewards import RewardPool
from xlan.training.scoring import Scores, score_captions
from xlan.training.state import model_tensors, whole_weights
from xlan.training.stop import Stopped, StopRequest

DISTRIBUTED_TIMEOUT = timedelta(minutes=30)


def run_training(config: RunConfig, *, resume_from: str | None = None, threads: int | None = None) -> int:
    """Run a configuration to its end; returns the exit status (0, or 128 + signal when asked to stop).

    Args:
        config: what to do.
        resume_from: None starts a new run and refuses a folder that holds one; `auto` resumes from the newest
            undamaged checkpoint of the folder, or starts when there is none; anything else is the path of a checkpoint.
        threads: of torch; None takes OMP_NUM_THREADS, else the checkpoint's number, else one per core. The bits of the
            weights depend on it.

    Raises:
        XlanError: anything a user can fix, in one line.
    """
    accelerator = _accelerator(config)
    world = World(accelerator.process_index, accelerator.num_processes, accelerator.device)
    stop = StopRequest()
    with explain_lost_peers(world), stop.listening():
        try:
            return _run(config, accelerator, world, stop, resume_from=resume_from, threads=threads)
        except Stopped:
            return stop.status
        except OSError as error:  # a full disk, a share that went away
            reason = f"{error.filename or config.output}: {error.strerror or error}"
            raise TrainingError(f"{reason}; fix that and continue with --resume auto") from error
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
    """Leave the process group; a second run in this process starts afresh."""
    from accelerate.state import AcceleratorState

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    gc.collect()  # the wrapped model is a cycle that keeps the group's threads running


def _run(
    config: RunConfig,
    accelerator: Any,
    world: World,
    stop: StopRequest,
    *,
    resume_from: str | None,
    threads: int | None,
) -> int:
    with ExitStack() as stack:
        folder = RunFolder(config.output, keep=config.checkpoint.keep)
        checkpoint = folder.find_checkpoint(resume_from)
        stack.enter_context(folder.claimed(world))
        if threads is None and "OMP_NUM_THREADS" not in os.environ:
            threads = None if checkpoint is None else _threads_of(checkpoint)
        if threads is not None:
            torch.set_num_threads(threads)
        seed_everything(config.seed, world.rank)
        data = load_data(config, folder, world)
        model = build_captioner(config, data)
        if checkpoint is not None:
            _check_same_run(config, data, checkpoint)
        step = None if checkpoint is None else int(checkpoint.state["step"])
        log = stack.enter_context(
            RunLog(folder.path, tensorboard=config.logging.tensorboard, quiet=not world.is_main, step=step)
        )
        rewards = build_rewards(config, data)
        if rewards is not None:
            stack.enter_context(rewards)
        optimizer = build_optimizer(
            parameters=model.parameters(),
            **config.train.optimizer.model_dump(include={"name", "betas", "eps", "weight_decay"}),
        )
        wrapped, prepared = accelerator.prepare(model, optimizer)
        run = Run(config, folder, data, world, stop, wrapped, accelerator.unwrap_model(wrapped))
        job = run.job(accelerator, prepared, log, rewards)
        if checkpoint is not None:
            resume(job, checkpoint)
        else:
            log.rewind(-1)  # a run that was killed before its first checkpoint may have left a log
        run.describe(job, resumed=checkpoint)
        reason = train(job)
        with job.final_weights():
            run.export(folder.last, {}, job.position.epoch)
        best = "" if job.position.best is None else f"; best CIDEr {job.position.best:.4f}"
        log.write("end", step=job.position.step, reason=reason)
        log.say(f"{reason}{best}; the run is in {folder.path}")
        return stop.status if stop.signal is not None or reason.startswith("stopped") else 0


def _threads_of(checkpoint: Checkpoint) -> int | None:
    recorded = checkpoint.state.get("environment", {}).get("threads")
    return recorded if isinstance(recorded, int) and 0 < recorded <= (os.cpu_count() or 1) else None


def _check_same_run(config: RunConfig, data: Data, checkpoint: Checkpoint) -> None:
    if checkpoint.state.get("vocabulary") != vocabulary_hash(data.vocabulary):
        raise TrainingError(
            f"{checkpoint.path}: was trained with another vocabulary ({checkpoint.state.get('words')} words, now "
            f"{len(data.vocabulary)}); resume with the captions and data.min_count it began with"
        )
    # Through the schema, so that keys which are newer than the checkpoint have their defaults.
    before = dump_config(parse_config(checkpoint.state.get("config", {}), source=str(checkpoint.path)))
    changed = changed_keys(before, dump_config(config))
    if changed:
        raise ConfigError(
            f"{checkpoint.path}: a resumed run must keep its settings, but these changed: {', '.join(changed)}; "
            f"change them back, or start a new run in another folder with model.init"
        )
    if checkpoint.state.get("data") not in (None, data.train.identity):  # older checkpoints do not say
        raise TrainingError(
            f"{checkpoint.path}: was trained on other images, captions or features than data.captions and "
            f"data.features have now; give those it began with, or start a new run in another folder with model.init"
        )


@dataclass(frozen=True)
class Run:
    """A run whose parts exist: it makes the loop's job of them, and does what the loop leaves to it.

    Attributes:
        config: its settings.
        folder: its folder.
        data: what is trained and validated on.
        world: its processes.
        stop: whether it was asked to end.
        model: the model, wrapped for the processes.
        policy: the bare model inside.
    """

    config: RunConfig
    folder: RunFolder
    data: Data
    world: World
    stop: StopRequest
    model: nn.Module
    policy: CaptionModel

    def job(self, accelerator: Any, optimizer: Any, log: RunLog, rewards: RewardPool | None) -> Job:
        """What the loop works on."""
        config, data, world = self.config, self.data, self.world
        loader = build_loader(config, data.train, world)
        decay = config.train.average
        return Job(
            model=self.model,
            optimizer=optimizer,
            accelerator=accelerator,
            world=world,
            loader=loader,
            step=build_step(config, self.model, self.policy, vocabulary=data.vocabulary, world=world, rewards=rewards),
            schedule=build_schedule(config.train, batches=len(loader)),
            evaluate=self.evaluate,
            keep_best=lambda scores, epoch: self.export(self.folder.best, scores, epoch + 1),
            checkpoints=self.folder.checkpoints,
            log=log,
            plan=build_plan(config, batches=len(loader)),
            stop=self.stop,
            watch=None if config.scst is None else CollapseWatch(config.scst.collapse_window),
            average=None if decay is None else AveragedWeights(self.model.named_parameters(), decay),
            record={
                "config": dump_config(config),
                "environment": environment(),
                "vocabulary": vocabulary_hash(data.vocabulary),
                "words": len(data.vocabulary),
                "data": data.train.identity,
            },
        )

    def evaluate(self, epoch: int) -> Scores:
        """Decode and score the validation split; in the first stage also its loss."""
        config, data, world = self.config, self.data, self.world
        settings = config.evaluation
        share: dict[str, Any] = {"rank": world.rank, "world_size": world.size, "num_workers": config.data.workers}
        loss: dict[str, float] = {}
        with whole_weights(self.model):
            captions = decode_split(
                self.policy,
                evaluation_loader(data.val, batch_size=settings.batch_size, **share),
                data.vocabulary,
                device=world.device,
                beams=settings.beams,
                max_length=settings.max_length,
                stop=self.stop,
            )
            if config.stage == "xe":  # what this stage makes smaller; self-critical training does not
                references = reference_loader(
                    data.val,
                    batch_size=config.train.batch_size // world.size,  # fits in memory with gradients, so it does here
                    captions_per_image=config.train.captions_per_image,
                    **share,
                )
                loss["loss"] = reference_loss(self.policy, references, world=world, stop=self.stop)
        scores = evaluate_split(
            captions,
            data.val.reference_texts(),
            world=world,
            path=self.folder.prediction_file(config.data.val_split, epoch),
            score=partial(score_captions, metrics=settings.metrics),
        )
        return Scores({**loss, **scores.values}, scores.notes)

    def export(self, directory: Path, scores: Mapping[str, float], epochs: int) -> None:
        """Write a model directory with the weights as they are; every process takes part."""
        config = self.config
        how = "cross-entropy" if config.scst is None else "self-critical training with CIDEr-D"
        if config.scst is not None and config.scst.bleu_weight:
            how += f" plus {config.scst.bleu_weight:g} × BLEU-4"
        if config.train.average is not None:
            how += ", averaged weights"
        card = model_card(
            name=config.model.name or f"from {config.model.init}",
            how=how,
            epochs=epochs,
            split=config.data.val_split,
            scores=scores,
            config=dump_config(config),
            vocabulary=self.data.vocabulary,
        )
        save_model(
            directory,
            model_tensors(self.model),
            self.policy.spec,
            self.data.vocabulary,
            card=card,
            world=self.world,
            features=self.data.train.store.extractor,
        )

    def describe(self, job: Job, *, resumed: Checkpoint | None) -> None:
        """Write down what the run is, and tell the person."""
        if not self.world.is_main:
            return
        config, data, folder, log, step = self.config, self.data, self.folder, job.log, job.position.step
        save_config(config, folder.config)
        write_json(folder.environment, {**environment(), "processes": self.world.size})
        data.vocabulary.save(folder.vocabulary)
        some = data.val.images[: config.logging.samples]
        write_json(folder.samples, {image.id: list(image.captions) for image in some})
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        log.write(
            "start",
            step=step,
            resumed=resumed is not None,
            parameters=parameters,
            train_images=len(data.train),
            val_images=len(data.val),
        )
        log.say(
            f"{f'continuing after step {step}' if resumed else 'starting'}: {config.stage}, {parameters:,} parameters, "
            f"{len(data.train):,} images to train on, {len(data.val):,} to validate on, "
            f"{len(data.vocabulary):,} words, {self.world.size} process(es) on {self.world.device}, "
            f"{torch.get_num_threads()} thread(s)"
        )
        for warning in self._warnings(resumed):
            log.warn(warning, step=step)

    def _warnings(self, resumed: Checkpoint | None) -> list[str]:
        found = []
        for dataset in (self.data.train, self.data.val):
            if dataset.missing:
                found.append(
                    f"{len(dataset.missing):,} images of split {dataset.split!r} have no features and were left out"
                )
        size, images = self.config.train.batch_size, len(self.data.train)
        if size > images:
            found.append(
                f"train.batch_size {size:,} is more than the {images:,} training images: all of them are one batch"
            )
        if self.policy.wants_boxes and self.data.train.boxes_are_a_grid():
            found.append(
                "the boxes of all pictures are alike, as on a grid: the graph of this model says nothing then, and on "
                "a fine grid it learns next to nothing; use regions of a detector (xlan features extract --detector)"
            )
        if resumed is None:
            return found
        for path, problem in self.folder.damaged.items():
            found.append(f"skipped a damaged checkpoint, now called damaged-{path.name}: {problem}")
        threads, now = _threads_of(resumed), torch.get_num_threads()
        if threads is not None and threads != now:
            found.append(
                f"the checkpoint was made with {threads} thread(s), now {now}: weights may differ in the last bits"
            )
        return found
