"""Pictures for pages: found in a folder by the names that captions and references use, and made small."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from xlan.cli.text import counted
from xlan.errors import DataError, ImageError

SIDE = 400
PICTURES_HELP = "Folder with the pictures, to show them beside the captions."


def find_thumbnails(
    folder: Path, names: Mapping[int | str, Iterable[str]], *, note: Callable[[str], None]
) -> dict[int | str, str]:
    """The pictures of some images as `data:` addresses.

    Args:
        folder: searched with all its folders.
        names: for each image what its picture may be called, likeliest first; folder and ending need not agree, and a
            number also matches the file name that COCO gives it.
        note: told in one line which pictures are missing.

    Raises:
        DataError: there is no such folder.
    """
    from xlan.metrics.coco import coco_number, picture_names, plain_id
    from xlan.pages.layout import thumbnail
    from xlan.vision.image import open_image

    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder with pictures, there is none")
    wanted: dict[int | str, list[int | str]] = {}
    for image, several in names.items():
        for name in (image, *(part for one in several for part in picture_names(one))):
            wanted.setdefault(plain_id(str(name)), []).append(image)
    found: dict[int | str, str] = {}
    for base, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            path = Path(base, file)
            keys = [*map(plain_id, picture_names(path.relative_to(folder).as_posix())), coco_number(file)]
            for image in (image for key in keys if key is not None for image in wanted.get(key, [])):
                if image not in found:
                    try:
                        found[image] = thumbnail(open_image(path, min_side=SIDE), side=SIDE)
                    except ImageError:
                        continue
        if len(found) == len(names):
            break
    if missing := len(names) - len(found):
        note(f"{folder}: no usable picture for {counted(missing, 'image')} of {len(names):,}")
    return found
