"""What a user names as input → pictures, in an order that does not change as long as the input does not.

A folder (with all subfolders), a glob, a single picture, a WebDataset `.tar` (also `shard-{000..099}.tar`), a Parquet
or Arrow table, or a `.txt` file with a path or an address per line; each local or at an address that fsspec knows. The
names of one folder are in memory at a time. No picture is opened here.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xlan.batch.items import Item
from xlan.batch.storage import is_address, is_local, open_place, reason, trying
from xlan.batch.tables import Table, is_table
from xlan.errors import DataError
from xlan.vision.sources import named_like_picture, tar_index

MAX_LINE = 1 << 16
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAX_BRACES = 1_000_000
_LISTS = (".txt", ".lst", ".list")
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")


def list_items(inputs: Sequence[str], *, column: str | None = None, id_column: str | None = None) -> Iterator[Item]:
    """The pictures of several inputs, in their order.

    Args:
        inputs: what the user named.
        column: the column of tables that holds the pictures; None finds it.
        id_column: the column of tables that holds ids; None finds it.

    Raises:
        DataError: an input is missing, empty, cannot be read, or is damaged.
    """
    for given in inputs:
        for text in _expand(given):
            empty = True
            for item in _items_of(text, column, id_column):
                empty = False
                yield item
            if empty:
                raise DataError(
                    f"{text}: no pictures here; for tar or Parquet files name them, for instance '{text}/*.tar'"
                )


def _expand(text: str) -> Iterator[str]:
    """`a-{000..002}.tar` → a-000.tar, a-001.tar, a-002.tar."""
    found = _BRACES.search(text)
    if found is None:
        yield text
        return
    low, high = int(found[1]), int(found[2])
    if not 0 <= high - low < _MAX_BRACES:
        raise DataError(f"{text}: expected {{LOW..HIGH}} with at most {_MAX_BRACES:,} numbers, got {found[0]}")
    for number in range(low, high + 1):
        yield from _expand(f"{text[: found.start()]}{number:0{len(found[1])}d}{text[found.end() :]}")


def _items_of(text: str, column: str | None, id_column: str | None) -> Iterator[Item]:
    fs, path = open_place(text)
    if is_local(text):
        path = Path(os.path.abspath(path)).as_posix()  # noqa: PTH100 - unlike resolve, it leaves links as they are
    info = _info(fs, path, text)
    if info is None:
        if not glob.has_magic(path):
            raise DataError(f"{text}: no such file or folder")
        yield from _glob(fs, path, text, column, id_column)
    elif info["type"] == "directory":
        yield from _folder(fs, path, path, text)
    else:
        yield from _file(fs, info, _address(fs, path, text), column, id_column)


def _info(fs: Any, path: str, shown: str) -> dict[str, Any] | None:
    try:
        fs.invalidate_cache()
        found: dict[str, Any] = trying(shown, lambda: fs.info(path))
        return found
    except FileNotFoundError:
        return None
    except Exception as error:
        raise DataError(f"{shown}: cannot be read: {reason(error)}") from None


def _glob(fs: Any, path: str, shown: str, column: str | None, id_column: str | None) -> Iterator[Item]:
    try:
        matches = sorted(trying(shown, lambda: fs.glob(path, detail=True)).items())
    except Exception as error:
        raise DataError(f"{shown}: cannot be listed: {reason(error)}") from None
    fixed = re.split(r"[*?\[]", path, maxsplit=1)[0]
    root = fixed[: fixed.rfind("/") + 1].rstrip("/")
    for name, info in matches:
        if info["type"] == "directory" or name.rsplit("/", 1)[-1].startswith("."):
            continue
        place = _address(fs, name, shown)
        if named_like_picture(name):
            yield _picture(info, place, posixpath.relpath(name, root or "/"))
        elif is_table(name) or name.lower().endswith(".tar"):
            yield from _file(fs, info, place, column, id_column)


def _folder(fs: Any, path: str, root: str, shown: str) -> Iterator[Item]:
    """Everything below a folder that is named like a picture; hidden names and links to folders are left out."""
    place = _address(fs, path, shown)
    try:
        entries = sorted(trying(shown, lambda: fs.ls(path, detail=True)), key=lambda entry: str(entry["name"]))
    except Exception as error:
        raise DataError(f"{place}: cannot be listed: {reason(error)}") from None
    for entry in entries:
        name = entry["name"].rstrip("/")
        last = name.rsplit("/", 1)[-1]
        if last.startswith(".") or name == path.rstrip("/"):
            continue
        if entry["type"] == "directory":
            if not entry.get("islink"):
                yield from _folder(fs, name, root, shown)
        elif named_like_picture(last):
            yield _picture(entry, _address(fs, name, shown), posixpath.relpath(name, root))


def _file(fs: Any, info: dict[str, Any], place: str, column: str | None, id_column: str | None) -> Iterator[Item]:
    lower = place.lower()
    if is_table(lower):
        yield from _table(place, _version(info), column, id_column)
    elif lower.endswith(".tar"):
        yield from _tar(fs, info, place)
    elif lower.endswith(_LISTS):
        yield from _list(fs, info["name"], place)
    else:
        yield _picture(info, place, info["name"].rsplit("/", 1)[-1])


def _picture(info: dict[str, Any], place: str, inner: str) -> Item:
    return Item(id=_text(_stem(inner)), name=_text(place), place=place, version=_version(info))


def _tar(fs: Any, info: dict[str, Any], place: str) -> Iterator[Item]:
    version = _version(info)
    try:
        file = trying(place, lambda: fs.open(info["name"], "rb"))
    except Exception as error:
        raise DataError(f"{place}: cannot be read: {reason(error)}") from None
    with file:
        for member, offset, size in tar_index(file, int(info["size"]), place):
            if named_like_picture(member):
                name = _text(f"{place}:{member}")
                yield Item(_text(_stem(member)), name, place, offset, size, version=version)


def _table(place: str, version: str, column: str | None, id_column: str | None) -> Iterator[Item]:
    file = place.rsplit("/", 1)[-1]
    with Table(place) as table:
        found = table.columns(column, id_column)
        if found.is_bytes:
            names = [] if found.id is None else [found.id]
            numbered = table.rows(names) if names else ((row, []) for row in range(table.count()))
            for row, values in numbered:
                said = None if not values or values[0] is None else _text(str(values[0]))
                identity = said if said is not None else f"{_stem(file)}-{row}"
                name = f"{_text(place)}#{row}"
                yield Item(identity, name, place, row=row, column=found.picture, version=version)
            return
        names = [found.picture] if found.id is None else [found.picture, found.id]
        for row, values in table.rows(names):
            where = _named(values[0] if isinstance(values[0], str) else "", place, f"{place}: row {row}")
            said = values[1] if len(values) > 1 else None
            yield Item(_text(_stem(values[0]) if said is None else str(said)), _text(where), where)


def _list(fs: Any, path: str, place: str) -> Iterator[Item]:
    try:
        file = trying(place, lambda: fs.open(path, "rb"))
    except Exception as error:
        raise DataError(f"{place}: cannot be read: {reason(error)}") from None
    with file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise DataError(
                    f"{place}: line {number} has more than {MAX_LINE:,} bytes; expected a path or an address"
                )
            text = line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape").strip()
            if text:
                where = _named(text, place, f"{place}: line {number}")
                yield Item(_text(_stem(text)), _text(where), where)


def _named(text: str, place: str, shown: str) -> str:
    """A path or an address that stands in a file; paths are relative to the folder of that file."""
    if not text or "\0" in text or "::" in text:
        raise DataError(f"{shown}: expected a path or an address of a picture, got {text!r:.80}")
    if is_address(text) or text.startswith("/"):
        return text
    return f"{place.rsplit('/', 1)[0]}/{text}" if "/" in place else text


def _address(fs: Any, path: str, shown: str) -> str:
    """A path inside a file system as the user would write it: with its protocol where there is one."""
    return path if is_local(shown) else str(fs.unstrip_protocol(path))


def _version(info: dict[str, Any]) -> str:
    tags = [str(info[key]) for key in _VERSION_KEYS if info.get(key) is not None]
    return " ".join([str(info.get("size")), *tags])


def _stem(name: str) -> str:
    """A name without the suffix of a picture or a table, and without the protocol of an address."""
    inner = name.split("://", 1)[-1]
    head, dot, suffix = inner.rpartition(".")
    return head if dot and "/" not in suffix and head else inner


def _text(name: str) -> str:
    """A name as text: bytes of old encodings become escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
