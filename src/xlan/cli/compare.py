"""`xlan compare`: two sets of captions against the same references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xlan.cli.evaluate import CORENLP_HELP, METRICS_HELP, REFERENCES_HELP, SPLIT_HELP
from xlan.cli.named_pictures import PICTURES_HELP, find_thumbnails
from xlan.cli.outputs import check_page
from xlan.cli.text import counted, short_names
from xlan.errors import DataError, MetricError

if TYPE_CHECKING:
    from rich.console import Console

    from xlan.metrics.bootstrap import Comparison, ImageDifference
    from xlan.metrics.coco import References
    from xlan.metrics.report import Report


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="Captions A, in a form that `xlan evaluate` takes.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="Captions B, likewise.", show_default=False)],
    references: Annotated[Path, typer.Argument(help=REFERENCES_HELP, show_default=False)],
    metrics: Annotated[str, typer.Option("--metrics", metavar="NAMES", help=METRICS_HELP)] = "bleu,meteor,rouge,cider",
    require: Annotated[
        list[str],
        typer.Option("--require", metavar="NAME", help="Fail unless this metric can be computed; may be repeated."),
    ] = [],  # noqa: B006
    samples: Annotated[int, typer.Option("--samples", min=10, max=1_000_000, help="Bootstrap samples.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the bootstrap.")] = 0,
    confidence: Annotated[
        float, typer.Option("--confidence", min=0.5, max=0.999, help="Coverage of the interval.")
    ] = 0.95,
    images: Annotated[
        int, typer.Option("--images", min=0, help="How many of the images that differ most to show.")
    ] = 10,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="SCORE",
            help="The score by which images differ; default: CIDEr, else the last of those computed.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, at full precision.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write it as one self-contained page (.html).")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help=SPLIT_HELP)] = None,
    pictures: Annotated[Path | None, typer.Option("--pictures", metavar="FOLDER", help=PICTURES_HELP)] = None,
    subset: Annotated[
        bool, typer.Option("--subset", help="Compare the images that both caption, even if others have no caption.")
    ] = False,
    corenlp: Annotated[Path | None, typer.Option("--corenlp", metavar="FOLDER", help=CORENLP_HELP)] = None,
) -> None:
    """Compare two sets of captions: scores, difference B − A, bootstrap interval and p-value, and where they differ.

    Images are drawn again and again with replacement, the same for both, so that easy images help both alike.
    """
    if output is not None:
        check_page(output)
    if pictures is not None and output is None:
        raise DataError("--pictures adds pictures to the page; name the page with -o page.html")
    if pictures is not None and not pictures.is_dir():
        raise DataError(f"{pictures}: no such folder of pictures")
    from rich.console import Console

    from xlan.cli.evaluate import metric_progress, read_references, refuse_without, split_names
    from xlan.metrics.bootstrap import compare as compare_reports
    from xlan.metrics.bootstrap import largest_differences
    from xlan.metrics.coco import pair
    from xlan.metrics.report import evaluate

    chosen = split_names(metrics)
    refuse_without("--corenlp", corenlp, "spice", [*chosen, *require])
    found = read_references(references, split)
    both = [_under_own_ids(path, found) for path in (first, second)]
    if subset:
        both = _common(*both)
    reports: list[Report] = []
    for name, results in zip("AB", both, strict=True):
        captions, wanted = pair(results, found, subset=subset)
        with metric_progress(f"scoring {name}") as progress:
            reports.append(
                evaluate(
                    captions,
                    wanted,
                    metrics=chosen,
                    require=require,
                    corenlp=corenlp,
                    progress=progress,
                )
            )
    a, b = reports
    by = _ranked_by(by, a)
    outcome = compare_reports(a, b, samples=samples, seed=seed, confidence=confidence)
    differ = largest_differences(a, b, metric=by, count=images) if images else []
    if as_json:
        typer.echo(json.dumps(_as_json(outcome, differ, samples, seed, confidence), indent=2, ensure_ascii=False))
    else:
        _print(Console(highlight=False, markup=False), outcome, differ, f"{confidence:.0%}", by)
    if output is not None:
        from xlan.files import write_text
        from xlan.pages.comparison import comparison_page

        names = short_names([first, second])
        how = f"Intervals from {samples:,} bootstrap samples of {counted(len(a.images), 'image')}, seed {seed}."
        calls = {row.image: [found.files[row.image]] if row.image in found.files else [] for row in differ}
        page = comparison_page(
            outcome,
            differ,
            first=names[0],
            second=names[1],
            by=by,
            confidence=confidence,
            how=how,
            references=found.captions,
            pictures=find_thumbnails(pictures, calls, note=_note) if pictures is not None else None,
        )
        write_text(output, page)
        typer.echo(str(output), err=True)


def _note(line: str) -> None:
    typer.echo(f"note: {line}", err=True)


def _under_own_ids(path: Path, references: References) -> dict[int | str, str]:
    """Captions under the references' ids, so that A and B may call the same image differently."""
    from xlan.metrics.coco import load_results

    results = load_results(path)
    own = references.ids_of(results)
    return {own.get(name, name): caption for name, caption in results.items()}


