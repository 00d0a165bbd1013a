"""The pictures of captioned images."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from xlan.data.captions import load_captions
from xlan.files import is_json
from xlan.vision.sources import Picture, PictureFolder, karpathy_pictures


def captioned_pictures(
    path: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    on_missing: Callable[[str], None],
) -> list[Picture]:
    """Pictures with their splits and captions, of captions in any form that training takes.

    Args:
        path: the captions; a JSON file is Karpathy's, which may name tar shards too (see `karpathy_pictures`).
        folder: where the pictures are, with all subfolders, found by file name or by id; the folder of the captions
            when absent.
        on_missing: told the id of each image whose picture is not there; it is left out of the list.

    Raises:
        DataError: the captions cannot be read, there is no such folder, or two pictures could be meant.
    """
    source = Path(path)
    if is_json(source):
        return karpathy_pictures(source, folder=folder, on_missing=on_missing)
    captions = load_captions(source)
    beside = source if source.is_dir() else source.parent
    finder = PictureFolder(beside if folder is None else folder)
    pictures = []
    for image in captions:
        if (place := finder.find(image.id, image.file)) is None:
            on_missing(image.id)
        else:
            pictures.append(Picture(image.id, str(place), place, split=image.split, captions=image.captions))
    return pictures
