"""Options that are the same in several commands, as annotated types; the command gives the default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from xlan.cli.engine import ENGINE_HELP, MODEL_HELP, EngineChoice
from xlan.errors import DecodingError
from xlan.options import LIMITS, CaptionOptions

_BEAMS, _SAMPLES, _LENGTH = LIMITS["beams"], LIMITS["samples"], LIMITS["max_length"]

Model = Annotated[Path | None, typer.Option(metavar="DIR", help=MODEL_HELP)]
Detector = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Detector directory: makes the regions of a model trained on them, names what other models looked at.",
    ),
]
Engine = Annotated[EngineChoice, typer.Option(help=ENGINE_HELP)]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, cuda:1, mps.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Pictures per call of the model.", min=1, max=1024)]

Beams = Annotated[
    int | None, typer.Option(metavar="N", help=f"Sentences kept while searching, 1 to {_BEAMS.high}; default 3.")
]
Samples = Annotated[
    int | None,
    typer.Option("--sample", metavar="N", help=f"Draw this many captions (1 to {_SAMPLES.high}) instead of searching."),
]
Temperature = Annotated[
    float | None, typer.Option(metavar="X", help="With --sample: below 1 is safer, above 1 more varied; default 1.")
]
TopP = Annotated[
    float | None,
    typer.Option(metavar="X", help="With --sample: only the likeliest words that have this probability together."),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="With --sample: the same seed draws the same captions; default 0.")
]
Must = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD", help="A word or phrase that has to appear; 'dog|dogs' for either; repeatable."),
]
MaxLength = Annotated[
    int | None, typer.Option(metavar="N", help=f"Most words, the end included, 1 to {_LENGTH.high}; default 20.")
]
_TYPED = {
    "beams": "--beams",
    "samples": "--sample",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "seed": "--seed",
    "must": "--must",
    "max_length": "--max-length",
}


def caption_options(**given: Any) -> CaptionOptions:
    """Caption options from the command line, None where not given; errors name them as typed."""
    try:
        return CaptionOptions.of(given, called=_TYPED)
    except DecodingError as error:
        raise typer.BadParameter(str(error)) from None
