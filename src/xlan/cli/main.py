"""The `xlan` command: one module per sub-command.

Command modules import the heavy parts of the library inside their functions, so `xlan --help` answers at once (a test
checks that importing this file does not import torch). Errors of ours and of the file system become one line on
standard error and exit status 1; wrong usage is status 2, as typer does it; Ctrl-C is 130.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from xlan import __version__
from xlan.cli import (
    adapt,
    alt,
    batch,
    caption,
    compare,
    confidence,
    data,
    detect,
    detector,
    doctor,
    evaluate,
    explain,
    export,
    features,
    import_checkpoint,
    import_detector,
    metrics,
    pack,
    predict,
    push,
    report,
    serve,
    study,
    submit,
    train,
)
from xlan.cli.plain_help import use_plain_help
from xlan.errors import MissingExtraError, XlanError
from xlan.threads import sleep_while_waiting

app = typer.Typer(
    name="xlan",
    help="Caption photos, and train and evaluate captioning models with X-Linear attention.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xlan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("adapt")(adapt.adapt)
app.command("alt")(alt.alt)
app.command("caption")(caption.caption)
app.command("compare")(compare.compare)
app.command("detect")(detect.detect)
app.command("doctor")(doctor.doctor)
app.command("evaluate")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.command("export")(export.export)
app.command("import-checkpoint")(import_checkpoint.import_checkpoint)
app.command("import-detector")(import_detector.import_detector)
app.command("pack")(pack.pack)
app.command("predict")(predict.predict)
app.command("push")(push.push)
app.command("report")(report.report)
app.command("serve")(serve.serve)
app.command("study")(study.study)
app.command("submit")(submit.submit)
app.command("train")(train.train)
app.add_typer(batch.app, name="batch")
app.add_typer(confidence.app, name="confidence")
app.add_typer(data.app, name="data")
app.add_typer(detector.app, name="detector")
app.add_typer(features.app, name="features")
app.add_typer(metrics.app, name="metrics")
use_plain_help(app)


def main() -> None:
    """Run the command line and turn our errors into one line and an exit status."""
    sleep_while_waiting()
    try:
        app(prog_name="xlan")
    except XlanError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        typer.echo(f"error: {MissingExtraError('this command', 'train')}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`xlan … | head`): stop quietly, as other tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        # A folder that cannot be written, a full disk: what commands do not put better themselves.
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {where}{error.strerror or error}", err=True)
        sys.exit(1)
