"""Caption five photographs, and your own: `make caption`, `make caption IMAGE=holiday.jpg`, `IMAGE='holiday/*.jpg'`.

The photographs come with scikit-image (`pip install "xlan[demo]"`); nothing is fetched. The captions are printed and
written to captions.html with the pictures; from there, a page for each picture shows where the model looked.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from PIL import Image

from xlan import Captioner, CaptionOptions, XlanError
from xlan.cli.explain_folder import page_name
from xlan.cli.pictures import find_pictures
from xlan.files import write_text
from xlan.pages.explanation import Account, explanation_page
from xlan.pages.layout import thumbnail
from xlan.pages.sheet import Entry, caption_sheet
from xlan.threads import leave_a_core
from xlan.vision.image import open_image

PHOTOS = {
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "rocket": "rocket.jpg",
    "astronaut": "astronaut.png",
    "motorcycle": "motorcycle_left.png",
}
OPTIONS = CaptionOptions(attention=True, runners_up=3)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description="Caption sample pictures and your own, and write captions.html.")
    parser.add_argument("images", nargs="*", help="pictures of yours: files, folders, globs")
    parser.add_argument("--output", type=Path, default=Path("captions.html"), help="the page to write")
    options = parser.parse_args(arguments)
    captioner = Captioner.from_pretrained(threads=leave_a_core())
    captioner.caption(Image.new("RGB", (8, 8)), OPTIONS)  # what is set up in the first call is not timed
    entries: list[Entry] = []
    problems: list[str] = []
    explanations = options.output.with_suffix("")
    explanations.mkdir(parents=True, exist_ok=True)
    for name, picture in [*photographs(), *find_pictures(options.images, problems.append)]:
        try:
            entry = caption_one(captioner, name, picture, explanations)
        except XlanError as error:
            problems.append(str(error))
            continue
        entries.append(entry)
        print(f"{name:<12} {entry.caption.text}  (confidence {entry.caption.confidence:.2f}, {entry.seconds:.2f} s)")
    model = "The model that comes with xlan, beam search of width 3."
    write_text(options.output, caption_sheet(entries, title="What xlan says", model=model))
    print(f"\nwritten: {options.output}, with a page for each picture in {explanations}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def caption_one(captioner: Captioner, name: str, picture: Path | bytes, explanations: Path) -> Entry:
    """Caption one picture, with the time it took from opening to sentence, and explain it on a page."""
    began = time.perf_counter()
    caption = captioner.caption(picture, OPTIONS)
    seconds = time.perf_counter() - began
    image = open_image(picture)
    page = explanations / page_name(name)
    write_text(page, explanation_page(image, Path(name).name, [Account("xlan", caption)]))
    return Entry(name, thumbnail(image), caption, seconds, f"{explanations.name}/{page.name}")


def photographs() -> list[tuple[str, Path]]:
    """The five photographs inside the installed scikit-image."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise SystemExit('the sample photographs come with scikit-image; type: pip install "xlan[demo]"')
    folder = Path(spec.origin).parent / "data"
    return [(name, folder / file) for name, file in PHOTOS.items()]


if __name__ == "__main__":
    sys.exit(main())
