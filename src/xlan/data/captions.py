"""`load_captions(path)`: look at a file or folder, find out which form of captions it has, and read it.

The forms are described in `xlan.data.readers`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from xlan.data.readers import read_json_form, read_lines, read_text_form
from xlan.data.records import CaptionedImage, CaptionSet
from xlan.errors import DataError
from xlan.files import is_json, write_text
from xlan.karpathy import Skipped, id_of_file, split_name
from xlan.text.tokenize import tokenize
from xlan.text.vocab import Vocabulary

Tokens = Literal["file", "plain"]
_TABLE_NAMES = ("captions.csv", "captions.tsv", "captions.jsonl", "captions.txt", "results.csv")


def load_captions(
    path: str | os.PathLike[str],
    *,
    split_lists: Mapping[str, str | os.PathLike[str]] | None = None,
    tokens: Tokens = "file",
) -> CaptionSet:
    """Read captions from a file or folder of any form we know, found out by looking at it.

    Args:
        path: Karpathy's `dataset_*.json`; COCO's `captions_*.json` (either may be compressed, `.gz` or `.xz`); a
            Flickr token file; `captions.csv`, `.tsv`, `.jsonl`; or a folder that holds one of them.
        split_lists: for forms without splits: for each split, a text file with one image name a line.
            Flickr's own lists beside a token file are found without being named.
        tokens: "file" takes the words that the file itself gives with a caption, where it does; "plain" ignores them
            and splits every caption by `xlan.text.tokenize`.

    Raises:
        DataError: nothing usable is there; the message says what was looked for.
    """
    found = _read(Path(path))
    if not found.images:
        first = (
            f"; the first entry left out: {found.skipped[0].where}: {found.skipped[0].reason}" if found.skipped else ""
        )
        raise DataError(
            f"{path}: no captions in it ({found.form} form, {len(found.skipped):,} entries left out){first}"
        )
    if tokens == "plain":
        found = _plain(found)
    return _apply_lists(found, split_lists) if split_lists else found


def _plain(captions: CaptionSet) -> CaptionSet:
    """The same captions, split into words by our own rule; a caption without such words is left out."""
    images: list[CaptionedImage] = []
    left: list[Skipped] = []
    for image in captions:
        kept = [(caption, words) for caption in image.captions if (words := tokenize(caption))]
        if len(kept) < len(image.captions):
            left.append(Skipped(f"image {image.id}", f"{len(image.captions) - len(kept)} captions have no words"))
        if kept:
            texts = tuple(caption for caption, _ in kept)
            images.append(replace(image, captions=texts, words=tuple(words for _, words in kept)))
    return replace(captions, images=tuple(images), skipped=(*captions.skipped, *left))


def build_vocabulary(captions: CaptionSet, split: str | None, *, threshold: int, tokens: Tokens) -> Vocabulary:
    """Count the words of a split, or of all splits (None), and remember in the vocabulary how it was done.

    The paper's 9,487 words are counted over all splits, with the tokens of the split file.

    Args:
        captions: as `load_captions` read them with `tokens`.
        split: what to count.
        threshold: keep words that occur at least this often.
        tokens: how the captions were split into words.
    """
    where = "all splits" if split is None else f"split {split}"
    how = "plain tokens" if tokens == "plain" else "tokens of the file, plain ones where it has none"
    origin = f"words that occur {threshold} times or more in {where} ({how})"
    return Vocabulary.build(captions.words(split), threshold=threshold, origin=origin)


def write_captions(path: str | os.PathLike[str], captions: CaptionSet) -> None:
    """Write a caption set as JSON lines, atomically; `load_captions` reads the same images back."""

    def record(image: CaptionedImage) -> dict[str, object]:
        own_words = [list(words) for words in image.words]
        plain = own_words == [list(tokenize(caption)) for caption in image.captions]
        base: dict[str, object] = {
            "file": image.file or image.id,
            "id": image.id,
            "split": image.split,
            "caption": list(image.captions),
        }
        return base if plain else base | {"tokens": own_words}

    write_text(path, "".join(json.dumps(record(image), ensure_ascii=False) + "\n" for image in captions))


def _read(path: Path) -> CaptionSet:
    """Read a file or folder by the form it has."""
    try:
        if path.is_dir():
            return _read_folder(path)
        if is_json(path):
            return read_json_form(path)
        return read_text_form(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read_folder(folder: Path) -> CaptionSet:
    names = sorted(item.name for item in folder.iterdir() if item.is_file() and not item.name.startswith("."))
    ways: list[tuple[str, Callable[[str], bool]]] = [
        ("a Karpathy file", lambda name: name.startswith("dataset") and is_json(name)),
        ("COCO annotations", lambda name: name.startswith("captions_") and is_json(name)),
        ("a token file", lambda name: re.search(r"\.token(\.txt)?$", name) is not None),
        ("a table", lambda name: name.lower() in _TABLE_NAMES),
    ]
    for what, matches in ways:
        found = [folder / name for name in names if matches(name)]
        if what == "a token file":  # Flickr8k has a lemmatised copy beside the original
            found = [item for item in found if "lemma" not in item.name and "crowd" not in item.name.lower()] or found
        if what == "COCO annotations" and found:
            return _merge(folder, [read_json_form(item) for item in found])
        if len(found) > 1:
            some = ", ".join(item.name for item in found)
            raise DataError(f"{folder}: more than one file could be the captions ({some}); name one of them")
        if found:
            return _read(found[0])
    looked = "dataset*.json, captions_*.json, *.token.txt, " + ", ".join(_TABLE_NAMES)
    raise DataError(f"{folder}: no captions found; looked for {looked}")


def _merge(folder: Path, parts: list[CaptionSet]) -> CaptionSet:
    seen: dict[str, str] = {}
    for part in parts:
        for image in part.images:
            if (other := seen.setdefault(image.id, part.source)) != part.source:
                raise DataError(f"{part.source}: image {image.id} is in {other} too; name one file")
    images = tuple(image for part in parts for image in part.images)
    return CaptionSet(images, str(folder), "coco", tuple(entry for part in parts for entry in part.skipped))


def _apply_lists(captions: CaptionSet, lists: Mapping[str, str | os.PathLike[str]]) -> CaptionSet:
    chosen: dict[str, str] = {}
    for split, path in lists.items():
        for line in read_lines(Path(path)):
            name = line.strip()
            if name and chosen.setdefault(id_of_file(name), split_name(split)) != split_name(split):
                raise DataError(f"{path}: image {name!r} is in the list of another split too")
    images: list[CaptionedImage] = []
    left: list[Skipped] = []
    for image in captions.images:
        new = chosen.get(image.id) or chosen.get(id_of_file(image.file))
        if new:
            images.append(replace(image, split=new))
        else:
            left.append(Skipped(f"image {image.id}", "in no split list"))
    if not images:
        raise DataError(f"{captions.source}: none of the {len(chosen):,} names in the split lists is among its images")
    return replace(captions, images=tuple(images), skipped=(*captions.skipped, *left))
