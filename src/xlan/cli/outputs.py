"""Files that commands write."""

from __future__ import annotations

import contextlib
from pathlib import Path

from xlan.errors import DataError

PAGES = (".html", ".htm")


def check_output(output: Path, *inputs: Path) -> None:
    """Refuse, before the work begins, a file that is a folder or that the command reads itself.

    Raises:
        DataError: it is one.
    """
    if output.is_dir():
        raise DataError(f"{output}: is a folder; expected the name of a file to write")
    for path in inputs:
        with contextlib.suppress(OSError):  # one of them does not exist
            if output.samefile(path):
                raise DataError(f"{output}: is read by this command and would be lost; choose another name to write")


def check_page(output: Path) -> None:
    """Refuse a page that is not called one.

    Raises:
        DataError: its name does not end in .html.
    """
    if output.suffix.lower() not in PAGES:
        raise DataError(f"{output}: expected a file name that ends in .html")
