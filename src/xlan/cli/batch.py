"""`xlan batch`: caption or extract millions of pictures, on the processes of one machine or on a Ray cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli import shared_options as shared
from xlan.cli.engine import EngineChoice
from xlan.cli.extract import EXIT_SOME_BAD
from xlan.cli.features import Dtype
from xlan.cli.text import counted, printable
from xlan.threads import cores

if TYPE_CHECKING:
    from xlan.batch.executors import Executor
    from xlan.batch.job import Job
    from xlan.batch.plan import Manifest
    from xlan.batch.run import BatchReport

app = typer.Typer(
    help="Caption millions of pictures, or extract their features, shard by shard, on this machine or a Ray cluster.",
    no_args_is_help=True,
)

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Folders, quoted globs, WebDataset .tar files ('shard-{000..099}.tar'), Parquet or Arrow files, or .txt "
        "files with a path or an address a line; local, or addresses such as s3://bucket/folder.",
        show_default=False,
    ),
]
Output = Annotated[
    str,
    typer.Option("-o", "--output", metavar="PLACE", help="Folder or address of the result; an existing job continues."),
]
Ray = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Compute on this Ray cluster; 'auto' finds it, 'local' starts one here."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=4096,
        help="Worker processes, each with a model; 0 computes in this process. Default: one per core or GPU.",
        show_default=False,
    ),
]
Threads = Annotated[int, typer.Option(metavar="N", min=1, max=256, help="Threads that compute, per worker.")]
Readers = Annotated[int, typer.Option(metavar="N", min=1, max=256, help="Threads that read pictures, per worker.")]
ShardSize = Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="Pictures per shard.")]
Column = Annotated[
    str | None, typer.Option(metavar="NAME", help="Picture column of tables (bytes or paths); default: found by name.")
]
IdColumn = Annotated[str | None, typer.Option(metavar="NAME", help="Id column of tables; default: found by name.")]
KeepPlan = Annotated[
    bool, typer.Option("--keep-plan", help="Complete an existing job as planned, even if its input has changed.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove an existing job in the output, and start again.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda (a GPU per worker), mps.")]
Megabytes = Annotated[float, typer.Option(help="Refuse larger picture files.", min=0.001, max=100_000)]
Megapixels = Annotated[float, typer.Option(help="Refuse pictures with more pixels.", min=0.001, max=100_000)]


@app.command()
def caption(
    inputs: Inputs,
    output: Output,
    ray: Ray = None,
    model: shared.Model = None,
    beams: shared.Beams = None,
    samples: shared.Samples = None,
    temperature: shared.Temperature = None,
    top_p: shared.TopP = None,
    seed: shared.Seed = None,
    must: shared.Must = None,
    max_length: shared.MaxLength = None,
    detector: shared.Detector = None,
    engine: shared.Engine = EngineChoice.auto,
    device: Device = "cpu",
    workers: Workers = None,
    threads: Threads = 1,
    readers: Readers = 2,
    batch_size: shared.BatchSize = 16,
    shard_size: ShardSize = 512,
    column: Column = None,
    id_column: IdColumn = None,
    max_megabytes: Megabytes = 64.0,
    max_megapixels: Megapixels = 120.0,
    keep_plan: KeepPlan = False,
    overwrite: Overwrite = False,
) -> None:
    """Caption pictures into Parquet files: a row per picture, a file per shard.

    Columns: id, image, caption, confidence, score, words, others, error. A picture that cannot be used is a row with
    its error; the exit status is then 3. After an interruption, or the loss of workers or machines, the same command
    completes the job without repeating finished shards.
    """
    from xlan.batch.job import Job

    drawing = {"samples": samples, "temperature": temperature, "top_p": top_p, "seed": seed}
    options = asdict(shared.caption_options(beams=beams, **drawing, must=must, max_length=max_length))
    job = Job(
        kind="caption",
        output=_absolute(output),
        model=_model(model),
        engine=engine.value,
        device=device,
        threads=threads,
        batch_size=batch_size,
        readers=readers,
        max_bytes=int(max_megabytes * 2**20),
        max_pixels=int(max_megapixels * 1e6),
        options={**options, "must": list(options["must"])},
        detector=_path(detector),
    )
    _run(job, inputs, ray, workers, output, shard_size, column, id_column, keep_plan, overwrite)


@app.command()
def features(
    inputs: Inputs,
    output: Output,
    ray: Ray = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Model directory whose vision network is used; else that of xlan's own model."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Network with ImageNet weights instead: efficientnet-lite0 or -lite2."),
    ] = None,
    vision: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Adapted network instead, a vision.safetensors.")
    ] = None,
    detector: Annotated[Path | None, typer.Option(metavar="DIR", help="Detector directory instead of a grid.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="How features are kept.")] = Dtype.FLOAT16,
    engine: shared.Engine = EngineChoice.auto,
    device: Device = "cpu",
    workers: Workers = None,
    threads: Threads = 1,
    readers: Readers = 2,
    batch_size: shared.BatchSize = 16,
    shard_size: ShardSize = 512,
    column: Column = None,
    id_column: IdColumn = None,
    max_megabytes: Megabytes = 64.0,
    max_megapixels: Megapixels = 120.0,
    keep_plan: KeepPlan = False,
    overwrite: Overwrite = False,
) -> None:
    """Extract region features of pictures into a feature store.

    Pictures that cannot be used are listed in _job/skipped.txt; the exit status is then 3. After an interruption, or
    the loss of workers or machines, the same command completes the job without repeating finished shards.
    """
    from xlan.batch.job import Job

    chosen = {"--model": model, "--network": network, "--vision": vision}
    if len(named := [name for name, value in chosen.items() if value is not None]) > 1:
        raise typer.BadParameter(f"give one of {' and '.join(named)}", param_hint=named[0])
    if detector is not None and (model is not None or network is not None):
        raise typer.BadParameter("makes the regions itself; leave out --model and --network", param_hint="--detector")
    if detector is not None and device != "cpu":
        raise typer.BadParameter(f"detectors compute on the cpu, got {device}; leave it out", param_hint="--device")
    if engine is EngineChoice.onnx and network is not None:
        raise typer.BadParameter("ImageNet weights compute with torch, got onnx; leave it out", param_hint="--engine")
    if engine is EngineChoice.onnx and detector is not None and not _is_small(detector):
        raise typer.BadParameter(
            f"only small detectors compute with onnx, {detector} with torch; leave it out", param_hint="--engine"
        )
    job = Job(
        kind="features",
        output=_absolute(output),
        model=_model(model),
        engine=engine.value,
        device=device,
        threads=threads,
        batch_size=batch_size,
        readers=readers,
        max_bytes=int(max_megabytes * 2**20),
        max_pixels=int(max_megapixels * 1e6),
        detector=_path(detector),
        network=network,
        vision=_path(vision),
        dtype=dtype.value,
    )
    _run(job, inputs, ray, workers, output, shard_size, column, id_column, keep_plan, overwrite)


def _is_small(detector: Path) -> bool:
    from xlan.vision.detector.directory_settings import LITE, read_settings

    return read_settings(detector).get("kind") == LITE


def _model(model: Path | None) -> str | None:
    """Absolute path of the model directory, for workers in other folders; a model of the Hub is fetched once, here."""
    from xlan.pretrained import find_model

    return None if model is None else _path(find_model(model))


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _absolute(place: str) -> str:
    """Absolute path of an output, for workers in other folders."""
    return place if "://" in place else str(Path(place).resolve())


def _run(
    job: Job,
    inputs: list[str],
    ray: str | None,
    workers: int | None,
    output: str,
    shard_size: int,
    column: str | None,
    id_column: str | None,
    keep_plan: bool,
    overwrite: bool,
) -> None:
    from xlan.batch.run import run_batch
    from xlan.cli.progress import count_progress

    executor = _executor(job, ray, workers)
    noun = "captioning" if job.kind == "caption" else "extracting"

    def planned(manifest: Manifest, existing: bool) -> None:
        size = f"{counted(manifest.pictures, 'picture')} in {counted(manifest.shards, 'shard')}"
        _say(f"{output}: {'continues a job of' if existing else 'planned'} {size}")

    try:
        with count_progress(noun) as move:
            report = run_batch(
                job,
                inputs,
                executor,
                shard_size=shard_size,
                column=column,
                id_column=id_column,
                keep_plan=keep_plan,
                overwrite=overwrite,
                on_progress=move,
                on_plan=planned,
            )
    except KeyboardInterrupt:
        _say("interrupted: finished shards are kept; the same command continues")
        raise typer.Exit(130) from None
    _tell(report, job, output)
    if report.errors or report.changed:
        raise typer.Exit(EXIT_SOME_BAD)


def _executor(job: Job, ray: str | None, workers: int | None) -> Executor:
    from xlan.batch.executors import Processes, ThisProcess

    if ray is not None:
        from xlan.batch.on_ray import RayCluster

        if workers == 0:
            raise typer.BadParameter("expected at least 1 together with --ray", param_hint="--workers")
        return RayCluster(ray, workers, _say)
    if workers == 0:
        return ThisProcess()
    return Processes(workers or _default_workers(job), _say)


def _default_workers(job: Job) -> int:
    if job.device == "cpu":
        return max(1, cores() // job.threads)
    if job.device == "cuda":
        import torch

        return max(1, torch.cuda.device_count())
    return 1


def _say(line: str) -> None:
    typer.echo(printable(line), err=True)


def _tell(report: BatchReport, job: Job, output: str) -> None:
    done = "captioned" if job.kind == "caption" else "extracted"
    parts = [f"{counted(report.pictures - report.errors, 'picture')} {done} in {counted(report.shards, 'shard')}"]
    if report.errors:
        where = "see the column error" if job.kind == "caption" else f"see {output.rstrip('/')}/_job/skipped.txt"
        parts.append(f"{report.errors:,} could not be used ({where})")
    if report.already_done:
        parts.append(f"{counted(report.already_done, 'shard')} already done")
    if report.made and report.seconds > 0:
        parts.append(f"{report.made / report.seconds:.1f} pictures/s")
    typer.echo(printable(f"{output}: {'; '.join(parts)}"))
    if report.changed:
        _say(f"warning: the input changed during the job: {report.changed}; the result follows the plan")
