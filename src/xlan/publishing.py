"""A model directory → a repository on the Hub, with a card that says what it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xlan.errors import HubError
from xlan.files import read_json
from xlan.hub.card import evaluation, with_metadata
from xlan.hub.names import parse_name
from xlan.hub.upload import upload
from xlan.pretrained import CARD, CONFIG, DEFAULT_CARD, DETECTOR_FILES, MAX_CARD_BYTES, read_model_directory


@dataclass(frozen=True)
class Pushed:
    """What is on the Hub now.

    Attributes:
        url: the page of the repository.
        pinned: `owner/name@commit`, which names exactly these files for ever.
        files: names of the files.
    """

    url: str
    pinned: str
    files: list[str]


def push_model(
    directory: str | os.PathLike[str],
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    license: str | None = None,  # noqa: A002  what everybody calls it
    datasets: Sequence[str] = (),
    scores: str | os.PathLike[str] | None = None,
    scored_on: str | None = None,
    message: str | None = None,
) -> Pushed:
    """Upload a model directory to the Hub, in one commit.

    Args:
        directory: a model directory on this machine; its files are compared with their hashes first.
        name: `owner/name`; the repository is created when there is none.
        private: create it so that only its owner sees it; a public one that exists is refused.
        revision: the branch to commit to, created when there is none; default: the main one.
        license: identifier of the license of the weights, for the card.
        datasets: what the model was trained on, by their names on the Hub, for the card.
        scores: a file with what `xlan evaluate --json` printed, for the card.
        scored_on: the name of the data these are scores of, such as "COCO, Karpathy's test split".
        message: of the commit.

    Raises:
        ModelError: not a valid model directory.
        DataError: the card or the file with scores cannot be used.
        HubError: the upload did not work; nothing is changed on the Hub.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    target = parse_name(name)
    if target is None:
        raise HubError(f"expected owner/name, the name of a repository on the Hub, got {name!r}")
    target = target.at(revision)
    if not Path(directory).is_dir():
        raise HubError(f"{directory}: no such folder; only a model directory on this machine can be uploaded")
    if (scores is None) != (scored_on is None):
        raise HubError("give the file with scores together with the name of the data they were measured on")
    found = read_model_directory(directory, verify=True)
    results = None
    if scores is not None and scored_on is not None:
        results = evaluation(read_json(scores, max_bytes=MAX_CARD_BYTES), scored_on, source=os.fspath(scores))
    card = with_metadata(
        found.card or DEFAULT_CARD,
        license=license,
        datasets=datasets,
        results=results,
        name=target.repository.partition("/")[2],
    )
    names = [CONFIG, *found.hashes, *(file for file in DETECTOR_FILES if (found.path / file).is_file())]
    files: dict[str, Path | bytes] = {file: found.path / file for file in names}
    files[CARD] = card.encode("utf-8", errors="backslashreplace")
    url, pinned = upload(
        target, files, private=private, message=message or f"Model directory of xlan: {len(files)} files"
    )
    return Pushed(url, str(pinned), list(files))
