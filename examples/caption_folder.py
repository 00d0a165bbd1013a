"""Write alt text for a folder of pictures: a CSV file with a sentence for each, those to check by hand marked.

    python examples/caption_folder.py photos/ -o alt.csv

`xlan caption photos/ -o alt.csv` does the same and resumes when it was interrupted; this shows how from Python.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from xlan import Captioner, XlanError

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}


def main(arguments: list[str] | None = None) -> int:
    """Caption the folder; returns the exit status: 1 when a picture could not be read."""
    parser = argparse.ArgumentParser(description="Write a sentence for every picture of a folder to a CSV file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("alt.csv"))
    parser.add_argument("--model", help="a model directory (default: the model that comes with xlan)")
    parser.add_argument("--check-below", type=float, default=0.5, help="mark sentences with a lower confidence")
    options = parser.parse_args(arguments)

    captioner = Captioner.from_pretrained(options.model)
    paths = sorted(path for path in options.folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    # Pictures are opened by threads and captioned in batches; memory does not grow with the folder.
    pictures = ((path.relative_to(options.folder).as_posix(), path) for path in paths)
    failed = 0
    with options.output.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", "alt", "confidence", "check"])
        for name, caption in captioner.caption_many(pictures):
            if isinstance(caption, XlanError):  # one broken picture does not stop the others
                failed += 1
                print(caption, file=sys.stderr)
                continue
            check = "yes" if caption.confidence < options.check_below else ""
            table.writerow([name, caption.text, f"{caption.confidence:.2f}", check])
    print(f"{options.output}: {len(paths) - failed} of {len(paths)} pictures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
