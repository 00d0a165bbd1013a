"""Readers of the caption files people have, and how each is recognised.

    karpathy   see `xlan.karpathy`
    coco       {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}
    tokens     name.jpg#0<TAB>caption, with Flickr's split lists beside it
    table      captions.csv / .tsv / .txt / .jsonl with columns file, caption and, if wanted, split and id

Files come from anywhere: sizes are limited, nothing is executed, names are only ever compared or shown. An
entry that cannot be used is listed in `CaptionSet.skipped`; a file of which nothing can be used is an error.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from xlan.data.records import CaptionedImage, CaptionSet
from xlan.errors import DataError
from xlan.files import MAX_JSON_BYTES, read_json
from xlan.karpathy import Skipped, id_of_file, id_text, karpathy_images, split_name
from xlan.text.tokenize import tokenize

MAX_TEXT_BYTES = 1 << 30
MAX_CAPTION_CHARS = 10_000
_FILE_COLUMNS = ("file", "filename", "file_name", "image", "image_name", "image_path", "path", "img")
_CAPTION_COLUMNS = ("caption", "captions", "text", "sentence", "comment", "description")
_TOKEN_LINE = re.compile(r"(?P<file>[^\t#]+)#(?P<number>[^\t\s]+)\t(?P<caption>.*)")


class _Collector:
    """Gathers captions by image, in the order images are first met."""

    def __init__(self, source: Path, form: str) -> None:
        self.source, self.form = source, form
        self._images: dict[str, dict[str, Any]] = {}
        self._skipped: list[Skipped] = []

    def skip(self, where: str, reason: str) -> None:
        self._skipped.append(Skipped(where, reason))

    def image(self, image_id: str, *, split: str, file: str, shard: str = "") -> None:
        entry = {"split": split_name(split), "file": file, "shard": shard, "captions": [], "words": []}
        self._images.setdefault(image_id, entry)

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._images

    def file_of(self, image_id: str) -> str:
        return str(self._images[image_id]["file"])

    def caption(self, image_id: str, caption: Any, where: str, tokens: Any = None) -> None:
        if not isinstance(caption, str):
            return self.skip(where, f"the caption must be text, got {type(caption).__name__}")
        if len(caption) > MAX_CAPTION_CHARS:
            return self.skip(where, f"a caption of {len(caption):,} characters, the limit is {MAX_CAPTION_CHARS:,}")
        words = _own_words(tokens) or tokenize(caption)
        if not words:
            return self.skip(where, "the caption has no words")
        entry = self._images[image_id]
        entry["captions"].append(" ".join(caption.split()))
        entry["words"].append(words)
        return None

    def finish(self) -> CaptionSet:
        images = []
        for image_id, entry in self._images.items():
            if not entry["captions"]:
                self.skip(f"image {image_id}", "has no captions")
                continue
            lists = {key: tuple(entry[key]) for key in ("captions", "words")}
            images.append(
                CaptionedImage(
                    image_id, entry["split"], entry["file"], lists["captions"], lists["words"], entry["shard"]
                )
            )
        return CaptionSet(tuple(images), str(self.source), self.form, tuple(self._skipped))


def _own_words(tokens: Any) -> tuple[str, ...]:
    """Words a file brings itself, if that is what they are."""
    if isinstance(tokens, list) and all(isinstance(word, str) and word and not word.isspace() for word in tokens):
        return tuple(word.lower() for word in tokens)
    return ()


# --- JSON ---


def read_json_form(path: Path) -> CaptionSet:
    """Read Karpathy's or COCO's JSON, told apart by what is in it."""
    value = read_json(path, max_bytes=2 * MAX_JSON_BYTES)
    images = value.get("images") if isinstance(value, dict) else None
    if isinstance(images, list) and isinstance(value.get("annotations"), list):
        return _read_coco(path, images, value["annotations"])
    if isinstance(images, list) and any(isinstance(image, dict) and "sentences" in image for image in images):
        return _read_karpathy(path, images)
    if isinstance(images, list):
        raise DataError(f"{path}: no captions in it (neither 'annotations' nor 'sentences' beside the images)")
    raise DataError(f"{path}: expected 'images' with 'sentences' (Karpathy) or with 'annotations' (COCO)")


def _read_karpathy(path: Path, images: list[Any]) -> CaptionSet:
    found = _Collector(path, "karpathy")
    for image in karpathy_images(images):
        if isinstance(image, Skipped):
            found.skip(image.where, image.reason)
            continue
        if not image.split:
            found.skip(image.where, "has no 'split'")
            continue
        found.image(image.id, split=image.split, file=image.file, shard=image.shard)
        for fault in image.skipped:
            found.skip(fault.where, fault.reason)
        for sentence in image.sentences:
            found.caption(image.id, sentence.raw, sentence.where, sentence.tokens)
    return found.finish()


def _read_coco(path: Path, images: list[Any], annotations: list[Any]) -> CaptionSet:
    found = _Collector(path, "coco")
    # A split's name starts a word ("captions_val2014", "minival"); inside one it means nothing ("latest", "interval").
    match = re.search(r"(?:(?<![a-z])|mini|coco)(train|val|test|dev)", path.stem.lower())
    split = match.group(1) if match else "train"
    for number, image in enumerate(images):
        image_id = id_text(image.get("id")) if isinstance(image, dict) else ""
        if not image_id:
            found.skip(f"images[{number}]", "must be an object with an 'id'")
            continue
        file = image.get("file_name")
        found.image(image_id, split=split, file=file if isinstance(file, str) else "")
    for number, entry in enumerate(annotations):
        where = f"annotations[{number}]"
        image_id = id_text(entry.get("image_id")) if isinstance(entry, dict) else ""
        if image_id not in found:
            found.skip(where, f"image {image_id} is not among the images" if image_id else "has no 'image_id'")
        elif "caption" not in entry:
            found.skip(where, "has no 'caption'")
        else:
            found.caption(image_id, entry["caption"], where)
    return found.finish()


# --- text ---


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 text file without their ends, one at a time."""
    try:
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise DataError(f"{path}: {size:,} bytes is more than the limit of {MAX_TEXT_BYTES:,} for a text file")
        with path.open(encoding="utf-8-sig", newline="") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text; save it as UTF-8") from None


