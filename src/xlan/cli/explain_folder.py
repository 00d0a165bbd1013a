"""The folder behind `xlan caption --explain`: a page per picture, written when its caption is known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlan.cli.caption_file import check_made_with
from xlan.cli.explain import open_for_page
from xlan.cli.pictures import STDIN

if TYPE_CHECKING:
    from xlan.types import Caption

# Many file systems allow 255 bytes in a name; a letter takes up to 4 of them.
MOST_LETTERS = 48


class ExplainFolder:
    """A folder of explanation pages; the next run continues where the last one stopped.

    Args:
        folder: made when it is missing.
        model: what to call the model on the pages.
        drawn: whether captions are drawn at random.
        made_with: model and options as JSON values; a folder of pages that were made with others is refused.
        overwrite: write pages again that already exist.

    Attributes:
        written: pages written so far.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: str,
        drawn: bool,
        made_with: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.folder = folder
        self.written = 0
        self._model = model
        self._drawn = drawn
        self._bytes: dict[str, bytes] = {}  # of pictures on their way through the model that no file holds
        self._overwrite = overwrite
        folder.mkdir(parents=True, exist_ok=True)
        if made_with is not None:
            is_new = overwrite or not any(folder.glob("*.html"))
            check_made_with(folder / ".made-with.json", made_with, folder, is_new=is_new)

    def path_of(self, name: str) -> Path:
        """Where the page of a picture is."""
        return self.folder / page_name(name)

    def has(self, name: str) -> bool:
        """Whether a picture has its page; never for standard input, which is another picture each time."""
        return not self._overwrite and name != STDIN and self.path_of(name).is_file()

    def remember(self, pictures: Iterable[tuple[str, Path | bytes]]) -> Iterator[tuple[str, Path | bytes]]:
        """Pass pictures on to the model, and keep until `add` what could not be read again."""
        for name, source in pictures:
            if isinstance(source, bytes):
                self._bytes[name] = source
            yield name, source

    def add(self, name: str, caption: Caption) -> None:
        """Write the page of a picture that `remember` has passed on.

        Raises:
            ImageError: the picture was removed, or cannot be opened any more.
        """
        from xlan.files import write_text
        from xlan.pages.explanation import Account, explanation_page

        image = open_for_page(self._bytes.pop(name, Path(name)), name)
        title = "standard input" if name == STDIN else Path(name).name
        page = explanation_page(image, title, [Account(self._model, caption, self._drawn)])
        write_text(self.path_of(name), page)
        self.written += 1


def page_name(name: str) -> str:
    """A file name for the page of a picture: readable, valid everywhere, and unique.

    Letters and digits of any script stay; whatever could leave the folder or trick a reader becomes a hyphen. Twelve
    digits of a hash of the whole name keep `a/1.jpg` and `b/1.jpg` apart.
    """
    if name == STDIN:
        return "standard-input.html"
    stem = "".join(c if c.isalnum() or c in "_." else "-" for c in Path(name).stem)
    digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{stem[:MOST_LETTERS].strip('-.') or 'picture'}-{digits}.html"
