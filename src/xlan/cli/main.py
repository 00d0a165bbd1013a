"""The `xlan` command: one module per sub-command.

Only the module of the command that was typed is imported; `xlan --help` imports all of them. They import the heavy
parts of the library inside their functions (a test checks that none of them imports torch). Our own errors and those of
the file system become one line on standard error and exit status 1; wrong usage is status 2, as typer does it; Ctrl-C
is 130; a reader of the output that goes away, 141.
"""

from __future__ import annotations

import codecs
import importlib
import io
import os
import sys
from collections.abc import Collection
from typing import Annotated

import typer

from xlan import __version__
from xlan.children import end_with_parent
from xlan.cli.plain_help import use_plain_help
from xlan.cli.text import printable
from xlan.errors import MissingExtraError, XlanError
from xlan.memory import keep_freed_memory
from xlan.threads import sleep_while_waiting

# Each is the function or, of a group, the `app` in the module of that name.
COMMANDS = (
    "adapt",
    "alt",
    "caption",
    "compare",
    "detect",
    "doctor",
    "evaluate",
    "explain",
    "export",
    "import-checkpoint",
    "import-detector",
    "pack",
    "predict",
    "push",
    "report",
    "search",
    "serve",
    "study",
    "submit",
    "train",
)
GROUPS = ("batch", "confidence", "data", "detector", "features", "metrics")
# Those that compute on large tensors for minutes or hours, and then end.
LONG = ("adapt", "confidence", "detector", "features", "predict", "train")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xlan {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def make_app(names: Collection[str] = (*COMMANDS, *GROUPS)) -> typer.Typer:
    """The command line with some of its commands."""
    made = typer.Typer(
        name="xlan",
        help="Caption photos, and train and evaluate captioning models with X-Linear attention.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    for name in names:
        module = importlib.import_module(f"xlan.cli.{name.replace('-', '_')}")
        if name in GROUPS:
            made.add_typer(module.app, name=name)
        else:
            made.command(name)(getattr(module, name.replace("-", "_")))
    use_plain_help(made)
    return made


def _typed_app() -> typer.Typer:
    """The command that was typed, alone; all of them where it is none, for help, completion and corrections."""
    first = _typed()
    return make_app([first] if first in (*COMMANDS, *GROUPS) else (*COMMANDS, *GROUPS))


def _typed() -> str:
    return sys.argv[1] if len(sys.argv) > 1 else ""


def __getattr__(name: str) -> typer.Typer:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = make_app()
    return made


def _as_escapes(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks, as the escapes of JSON."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "\\u" + units.hex("-", 2).replace("-", "\\u"), error.end


def _prepare_streams() -> None:
    """Standard streams that work: closed ones lead nowhere, and every file name can be written to the others."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - as long as we run
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("xlan-escapes", _as_escapes)
        sys.stdout.reconfigure(errors="xlan-escapes")


def main() -> None:
    """Run the command line and turn our errors into one line and an exit status."""
    _prepare_streams()
    end_with_parent()
    sleep_while_waiting()
    if _typed() in LONG:
        keep_freed_memory()
    try:
        _typed_app()(prog_name="xlan")
    except XlanError as error:
        typer.echo(printable(f"error: {error}", lines=True), err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        typer.echo(f"error: {MissingExtraError('this command', 'train')}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except SystemExit as leaving:
        # The reader of our output went away (`xlan … | head`). Typer stops quietly, but with the status of an error.
        sys.exit(141 if isinstance(leaving.__context__, BrokenPipeError) else leaving.code)
    except OSError as error:
        # A folder that cannot be written, a full disk: errors that the command has not handled.
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(printable(f"error: {where}{error.strerror or error}", lines=True), err=True)
        sys.exit(1)