def read_text_form(path: Path) -> CaptionSet:
    """Read a token file or a table, told apart by the first line."""
    if path.suffix.lower() == ".jsonl":
        return _read_jsonl(path)
    first = next((line for line in read_lines(path) if line.strip()), "")
    if not first:
        raise DataError(f"{path}: the file is empty, expected captions")
    if _TOKEN_LINE.fullmatch(first):
        return _read_tokens(path)
    return _read_table(path, first)


def _read_tokens(path: Path) -> CaptionSet:
    found = _Collector(path, "tokens")
    split_of = _flickr_lists(path.parent)
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        match = _TOKEN_LINE.fullmatch(line)
        if not match:
            found.skip(f"line {number}", "expected: name.jpg#0, a tab, the caption")
            continue
        file = match["file"].strip()
        image_id = id_of_file(file)
        if split_of and image_id not in split_of:
            if image_id not in found:
                found.skip(f"line {number}", f"image {file} is in no split list")
            continue
        found.image(image_id, split=split_of.get(image_id, "train"), file=file)
        found.caption(image_id, match["caption"], f"line {number}")
    return found.finish()


def _flickr_lists(folder: Path) -> dict[str, str]:
    """Split of each image by the lists beside a token file: `Flickr_8k.devImages.txt`, or `train.txt` and so
    on."""
    split_of: dict[str, str] = {}
    for item in sorted(folder.glob("*.txt")):
        match = re.fullmatch(r"(?:.*\.)?(train|dev|val|test)(?:images)?", item.stem.lower())
        if match:
            split_of.update((id_of_file(line.strip()), match.group(1)) for line in read_lines(item) if line.strip())
    return split_of


def _read_table(path: Path, header: str) -> CaptionSet:
    delimiter = next((mark for mark in ("\t", "|", ",", ";") if mark in header), ",")
    # Flickr30k's table with bars has quotes that are only part of a caption.
    quotechar = None if delimiter == "|" else '"'
    lines = (f"{line}\n" for line in read_lines(path))
    try:
        table = enumerate(csv.reader(lines, delimiter=delimiter, quotechar=quotechar), start=1)
        rows = [(number, [cell.strip() for cell in row]) for number, row in table if any(map(str.strip, row))]
    except csv.Error as error:
        raise DataError(f"{path}: not a table of captions: {error}") from None
    names = [name.lower() for name in rows[0][1]]
    records = ((f"row {number}", dict(zip(names, row, strict=False))) for number, row in rows[1:])
    return _from_records(path, names, records)


def _read_jsonl(path: Path) -> CaptionSet:
    names: set[str] = set()
    records: list[tuple[str, dict[str, Any]]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise DataError(f"{path}: line {number} must be an object with 'file' and 'caption'")
        record = {str(key).lower(): item for key, item in value.items()}
        names.update(record)
        records.append((f"line {number}", record))
    if not records:
        raise DataError(f"{path}: the file is empty, expected captions")
    return _from_records(path, list(names), records)


def _from_records(path: Path, names: list[str], records: Iterable[tuple[str, dict[str, Any]]]) -> CaptionSet:
    """Records with a file and a caption (or, in JSON, a list of captions), and maybe a split and an id."""
    file_column = next((name for name in _FILE_COLUMNS if name in names), None)
    caption_column = next((name for name in _CAPTION_COLUMNS if name in names), None)
    if not file_column or not caption_column:
        got = ", ".join(repr(name[:30]) for name in sorted(names)[:6])
        raise DataError(f"{path}: expected the columns 'file' and 'caption' (and 'split', if wanted), got {got}")
    found = _Collector(path, "table")
    for where, record in records:
        file, caption = record.get(file_column), record.get(caption_column)
        if not isinstance(file, str) or not file.strip():
            found.skip(where, f"has no {file_column!r}")
            continue
        if caption is None:
            found.skip(where, f"has no {caption_column!r}")
            continue
        file = file.strip()
        image_id = id_text(record.get("id")) or id_text(record.get("image_id")) or id_of_file(file)
        if image_id in found and found.file_of(image_id) != file:
            found.skip(
                where, f"{file} and {found.file_of(image_id)} would both be image {image_id!r}; add an 'id' column"
            )
            continue
        split = record.get("split")
        found.image(image_id, split=split if isinstance(split, str) and split.strip() else "train", file=file)
        tokens = record.get("tokens")
        for place, item in enumerate(caption if isinstance(caption, list) else [caption]):
            own = tokens[place] if isinstance(tokens, list) and place < len(tokens) else None
            found.caption(image_id, item, where, own)
    return found.finish()
