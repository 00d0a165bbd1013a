"""`xlan metrics`: prepare what the metrics and the reward need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xlan.cli.outputs import check_output
from xlan.cli.setup_spice import setup_spice

app = typer.Typer(help="Prepare what the metrics and the reward need.", no_args_is_help=True)
app.command("setup-spice")(setup_spice)


@app.command("build-df")
def build_df(
    captions: Annotated[
        Path,
        typer.Argument(help="Training captions in any form that training takes.", show_default=False),
    ],
    vocabulary: Annotated[Path, typer.Argument(help="vocab.json of the model to train.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="The table to write, for instance df.safetensors.", show_default=False)],
    split: Annotated[str, typer.Option("--split", help="Which split of the captions to count.")] = "train",
    end: Annotated[
        bool,
        typer.Option(
            "--end/--no-end",
            help="Count the end of a sentence as a word. Without it, models trained on the reward learn to stop early.",
        ),
    ] = True,
) -> None:
    """Count in how many training images each n-gram occurs: the document frequencies of the CIDEr-D reward.

    Self-critical training counts its own training captions unless the configuration names a table
    (scst.document_frequency). A table of a large corpus helps where the training captions are few.
    """
    from xlan.data.captions import load_captions
    from xlan.metrics.docfreq import DocumentFrequencies
    from xlan.text.vocab import Vocabulary
    from xlan.training.folder import vocabulary_hash

    check_output(out, captions, vocabulary)
    words = Vocabulary.load(vocabulary)
    images = load_captions(captions).split(split)
    table = DocumentFrequencies.build(
        ([words.encode(caption) for caption in image.words] for image in images),
        vocabulary_size=len(words),
        end_id=words.special.eos,
        includes_end=end,
        vocabulary=vocabulary_hash(words),
    )
    table.save(out)
    typer.echo(f"{out}: {table.describe()}")
