"""Folders that are written as a whole, with a JSON file that lists the sizes and hashes of their files."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xlan.errors import ModelError, WeightsError
from xlan.files import file_sha256, read_json, sync_file, sync_folder


@contextlib.contextmanager
def whole_folder(target: Path, *, replaced: Iterable[str] | None = None) -> Iterator[Path]:
    """A new folder beside `target` that takes its place when the block ends without an error.

    Args:
        target: its parent is created when missing.
        replaced: names of files that go with the folder that is there now, while others move into the new one; None
            for all.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        if target.exists():
            _exchange(temporary, target, replaced)
        else:
            temporary.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(temporary: Path, target: Path, replaced: Iterable[str] | None) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    old = aside / target.name
    target.rename(old)
    try:
        temporary.rename(target)
    except BaseException:
        old.rename(target)
        aside.rmdir()
        raise
    if replaced is not None:
        for item in [item for item in old.iterdir() if item.name not in replaced]:
            item.rename(target / item.name)
    shutil.rmtree(aside, ignore_errors=True)


def check_free(target: Path, marker: str, what: str, *, replace: bool) -> None:
    """Refuse to write a folder over other files, or over `what`, which has a file `marker`, unless `replace` is set.

    Raises:
        ModelError: the target exists and may not be replaced.
    """
    if (target / marker).is_file():
        if not replace:
            raise ModelError(f"{target}: {what} already exists there; use --force to replace it")
    elif target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ModelError(f"{target}: already exists and is not {what}; choose another name or remove it")


def fingerprint(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, once it is safely on the disk."""
    sync_file(path)
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def read_description(path: Path, *, version: int, what: str, max_bytes: int) -> dict[str, Any]:
    """The JSON file that describes a folder with a model: its `format`, `model` and `files` are as they must be.

    Raises:
        ModelError: it is not `what`, or has another format.
    """
    about = read_json(path, max_bytes=max_bytes)
    if not isinstance(about, dict) or "format" not in about:
        raise ModelError(f"{path}: not {what}")
    if about["format"] != version:
        raise ModelError(
            f"{path}: format {about['format']!r}, this version of xlan reads format {version}; "
            "install the version that wrote it"
        )
    if not isinstance(about.get("model"), dict) or not isinstance(about.get("files"), dict):
        raise ModelError(f"{path}: 'model' and 'files' must be objects")
    return about


def check_files(description: Path, files: Mapping[str, Any], names: Iterable[str], *, verify: bool) -> None:
    """Compare files beside a description with the sizes that it lists and, to `verify`, with the hashes.

    Hashes of small files (JSON) are always compared: a vocabulary with other words would give nonsense.

    Raises:
        ModelError: the description does not list one of `names`.
        WeightsError: a file is missing or damaged.
    """
    for name in dict.fromkeys(names):
        said = files.get(name)
        if not isinstance(said, dict) or type(said.get("bytes")) is not int or not isinstance(said.get("sha256"), str):
            raise ModelError(f"{description}: 'files' must give bytes and sha256 of {name}")
        file = description.parent / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not file.is_file():
            raise WeightsError(f"{description.parent}: {name} is missing; copy the directory again")
        size = file.stat().st_size
        if size != said["bytes"]:
            raise WeightsError(f"{file}: {size:,} bytes, expected {said['bytes']:,}; copy the directory again")
        if (verify or name.endswith(".json")) and file_sha256(file) != said["sha256"]:
            raise WeightsError(f"{file}: damaged (its SHA-256 differs); copy the directory again")
