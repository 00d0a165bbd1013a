"""`xlan serve`: captions over HTTP, and a page to try it."""

from __future__ import annotations

import ipaddress
import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xlan.cli.engine import EngineChoice, detector_for_names
from xlan.cli.progress import count_progress
from xlan.cli.shared_options import Detector, Device, Engine, Model
from xlan.cli.text import counted, printable
from xlan.errors import ConfigError, MissingExtraError
from xlan.threads import cores

if TYPE_CHECKING:
    from xlan.pipeline import Captioner
    from xlan.search import PhotoSearch

TOKEN_VARIABLE = "XLAN_TOKEN"
MIN_TOKEN = 16


def serve(
    model: Model = None,
    device: Device = "cpu",
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is for this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the bearer token that clients must send; or set {TOKEN_VARIABLE}."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="A name clients call this server by (Host header); may be repeated."),
    ] = None,
    library: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Photos that can be searched by a sentence, on the page too (xlan search)."
        ),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --library: folder of its index; default: one in your cache."),
    ] = None,
    library_rescan: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Of --library: how often to look for new, changed and removed photos; 0 for never. Default: 60.",
            min=0,
            max=1e6,
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Most pictures per call of the model.", min=1, max=1024)] = 16,
    max_wait_ms: Annotated[
        float,
        typer.Option(
            help="Milliseconds a picture waits for others to join its batch while the model is idle.", min=0, max=10_000
        ),
    ] = 5.0,
    queue: Annotated[int, typer.Option(help="Most pictures that wait; further ones get 503.", min=1)] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request gets 504.", min=0.1, max=3600)] = 30.0,
    max_cost: Annotated[
        int,
        typer.Option(
            help="Most steps of the model per request: beams × combinations of required words × length.", min=1
        ),
    ] = 20_000,
    max_bytes: Annotated[int, typer.Option(help="Largest picture in bytes.", min=1)] = 20 << 20,
    max_pixels: Annotated[int, typer.Option(help="Most pixels a picture may have.", min=1)] = 50_000_000,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads that share a batch; unless given, one per core, on a GPU one.", min=1, max=256),
    ] = None,
    detector: Detector = None,
    engine: Engine = EngineChoice.auto,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not log requests on standard error.")] = False,
) -> None:
    """Answer requests for captions over HTTP, with a page to drop photos on.

    Prints its address when it is ready. On Ctrl-C or SIGTERM it finishes the requests it has accepted, then exits.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("xlan serve", "serve") from None
    from xlan.pipeline import Captioner
    from xlan.pretrained import find_model
    from xlan.search.library import check_folder
    from xlan.serving import server
    from xlan.serving.settings import ServeSettings
    from xlan.vision.image import ImageLimits

    token = _token(token_file)
    for option, value in (("--index", index), ("--library-rescan", library_rescan)):
        if value is not None and library is None:
            raise typer.BadParameter("has an effect only together with --library", param_hint=option)
    if library is not None:
        check_folder(library)
    directory = find_model(model)
    settings = ServeSettings(
        model_name=str(model) if model is not None and directory != model else directory.resolve().name,
        card=_card(directory),
        token=token,
        hosts=_hosts(host, name or []),
        max_batch=max_batch,
        max_wait=max_wait_ms / 1000,
        queue=queue,
        timeout=timeout,
        max_cost=max_cost,
        limits=ImageLimits(max_bytes, max_pixels),
        rescan=60.0 if library_rescan is None else library_rescan,
        lanes=threads or (cores() if device == "cpu" else 1),
    )
    _log_to_standard_error(quiet)
    # Decoders warn about broken EXIF and odd palettes; users can do nothing about it.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    with server.listen(host, port) as listener:  # before the model is loaded: a taken port is known at once
        captioner = Captioner.from_pretrained(
            directory,
            device=device,
            engine=engine.engine,
            threads=1,  # in each lane
            detector=detector_for_names(detector, directory),
        )
        if token is None and not _is_loopback(host):
            typer.echo(f"warning: {host} can be reached by others and no token is set; see --token-file", err=True)
        line = f"xlan listens on {_address(*listener.getsockname()[:2])}"
        photos = None if library is None else _library(library, index, captioner, settings.lanes)
        server.serve(captioner, settings, listener, lambda: typer.echo(line), photos=photos)


def _library(folder: Path, index: Path | None, captioner: Captioner, lanes: int) -> PhotoSearch:
    """The photos to be searched, indexed before the first request."""
    from xlan.search import PhotoSearch
    from xlan.search.index import BusyIndexError

    photos = PhotoSearch(folder, captioner, place=index, lanes=lanes)

    def say(line: str) -> None:
        typer.echo(printable(line), err=True)

    try:
        with count_progress("indexing") as move:
            done = photos.update(problem=say, progress=move)
        left = f"; {len(done.skipped):,} cannot be indexed, which xlan search --skipped lists" if done.skipped else ""
        say(f"library: {counted(len(photos), 'photo')} of {folder}{left}")
    except BusyIndexError:
        say(f"library: {counted(len(photos), 'photo')} of {folder}; another process is indexing it")
    return photos


def _token(file: Path | None) -> str | None:
    """The token from a file or the environment; never from the command line, which every user can read."""
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE)
        what = TOKEN_VARIABLE
        if token is None:
            return None
    else:
        what = str(file)
        with file.open("rb") as opened:
            token = opened.read(4096).decode("utf-8", "replace")
    token = token.strip()
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{what}: expected a token of {MIN_TOKEN} or more ASCII characters without spaces")
    return token


def _card(directory: Path) -> str:
    """The model card, where there is one."""
    try:
        with (directory / "README.md").open("rb") as file:
            return file.read(64 << 10).decode("utf-8", "replace")
    except OSError:
        return ""


def _hosts(host: str, names: list[str]) -> frozenset[str] | None:
    """Names the Host header may have: on loopback only names of loopback, so that no other site's name leads here."""
    given = {name.lower() for name in names}
    if _is_loopback(host):
        return frozenset({"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host.lower(), *given})
    return frozenset(given) or None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _log_to_standard_error(quiet: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("python_multipart").setLevel(
        logging.ERROR
    )  # the client gets an error for a bad form; the log does not need one
    for logger, level in (("xlan", logging.INFO), ("uvicorn", logging.WARNING), ("asyncio", logging.WARNING)):
        logging.getLogger(logger).addHandler(handler)
        logging.getLogger(logger).setLevel(logging.WARNING if quiet else level)
