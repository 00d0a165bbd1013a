"""`xlan metrics setup-spice`: fetch what the official SPICE needs and pip cannot bring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def setup_spice(
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="ZIP",
            help="Use this stanford-corenlp-full-2015-12-09.zip, downloaded before, instead of downloading it.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Download from this address (a mirror) instead of Stanford's.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="HEX", help="Refuse the archive unless it has this SHA-256.")
    ] = None,
) -> None:
    """Set up Stanford CoreNLP 3.6.0 for SPICE: a download of 536 MB, once.

    An interrupted download resumes when the command is run again. CoreNLP is under the GNU General
    Public License and stays outside xlan, in your own data folder. SPICE also needs Java 8 to 21.
    """
    from xlan.errors import MetricError
    from xlan.metrics import spice_corenlp

    if source is not None and url is not None:
        raise typer.BadParameter("give --from or --url, not both", param_hint="--from / --url")
    address = url or spice_corenlp.ARCHIVE_URL
    spice_corenlp.check_url(address, sha256)
    folder = spice_corenlp.corenlp_dir()
    archive = source if source is not None else folder.parent / spice_corenlp.ARCHIVE
    if source is None and not archive.exists():
        _download(address, archive)
    try:
        installed = spice_corenlp.install(archive, folder, sha256=sha256)
    except MetricError:
        if source is None:
            # Do not leave a bad download for the next try.
            archive.unlink(missing_ok=True)
        raise
    if source is None:
        archive.unlink()
    typer.echo(f"CoreNLP 3.6.0 is set up in {installed.folder}")
    typer.echo(f"SHA-256 of the archive: {installed.archive_sha256}")


def _download(url: str, target: Path) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from xlan.metrics import spice_corenlp

    columns = (TextColumn("CoreNLP"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("download", total=None)
        spice_corenlp.download(url, target, progress=lambda done, total: bar.update(task, completed=done, total=total))
