"""Where two sets of captions differ in CIDEr: in what they begin with, usually the subject, or in what follows.

    python runs/same_start.py CAPTIONS A.json B.json... [--split test] [--words 2]

Pictures whose captions in A and B begin with the same words are counted apart from the others. Prints a table in
Markdown, a row for each B: its difference to A in points of CIDEr, and how much of that each group of pictures gives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from xlan.data.captions import load_captions
from xlan.errors import DataError, XlanError
from xlan.metrics.coco import load_results, plain_id
from xlan.metrics.report import evaluate


class Difference(NamedTuple):
    """In points of CIDEr, B minus A.

    Attributes:
        same: share of the pictures whose captions begin alike.
        from_same: what these give of the whole difference.
        from_others: what the others give.
    """

    same: float
    from_same: float
    from_others: float


def difference(
    first: Mapping[int | str, str],
    second: Mapping[int | str, str],
    references: Mapping[int | str, Sequence[str]],
    *,
    words: int,
) -> Difference:
    """Compare the captions of the pictures that both sets have."""
    images = [image for image in first if image in second and image in references]
    if not images:
        raise DataError("the two sets of captions have no picture in common that has references")
    known = {image: list(references[image]) for image in images}
    a, b = (evaluate({i: one[i] for i in images}, known, metrics=("cider",)) for one in (first, second))
    names = list(a.images)
    before, after = a.scores["CIDEr"].images, b.scores["CIDEr"].images
    assert before is not None
    assert after is not None
    gain = 100 * (after - before) / len(names)
    alike = np.array([first[i].split()[:words] == second[i].split()[:words] for i in names])
    return Difference(float(alike.mean()), float(gain[alike].sum()), float(gain[~alike].sum()))


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Differences in CIDEr by how captions begin.")
    parser.add_argument("captions", help="people's captions, with splits")
    parser.add_argument("first", help="captions to compare with, as `xlan predict` writes them")
    parser.add_argument("others", nargs="+")
    parser.add_argument("--split", default="test")
    parser.add_argument("--words", type=int, default=2, help="how many words are the beginning")
    given = parser.parse_args(arguments)
    images = load_captions(given.captions).split(given.split)
    references = {plain_id(image.id): image.captions for image in images}
    print(f"| against {given.first} | CIDEr | pictures that begin alike | of these | of the others |")
    print("|---|---|---|---|---|")
    for other in given.others:
        found = difference(load_results(given.first), load_results(other), references, words=given.words)
        whole = found.from_same + found.from_others
        print(f"| {other} | {whole:+.2f} | {found.same:.1%} | {found.from_same:+.2f} | {found.from_others:+.2f} |")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except XlanError as error:
        sys.exit(f"error: {error}")
