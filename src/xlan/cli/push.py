"""`xlan push`: a model directory → the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def push(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="Model directory on this machine.", show_default=False)],
    name: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="The repository, created if needed.", show_default=False)
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Create it as a private repository; an existing public one is refused.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(metavar="BRANCH", help="Commit to this branch, created if needed; default: main.")
    ] = None,
    license: Annotated[  # noqa: A002  the option's name
        str | None, typer.Option(metavar="ID", help="License of the weights, for the card, such as apache-2.0.")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Data it was trained on, for the card; may be repeated."),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores for the card: what `xlan evaluate --json` printed.")
    ] = None,
    scored_on: Annotated[
        str | None, typer.Option(metavar="TEXT", help='The data of --scores, such as "COCO, Karpathy\'s test split".')
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="Commit message.")] = None,
) -> None:
    """Upload a model directory to the Hub in one commit, with a card that people find it by.

    The files are compared with their hashes first. The card is README.md of the model directory; metadata at its top
    stays, the options above are added to it, and nothing else is claimed. Log in first: `hf auth login`, or HF_TOKEN.
    """
    if scores is not None and scored_on is None:
        raise typer.BadParameter("say what was scored with --scored-on TEXT", param_hint="--scores")
    if scored_on is not None and scores is None:
        raise typer.BadParameter("has an effect only together with --scores FILE", param_hint="--scored-on")
    from xlan.publishing import push_model

    done = push_model(
        model,
        name,
        private=private,
        revision=revision,
        license=license,
        datasets=dataset or [],
        scores=scores,
        scored_on=scored_on,
        message=message,
    )
    typer.echo(f"{done.url}: {len(done.files)} files; try: xlan caption --model {done.pinned} PHOTO")