def _common(first: dict[int | str, str], second: dict[int | str, str]) -> list[dict[int | str, str]]:
    """Both, with the images that both have."""
    shared = first.keys() & second.keys()
    if not shared:
        raise DataError("A and B caption no image in common; expected captions of the same images")
    if left := len(first.keys() | second.keys()) - len(shared):
        _note(f"{counted(left, 'image')} captioned in one set only; {len(shared):,} are compared")
    return [{image: text for image, text in results.items() if image in shared} for results in (first, second)]


def _ranked_by(asked: str | None, report: Report) -> str:
    """The score by which images differ, as it is printed."""
    if asked is None:
        computed = [name for name, score in report.scores.items() if score.value is not None]
        return "CIDEr" if "CIDEr" in computed else (computed or list(report.scores))[-1]
    spelled = {name.lower(): name for name in report.scores}
    if asked.lower() not in spelled:
        raise MetricError(f"--by expects one of the requested scores ({', '.join(report.scores)}), got {asked!r}")
    return spelled[asked.lower()]


def _as_json(
    outcome: list[Comparison], differ: list[ImageDifference], samples: int, seed: int, confidence: float
) -> dict[str, Any]:
    scores = {
        item.name: {
            "A": item.first,
            "B": item.second,
            "difference": item.difference,
            **(
                {"reason": item.reason}
                if item.difference is None
                else {"low": item.low, "high": item.high, "p": item.p_value}
            ),
        }
        for item in outcome
    }
    images = [
        {"image_id": d.image, "A": d.first, "B": d.second, "caption_A": d.first_caption, "caption_B": d.second_caption}
        for d in differ
    ]
    return {"samples": samples, "seed": seed, "confidence": confidence, "scores": scores, "images": images}


def _print(
    console: Console, outcome: list[Comparison], differ: list[ImageDifference], confidence: str, by: str
) -> None:
    from rich.table import Table

    table = Table("metric", "A", "B", "B − A", f"{confidence} interval", "p")
    for column in table.columns[1:]:
        column.justify = "right"
    for item in outcome:
        if item.difference is None:
            table.add_row(item.name, "not computed", "", "", item.reason, "", style="yellow")
        else:
            interval = f"{item.low:+.4f} … {item.high:+.4f}"
            clear = "bold" if item.low > 0 or item.high < 0 else None
            table.add_row(
                item.name, f"{item.first:.4f}", f"{item.second:.4f}", f"{item.difference:+.4f}", interval,
                f"{item.p_value:.4f}", style=clear,
            )  # fmt: skip
    console.print(table)
    if differ:
        worst = Table("image", "B − A", "captions", title=f"where they differ most ({by})")
        for d in differ:
            worst.add_row(str(d.image), f"{d.second - d.first:+.3f}", f"A: {d.first_caption}\nB: {d.second_caption}")
        console.print(worst)
