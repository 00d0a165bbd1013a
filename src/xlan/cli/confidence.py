"""`xlan confidence`: fit a model's confidence on a validation split, and check it on another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.engine import MODEL_WORDS
from xlan.cli.progress import count_progress
from xlan.cli.text import counted

if TYPE_CHECKING:
    from xlan.confidence.evidence import Evidence
    from xlan.confidence.measure import Answer
    from xlan.pipeline import Captioner

app = typer.Typer(help="Fit and check confidence: the share of a caption's content words that people use too.")

ModelArgument = Annotated[Path, typer.Argument(help=f"{MODEL_WORDS}.")]
FolderArgument = Annotated[Path, typer.Argument(help="Model directory on this machine.", exists=True, file_okay=False)]
CaptionsOption = Annotated[Path, typer.Option(help="Captions file with reference captions and splits.")]
FeaturesOption = Annotated[Path, typer.Option(help="Feature store of its pictures, made with the model's vision.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Use only this many pictures of the split, for a trial.")]
BATCH = 32


@app.command()
def fit(
    model: FolderArgument,
    captions: CaptionsOption,
    features: FeaturesOption,
    split: Annotated[str, typer.Option(help="Split to fit on; the model must not have been trained on it.")] = "val",
    odd: Annotated[
        int, typer.Option(min=0, help="How many drawn pictures, whose captions count as wrong, to fit on as well.")
    ] = 210,
    limit: LimitOption = None,
) -> None:
    """Fit the calibration of confidence, and write it to the model directory as confidence.json.

    The model captions every picture of the split; for each content word it is noted whether people used it too.
    """
    from xlan.confidence.calibration import FEWEST, Calibration
    from xlan.packing import calibrate_model
    from xlan.pipeline import Captioner

    captioner = Captioner.from_pretrained(model)
    odd = odd if captioner.extractor is not None else 0
    answers, scores = _answers_and_scores(captioner, captions, features, split, limit, fewest=max(1, FEWEST - odd))
    evidence, used = [answer.evidence for answer in answers], [answer.used for answer in answers]
    for known in _odd(captioner, odd):
        evidence.append(known)
        used.append((False,) * len(known.places))
        scores.append(0.0)
    calibration = Calibration.fit(evidence, used, scores)
    calibrate_model(model, calibration)
    share = sum(answer.share for answer in answers) / len(answers)
    typer.echo(
        f"{model}: fitted on {calibration.fitted_on:,} captions of {split}; people use {share:.0%} of the content "
        f"words of its captions; check it on another split: xlan confidence check {model} …"
    )


@app.command()
def check(
    model: ModelArgument,
    captions: CaptionsOption,
    features: FeaturesOption,
    split: Annotated[str, typer.Option(help="Split to check on, unseen in training and fitting.")] = "test",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also draw the reliability diagram, as a page (.html).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    limit: LimitOption = None,
) -> None:
    """Compare confidences with what people said: calibration error, and rank correlation with CIDEr."""
    import dataclasses
    import json

    from xlan.confidence.measure import measure
    from xlan.errors import DataError
    from xlan.files import write_text
    from xlan.pages.reliability import reliability_page
    from xlan.pipeline import Captioner

    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        raise DataError(f"{output}: expected a file name that ends in .html")
    captioner = Captioner.from_pretrained(model)
    if captioner.judge.calibration is None:
        raise DataError(f"{model}: is not calibrated; fit it first: xlan confidence fit {model} …")
    answers, scores = _answers_and_scores(captioner, captions, features, split, limit)
    found = measure(answers, scores)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        typer.echo(f"{counted(len(answers), 'caption')} of {split}")
        typer.echo(f"expected calibration error: captions {found.captions.error:.4f}, words {found.words.error:.4f}")
        typer.echo(f"rank correlation of confidence with CIDEr: {found.rank:.3f}")
    if output is not None:
        write_text(output, reliability_page(model.name, split, found))
        typer.echo(str(output), err=True)


def _answers_and_scores(
    captioner: Captioner, captions: Path, features: Path, split: str, limit: int | None, fewest: int = 1
) -> tuple[list[Answer], list[float]]:
    """What the model says of each picture of a split, and the CIDEr of that; `fewest` pictures are needed."""
    from xlan.metrics.report import evaluate

    answers: list[Answer] = []
    references: dict[int | str, list[str]] = {}
    for said, answer in _answers(captioner, captions, features, split, limit, fewest):
        references[len(answers)] = list(said)
        answers.append(answer)
    report = evaluate({i: answer.caption.text for i, answer in enumerate(answers)}, references, metrics=["cider"])
    scores = report.scores["CIDEr"].images
    assert scores is not None
    return answers, scores.tolist()


def _answers(
    captioner: Captioner, captions: Path, features: Path, split: str, limit: int | None, fewest: int
) -> Iterator[tuple[tuple[str, ...], Answer]]:
    """What people said of each picture of a split, and what the model says, with progress."""
    from xlan.confidence.measure import Answer, used_by_people
    from xlan.data.captions import load_captions
    from xlan.data.records import feature_key
    from xlan.errors import DataError, FeatureError
    from xlan.vision.regions import check_same_extractor
    from xlan.vision.store import FeatureStore

    store = FeatureStore(features)
    if captioner.extractor is not None:
        made_by = captioner.extractor.description
        check_same_extractor(made_by, store.extractor, model="this model", features=str(features))
    if store.feature_dim != captioner.engine.feature_dim:
        width = f"{store.feature_dim} wide, the model expects {captioner.engine.feature_dim}"
        raise FeatureError(f"{features}: features are {width}; use those it was trained on")
    images = [(image, key) for image in load_captions(captions).split(split) if (key := feature_key(image, store))]
    images = images[:limit]
    if not images:
        raise DataError(f"{captions}: no picture of the split {split!r} has features in {features}")
    if len(images) < fewest:
        raise DataError(
            f"{captions}: expected at least {fewest} pictures of the split {split!r} with features, got {len(images)}"
        )
    with count_progress(f"captioning {split}") as move:
        move(0, len(images))
        for start in range(0, len(images), BATCH):
            batch = images[start : start + BATCH]
            regions = [store[key] for _, key in batch]
            found = captioner.caption_regions(regions)
            for (image, _), where, caption in zip(batch, regions, found, strict=True):
                known = captioner.judge.evidence(caption, captioner.judge.witness.look(where))
                yield image.captions, Answer(caption, known, used_by_people(caption, image.captions))
            move(start + len(batch), len(images))


def _odd(captioner: Captioner, count: int) -> Iterator[Evidence]:
    from xlan.confidence.odd import odd_pictures

    extractor = captioner.extractor
    if extractor is None:
        return
    with count_progress("captioning drawn pictures") as move:
        for number, image in enumerate(odd_pictures(count)):
            move(number, count)
            (regions,) = extractor.extract([extractor.prepare(image)])
            (caption,) = captioner.caption_regions([regions])
            yield captioner.judge.evidence(caption, captioner.judge.witness.look(regions))
