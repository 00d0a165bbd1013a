"""`xlan evaluate`: captions against references, by the COCO metrics."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.named_pictures import match_pictures
from xlan.cli.outputs import check_output
from xlan.cli.text import counted
from xlan.errors import MetricError

if TYPE_CHECKING:
    from rich.console import Console

    from xlan.metrics.coco import References
    from xlan.metrics.report import ImageTextScorer, Report

RESULTS_HELP = (
    "Captions: what `xlan caption -o` wrote (.jsonl, .csv), or COCO results as `xlan predict` writes them (.json)."
)
REFERENCES_HELP = (
    "Reference captions: COCO annotations or Karpathy's dataset JSON, or any other form that training takes "
    "(captions.csv / .jsonl, a Flickr token file, a folder)."
)
METRICS_HELP = "Which metrics, separated by commas: bleu, meteor, rouge, cider, spice, spice-spacy."
DEFAULT_METRICS = "bleu,meteor,rouge,cider,spice"
SPLIT_HELP = "Score this split of a Karpathy file (default: the one the captions are from)."
SUBSET_HELP = "Score the images that have a caption even if others have none."
SCORER_HELP = (
    "Also score captions against their pictures: a class or function of yours that makes an ImageTextScorer; "
    "may be repeated."
)
CORENLP_HELP = "Folder with the CoreNLP 3.6.0 jars that SPICE needs (see: xlan metrics setup-spice)."

_STATISTICS = {
    "captions": ("captions", "{:,}"),
    "empty": ("empty captions", "{:,}"),
    "mean_length": ("mean length in words", "{:.2f}"),
    "shortest": ("shortest", "{}"),
    "longest": ("longest", "{}"),
    "vocabulary": ("different words", "{:,}"),
    "distinct": ("different captions", "{:.1%}"),
    "novel": ("not said in the training captions", "{:.1%}"),
    "bad_endings": ("end on a, the, of, …", "{:.1%}"),
    "repeated_word": ("say a word twice in a row", "{:.1%}"),
    "repeated_2": ("repeat two words", "{:.1%}"),
    "repeated_3": ("repeat three words", "{:.1%}"),
    "repeated_4": ("repeat four words", "{:.1%}"),
}


def evaluate(
    results: Annotated[Path, typer.Argument(help=RESULTS_HELP, show_default=False)],
    references: Annotated[Path, typer.Argument(help=REFERENCES_HELP, show_default=False)],
    metrics: Annotated[str, typer.Option("--metrics", metavar="NAMES", help=METRICS_HELP)] = DEFAULT_METRICS,
    require: Annotated[
        list[str],
        typer.Option("--require", metavar="NAME", help="Fail unless this metric can be computed; may be repeated."),
    ] = [],  # noqa: B006
    as_json: Annotated[
        bool, typer.Option("--json", help="Print scores as JSON (full precision, null for what was not computed).")
    ] = False,
    per_image: Annotated[
        Path | None,
        typer.Option("--per-image", metavar="FILE", help="Also write the scores of every image, a JSON object a line."),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help=SPLIT_HELP)] = None,
    subset: Annotated[bool, typer.Option("--subset", help=SUBSET_HELP)] = False,
    training: Annotated[
        Path | None,
        typer.Option(
            "--training",
            metavar="FILE",
            help="Training captions, to tell novel captions (default: the train split of REFERENCES, if it has one).",
        ),
    ] = None,
    scorer: Annotated[list[str], typer.Option("--scorer", metavar="MODULE:NAME", help=SCORER_HELP)] = [],  # noqa: B006
    pictures: Annotated[
        Path | None, typer.Option("--pictures", metavar="FOLDER", help="Folder with the pictures, for --scorer.")
    ] = None,
    corenlp: Annotated[Path | None, typer.Option("--corenlp", metavar="FOLDER", help=CORENLP_HELP)] = None,
    spacy_model: Annotated[
        str | None, typer.Option("--spacy-model", help="Parser model of spice-spacy (default: en_core_web_sm).")
    ] = None,
) -> None:
    """Score captions with BLEU, METEOR, ROUGE-L, CIDEr and SPICE, as the official COCO scorer does.

    Scores are from 0 to 1 (CIDEr may be larger), as the official code prints them. A metric that cannot run here is
    shown as "not computed", with the reason.
    """
    from rich.console import Console

    from xlan.metrics import report as reports
    from xlan.metrics.coco import load_results, pair

    if per_image is not None:
        check_output(per_image, results, references)
    chosen = split_names(metrics)
    refuse_without("--corenlp", corenlp, "spice", [*chosen, *require])
    refuse_without("--spacy-model", spacy_model, "spice-spacy", [*chosen, *require])
    if pictures is not None and not scorer:
        raise MetricError("--pictures has an effect only together with --scorer")
    given = load_results(results)
    found = read_references(references, split)
    captions, wanted = pair(given, found, subset=subset)
    scorers = [load_scorer(name) for name in scorer]
    if scorers and pictures is None:
        raise MetricError("--scorer looks at the pictures: name their folder with --pictures FOLDER")
    shown = match_pictures(pictures, _picture_names(captions, found)) if scorers and pictures is not None else None
    with metric_progress("scoring") as progress:
        report = reports.evaluate(
            captions,
            wanted,
            metrics=chosen,
            require=require,
            corenlp=corenlp,
            spacy_model=spacy_model,
            known=_known(training, read_references(references) if split else found, found.ids_of(wanted).values()),
            scorers=scorers,
            pictures=shown,
            progress=progress,
        )
    if per_image is not None:
        _write_lines(per_image, report)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    for line in report.warnings:
        errors.print(f"note: {line}", markup=False)
    if as_json:
        for score in report.scores.values():
            if score.value is None:
                errors.print(f"{score.name} not computed: {score.reason}", markup=False)
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        _print(Console(highlight=False, markup=False), report)


def read_references(path: Path, split: str | None = None) -> References:
    """Reference captions from the JSON of the field, or from any other form that training takes."""
    from xlan.files import is_json
    from xlan.metrics.coco import References, load_references, plain_id

    if is_json(path) or not path.exists():
        return load_references(path, split=split)
    from xlan.data.captions import load_captions

    images = load_captions(path).images
    found = References(
        {plain_id(image.id): list(image.captions) for image in images},
        {plain_id(image.id): image.split for image in images},
        {plain_id(image.id): image.file for image in images if image.file},
    )
    return found if split is None else found.of_split(split)


def load_scorer(name: str) -> ImageTextScorer:
    """Make the scorer `module:name`; modules are also looked for in the current folder.

    Raises:
        MetricError: there is no such module or name, or what it makes is no scorer.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise MetricError(f"--scorer: expected module:name, for instance my_scores:ClipScore, got {name!r}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # whatever somebody else's code raises
        raise MetricError(f"--scorer {name}: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(made, "name", None), str) or not callable(getattr(made, "score", None)):
        raise MetricError(f"--scorer {name}: expected an object with a name and a method score (see docs/metrics.md)")
    scorer: ImageTextScorer = made
    return scorer


def _picture_names(captions: Iterable[int | str], references: References) -> dict[int | str, list[str]]:
    """What the pictures of the captions may be called besides the captions' own names."""
    own = references.ids_of(captions)
    return {name: [references.files[image]] if image in references.files else [] for name, image in own.items()}


def split_names(text: str) -> list[str]:
    """`"bleu, cider"` → `["bleu", "cider"]`."""
    return [name.strip().lower() for name in text.split(",") if name.strip()]


def refuse_without(option: str, value: object, metric: str, metrics: Sequence[str]) -> None:
    """Refuse an option of a metric that was not requested.

    Raises:
        MetricError: it was given all the same.
    """
    if value is not None and metric not in metrics:
        raise MetricError(f"{option} has an effect only with the metric {metric}: add it to --metrics")


@contextlib.contextmanager
def metric_progress(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error that is moved by (step, done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step, done, total: bar.update(task, description=f"{what}: {step}", completed=done, total=total)


def _known(training: Path | None, references: References, scored: Iterable[int | str]) -> frozenset[str] | None:
    """Tokenised training captions: from their own file, else from the train split of the references."""
    from xlan.metrics.stats import known_captions

    if training is not None:
        file = read_references(training)
        chosen = [key for key in file.captions if not file.splits or file.splits[key] in ("train", "restval")]
        return known_captions(text for key in chosen for text in file.captions[key])
    chosen = [key for key, split in references.splits.items() if split in ("train", "restval")]
    if not chosen or set(chosen) & set(scored):
        return None
    return known_captions(text for key in chosen for text in references.captions[key])


def _write_lines(path: Path, report: Report) -> None:
    from xlan.files import write_text

    lines = (json.dumps(record, ensure_ascii=False) for record in report.per_image())
    write_text(path, "".join(f"{line}\n" for line in lines))


def _print(console: Console, report: Report) -> None:
    from rich.table import Table

    scores = Table("metric", "score", "×100", "", title=counted(len(report.images), "image"))
    for column in (1, 2):
        scores.columns[column].justify = "right"
    for score in report.scores.values():
        if score.value is None:
            scores.add_row(score.name, "not computed", "", score.reason, style="yellow")
        else:
            scores.add_row(score.name, f"{score.value:.4f}", f"{100 * score.value:.1f}", score.label)
    console.print(scores)
    facts = Table("captions", "", title="the captions themselves", show_header=False)
    facts.columns[1].justify = "right"
    for name, value in report.statistics.as_dict().items():
        if value is not None:
            title, form = _STATISTICS[name]
            facts.add_row(title, form.format(value))
    console.print(facts)
