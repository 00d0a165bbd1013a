"""Pictures of images that files of captions name: found in a folder, and made small for pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from xlan.cli.text import counted
from xlan.errors import DataError, ImageError

SIDE = 400
PICTURES_HELP = "Folder with the pictures, to show them beside the captions."


def match_pictures(folder: Path, names: Mapping[int | str, Iterable[str]]) -> dict[int | str, Path]:
    """The picture of each image that has one.

    Args:
        folder: searched with all its folders.
        names: for each image what else its picture may be called. Folder and ending need not agree, and a number also
            matches the file name that COCO gives it.

    Raises:
        DataError: there is no such folder.
    """
    from xlan.metrics.coco import coco_number, picture_names, plain_id
    from xlan.vision.sources import walk_pictures

    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of pictures")
    wanted: dict[int | str, list[int | str]] = {}
    for image, several in names.items():
        for name in (part for one in (str(image), *several) for part in picture_names(one)):
            wanted.setdefault(plain_id(name), []).append(image)
    found: dict[int | str, Path] = {}
    for path in walk_pictures(folder):
        keys = [*map(plain_id, picture_names(path.relative_to(folder).as_posix())), coco_number(path.name)]
        for image in (image for key in keys if key is not None for image in wanted.get(key, [])):
            found.setdefault(image, path)
    return found


def find_thumbnails(
    folder: Path, names: Mapping[int | str, Iterable[str]], *, note: Callable[[str], None]
) -> dict[int | str, str]:
    """The pictures of some images as `data:` addresses; `note` gets one line that says how many are missing."""
    from xlan.pages.layout import thumbnail
    from xlan.vision.image import open_image

    found: dict[int | str, str] = {}
    for image, path in match_pictures(folder, names).items():
        try:
            found[image] = thumbnail(open_image(path, min_side=SIDE), side=SIDE)
        except ImageError:
            continue
    if missing := len(names) - len(found):
        note(f"{folder}: no usable picture for {counted(missing, 'image')} of {len(names):,}")
    return found
